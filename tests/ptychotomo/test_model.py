"""The joint model: gradients in double precision, closed forms of each parameter, and what is refused."""

import dataclasses
from typing import Any

import numpy as np
import pytest

from dtomo.errors import UserError
from dtomo.geometry import ParallelBeam
from dtomo.operators.propagation import NearField
from dtomo.ptycho.frames import FrameBlock
from dtomo.ptycho.model import PtychoModel
from dtomo.ptychotomo.driver import JointProblem, LocalJointRunner
from dtomo.ptychotomo.model import PARAMETERS, JointModel, LineProjector
from tests.ptychotomo.exact import EXTRA, Gradients, exact_scene
from tests.ptychotomo.scenes import Scene, probe_of

WIDTH, FRAME, ROWS = 16, 8, 12


def evaluated(given: Scene, height: int | None, names: tuple[str, ...], **over: Any) -> tuple[float, Any, Any]:
    """Loss, gradient of the volume, gradients of the parameters; `over` puts others in the place of the scene's."""
    volume = over.pop("volume", given.volume)
    engine = Gradients(model=given.model, names=names)
    problem = JointProblem(engine, given.source, given.layout(height, 2), lambda p: volume[p.start : p.stop])
    runner = LocalJointRunner(problem)
    runner.begin({**given.parameters, **over})
    loss, _ = runner.epoch(0)
    gradient = np.concatenate([local["gradient"] for local in runner.locals])
    return loss, gradient, runner.common["found"]["gradients"]


def slope(given: Scene, name: str, along: Any) -> float:
    """Central difference of the loss to fourth order; in shorter steps where no light keeps pixels from being dark."""
    values = {"volume": given.volume, **given.parameters}

    def loss(step: float) -> float:
        return evaluated(given, None, (), **{name: values[name] + step * along})[0]

    h = 1e-4 if "background" in values else 1e-5
    return (8 * (loss(h) - loss(-h)) - (loss(2 * h) - loss(-2 * h))) / (12 * h)


