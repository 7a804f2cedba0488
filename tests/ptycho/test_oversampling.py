"""Detectors whose pixels see several of the model's."""

import numpy as np
import pytest

from dtomo.errors import UserError
from dtomo.ptycho.frames import to_detector_order
from dtomo.ptycho.model import NearField, PtychoModel
from tests.ptycho import any_models
from tests.ptycho.small_models import FRAMES, SHAPE, exit_waves, parameters

NAMES = ("object", "probe", "background", "positions")
ALL = np.arange(FRAMES)


def values_of(fold, **kinds):
    values = parameters(**kinds)
    values["background"] = np.random.default_rng(3).uniform(0.2, 1, (SHAPE[0] // fold, SHAPE[1] // fold))
    return values


def frames_of(fold):
    random = np.random.default_rng(1)
    return random.poisson(100 * random.exponential(1, (FRAMES, SHAPE[0] // fold, SHAPE[1] // fold)))


def test_the_far_field_written_out():
    """Pixel k sees frequencies k - ¼ and k + ¼ per frame."""
    values = values_of(2, modes=2)
    found = PtychoModel((6, 5), oversampling=2).intensities(values, ALL)
    for image, frame in zip(found, ALL):
        expected = values["background"] ** 2
        for wave in exit_waves(values, frame)[0]:
            for down in (-0.25, 0.25):
                for across in (-0.25, 0.25):
                    rows = np.exp(-2j * np.pi * np.outer(np.arange(6) + down, np.arange(12) / 6))
                    columns = np.exp(-2j * np.pi * np.outer(np.arange(5) + across, np.arange(10) / 5))
                    expected = expected + np.abs(rows @ wave @ columns.T) ** 2 / 120
        assert np.allclose(image, expected, rtol=1e-10)


@pytest.mark.parametrize("fold", [1, 2, 3])
def test_a_ramp_of_the_object_moves_the_pattern(fold):
    """Case C18."""
    size = 64 * fold
    ramp = np.exp(2j * np.pi * 3 * np.arange(size) / 64) * np.ones((size, 1))
    values = {
        "object": ramp[None, None],
        "probe": np.ones((1, size, size), complex),
        "positions": np.zeros((1, 2)),
    }
    seen = to_detector_order(PtychoModel((64, 64), oversampling=fold).intensities(values, ALL[:1]))[0]
    assert np.unravel_index(seen.argmax(), seen.shape) == (32, 35)
    assert seen[32, 35] >= 0.65 * size**2
    assert seen.sum() == pytest.approx(size**2)


@pytest.mark.parametrize("fold", [2, 3, 4])
def test_a_real_wave_has_a_pattern_even_about_frequency_zero(fold):
    random = np.random.default_rng(2)
    values = {
        "object": np.ones((1, 1, 12 * fold, 8 * fold), complex),
        "probe": random.normal(size=(1, 12 * fold, 8 * fold)) + 0j,
        "positions": np.zeros((1, 2)),
    }
    seen = PtychoModel((12, 8), oversampling=fold).intensities(values, ALL[:1])[0]
    assert np.allclose(seen, np.roll(seen[::-1, ::-1], (1, 1), (0, 1)))


def test_a_near_field_is_binned():
    values = values_of(2, modes=2)
    field = NearField(SHAPE, (1.0, 1.2), 0.1, 4.0)
    fine = PtychoModel(SHAPE, propagation=field).intensities({**values, "background": np.zeros(SHAPE)}, ALL)
    found = PtychoModel((6, 5), oversampling=2, propagation=field).intensities(values, ALL)
    assert np.allclose(found, fine.reshape(-1, 6, 2, 5, 2).sum((2, 4)) + values["background"] ** 2)


@pytest.mark.parametrize("near", [True, False])
@pytest.mark.parametrize("loss", ["amplitude", "poisson"])
def test_gradients(near, loss):
    ways = {"propagation": NearField(SHAPE, (1.0, 1.2), 0.1, 4.0)} if near else {}
    values = values_of(2, modes=2, object_modes=2)
    names = NAMES
    if near:
        values["distance"], names = np.array(4.5), (*NAMES, "distance")
    good = np.random.default_rng(2).random((6, 5)) < 0.8
    model = PtychoModel((6, 5), loss, mask=good, oversampling=2, **ways)
    model.check(values)
    any_models.gradients_are_right(model, values, frames_of(2), names)


def test_residual_and_adjoint():
    values = values_of(2, modes=2)
    model = PtychoModel((6, 5), oversampling=2)
    any_models.residual_and_adjoint_are_the_gradient(model, values, frames_of(2), ("object", "probe", "positions"))


def test_bits(monkeypatch):
    monkeypatch.setattr("dtomo.ptycho.stages.GROUP", SHAPE[0] * SHAPE[1] * 4)
    model = PtychoModel((6, 5), oversampling=2)
    any_models.bits_do_not_depend_on_threads(model, values_of(2, modes=2), frames_of(2), NAMES)


def test_what_does_not_fit_is_refused():
    with pytest.raises(UserError, match=r"probe .* should have shape \(1, 12, 10\) with frames of \(6, 5\)"):
        PtychoModel((6, 5), oversampling=2).check({**values_of(2), "probe": np.ones((1, 6, 5), complex)})
    for wrong in (0, 1.5):
        with pytest.raises(UserError, match="whole number from 1"):
            PtychoModel((6, 5), oversampling=wrong)
    with pytest.raises(UserError, match="near fields and slices"):
        PtychoModel((6, 5), oversampling=2, propagation=NearField((6, 5), (1.0, 1.0), 0.1, 4.0))
