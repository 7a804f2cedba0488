"""Near fields, slices and oversampled detectors from arrays to results."""

import numpy as np
import pytest
from scipy.ndimage import gaussian_filter

from dtomo.errors import UserError
from dtomo.io.sources import ArraySource
from dtomo.ptycho import optics
from dtomo.ptycho.arrays import reconstruct
from dtomo.ptycho.model import NearField, PtychoModel
from dtomo.ptycho.setup import Data, prepare
from dtomo.settings import PtychoSettings

SIZE, PIXEL, WAVELENGTH = 24, 1e-7, 1e-10
RATES = {"rates": {"object": 0.05, "probe": 0.05}}
DISTANCE_TOO = {"rates": {"object": 0.05, "probe": 0.0, "distance": 0.01}}


def smooth(shape, seed, depth=2.0):
    return np.exp(1j * depth * gaussian_filter(np.random.default_rng(seed).standard_normal(shape), 2))


def scan_of(model, size=SIZE, slices=1, **kinds):
    """Counts of a probe with a rough phase, and all that is known of them."""
    random = np.random.default_rng(4)
    row, column = np.mgrid[:size, :size] - size / 2
    probe = np.exp(-(row**2 + column**2) / (2 * 4.0**2) + 0.05j * (row**2 + column**2))
    probe = probe * smooth((size, size), 9) * np.sqrt(1e6 / np.sum(np.abs(probe) ** 2))
    image = np.stack([smooth((56, 56), seed) for seed in range(slices)])
    places = np.array([(r, c) for r in range(0, 32, 5) for c in range(0, 32, 5)]) + random.random((49, 2)) * 0.9
    positions = np.minimum(places, 56 - size)
    values = {"object": image[None], "probe": probe[None], "positions": positions}
    counts = random.poisson(model.intensities(values, np.arange(49)))
    frames = counts if isinstance(model.propagation, NearField) else np.fft.fftshift(counts, (-2, -1))
    source = ArraySource(frames.astype(np.uint32), "the frames")
    known = {"pixel_size": (PIXEL, PIXEL), "wavelength": WAVELENGTH, "probe": probe, **kinds}
    return Data(source, positions, **known)


@pytest.fixture(scope="module")
def near():
    field = NearField((SIZE, SIZE), (PIXEL, PIXEL), WAVELENGTH, 3e-4)
    return scan_of(PtychoModel((SIZE, SIZE), propagation=field), near_field=True, distance=3e-4)


def test_a_near_field_is_reconstructed(near):
    result = reconstruct(near, engine="adam", epochs=30, options=RATES)
    assert result.near_field
    assert result.history[-1] < 0.02 * result.history[0]
    assert result.history[-1] < 2


def test_a_probe_from_the_mean_image(near):
    settings = PtychoSettings(scan="frames", output="result.h5", probe="pattern")
    setup = prepare(near, settings)
    field = setup.model.propagation
    image = np.abs(field.forward(setup.parameters["probe"][0])) ** 2
    mean = near.source.read().mean(0)
    assert np.allclose(image, mean, rtol=1e-3, atol=1e-3 * mean.max())


def test_the_distance_comes_back(near):
    wrong = Data(near.source, near.positions, near_field=True, distance=3.1e-4, probe=near.probe,
                 pixel_size=near.pixel_size, wavelength=near.wavelength)  # fmt: skip
    result = reconstruct(wrong, engine="adam", epochs=60, options=DISTANCE_TOO, refine=("distance",))
    assert abs(result.distance - 3e-4) < 0.3e-5


def test_two_slices_explain_more_than_one():
    between = (NearField((SIZE, SIZE), (PIXEL, PIXEL), WAVELENGTH, 1.5e-3),)
    data = scan_of(PtychoModel((SIZE, SIZE), between=between), slices=2)
    one = reconstruct(data, engine="adam", epochs=50, options=RATES)
    two = reconstruct(data, engine="adam", epochs=50, options=RATES, slices=2, slice_distance=1500)
    assert two.object.shape[1] == 2
    assert two.history[-1] < 0.5 * one.history[-1]


def test_an_oversampled_detector():
    fine = scan_of(PtychoModel((SIZE // 2, SIZE // 2), oversampling=2))
    result = reconstruct(fine, engine="adam", epochs=20, options=RATES, oversampling=2)
    assert result.probe.shape == (1, SIZE, SIZE)
    assert result.history[-1] < 0.05 * result.history[0]


@pytest.mark.parametrize(("rows", "columns"), [(6, 5), (7, 4)])
def test_room_around_a_probe_keeps_its_middle(rows, columns):
    data = Data(ArraySource(np.ones((1, rows, columns)), "the frames"), np.zeros((1, 2)))
    settings = PtychoSettings(scan="frames", output="result.h5", oversampling=3)
    probe = np.zeros((2, rows, columns))
    probe[:, rows // 2, columns // 2] = 1
    found = optics.with_room(probe, data, settings)
    assert found.shape == (2, 3 * rows, 3 * columns)
    assert found.sum() == 2
    assert (found[:, 3 * rows // 2, 3 * columns // 2] == 1).all()
    assert optics.with_room(found, data, settings) is found


@pytest.mark.parametrize(
    ("data", "settings", "message"),
    [
        ({"near_field": True}, {}, "give --distance in mm"),
        ({"near_field": True, "distance": 1.0}, {}, "give --energy, --distance and --pixel-size"),
        ({"near_field": True, "distance": 1.0}, {"oversampling": 2}, "--oversampling is for far fields"),
        ({}, {"slices": 2, "slice_distance": 3.0}, "--slices takes the wavelength and the pixel size"),
    ],
)
def test_what_is_missing_is_said(data, settings, message):
    with pytest.raises(UserError, match=message):
        reconstruct(Data(ArraySource(np.ones((2, 8, 8)), "the frames"), np.eye(2), **data), **settings)


def test_doubts_are_said_once():
    far = NearField((8, 8), (1e-7, 1e-7), 1e-10, 1.0)
    assert optics.doubts((far, far)) == [far.doubt]
    assert not optics.doubts((far.at(1e-4), PtychoModel((8, 8)).propagation))
