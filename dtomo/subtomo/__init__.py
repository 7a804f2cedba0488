"""Subtomograms: aligned to a reference, averaged, and what their average resolves.

`run` goes from a particle list to averages and a refined list, `average` from a list to its average, `half_curve` from
two averages to their resolution; `Reference` scores a particle at many rotations. They are loaded on first use.
"""

import importlib as _importlib
from typing import TYPE_CHECKING

__all__ = [
    "AlignRun",
    "HalfCurve",
    "Reference",
    "average",
    "half_curve",
    "local_rotations",
    "run",
    "symmetry_group",
    "uniform_rotations",
]

if TYPE_CHECKING:
    from dtomo.kernels.matching import Reference
    from dtomo.subtomo.comparison import HalfCurve, half_curve
    from dtomo.subtomo.job import AlignRun, run
    from dtomo.subtomo.job import average_run as average
    from dtomo.subtomo.rotations import local_rotations, uniform_rotations
    from dtomo.subtomo.symmetry import symmetry_group

_WHERE = {
    "AlignRun": ("dtomo.subtomo.job", "AlignRun"),
    "HalfCurve": ("dtomo.subtomo.comparison", "HalfCurve"),
    "Reference": ("dtomo.kernels.matching", "Reference"),
    "average": ("dtomo.subtomo.job", "average_run"),
    "half_curve": ("dtomo.subtomo.comparison", "half_curve"),
    "local_rotations": ("dtomo.subtomo.rotations", "local_rotations"),
    "run": ("dtomo.subtomo.job", "run"),
    "symmetry_group": ("dtomo.subtomo.symmetry", "symmetry_group"),
    "uniform_rotations": ("dtomo.subtomo.rotations", "uniform_rotations"),
}


def __getattr__(name: str) -> object:
    if name not in _WHERE:
        raise AttributeError(f"module 'dtomo.subtomo' has no attribute {name!r}")
    module, inside = _WHERE[name]
    return getattr(_importlib.import_module(module), inside)


def __dir__() -> list[str]:
    return list(__all__)
