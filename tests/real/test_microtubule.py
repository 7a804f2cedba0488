"""A measured microtubule: boxes along its axis, aligned to their own average, show the repeat of tubulin."""

from pathlib import Path
from typing import Any

import mrcfile
import numpy as np
import pytest
import tifffile
from numpy.typing import NDArray

from dtomo.io.particles import Particles, write_particles
from dtomo.settings import AlignSettings
from dtomo.subtomo import refine
from dtomo.subtomo.align import Pass, run_pass
from dtomo.subtomo.inputs import open_inputs

DATA = Path(__file__).resolve().parents[2] / ".." / "shared" / "data" / "microtubule_13pf"
pytestmark = pytest.mark.skipif(not DATA.exists(), reason="the measured data lie beside the project, not in it")

PIXEL = 1.052
"""nm"""
ENDS = np.array([[18.97, 190.0, 28.99], [18.97, 107.8, 51.48]]) / PIXEL
"""Of the axis, voxels (z, y, x)."""
SPACING, BOX = 1.3, 32
"""Voxels; the repeat, 3.9 voxels, is not to be seen in the spacing: it is a multiple, but shifts are free."""


def layer_line(volume: NDArray[Any]) -> tuple[float, float]:
    """Strongest period along z between 3 and 6 nm, and its power."""
    windowed = (volume - volume.mean()) * np.hanning(BOX)[:, None, None]
    power = (np.abs(np.fft.rfft(windowed, 512, axis=0)) ** 2).sum((1, 2))
    frequency = np.arange(len(power)) / 512 / PIXEL
    inside = np.flatnonzero((frequency > 1 / 6) & (frequency < 1 / 3))
    best = inside[power[inside].argmax()]
    return float(1 / frequency[best]), float(power[best])


@pytest.mark.slow
def test_the_repeat_of_tubulin_comes_out(tmp_path):
    with mrcfile.new(tmp_path / "tomogram.mrc") as file:
        file.set_data(tifffile.imread(DATA / "13pf_MT.tif").astype(np.float32))
        file.voxel_size = 10 * PIXEL
    length = np.linalg.norm(ENDS[1] - ENDS[0])
    along = (ENDS[1] - ENDS[0]) / length
    places = ENDS[0] + np.arange(0, length, SPACING)[:, None] * along
    axis, across = along[::-1], np.array([0.0, 0.0, 1.0])  # (x, y, z); the particle's x is the beam
    frame = np.stack([across, np.cross(axis, across), axis], 1)
    count = len(places)
    write_particles(
        tmp_path / "list.star",
        Particles(
            rotations=np.repeat(frame[None], count, 0),
            shifts=np.zeros((count, 3)),
            positions=places[:, ::-1].copy(),
            tomograms=["tomogram"] * count,
            voxel_sizes=np.full(count, 10 * PIXEL),
        ),
    )
    settings = AlignSettings(
        particle_list=tmp_path / "list.star", output=tmp_path / "out", tomograms=tmp_path / "tomogram.mrc", box=BOX,
        pixel_size=10 * PIXEL, particle_diameter=260, tilts="-60:60", low_pass=30, max_shift=4, angle_shells=2,
        adaptive=False, rotation_prior=4,
    )  # fmt: skip
    inputs = open_inputs(settings)
    lying = run_pass(Pass(inputs.fixed.boxes, inputs.poses, inputs.fixed.weights))
    before = refine.whole_average(refine.compared(inputs.fixed, lying, settings, refine.Step(0, inputs.poses, ())))
    step = refine.begin(inputs.fixed, inputs.poses, inputs.references, settings)
    for _ in range(2):
        step = refine.next_step(inputs.fixed, step, settings)
    after = refine.whole_average(step)
    period, power = layer_line(after)
    assert 3.9 < period < 4.3
    assert power > 2 * layer_line(before)[1]
    wall, middle = (after[:, BOX // 2 - 2 : BOX // 2 + 2, at].mean() for at in (slice(6, 10), slice(14, 18)))
    assert wall > middle  # a tube: protein is bright
