"""What is said of joint scans, and refused, before anything is reconstructed."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dtomo.distributed.clusters import Resources
from dtomo.errors import UserError
from dtomo.io.ptychotomo import write_ptychotomo
from dtomo.ptychotomo import scans
from dtomo.ptychotomo.cost import make_plan, sizes_of
from dtomo.ptychotomo.signs import wrong_sign
from dtomo.settings import JointSettings

LENGTHS = {"pixel_size": 1e-8, "wavelength": 1.4e-10, "distance": 2.0}


def opened(path: Path, angles: list[float], lengths: dict[str, float] = LENGTHS, **asked: Any) -> Any:
    """A scan with four frames at each angle but the last one, and settings."""
    random = np.random.default_rng(0)
    count = 4 * (len(angles) - 1)
    write_ptychotomo(
        path,
        random.poisson(50, (count, 8, 8)).astype(np.uint32),
        angles=angles,
        angle_of_frame=np.repeat(np.arange(len(angles) - 1), 4),
        positions=random.uniform(0, 12, (count, 2)),
        image_shape=(20, 20),
        frame_shape=(8, 8),
        attributes=lengths,
    )
    settings = JointSettings(scan=path, output=path.with_suffix(".zarr"), **asked)
    return scans.open_joint(settings).data, settings


def test_angles_without_frames_or_there_twice_and_unknown_lengths_are_said(tmp_path: Path) -> None:
    data, settings = opened(tmp_path / "a.h5", [0.0, 45.0, 90.0, 45.0, 120.0], {})
    said = " ".join(scans.doubts(data, settings))
    for part in ("1 of 5 angles have no frames", "number 4 (120 degrees)", "numbers 1 and 3", "radians per voxel"):
        assert part in said
    data, settings = opened(tmp_path / "b.h5", [0.0, 45.0, 90.0])
    said = " ".join(scans.doubts(data, settings))
    assert "radians per voxel" not in said
    assert "there before" not in said


def test_plans_count_halves_checkpoints_and_tasks(tmp_path: Path) -> None:
    data, settings = opened(tmp_path / "a.h5", [0.0, 45.0, 90.0])
    sizes = sizes_of(settings, data)
    halved = sizes_of(settings.model_copy(update={"halves": True}), data)
    assert halved.passes == 2 * sizes.passes == 120
    volume = 20**3
    assert sizes.on_disk == 8 * volume + 3 * sizes.voxel * volume
    never = settings.model_copy(update={"checkpoint_every": "never"})
    assert sizes_of(never, data).on_disk == 8 * volume
    here, spread = (make_plan(sizes, Resources(workers, 1, 10**9)).seconds for workers in (1, 2))
    assert "tasks" not in here
    assert spread["tasks"] > 0


def test_halves_take_four_angles(tmp_path: Path) -> None:
    data, settings = opened(tmp_path / "a.h5", [0.0, 60.0, 120.0], halves=True)
    with pytest.raises(UserError, match="the scan has 3"):
        scans.check_halves(data, settings)
    scans.check_halves(*opened(tmp_path / "b.h5", [0.0, 45.0, 90.0, 135.0], halves=True))
    scans.check_halves(*opened(tmp_path / "c.h5", [0.0, 60.0, 120.0]))


@pytest.mark.parametrize("center", [-0.5, 19.5, 500.0])
def test_an_axis_outside_of_the_images_is_refused(tmp_path: Path, center: float) -> None:
    with pytest.raises(UserError, match="outside of images of 20 columns"):
        opened(tmp_path / "a.h5", [0.0, 45.0, 90.0], center=center)


def test_the_sign_to_try_is_the_other_one() -> None:
    assert "try --sign -1" in wrong_sign(1)
    assert "try --sign 1" in wrong_sign(-1)
