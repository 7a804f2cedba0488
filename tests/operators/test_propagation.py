"""Propagation against closed forms, adjoints, and the derivative by the distance."""

import pickle

import numpy as np
import pytest
from scipy import special

from dtomo.errors import UserError
from dtomo.operators.propagation import FarField, NearField
from dtomo.threads import get_threads, set_threads

WAVELENGTH, PIXEL = 0.5e-6, 2e-6


def draw(*shape, dtype=np.complex128, seed=0):
    random = np.random.default_rng(seed)
    return (random.normal(size=shape) + 1j * random.normal(size=shape)).astype(dtype)


@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
@pytest.mark.parametrize(
    "operator",
    [FarField(), NearField((12, 9), (1e-6, 2e-6), 1e-7, 3e-5), NearField((12, 9), (2e-8, 3e-8), 1e-7, -2e-7)],
    ids=["far", "near", "evanescent"],
)
def test_the_adjoint_is_exact(operator, dtype):
    x, y = draw(2, 3, 12, 9, dtype=dtype), draw(2, 3, 12, 9, dtype=dtype, seed=1)
    before = x.copy(), y.copy()
    forward, back = operator.forward(x), operator.adjoint(y)
    assert np.array_equal(x, before[0])
    assert np.array_equal(y, before[1])
    assert forward.dtype == back.dtype == dtype
    tolerance = 1e-6 if dtype == np.complex64 else 1e-14
    scale = np.linalg.norm(x) * np.linalg.norm(y)
    assert abs(np.vdot(forward, y) - np.vdot(x, back)) <= tolerance * scale
    again = pickle.loads(pickle.dumps(operator)).forward(x, overwrite=True)
    assert np.array_equal(again, forward)


@pytest.mark.parametrize("operator", [FarField(), NearField((16, 12), (1e-6, 1e-6), 1e-7, 3e-5)], ids=["far", "near"])
def test_light_is_kept(operator):
    x = draw(4, 16, 12)
    assert np.linalg.norm(operator.forward(x)) == pytest.approx(np.linalg.norm(x), rel=1e-14)
    assert np.allclose(operator.adjoint(operator.forward(x)), x, atol=1e-13)


def test_the_far_field_is_the_sum_it_says():
    x = draw(6, 5)
    rows, columns = np.arange(6), np.arange(5)
    kernel = np.exp(-2j * np.pi * (np.multiply.outer(rows, rows) / 6)[:, None, :, None]) * np.exp(
        -2j * np.pi * (np.multiply.outer(columns, columns) / 5)[None, :, None, :]
    )
    assert np.allclose(FarField().forward(x), np.einsum("klrc,rc->kl", kernel, x) / np.sqrt(30))


def test_waves_beyond_the_wavelength_vanish():
    field = NearField((1, 64), (1.0, 1.0), 3.0, 0.0)
    frequency = np.fft.fftfreq(64)
    for k in (3, 30):
        found = field.forward(np.exp(2j * np.pi * frequency[k] * np.arange(64))[None])
        assert np.abs(found).max() == pytest.approx(1.0 if frequency[k] < 1 / 3 else 0.0, abs=1e-12)


