"""Objects of several slices, against the steps written out and central differences."""

import itertools

import numpy as np
import pytest

from dtomo.errors import UserError
from dtomo.kernels.detection import LOSSES
from dtomo.ptycho.model import FarField, NearField, PtychoModel
from tests.ptycho import any_models
from tests.ptycho.small_models import FRAMES, SHAPE, block, counts, exit_waves, parameters

NAMES = ("object", "probe", "variable_probe", "probe_weights", "background", "scale", "positions")
ALL = np.arange(FRAMES)
WAYS = NearField(SHAPE, (1.0, 1.2), 0.1, 3.0), NearField(SHAPE, (1.0, 1.2), 0.1, 5.0)

MODES = pytest.mark.parametrize(("modes", "object_modes"), [(1, 1), (2, 1), (1, 2), (2, 2)])


def written_out(values, frame):
    waves = exit_waves(values, frame)
    row, column = np.floor(values["positions"][frame] + 0.5).astype(int)
    cut = values["object"][:, :, row : row + SHAPE[0], column : column + SHAPE[1]]
    for k, field in enumerate(WAYS, 1):
        rows, columns = np.fft.fftfreq(SHAPE[0], 1.0)[:, None], np.fft.fftfreq(SHAPE[1], 1.2)
        way = np.exp(2j * np.pi * field.distance * np.sqrt(1 / 0.1**2 - rows**2 - columns**2))
        waves = np.fft.ifft2(np.fft.fft2(waves) * way) * cut[:, None, k]
    return (np.abs(np.fft.fft2(waves, norm="ortho")) ** 2).sum((0, 1)) + values["background"] ** 2


@MODES
def test_intensities_written_out(modes, object_modes):
    values = parameters(modes=modes, object_modes=object_modes, slices=3, everything=True)
    model = PtychoModel(SHAPE, between=WAYS)
    model.check(values)
    assert np.allclose(model.intensities(values, ALL), [written_out(values, k) for k in ALL], rtol=1e-10)


@pytest.mark.parametrize("loss", LOSSES)
@MODES
def test_gradients(loss, modes, object_modes):
    values = parameters(modes=modes, object_modes=object_modes, slices=3, everything=True)
    values["object"] *= 0.5
    any_models.gradients_are_right(PtychoModel(SHAPE, loss, between=WAYS), values, counts(mean=100), NAMES)


@pytest.mark.parametrize("subpixel", [True, False])
def test_gradients_of_an_exponential_object(subpixel):
    values = parameters(modes=2, object_modes=2, slices=3)
    values["object"] *= 0.3
    model = PtychoModel(SHAPE, between=WAYS, exponential=True, subpixel=subpixel)
    any_models.gradients_are_right(model, values, counts(mean=100), ("object", "probe"))


def test_gradients_in_the_near_field():
    values = parameters(modes=2, slices=3, everything=True) | {"distance": np.array(4.0)}
    values["object"] *= 0.5
    model = PtychoModel(SHAPE, between=WAYS, propagation=WAYS[0])
    any_models.gradients_are_right(model, values, counts(mean=100), (*NAMES, "distance"))


@pytest.mark.parametrize("subpixel", [True, False])
def test_residual_and_adjoint(subpixel):
    values = parameters(modes=2, object_modes=2, slices=3)
    model = PtychoModel(SHAPE, between=WAYS, subpixel=subpixel)
    any_models.residual_and_adjoint_are_the_gradient(model, values, counts(), ("object", "probe"))


def test_bits(monkeypatch):
    monkeypatch.setattr("dtomo.ptycho.stages.GROUP", SHAPE[0] * SHAPE[1] * 8)
    values = parameters(modes=2, object_modes=2, slices=3, everything=True)
    any_models.bits_do_not_depend_on_threads(PtychoModel(SHAPE, between=WAYS), values, counts(), NAMES)


def test_slices_that_touch_are_one():
    values = parameters(modes=2, slices=3)
    product = values | {"object": values["object"].prod(1, keepdims=True)}
    touching = PtychoModel(SHAPE, between=tuple(field.at(0.0) for field in WAYS))
    assert np.allclose(touching.intensities(values, ALL), PtychoModel(SHAPE).intensities(product, ALL))


def test_vacuum_behind_an_object_is_not_seen():
    values = parameters(slices=3)
    values["object"][:, 1:] = 1
    alone = values | {"object": values["object"][:, :1]}
    found = PtychoModel(SHAPE, between=WAYS).intensities(values, ALL)
    assert np.allclose(found, PtychoModel(SHAPE).intensities(alone, ALL))


def test_steepest_descent_finds_both_slices():
    """Either slice alone, from a guess of vacuum, cannot explain frames that saw two a distance apart."""
    random = np.random.default_rng(3)
    truth = parameters(slices=2)
    truth["object"] = np.exp(0.5j * random.normal(size=truth["object"].shape))
    model = PtychoModel(SHAPE, between=WAYS[:1])
    frames = model.intensities(truth, ALL)
    guess = truth | {"object": np.exp(0.7 * np.log(truth["object"]))}
    losses = []
    for _ in range(40):
        loss, _, gradients = model.loss_and_gradient(guess, block(frames), ("object",))
        losses.append(loss)
        guess["object"] = guess["object"] - 0.05 * gradients["object"].put_into(truth["object"].shape)
    assert losses[-1] < 0.05 * losses[0]
    assert all(after < before for before, after in itertools.pairwise(losses))


def test_what_does_not_fit_is_refused():
    with pytest.raises(UserError, match=r"model has 3 slices.*the object has 2"):
        PtychoModel(SHAPE, between=WAYS).check(parameters(slices=2))
    with pytest.raises(UserError, match=r"has 1 slices.*the object has 2"):
        PtychoModel(SHAPE, propagation=FarField()).check(parameters(slices=2))
    with pytest.raises(UserError, match="near fields and slices"):
        PtychoModel((10, 10), between=WAYS)