def check(given: Scene, height: int | None) -> None:
    """All gradients at single places and along a random direction, against central differences."""
    random = np.random.default_rng(1)
    names = ("images", *given.parameters)
    _, gradient, found = evaluated(given, height, names)
    for name, value in {"volume": gradient, **found}.items():
        is_complex = name in ("volume", "probe")
        assert value.dtype == (np.complex128 if is_complex else np.float64)
        single = np.zeros(value.shape)
        single[tuple(random.integers(np.array(value.shape) // 4, 3 * np.array(value.shape) // 4 + 1))] = 1
        for along in (single, random.standard_normal(value.shape)):
            for turn in (1, 1j) if is_complex else (1,):
                expected = slope(given, name, turn * along)
                ours = (2 if is_complex else 1) * np.vdot(value, turn * along).real
                size = np.abs(value).max() if along is single else abs(expected)
                assert abs(ours - expected) <= 1e-6 * size, (name, turn)


@pytest.mark.parametrize("height", [None, 10], ids=["one slab", "three slabs"])
@pytest.mark.parametrize("modes", [1, 2])
@pytest.mark.parametrize("loss", ["amplitude", "poisson"])
def test_gradients_in_double_precision(loss: str, modes: int, height: int | None) -> None:
    check(exact_scene(loss, modes), height)


@pytest.mark.parametrize("loss", ["amplitude", "poisson"])
def test_gradients_of_a_probe_for_each_angle(loss: str) -> None:
    check(exact_scene(loss, 2, own_probes=True), 10)


def test_gradients_without_what_need_not_be_there() -> None:
    check(exact_scene(extra=()), 10)


def test_three_slabs_have_the_sums_of_one() -> None:
    given = exact_scene(modes=2)
    one, three = (evaluated(given, height, ("images", *given.parameters)) for height in (None, 10))
    assert three[0] == pytest.approx(one[0], rel=1e-13)
    np.testing.assert_allclose(three[1], one[1], atol=1e-12 * np.abs(one[1]).max())
    for name, value in one[2].items():
        np.testing.assert_allclose(three[2][name], value, atol=1e-12 * np.abs(value).max(), err_msg=name)


# --- closed forms -------------------------------------------------------------------------------------------------


def plain(**options: Any) -> JointModel:
    return JointModel(PtychoModel((FRAME, FRAME), **options), ParallelBeam(np.array([0.0, 90.0]), WIDTH), ROWS)


def intensities(model: JointModel, image: Any, parameters: Any, positions: Any, angle: int = 0) -> Any:
    """Of frames that all belong to one angle."""
    positions = np.array(positions, np.float64)
    block = FrameBlock(np.arange(len(positions)), np.zeros((len(positions), FRAME, FRAME), np.float32))
    _, given = model.seen(np.ascontiguousarray(image), 0, angle, block, parameters, positions)
    return model.frames.intensities(given, np.arange(len(positions)))


def uneven() -> Any:
    """A transmission without symmetry, (1, row, column)."""
    random = np.random.default_rng(2)
    value = random.uniform(0.6, 1, (1, ROWS, WIDTH)) * np.exp(1j * random.uniform(-1, 1, (1, ROWS, WIDTH)))
    return value.astype(np.complex64)


def test_a_homogeneous_block_weakens_light_by_exp_of_minus_twice_its_absorption() -> None:
    """Beer-Lambert: |T|² = exp(-2 k β L), phase -k δ L."""
    volume = np.full((ROWS, WIDTH, WIDTH), -0.03 + 0.01j, np.complex64)
    model = plain()
    images = model.transmissions(volume, np.array([0, 1]))
    np.testing.assert_allclose(images, np.exp(1j * WIDTH * (-0.03 + 0.01j)), rtol=1e-5)
    probe = probe_of(FRAME)
    found = intensities(model, images[0], {"probe": probe}, [[1, 4]])
    light = np.abs(np.fft.fft2(probe[0], norm="ortho")) ** 2
    np.testing.assert_allclose(found[0], light * np.exp(-2 * WIDTH * 0.01), rtol=1e-3, atol=1e-5 * light.max())


def test_the_gradient_of_a_homogeneous_block_is_that_of_its_absorption() -> None:
    """All light of one frame weakened by e⁻ᵃ: L = Σ (|ψ| e⁻ᵃ - |ψ| e⁻ᵇ)², dL/da = -2 e⁻ᵃ (e⁻ᵃ - e⁻ᵇ) Σ |ψ|²."""
    model, probe = plain(), probe_of(FRAME)
    light = np.abs(np.fft.fft2(probe[0], norm="ortho")) ** 2
    a, b = 0.01 * WIDTH, 0.02 * WIDTH
    block = FrameBlock(np.arange(1), (light * np.exp(-2 * b)).astype(np.float32)[None])
    volume = np.full((ROWS, WIDTH, WIDTH), 0.01j, np.complex64)
    angles = np.array([0])
    images = model.transmissions(volume, angles)
    places = np.array([[1.0, 4.0]])
    loss, count, found = model.meet(images[0], 0, 0, block, {"probe": probe}, places, ("images",))
    total = float(light.sum())
    assert count == FRAME * FRAME
    assert loss == pytest.approx(total * (np.exp(-a) - np.exp(-b)) ** 2, rel=1e-4)
    gradient = model.derivative(images, found["images"][None], angles)
    along = np.full(volume.shape, 1j / WIDTH)  # a grows at rate 1
    expected = -2 * np.exp(-a) * (np.exp(-a) - np.exp(-b)) * total
    assert 2 * np.vdot(gradient, along).real == pytest.approx(expected, rel=1e-4)


def test_a_single_voxel_is_seen_where_the_axis_says() -> None:
    """A voxel on the axis lies in the same pixel of every image; a weak one is the phase itself."""
    geometry = ParallelBeam(np.array([0.0, 30.0, 90.0]), 15)
    volume = np.zeros((5, 15, 15), np.complex64)
    volume[2, 7, 7] = -1e-3
    images = JointModel(PtychoModel((4, 4)), geometry, 5).transmissions(volume, np.arange(3))
    for k, length in enumerate((1.0, 1 / np.cos(np.pi / 6), 1.0)):
        assert images[k, 0, 2, 7] == pytest.approx(1 - 1e-3j * length, abs=1e-6)
        assert (images[k, 0, [0, 1, 3, 4]] == 1).all()


@pytest.mark.parametrize(("ramp", "shift"), [((1, 0), (1, 0)), ((0, 1), (0, 1)), ((2, -1), (2, -1))])
def test_a_ramp_of_a_whole_turn_over_the_frame_moves_the_light_by_a_pixel(ramp: Any, shift: Any) -> None:
    image, probe, model = uneven(), probe_of(FRAME), plain(subpixel=False)
    ramps = 2 * np.pi / FRAME * np.array([ramp, (0, 0)])
    flat = intensities(model, image, {"probe": probe}, [[2, 3]])
    moved = intensities(model, image, {"probe": probe, "ramps": ramps}, [[2, 3]])
    np.testing.assert_allclose(moved, np.roll(flat, shift, (-2, -1)), atol=1e-4 * flat.max())
    np.testing.assert_allclose(
        intensities(model, image, {"probe": probe, "ramps": ramps}, [[2, 3]], angle=1), flat, atol=1e-5 * flat.max()
    )


@pytest.mark.parametrize("first_row", [0, 5])
def test_a_ramp_is_nothing_in_the_middle_of_the_whole_image(first_row: int) -> None:
    model, ramps = plain(), np.array([(0.1, -0.2), (0, 0)])
    image = np.ones((1, ROWS - first_row, WIDTH), np.complex64)
    block = FrameBlock(np.arange(1), np.zeros((1, FRAME, FRAME), np.float32))
    places = np.array([[first_row, 0.0]])
    seen, _ = model.seen(image, first_row, 0, block, {"probe": probe_of(FRAME), "ramps": ramps}, places)
    rows, columns = np.arange(first_row, ROWS) - 5.5, np.arange(WIDTH) - 7.5
    np.testing.assert_allclose(seen[0], np.exp(1j * (0.1 * rows[:, None] - 0.2 * columns)), atol=1e-6)


@pytest.mark.parametrize("shift", [(2.0, -1.0), (0.4, 0.7)])
def test_a_shift_is_a_position_further_on(shift: Any) -> None:
    image, probe, model = uneven(), probe_of(FRAME), plain()
    places = np.array([[1.0, 3.0], [2.2, 4.6]])
    shifted = intensities(model, image, {"probe": probe, "shifts": np.array([shift, (9.0, 9.0)])}, places)
    np.testing.assert_array_equal(shifted, intensities(model, image, {"probe": probe}, places + shift))


def test_scale_background_and_own_probes_are_those_of_the_angle() -> None:
    image, model = uneven(), plain()
    probes = np.stack([probe_of(FRAME), 2j * probe_of(FRAME)]).astype(np.complex64)
    background = np.random.default_rng(0).uniform(1, 2, (FRAME, FRAME)).astype(np.float32)
    scale = np.array([1.0, 3.0], np.float32)
    flat = intensities(model, image, {"probe": probes[0]}, [[2, 3]])
    found = intensities(model, image, {"probe": probes, "scale": scale, "background": background}, [[2, 3]], angle=1)
    np.testing.assert_allclose(found, 36 * flat + background**2, rtol=1e-4, atol=1e-5 * flat.max())


def test_rows_of_the_image_that_frames_do_not_need_may_be_left_out() -> None:
    image, model = uneven(), plain()
    parameters = {"probe": probe_of(FRAME), "ramps": np.array([[0.1, -0.2], [0, 0]])}
    places, block = np.array([[3.4, 3.0]]), FrameBlock(np.arange(1), np.full((1, FRAME, FRAME), 2.0, np.float32))
    names = ("images", "probe", "ramps")
    whole = model.meet(image, 0, 0, block, parameters, places, names)
    part = model.meet(np.ascontiguousarray(image[:, 3:]), 3, 0, block, parameters, places, names)
    assert part[0] == pytest.approx(whole[0], rel=1e-6)
    size = np.abs(whole[2]["images"]).max()
    np.testing.assert_allclose(part[2]["images"], whole[2]["images"][:, 3:], atol=1e-6 * size)
    assert not whole[2]["images"][:, :3].any()
    np.testing.assert_allclose(part[2]["ramps"].values, whole[2]["ramps"].values, rtol=1e-4)


# --- projections and what is refused ------------------------------------------------------------------------------


def test_some_angles_are_projected_as_all_are() -> None:
    random = np.random.default_rng(0)
    geometry = ParallelBeam(np.arange(6) * 30.0, WIDTH)
    projector = LineProjector(geometry)
    rows = (random.standard_normal((3, WIDTH, WIDTH)) + 1j).astype(np.complex64)
    some = np.array([4, 1])
    np.testing.assert_array_equal(projector.forward(rows, some), projector.forward(rows, np.arange(6))[some])
    images = (random.standard_normal((2, 1, 3, WIDTH)) + 1j).astype(np.complex64)
    forward, back = np.vdot(images, projector.forward(rows, some)), np.vdot(projector.adjoint(images, some), rows)
    assert abs(forward - back) <= 1e-6 * np.linalg.norm(images) * np.linalg.norm(projector.forward(rows, some))


def test_only_what_is_wanted_comes() -> None:
    given = exact_scene()
    some = np.flatnonzero(given.angle_of_frame == 2)
    image = given.model.transmissions(given.volume, np.array([2]))[0]
    block = FrameBlock(some, given.frames[some])
    for names in ((), ("images",), ("ramps",), ("shifts", "scale"), ("images", *EXTRA)):
        _, _, found = given.model.meet(image, 0, 2, block, given.parameters, given.positions, names)
        assert tuple(found) == names
    assert set(EXTRA) < set(PARAMETERS)


def test_what_is_refused() -> None:
    geometry = ParallelBeam(np.array([0.0]), WIDTH)
    with pytest.raises(UserError, match="exponential"):
        JointModel(PtychoModel((FRAME, FRAME), exponential=True), geometry, ROWS)
    gap = NearField((FRAME, FRAME), (1e-7, 1e-7), 1e-10, 1e-5)
    with pytest.raises(UserError, match="1 slices; frames go through 2"):
        JointModel(PtychoModel((FRAME, FRAME), between=(gap,)), geometry, ROWS)
    two = dataclasses.replace(exact_scene().model.projector, slices=2)
    with pytest.raises(UserError, match="2 slices; frames go through 1"):
        JointModel(PtychoModel((FRAME, FRAME)), geometry, ROWS, two)