@pytest.mark.parametrize("paraxial", [True, False])
def test_a_gaussian_beam_spreads(paraxial):
    """A. E. Siegman, Lasers, section 17.1: u = q₀/q exp(i k r²/2q), waves exp(+ikz)."""
    size, waist, distance = 128, 20e-6, 2.5e-3
    place = (np.arange(size) - size // 2) * PIXEL
    square = place[:, None] ** 2 + place**2
    start = -1j * np.pi * waist**2 / WAVELENGTH
    expected = start / (start + distance) * np.exp(1j * np.pi * square / WAVELENGTH / (start + distance))
    field = NearField((size, size), (PIXEL, PIXEL), WAVELENGTH, distance, paraxial)
    found = field.forward(np.exp(-square / waist**2).astype(complex))
    assert np.abs(found - expected).max() <= (1e-8 if paraxial else 2e-4)
    single = field.forward(np.exp(-square / waist**2).astype(np.complex64))
    assert single.dtype == np.complex64
    assert np.abs(single - found).max() <= 1e-6


@pytest.mark.parametrize("paraxial", [True, False])
def test_a_grating_images_itself(paraxial):
    """H. F. Talbot's length; half of it moves the image by half a period."""
    period, size = 16, 64
    frequency = 1 / (period * PIXEL)
    along = np.sqrt(1 - (WAVELENGTH * frequency) ** 2)
    length = 2 / WAVELENGTH / frequency**2 if paraxial else WAVELENGTH / (1 - along)
    grating = 1 + 0.8 * np.cos(2 * np.pi * np.arange(size) / period) * np.ones((4, 1)) + 0j
    for share in (1, 0.5, 0.25):
        found = NearField((4, size), (PIXEL, PIXEL), WAVELENGTH, share * length, paraxial).forward(grating)
        expected = 1 + np.exp(-2j * np.pi * share) * (grating - 1)
        assert np.allclose(found, expected, atol=1e-9)
    other = grating.T.copy()
    turned = NearField((size, 4), (PIXEL, PIXEL), WAVELENGTH, length / 4, paraxial).forward(other)
    assert np.allclose(turned, found.T, atol=1e-9)


def test_diffraction_by_a_slit():
    """Fresnel's integrals."""
    size, half, step = 8192, 600, 0.1e-6
    distance = (6e-6) ** 2 / WAVELENGTH
    place = (np.arange(size) - size // 2 + 0.5) * step
    slit = (np.abs(place) < half * step).astype(complex)
    field = NearField((1, size), (step, step), WAVELENGTH, distance, paraxial=True)
    assert field.doubt is None
    found = field.forward(slit[None])[0]
    ends = [np.sqrt(2 / (WAVELENGTH * distance)) * (sign * half * step - place) for sign in (-1, 1)]
    (s0, c0), (s1, c1) = (special.fresnel(end) for end in ends)
    expected = (1 - 1j) / 2 * (c1 - c0 + 1j * (s1 - s0))
    assert np.abs(found - expected).max() <= 0.02
    assert np.sqrt(np.mean(np.abs(found - expected) ** 2)) <= 0.005


def test_a_point_source_magnifies():
    """Against the integral over the sample: a spherical wave before it, and Fresnel's kernel behind it."""
    size, step, wavelength, before, behind = 256, 1e-6, 1e-10, 0.4, 1.2
    pixel = (before + behind) / before * step
    place = (np.arange(size) - size // 2) * step

    def sample(x):
        return np.exp(1j * np.exp(-((x / 12e-6) ** 2)) - (x / 30e-6) ** 2)

    field = NearField.magnified((1, size), (pixel, pixel), wavelength, before, behind, paraxial=True)
    assert field.pixel_size == pytest.approx((step, step))
    assert field.distance == pytest.approx(0.3)
    seen = place * pixel / step
    fine = (np.arange(20 * size) - 10 * size) * step / 20
    phases = fine**2 / before + (seen[:, None] - fine) ** 2 / behind
    wave = np.exp(1j * np.pi / wavelength * phases) @ sample(fine) * step / 20 / np.sqrt(wavelength * behind)
    found = np.abs(field.forward(sample(place)[None] + 0j)[0]) ** 2
    assert np.allclose(4 * np.abs(wave) ** 2, found, atol=1e-6)


@pytest.mark.parametrize("paraxial", [True, False])
@pytest.mark.parametrize("pixel", [1e-6, 1.5e-7])
def test_the_derivative_by_the_distance(paraxial, pixel):
    field = NearField((12, 10), (pixel, 1.2 * pixel), 2e-7, 4 * pixel, paraxial)
    x, measured = draw(3, 12, 10), np.random.default_rng(4).exponential(1, (3, 12, 10))

    def loss(distance):
        return ((np.abs(field.at(distance).forward(x)) - np.sqrt(measured)) ** 2).sum()

    q = field.forward(x)
    changes = (1 - np.sqrt(measured) / np.abs(q)) * q
    found = field.distance_gradient(x, changes)
    h = 1e-4 * pixel
    d = field.distance
    expected = (8 * (loss(d + h) - loss(d - h)) - (loss(d + 2 * h) - loss(d - 2 * h))) / (12 * h)
    assert found == pytest.approx(expected, rel=1e-6)
    single = field.distance_gradient(x.astype(np.complex64), changes.astype(np.complex64))
    assert single == pytest.approx(expected, rel=1e-3)


def test_the_bits_are_the_same_for_any_number_of_threads():
    field, x = NearField((24, 20), (1e-6, 1e-6), 1e-7, 3e-5), draw(7, 24, 20, dtype=np.complex64)
    changes, before, found = draw(7, 24, 20, dtype=np.complex64, seed=2), get_threads(), []
    for threads in (1, 2, 3):
        set_threads(threads)
        try:
            found.append((field.forward(x).tobytes(), field.distance_gradient(x, changes)))
        finally:
            set_threads(before)
    assert found[0] == found[1] == found[2]


def test_too_far_for_the_field_is_said():
    near = NearField((64, 128), (1e-6, 2e-6), 1e-10, 0.1)
    assert near.reach == pytest.approx(0.64)
    assert near.doubt is None
    assert "take larger frames or a shorter distance" in near.at(-0.7).doubt


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (((0, 4), (1, 1), 1, 1), "are positive"),
        (((4, 4), (1, -1), 1, 1), "are positive"),
        (((4, 4), (1, 1), np.nan, 1), "are positive"),
        (((4, 4), (1, 1), 1, np.inf), "number of metres"),
    ],
)
def test_what_cannot_be_is_refused(arguments, message):
    with pytest.raises(UserError, match=message):
        NearField(*arguments)
    with pytest.raises(UserError, match="from source to sample"):
        NearField.magnified((4, 4), (1, 1), 1, 0, 1)
    with pytest.raises(UserError, match=r"of \(4, 4\) pixels; got \(4, 5\)"):
        NearField((4, 4), (1, 1), 1, 1).forward(draw(4, 5))
