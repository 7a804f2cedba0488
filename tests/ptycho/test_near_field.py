"""Near fields: images of the exit wave that stay with the detector, and their distance."""

import numpy as np
import pytest
from scipy import optimize

from dtomo.errors import UserError
from dtomo.kernels.detection import LOSSES
from dtomo.ptycho.model import NearField, PtychoModel
from tests.ptycho import any_models
from tests.ptycho.small_models import FRAMES, SHAPE, block, counts, exit_waves, parameters

NAMES = ("object", "probe", "variable_probe", "probe_weights", "background", "scale", "positions", "distance")
FIELD = NearField(SHAPE, (1.0, 1.2), 0.1, 4.0)
ALL = np.arange(FRAMES)


def values_of(distance=4.5, **kinds):
    return parameters(everything=True, **kinds) | {"distance": np.array(distance)}


def written_out(values, frame, distance):
    """Exit wave moved back by what the probe was moved, angular spectrum, sum of intensities."""
    place = values["positions"][frame]
    rows, columns = (np.fft.fftfreq(size) for size in SHAPE)
    down, across = place - np.floor(place + 0.5)
    back = np.exp(2j * np.pi * (rows[:, None] * down + columns * across))
    square = (rows[:, None] / 1.0) ** 2 + (columns / 1.2) ** 2
    way = np.exp(2j * np.pi * distance * np.sqrt(1 / 0.1**2 - square))
    images = np.fft.ifft2(np.fft.fft2(exit_waves(values, frame)) * back * way)
    return (np.abs(images) ** 2).sum((0, 1)) + values["background"] ** 2


def test_intensities_written_out():
    values = values_of(modes=2, object_modes=2)
    found = PtychoModel(SHAPE, propagation=FIELD).intensities(values, ALL)
    assert np.allclose(found, [written_out(values, frame, 4.5) for frame in ALL], rtol=1e-10)
    del values["distance"]
    found = PtychoModel(SHAPE, propagation=FIELD).intensities(values, ALL)
    assert np.allclose(found, [written_out(values, frame, 4.0) for frame in ALL], rtol=1e-10)


def test_the_detector_stays_with_the_probe():
    """The fault of CDTools PR #86: images moved by the fraction of a pixel that the probe was moved by."""
    size = 48
    place = np.arange(size) - size / 2
    probe = np.exp(-(place[:, None] ** 2 + place**2) / 32).astype(complex)

    def sample(row, column):
        rows, columns = np.ogrid[:70, :70]
        return np.exp(1j * np.sin((rows + row) / 5) * np.cos((columns + column) / 4 + 1))

    field = NearField((size, size), (1.0, 1.0), 0.1, 30.0)
    model = PtychoModel((size, size), propagation=field)
    positions = np.array([[3.0, 8.0], [3.5, 8.25], [3.3, 7.6]])
    values = {"object": sample(0, 0)[None, None], "probe": probe[None], "positions": positions}
    found = model.intensities(values, np.arange(3))
    for image, (row, column) in zip(found, positions):
        expected = np.abs(field.forward(probe * sample(row, column)[:size, :size])) ** 2
        assert np.abs(image - expected).max() <= 1e-6 * expected.max()
    waves = model.views(values, np.arange(3)).waves[:, 0, 0]
    moved = np.abs(field.forward(waves)) ** 2 - found
    assert np.abs(moved[0]).max() <= 1e-12
    assert np.abs(moved[1:]).max((1, 2)).min() >= 0.05


def test_whole_pixels_and_nearest_pixels():
    values = values_of()
    values["positions"] = np.round(values["positions"])
    expected = [written_out(values, frame, 4.5) for frame in ALL]
    for subpixel in (True, False):
        found = PtychoModel(SHAPE, propagation=FIELD, subpixel=subpixel).intensities(values, ALL)
        assert np.allclose(found, expected, rtol=1e-10)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize(("modes", "object_modes"), [(1, 1), (2, 2)])
def test_gradients(loss, modes, object_modes):
    good = np.random.default_rng(2).random(SHAPE) < 0.9
    model = PtychoModel(SHAPE, loss, mask=good, propagation=FIELD)
    values = values_of(modes=modes, object_modes=object_modes)
    any_models.gradients_are_right(model, values, counts(mean=100), NAMES)


def test_gradients_of_a_paraxial_field_and_of_one_with_evanescent_waves():
    values = values_of()
    for field in (NearField(SHAPE, (1.0, 1.2), 0.1, 4.0, paraxial=True), NearField(SHAPE, (1.0, 1.2), 2.5, 1.0)):
        model = PtychoModel(SHAPE, propagation=field)
        any_models.gradients_are_right(model, values, counts(mean=100), ("object", "probe", "positions", "distance"))


@pytest.mark.parametrize("wavelength", [0.1, 2.5])
def test_residual_and_adjoint(wavelength):
    model = PtychoModel(SHAPE, propagation=NearField(SHAPE, (1.0, 1.2), wavelength, 4.0))
    names = ("object", "probe", "scale", "positions", "distance")
    any_models.residual_and_adjoint_are_the_gradient(model, values_of(modes=2, object_modes=2), counts(), names)


def test_bits(monkeypatch):
    monkeypatch.setattr("dtomo.ptycho.stages.GROUP", SHAPE[0] * SHAPE[1] * 4)
    model = PtychoModel(SHAPE, propagation=FIELD)
    any_models.bits_do_not_depend_on_threads(model, values_of(modes=2), counts(), NAMES)


def test_the_distance_is_where_its_gradient_vanishes():
    truth = values_of(4.5)
    model = PtychoModel(SHAPE, propagation=FIELD)
    frames = model.intensities(truth, ALL)

    def slope(distance):
        found = model.loss_and_gradient(truth | {"distance": np.array(distance)}, block(frames), ("distance",))
        return float(found[2]["distance"])

    assert slope(4.3) < 0 < slope(4.7)
    assert optimize.brentq(slope, 4.3, 4.7, xtol=1e-12) == pytest.approx(4.5, abs=1e-9)


def test_a_far_field_has_no_distance():
    values = values_of()
    with pytest.raises(UserError, match="no distance to refine in the far field"):
        PtychoModel(SHAPE).check(values)
    with pytest.raises(UserError, match="no distance to refine in the far field"):
        PtychoModel(SHAPE).loss_and_gradient(values, block(counts()), ("distance",))
    PtychoModel(SHAPE, propagation=FIELD).check(values)
    with pytest.raises(UserError, match=r"\(12, 11\) pixels; got \(12, 10\)"):
        PtychoModel((12, 11), propagation=FIELD)
