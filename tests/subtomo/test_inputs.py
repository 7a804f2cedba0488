"""What a run refuses before it begins, and which boxes it leaves out."""

import dataclasses
from pathlib import Path
from typing import Any

import mrcfile
import numpy as np
import pytest

from dtomo.errors import StoppedError, UserError
from dtomo.io.particles import write_particles
from dtomo.settings import AlignSettings
from dtomo.subtomo.boxes import BrokenBoxError, boxes_of_files
from dtomo.subtomo.inputs import check_search, open_inputs
from dtomo.subtomo.job import average_run, run, whole_or_gone
from dtomo.subtomo.rotations import local_rotations
from tests.subtomo.scenes import PIXEL, SIZE, Scene, lump, scene


@pytest.fixture
def given(tmp_path: Path) -> Scene:
    return scene(tmp_path / "particles", 6, snr=1.0)


def settings_for(given: Scene, **more: Any) -> AlignSettings:
    asked: dict[str, Any] = {"particle_diameter": PIXEL * SIZE * 0.7, "angle_shells": 1, "workers": 1}
    return AlignSettings(particle_list=given.path, output=given.path.parent / "out", **{**asked, **more})


def put(path: str | Path, values: Any, pixel: float = PIXEL) -> str:
    with mrcfile.new(path, np.asarray(values), overwrite=True) as file:
        file.voxel_size = pixel
    return str(path)


def relisted(given: Scene, **changed: Any) -> None:
    write_particles(given.path, dataclasses.replace(given.particles, **changed), overwrite=True)


def test_boxes_have_the_size_that_most_of_them_have(given: Scene) -> None:
    folder = given.path.parent
    put(folder / given.particles.files[0], np.ones((SIZE, SIZE, 4), np.float32))
    boxes = boxes_of_files(given.particles, folder)
    assert boxes.size == SIZE
    with pytest.raises(BrokenBoxError, match="voxels"):
        boxes.read(0)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (lump() + 1j, "complex"),
        (lump() * np.float32(1e30), "more than"),
        (lump() * np.float32(1e-40), "one value"),
        (np.where(lump() > 0.1, np.nan, lump()), "finite"),
    ],
)
def test_boxes_that_cannot_be_computed_with(given: Scene, values: Any, said: str) -> None:
    folder = given.path.parent
    with np.errstate(all="ignore"):
        put(folder / given.particles.files[1], values.astype(np.complex64 if np.iscomplexobj(values) else np.float32))
    with pytest.raises(BrokenBoxError, match=said):
        boxes_of_files(given.particles, folder).read(1)


def test_shifts_out_of_the_box(given: Scene) -> None:
    shifts = given.particles.shifts.copy()
    shifts[2, 1] = -SIZE
    relisted(given, shifts=shifts)
    with pytest.raises(UserError, match="pixel size and binning"):
        open_inputs(settings_for(given))


def test_a_box_in_both_halves(given: Scene) -> None:
    files = [given.particles.files[0], *given.particles.files[:5]]
    relisted(given, files=files, halves=np.array([1, 1, 2, 1, 2, 2], np.int8))
    open_inputs(settings_for(given))
    relisted(given, files=files, halves=np.array([1, 2, 2, 1, 2, 1], np.int8))
    with pytest.raises(UserError, match="both halves"):
        open_inputs(settings_for(given))


def test_references_and_masks_without_content(given: Scene, tmp_path: Path) -> None:
    flat = put(tmp_path / "flat.mrc", np.full((SIZE,) * 3, 2, np.float32))
    with pytest.raises(UserError, match=r"--reference .* one value"):
        open_inputs(settings_for(given, reference=[flat]))
    point = np.zeros((SIZE,) * 3, np.float32)
    point[SIZE // 2, SIZE // 2, SIZE // 2] = 1
    with pytest.raises(UserError, match=r"--mask .* too few"):
        open_inputs(settings_for(given, mask=put(tmp_path / "point.mrc", point)))
    other = put(tmp_path / "other.mrc", lump(), PIXEL * 2)
    assert any("--reference" in note for note in open_inputs(settings_for(given, reference=[other])).warnings)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"low_pass": 1e6}, "--low-pass .* nothing"),
        ({"low_pass": PIXEL}, "--low-pass .* finer"),
        ({"high_pass": PIXEL}, "--high-pass .* finer"),
        ({"finest": 1e6}, "--finest .* nothing"),
        ({"angle_shells": 100_000, "angle_increment": 1e-6}, "shells at most"),
        ({"global_iterations": 1, "global_increment": 0.01}, "global search"),
        ({"angle_shells": 40, "angle_increment": 10.0, "global_iterations": 1}, "half a turn"),
    ],
)
def test_a_search_that_there_is_none_of(given: Scene, more: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        check_search(settings_for(given, **more), SIZE, PIXEL)


def test_priors_have_a_width_and_searches_an_end(given: Scene) -> None:
    with pytest.raises(UserError, match="--shift-prior"):
        settings_for(given, shift_prior=1e-200)
    with pytest.raises(UserError, match="shells at most"):
        local_rotations(np.eye(3), 51, 0.1, "glocal")


def test_what_only_the_work_finds_wrong_leaves_nothing_or_whole_iterations(given: Scene, tmp_path: Path) -> None:
    true = put(tmp_path / "true.mrc", given.truth)
    twice = settings_for(given, reference=[true, true], iterations=2)
    for start in (run, average_run):
        if start is average_run:
            for name in given.particles.files:
                put(given.path.parent / name, np.ones((SIZE,) * 3, np.float32))
        with pytest.raises(UserError, match="halves"):
            start(twice, quiet=True)
        assert not list(tmp_path.glob("**/out*"))


def test_iterations_that_are_whole_stay(given: Scene) -> None:
    """The boxes break between two iterations: what was done is kept, and the run can go on when they are mended."""
    run(settings_for(given, iterations=1), quiet=True)
    output = given.path.parent / "out"
    with pytest.raises(StoppedError, match="iteration-001"), whole_or_gone(output):
        raise UserError("a half has no particle that can be read")
    assert (output / "iteration-001" / "summary.json").is_file()
