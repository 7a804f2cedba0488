"""Gradients of the model against central differences, in all directions of the complex plane."""

from typing import Any

import numpy as np
import pytest

from dtomo.kernels.detection import LOSSES
from dtomo.ptycho.model import PtychoModel
from dtomo.threads import get_threads, set_threads
from tests.ptycho.small_models import FRAMES, SHAPE, block, counts, parameters, single

NAMES = ("object", "probe", "variable_probe", "probe_weights", "background", "scale", "positions")

MODES = pytest.mark.parametrize(("modes", "object_modes"), [(1, 1), (2, 1), (1, 2), (2, 2)])


def whole(gradients: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    """Gradients as arrays of their parameters' shapes."""
    return {n: g.put_into(values[n].shape) if hasattr(g, "put_into") else g for n, g in gradients.items()}


def slopes(model: PtychoModel, values: dict[str, Any], frames: Any, name: str, along: Any) -> float:
    """Central difference of the loss along a direction, in double precision, to fourth order."""

    def loss(step: float) -> float:
        return model.loss_and_gradient({**values, name: values[name] + step * along}, block(frames), ())[0]

    h = 1e-4
    return float((8 * (loss(h) - loss(-h)) - (loss(2 * h) - loss(-2 * h))) / (12 * h))


def directions(name: str, shape: tuple[int, ...]) -> list[Any]:
    """Random, along the real axis, and along the imaginary one where there is one."""
    random = np.random.default_rng(5).normal(size=shape)
    return [random, 1j * random] if name in ("object", "probe", "variable_probe", "probe_weights") else [random]


def product(gradient: Any, along: Any) -> float:
    """What the loss changes by along a direction, to first order."""
    real = float(np.real(np.vdot(gradient, along)))
    return 2 * real if np.iscomplexobj(gradient) else real


@pytest.mark.parametrize("loss", LOSSES)
@MODES
def test_gradients_are_those_of_central_differences(loss, modes, object_modes):
    values = parameters(modes=modes, object_modes=object_modes, everything=True)
    frames = counts(mean=100)
    good = np.random.default_rng(2).random(SHAPE) < 0.9
    model = PtychoModel(SHAPE, loss, mask=good)
    found = whole(model.loss_and_gradient(values, block(frames), NAMES)[2], values)
    small = whole(model.loss_and_gradient(single(values), block(frames), NAMES)[2], values)
    for name in NAMES:
        assert found[name].dtype == values[name].dtype
        assert small[name].dtype == single(values)[name].dtype
        size = np.linalg.norm(found[name])
        assert np.linalg.norm(small[name] - found[name]) <= 1e-3 * size
        for along in directions(name, values[name].shape):
            expected = slopes(model, values, frames, name, along)
            assert abs(product(found[name], along) - expected) <= 1e-6 * abs(expected), (name, along.dtype)


@pytest.mark.parametrize("subpixel", [True, False])
@pytest.mark.parametrize("exponential", [True, False])
def test_gradients_of_single_entries(subpixel, exponential):
    values = parameters(modes=2)
    values["object"] *= 0.3
    frames, model = counts(), PtychoModel(SHAPE, subpixel=subpixel, exponential=exponential)
    found = whole(model.loss_and_gradient(values, block(frames))[2], values)
    for name, place in (("object", (0, 0, 14, 13)), ("probe", (1, 3, 4))):
        for unit, part in ((1, 2 * found[name][place].real), (1j, 2 * found[name][place].imag)):
            along = np.zeros(values[name].shape, complex)
            along[place] = unit
            expected = slopes(model, values, frames, name, along)
            assert abs(part - expected) <= 1e-6 * abs(expected) + 1e-7 * np.abs(found[name]).max()


def test_a_saturated_pixel_asks_for_no_less_light():
    values, frames = parameters(), counts(dtype=np.float64)
    seen = PtychoModel(SHAPE).intensities(values, np.arange(FRAMES))
    frames[:, 2:5] = 3
    model = PtychoModel(SHAPE, saturation=3)
    loss, count, gradients = model.loss_and_gradient(values, block(frames))
    free = (frames >= 3) & (seen > frames)
    assert free.any()
    assert count == frames.size
    assert loss == pytest.approx(((np.sqrt(seen) - np.sqrt(frames)) ** 2)[~free].sum(), rel=1e-12)
    along = directions("probe", values["probe"].shape)[1]
    expected = slopes(model, values, frames, "probe", along)
    assert product(gradients["probe"], along) == pytest.approx(expected, rel=1e-4)


def test_no_light_gives_numbers():
    for loss in LOSSES:
        values = single(parameters(everything=True))
        values["probe"][:] = 0
        values["variable_probe"][:] = 0
        values["background"][:] = 0
        found, _, gradients = PtychoModel(SHAPE, loss).loss_and_gradient(values, block(counts()), NAMES)
        assert np.isfinite(found)
        for name, gradient in whole(gradients, values).items():
            assert np.isfinite(gradient).all(), name


@MODES
def test_the_bits_are_the_same_for_any_number_of_threads(modes, object_modes, monkeypatch):
    monkeypatch.setattr("dtomo.ptycho.stages.GROUP", SHAPE[0] * SHAPE[1] * 2)
    values = single(parameters(modes=modes, object_modes=object_modes, everything=True))
    model, before, found = PtychoModel(SHAPE), get_threads(), []
    for threads in (1, 2, 3):
        set_threads(threads)
        try:
            loss, _, gradients = model.loss_and_gradient(values, block(counts()), NAMES)
        finally:
            set_threads(before)
        found.append((loss, {n: g.tobytes() for n, g in whole(gradients, values).items()}))
    assert found[0] == found[1] == found[2]


def test_only_what_is_wanted_is_given():
    values, model = single(parameters(everything=True)), PtychoModel(SHAPE)
    together = whole(model.loss_and_gradient(values, block(counts()), NAMES)[2], values)
    for name in NAMES:
        _, _, alone = model.loss_and_gradient(values, block(counts()), (name,))
        assert list(alone) == [name]
        assert np.array_equal(whole(alone, values)[name], together[name])


def test_an_imaginary_part_alone_descends():
    values = parameters()
    values["object"] = np.ones_like(values["object"])
    truth = values | {"object": values["object"] * np.exp(0.3j * parameters(seed=4)["object"].real)}
    model = PtychoModel(SHAPE)
    frames = model.intensities(truth, np.arange(FRAMES))
    guess = dict(values)
    losses = []
    for _ in range(60):
        loss, _, gradients = model.loss_and_gradient(guess, block(frames), ("object",))
        losses.append(loss)
        change = gradients["object"].put_into(guess["object"].shape)
        assert change.dtype == np.complex128
        guess["object"] = guess["object"] - 0.05j * change.imag
    assert np.array_equal(guess["object"].real, values["object"].real)
    assert losses[-1] < 0.5 * losses[0]
