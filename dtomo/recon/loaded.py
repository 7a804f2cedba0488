"""Imported by the server that workers are forked from: kernels compiled before are loaded there, once for all.

Every worker would otherwise load them from disk with its first slab. Where nothing is compiled yet nothing is done: the
workers then compile what they need.
"""

from pathlib import Path

import numpy as np

from dtomo import prep
from dtomo.algorithms import fbp
from dtomo.geometry import ParallelBeam
from dtomo.kernels.compiling import cache_folder
from dtomo.settings import ZINGERS
from dtomo.threads import get_threads, set_threads


def load_kernels() -> None:
    """Take a tiny scan to slices, with the steps that a run takes by default, on one thread.

    A process that is to be forked must not have other threads.
    """
    before = get_threads()
    set_threads(1)
    angles = np.arange(0.0, 180.0, 20.0)
    counts = np.full((angles.size, 64, 16), 900, np.uint16)
    flats, darks = np.full((2, 64, 16), 1000, np.uint16), np.full((2, 64, 16), 10, np.uint16)
    bad = prep.find_bad_pixels(flats, darks)
    values, _ = prep.normalize(counts, flats, darks, bad_pixels=bad)
    values, _ = prep.remove_outliers(values, threshold=ZINGERS, kind="bright")
    values, _ = prep.minus_log(values, out=values)
    values = prep.remove_stripes(values, method="combined", out=values)
    fbp(values, ParallelBeam(angles, 16))
    set_threads(before)


if any(Path(cache_folder()).rglob("*.nbi")):
    load_kernels()
