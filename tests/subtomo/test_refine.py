"""The loop: from poses that are off to those that are right, halves apart, the same bits whoever does it."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mrcfile
import numpy as np
import pytest

from dtomo.distributed.clusters import connect
from dtomo.errors import UserError
from dtomo.settings import AlignSettings
from dtomo.subtomo import refine, results
from dtomo.subtomo.align import BLOCKS, LARGEST_BLOCK, Pass, block_size, run_pass
from dtomo.subtomo.comparison import half_curve
from dtomo.subtomo.inputs import Inputs, open_inputs, particle_halves
from dtomo.subtomo.refine import Step
from tests.subtomo.scenes import PIXEL, SIZE, Scene, angles_off, scene


@pytest.fixture(scope="module")
def off(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    return scene(tmp_path_factory.mktemp("off") / "particles", 24, snr=0.5, off=(9.0, 1.5))


def settings_for(given: Scene, **more: Any) -> AlignSettings:
    asked: dict[str, Any] = {"particle_diameter": PIXEL * SIZE * 0.7, "angle_increment": 4.0, "iterations": 3}
    return AlignSettings(particle_list=given.path, output=given.path.parent / "out", **{**asked, **more})


def iterated(inputs: Inputs, settings: AlignSettings, client: Any = None) -> Step:
    step = refine.begin(inputs.fixed, inputs.poses, inputs.references, settings, client)
    for _ in range(settings.iterations):
        step = refine.next_step(inputs.fixed, step, settings, client)
    return step


def likeness(one: Any, two: Any) -> float:
    return float(np.corrcoef(one.ravel(), two.ravel())[0, 1])


def test_poses_that_are_off_come_back_from_the_average_of_the_list(off: Scene) -> None:
    settings = settings_for(off)
    inputs = open_inputs(settings)
    before = np.median(angles_off(inputs.poses.rotations, off.particles.rotations))
    step = iterated(inputs, settings)
    true = off.particles
    frame = refine.frame_between(off.truth, refine.whole_average(step), inputs.fixed.mask)
    turned, moved = frame.poses(step.poses.rotations, step.poses.shifts)
    assert np.median(angles_off(turned, true.rotations)) < min(3.5, before * 0.6)
    assert np.median(np.linalg.norm(moved - true.shifts, axis=1)) < 0.4
    assert likeness(frame.brought(refine.whole_average(step)), off.truth) > 0.9
    assert step.resolution < 60


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    with connect("local", workers=3, threads=1, memory="1GB") as client:
        yield client


def test_the_bits_are_those_of_one_process(off: Scene, client: Any) -> None:
    settings = settings_for(off, iterations=2, angle_shells=2)
    inputs = open_inputs(settings)
    here, there = iterated(inputs, settings), iterated(inputs, settings, client)
    assert here.poses.rotations.tobytes() == there.poses.rotations.tobytes()
    assert here.poses.shifts.tobytes() == there.poses.shifts.tobytes()
    for one, two in zip(here.halves[0], there.halves[0]):
        assert one.tobytes() == two.tobytes()


def test_halves_stay_and_never_see_each_other(off: Scene) -> None:
    """What half 2 holds changes nothing in how half 1 is aligned."""
    settings = settings_for(off, iterations=1, angle_shells=1)
    inputs = open_inputs(settings)
    half = inputs.poses.halves
    volume = refine.start_reference(off.truth, PIXEL, 60)
    for other in (volume, np.roll(volume, 3, 0)):
        work = Pass(
            inputs.fixed.boxes, inputs.poses, inputs.fixed.weights, ((volume, other),), inputs.fixed.mask,
            refine.search_of(inputs.fixed, Step(0, inputs.poses, ((volume, other),)), settings),
        )  # fmt: skip
        passed = run_pass(work)
        rows = passed.poses.rotations[half == 1].tobytes()
        data = np.asarray(passed.sums[0]["1"]["data"]).tobytes()
        if other is volume:
            first = rows, data, passed.poses.rotations[half == 2].tobytes()
    assert (rows, data) == first[:2]
    assert passed.poses.rotations[half == 2].tobytes() != first[2]


def test_a_particle_that_cannot_be_read_is_left_out(off: Scene, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    folder.mkdir()
    for path in off.path.parent.glob("*.*"):
        if path.is_file():
            (folder / path.name).write_bytes(path.read_bytes())
    (folder / "particle_003.mrc").write_bytes(b"nothing")
    (folder / "particle_007.mrc").unlink()
    z, y, x = np.ogrid[:SIZE, :SIZE, :SIZE]
    with mrcfile.new(folder / "particle_011.mrc", ((-1.0) ** (z + y + x)).astype(np.float32), overwrite=True):
        pass  # nothing but the highest frequency, which is never compared
    settings = settings_for(dataclasses.replace(off, path=folder / "list.xml"))
    inputs = open_inputs(settings)
    assert any("particle_007.mrc" in note for note in inputs.warnings)
    passed = run_pass(Pass(inputs.fixed.boxes, inputs.poses, inputs.fixed.weights))
    assert passed.left_out == [3, 7]
    counts = [int(passed.sums[0][half]["count"]) for half in ("1", "2")]
    assert sum(counts) == 22
    assert np.isfinite(passed.sums[0]["1"]["data"]).all()
    step = Step(0, inputs.poses, ((off.truth, off.truth),))
    search = refine.search_of(inputs.fixed, step, settings_for(off, angle_shells=1))
    aligned = run_pass(
        Pass(inputs.fixed.boxes, inputs.poses, inputs.fixed.weights, step.halves, inputs.fixed.mask, search)
    )
    assert aligned.left_out == [3, 7, 11]
    assert sum(int(aligned.sums[0][half]["count"]) for half in ("1", "2")) == 21


def test_two_classes_are_told_apart(tmp_path: Path) -> None:
    one = scene(tmp_path / "one", 8, snr=2.0, seed=1)
    truth = one.truth
    other = np.ascontiguousarray(truth[::-1])  # the mirror image
    settings = settings_for(one, angle_shells=1, angle_increment=3.0, iterations=1)
    inputs = open_inputs(settings)
    step = Step(0, inputs.poses, ((truth, truth), (other, other)))
    work = Pass(
        inputs.fixed.boxes, inputs.poses, inputs.fixed.weights, step.halves, inputs.fixed.mask,
        refine.search_of(inputs.fixed, step, settings), classes=2,
    )  # fmt: skip
    passed = run_pass(work)
    assert (passed.poses.classes == 0).all()
    assert int(passed.sums[1]["1"]["count"]) == 0


def test_halves_of_a_list() -> None:
    none = np.zeros(7, np.int8)
    assert particle_halves(none, "parity", 0).tolist() == [1, 2, 1, 2, 1, 2, 1]
    random = particle_halves(none, "random", 3)
    assert sorted(random.tolist()) == [1, 1, 1, 1, 2, 2, 2]
    assert random.tolist() == particle_halves(none, "random", 3).tolist()
    given = np.array([2, 1, 1, 2], np.int8)
    assert particle_halves(given, "random", 0).tolist() == given.tolist()
    with pytest.raises(UserError, match="in no half"):
        particle_halves(np.array([1, 0, 2], np.int8), "random", 0)
    with pytest.raises(UserError, match="half 1; two"):
        particle_halves(np.array([1, 1], np.int8), "random", 0)


def test_blocks_follow_from_the_number_of_particles_alone() -> None:
    assert block_size(5) == 1
    assert block_size(BLOCKS * 3) == 3
    assert block_size(10**6) == LARGEST_BLOCK


def test_what_begins_a_run_is_what_a_resumed_one_finds(off: Scene, tmp_path: Path) -> None:
    """Averages of the list: nothing is kept of how they agree, so iteration 1 tries what was asked for."""
    settings = settings_for(off)
    inputs = open_inputs(settings)
    step = refine.begin(inputs.fixed, inputs.poses, inputs.references, settings)
    results.write_step(tmp_path / "out", step, inputs.particles, inputs.suffix, PIXEL, {})
    again = results.last_step(tmp_path / "out", inputs.fixed.mask, PIXEL, settings.seed)
    assert again is not None
    assert refine.search_of(inputs.fixed, again, settings) == refine.search_of(inputs.fixed, step, settings)
    assert refine.search_of(inputs.fixed, step, settings).increment == settings.angle_increment
    for one, two in zip(refine.references_of(step)[0], refine.references_of(again)[0]):
        assert one.tobytes() == two.tobytes()


def test_all_rotations_are_as_far_apart_as_asked(off: Scene) -> None:
    """However fine the resolution: a finer increment would make hundreds of thousands of them."""
    settings = settings_for(off, global_iterations=2, global_increment=20.0, iterations=3)
    inputs = open_inputs(settings)
    step = refine.begin(inputs.fixed, inputs.poses, inputs.references, settings)
    compared = dataclasses.replace(step, number=1, curves=(half_curve(off.truth, off.truth, None, PIXEL),))
    assert refine.search_of(inputs.fixed, compared, settings).increment == 20.0
    assert refine.search_of(inputs.fixed, dataclasses.replace(compared, number=2), settings).increment < 20.0
    coarse = settings_for(off, angle_increment=15.0)
    finer = refine.search_of(inputs.fixed, dataclasses.replace(compared, number=2), coarse).increment
    degrees = np.degrees(compared.resolution / coarse.particle_diameter)
    assert finer == pytest.approx(degrees, rel=0.02)
    assert finer < 15.0
    assert (
        refine.search_of(inputs.fixed, compared, settings_for(off, angle_increment=15.0, adaptive=False)).increment
        == 15
    )


@pytest.mark.slow
def test_priors_hold_poses_near_those_of_the_list(off: Scene) -> None:
    """About where a run began, also in its second iteration."""
    free = settings_for(off, iterations=2, angle_shells=2)
    inputs = open_inputs(free)
    held = settings_for(off, iterations=2, angle_shells=2, rotation_prior=1.0, shift_prior=0.3)
    turned, moved = {}, {}
    for settings in (free, held):
        found = iterated(inputs, settings).poses
        turned[settings.rotation_prior] = np.median(angles_off(found.rotations, inputs.poses.rotations))
        moved[settings.rotation_prior] = np.median(np.linalg.norm(found.shifts - inputs.poses.shifts, axis=1))
    assert turned[1.0] < 0.6 * turned[None]
    assert moved[1.0] < 0.6 * moved[None]
    with pytest.raises(UserError, match="score"):
        settings_for(off, score="ncc")
    shifted = dataclasses.replace(inputs.poses, shifts=inputs.poses.shifts + np.array([5.0, 0, 0]))
    binned = settings_for(off, iterations=1, angle_shells=1, binning=2, shift_prior=0.3)
    found = refine.next_step(
        dataclasses.replace(inputs.fixed, starts=shifted),
        refine.begin(inputs.fixed, inputs.poses, inputs.references, binned),
        binned,
    )
    off_start = np.linalg.norm(found.poses.shifts - shifted.shifts, axis=1)
    assert np.median(off_start) < 2.5  # voxels of the whole box: far from where the particles are
    near = iterated(inputs, settings_for(off, iterations=1, score="nxcf")).poses
    assert np.isfinite(near.scores).all()
    assert (near.scores != iterated(inputs, settings_for(off, iterations=1)).poses.scores).all()


@pytest.mark.parametrize("name", ["poses.npz", "class-1-half-2.mrc", "summary.json"])
@pytest.mark.parametrize("part", [0.0, 0.6])
def test_a_damaged_iteration_is_named(off: Scene, tmp_path: Path, name: str, part: float) -> None:
    settings = settings_for(off)
    inputs = open_inputs(settings)
    step = refine.begin(inputs.fixed, inputs.poses, inputs.references, settings)
    results.write_step(tmp_path / "out", step, inputs.particles, inputs.suffix, PIXEL, {})
    (file,) = (tmp_path / "out").glob(f"iteration-*/{name}")
    file.write_bytes(file.read_bytes()[: int(part * file.stat().st_size)])
    with pytest.raises(UserError, match=r"is damaged .*--resume goes on from the one before"):
        results.last_step(tmp_path / "out", inputs.fixed.mask, PIXEL, settings.seed)
