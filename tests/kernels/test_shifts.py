"""Shifted and mixed probes against FFTs of whole arrays; the adjoint and the derivatives by their definitions."""

import numpy as np
import pytest

from dtomo.kernels.shifts import Mixture, MixtureSums, mix, phases, unmix
from tests import laws

FRAMES, MODES, SHAPE = 3, 2, (6, 9)


def mixture(rank=2, dtype=np.complex128):
    random = np.random.default_rng(0)
    fractions = random.uniform(-0.5, 0.5, (FRAMES, 2))
    real = np.zeros(0, dtype).real.dtype
    return fractions, Mixture(
        laws.draw((MODES, *SHAPE), dtype),
        laws.draw((rank, MODES, *SHAPE), dtype, 1),
        laws.draw((FRAMES, rank), dtype, 2),
        random.uniform(0.5, 1.5, FRAMES).astype(real),
        *(phases(fractions[:, axis], size, dtype) for axis, size in enumerate(SHAPE)),
    )


def room(rank, dtype=np.complex128):
    return MixtureSums(
        np.zeros((MODES, *SHAPE), dtype),
        np.zeros((rank, MODES, *SHAPE), dtype),
        np.zeros((FRAMES, rank), np.complex128),
        np.full((FRAMES, 3), np.nan),
    )


def test_a_shift_by_whole_pixels_is_a_roll():
    image = laws.draw(SHAPE, np.complex128)
    turns = [phases(np.array([float(by)]), size, np.complex128)[0] for by, size in zip((2, -3), SHAPE)]
    moved = np.fft.ifft2(np.fft.fft2(image) * turns[0][:, None] * turns[1])
    assert np.allclose(moved, np.roll(image, (2, -3), (0, 1)), atol=1e-13)


def test_a_shift_by_a_fraction_moves_a_wave():
    x = np.arange(SHAPE[1])
    wave = np.exp(2j * np.pi * 2 * x / SHAPE[1])
    turn = phases(np.array([0.3]), SHAPE[1], np.complex128)[0]
    assert np.allclose(np.fft.ifft(np.fft.fft(wave) * turn), np.exp(2j * np.pi * 2 * (x - 0.3) / SHAPE[1]), atol=1e-13)


@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
@pytest.mark.parametrize("rank", [0, 1, 2])
def test_mixtures_written_out(rank, dtype):
    fractions, mixed = mixture(rank, dtype)
    rows, columns = (np.fft.fftfreq(size) for size in SHAPE)
    found = mix(mixed)
    assert found.dtype == dtype
    for frame, (down, across) in enumerate(fractions):
        turn = np.exp(-2j * np.pi * (down * rows[:, None] + across * columns))
        own = mixed.base + sum((w * v for w, v in zip(mixed.weights[frame], mixed.variable)), np.zeros(1, dtype))
        assert np.allclose(found[frame], mixed.scale[frame] * turn * own, rtol=1e-5, atol=1e-5)
    assert np.array_equal(mix(mixed.of(slice(1, 3))), found[1:])


@pytest.mark.parametrize("rank", [0, 2])
def test_the_adjoint_and_the_derivatives(rank):
    fractions, mixed = mixture(rank)
    change, sums = laws.draw((FRAMES, MODES, *SHAPE), np.complex128, 5), room(rank)
    unmix(change, mixed, sums)
    both = np.vdot(mixed.base, sums.base) + np.vdot(mixed.variable, sums.variable)
    assert both == pytest.approx(np.vdot(mix(mixed), change), rel=1e-12)

    def value(**other):  # the real function whose derivative by the conjugate of the probes is `change`
        return 2 * np.real(np.vdot(change, mix(mixed._replace(**other))))

    h = 1e-5
    for frame in range(FRAMES):
        unit = np.eye(FRAMES)[frame]
        slope = (value(scale=mixed.scale + h * unit) - value(scale=mixed.scale - h * unit)) / (2 * h)
        assert sums.tables[frame, 0] == pytest.approx(slope, rel=1e-7)
        for axis, name in enumerate(("row_phases", "column_phases")):
            ends = [phases(fractions[:, axis] + s * unit, SHAPE[axis], np.complex128) for s in (h, -h)]
            slope = (value(**{name: ends[0]}) - value(**{name: ends[1]})) / (2 * h)
            assert sums.tables[frame, 1 + axis] == pytest.approx(slope, rel=1e-6, abs=1e-6)
        for k in range(rank):
            for step in (1, 1j):
                moved = np.zeros((FRAMES, rank), complex)
                moved[frame, k] = h * step
                slope = (value(weights=mixed.weights + moved) - value(weights=mixed.weights - moved)) / (2 * h)
                assert 2 * np.real(np.conj(step) * sums.weights[frame, k]) == pytest.approx(slope, rel=1e-7)


def test_sums_that_are_not_wanted_stay_empty():
    _, mixed = mixture()
    change, full = laws.draw((FRAMES, MODES, *SHAPE), np.complex128, 5), room(2)
    unmix(change, mixed, full)
    for name in MixtureSums._fields:
        empty = {f: np.zeros((0,) * getattr(full, f).ndim, getattr(full, f).dtype) for f in MixtureSums._fields}
        alone = MixtureSums(**(empty | {name: getattr(room(2), name)}))
        unmix(change, mixed, alone)
        assert np.array_equal(getattr(alone, name), getattr(full, name))
