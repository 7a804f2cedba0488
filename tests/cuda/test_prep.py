"""Preparation on devices against the CPU's: the same repairs, the same values up to rounding."""

import dataclasses

import numpy as np
import pytest

from dtomo import prep
from dtomo.errors import UserError
from dtomo.kernels.cuda import halfturn, lines, stripes
from dtomo.kernels.cuda.compiling import CudaKernel
from dtomo.prep.flats import average_frames, check_frames

ANGLES, ROWS, COLUMNS = 7, 3, 41
KERNELS = [kernel for module in (lines, stripes, halfturn) for kernel in vars(module).values()]


@pytest.fixture(autouse=True)
def few_threads(monkeypatch):
    """Blocks of four threads, and a grid that has to stride in every direction."""
    launch = CudaKernel.launch

    def small(kernel, blocks, *arguments):
        grid = (blocks,) if isinstance(blocks, int) else blocks
        launch(kernel, tuple(min(n, 3) for n in grid), *arguments)

    for kernel in KERNELS:
        if isinstance(kernel, CudaKernel):
            monkeypatch.setattr(kernel, "threads", (4,))
    monkeypatch.setattr(CudaKernel, "launch", small)
    monkeypatch.setattr(lines, "BLOCKS", 3)


def error(found, wanted):
    """Largest deviation, relative to the largest value."""
    found = found.get()
    assert found.shape == wanted.shape
    assert found.dtype == wanted.dtype
    assert np.isfinite(wanted).all()
    return abs(found - wanted).max() / (abs(wanted).max() or 1)


def counts_of(dtype, rng, columns=COLUMNS):
    """Counts with dead columns, values below the dark and, where the type has them, NaN and infinity."""
    top = 100 if dtype == np.uint8 else 30000
    counts = rng.integers(top // 4, top // 2, (ANGLES, ROWS, columns)).astype(dtype)
    flats = rng.integers(top // 2, top, (3, ROWS, columns)).astype(dtype)
    darks = rng.integers(1, 10, (2, ROWS, columns)).astype(dtype)
    flats[:, 0, [0, 1, 9, 10, 11, 12, 13, columns - 1]] = 0
    counts[1, 1, 4:6] = 0
    counts[2, 2] = 0
    if np.dtype(dtype).kind == "f":
        counts[3, 1, [0, 7, 20, 21, 40]] = [np.nan, np.inf, -np.inf, np.nan, -5]
        counts[4, 2] = np.nan
        flats[1, 1, 30] = np.nan
    elif np.dtype(dtype).kind == "i":
        counts[3, 1, [0, 7, 40]] = -7
    return counts, flats, darks


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.int16, np.uint32, np.int32, np.float32, np.float64, bool])
@pytest.mark.parametrize("minus_log", [False, True])
def test_normalize(cupy, record_error, dtype, minus_log):
    counts, flats, darks = counts_of(dtype, np.random.default_rng(1))
    if dtype is bool:
        flats = darks = None
    bad = np.zeros((ROWS, COLUMNS), bool)
    bad[2, 17:19] = True
    wanted, report = prep.normalize(counts, flats, darks, bad_pixels=bad, minus_log=minus_log)
    device = [None if a is None else cupy.asarray(a) for a in (counts, flats, darks)]
    found, repairs = prep.normalize(*device, bad_pixels=cupy.asarray(bad), minus_log=minus_log)
    assert dataclasses.asdict(repairs) == dataclasses.asdict(report)
    assert report.dead_pixels > 1
    assert error(found, wanted) < 1e-6
    record_error(found, wanted)
    assert (device[0].get() == counts)[np.isfinite(counts)].all()


def test_dead_values_lie_between_their_neighbours(cupy):
    """Not against the CPU: the straight line, by NumPy."""
    counts = np.random.default_rng(2).uniform(0.2, 1, (2, 1, 33)).astype(np.float32)
    dead = np.zeros(33, bool)
    dead[[0, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 20, 31, 32]] = True
    found, _ = prep.normalize(cupy.asarray(counts), bad_pixels=cupy.asarray(dead[np.newaxis]))
    for line, repaired in zip(counts[:, 0], found.get()[:, 0]):
        assert np.allclose(repaired, np.interp(np.arange(33), np.flatnonzero(~dead), line[~dead]), rtol=1e-6)
        assert (repaired[~dead] == line[~dead]).all()


def test_logarithm_of_what_is_not_positive(cupy):
    values = np.array([[[0.5, -1, 0.25, 0, 1]], [[-1, -2, 0, -1, -3]]], np.float32)
    found, report = prep.minus_log(cupy.asarray(values))
    least = 2 * np.log(2)
    assert np.allclose(found.get(), [[[np.log(2), least, least, least, 0]], [[0] * 5]], rtol=1e-6)
    assert not np.signbit(found.get()).any()
    assert (report.not_positive, report.empty_lines) == (7, 1)


@pytest.mark.parametrize("air", [(0, 0), (5, 0), (0, 6), (4, 3), (1, 1)])
def test_air(cupy, air):
    values = np.random.default_rng(3).uniform(0.5, 1, (2, 3, COLUMNS)).astype(np.float32)
    values[0, 0, :6] = values[0, 0, -6:] = -1
    wanted, report = prep.normalize(values, air_columns=air, minus_log=True)
    found, repairs = prep.normalize(cupy.asarray(values), air_columns=air, minus_log=True)
    assert repairs == report
    assert report.lines_without_air == (air != (0, 0))
    assert error(found, wanted) < 1e-5


def test_in_place_and_bits_of_a_row_alone(cupy):
    counts, flats, darks = counts_of(np.float32, np.random.default_rng(4))
    device = [cupy.asarray(a) for a in (counts, flats, darks)]
    found, _ = prep.normalize(*device, minus_log=True)
    for row in range(ROWS):
        one = slice(row, row + 1)
        alone, _ = prep.normalize(*(a[:, one] for a in device), minus_log=True)
        assert (alone.get() == found.get()[:, one]).all()
    turned = [cupy.asarray(np.asfortranarray(a)) for a in (counts, flats, darks)]
    assert (prep.normalize(*turned, minus_log=True)[0].get() == found.get()).all()
    same, _ = prep.normalize(*device, minus_log=True, out=device[0])
    assert same is device[0]
    assert (same.get() == found.get()).all()


def test_what_does_not_fit_is_refused(cupy):
    counts = cupy.ones((4, 2, 5), np.uint16)
    with pytest.raises(TypeError, match="host"):
        prep.normalize(counts, np.ones((3, 2, 5), np.uint16))
    with pytest.raises(UserError, match="same detector area"):
        prep.normalize(counts, cupy.ones((3, 2, 6), np.uint16))
    with pytest.raises(UserError, match="real numbers"):
        prep.normalize(counts.astype(np.complex64))


@pytest.mark.parametrize("average", ["mean", "median"])
def test_frames(cupy, average):
    frames = np.random.default_rng(5).integers(0, 60000, (6, 2, 9)).astype(np.uint16)
    options = {"average": average, "exclude": (1, -1)}
    found = average_frames(cupy.asarray(frames), (2, 9), **options)
    assert (found.get() == average_frames(frames, (2, 9), **options)).all()
    assert (found.get() == getattr(np, average)(frames[[0, 2, 3, 4]], axis=0).astype(np.float32)).all()
    assert (average_frames(None, (2, 9), xp=cupy).get() == 1).all()
    frames[3] = 60000
    with_bright = cupy.asarray(frames // 50)
    with_bright[3] = 50000
    assert len(check_frames(cupy.asarray(frames), with_bright)) == 1
    assert check_frames(cupy.asarray(frames), with_bright) == check_frames(frames, with_bright.get())


def test_bad_pixels(cupy):
    rng = np.random.default_rng(6)
    flats = rng.integers(900, 1100, (2, 3, 60)).astype(np.uint16)
    darks = rng.integers(90, 110, (2, 3, 60)).astype(np.uint16)
    flats[:, 1, [0, 30]] = 0
    flats[:, 2, 59] = 5000
    darks[:, 0, 10] = 1000
    for given in ((flats, darks), (flats, None), (None, darks)):
        found = prep.find_bad_pixels(*(None if a is None else cupy.asarray(a) for a in given))
        wanted = prep.find_bad_pixels(*given)
        assert found.dtype == bool
        assert (found.get() == wanted).all()
        assert 0 < wanted.sum() < 6


@pytest.mark.parametrize("kind", ["bright", "dark", "both"])
@pytest.mark.parametrize("dtype", [np.uint16, np.float32])
def test_outliers(cupy, monkeypatch, record_error, kind, dtype):
    rng = np.random.default_rng(7)
    values = rng.integers(1000, 1100, (6, 2, 15)).astype(dtype)
    for place in ((0, 0, 0), (5, 1, 14), (2, 0, 7), (2, 0, 8), (4, 1, 3)):
        values[place] = 3000
    values[3, 1, [0, 9]] = 100
    wanted, count = prep.remove_outliers(values, threshold=500, kind=kind)
    assert count == {"bright": 5, "dark": 2, "both": 7}[kind]
    for views in (1, 2, 6):  # at a time
        monkeypatch.setattr(prep.outliers, "_DEVICE_VALUES", (views + 2) * 2 * 15)
        found, replaced = prep.remove_outliers(cupy.asarray(values), threshold=500, kind=kind)
        assert (found.get() == wanted).all()
        assert replaced == count
    if dtype is np.float32:
        device = cupy.asarray(values)
        monkeypatch.setattr(prep.outliers, "_DEVICE_VALUES", 4 * 2 * 15)
        prep.remove_outliers(device, threshold=500, kind=kind, out=device)
        assert (device.get() == wanted).all()
    record_error(found, wanted)


@pytest.mark.parametrize("output", ["attenuation", "thickness"])
def test_phase(cupy, monkeypatch, output):
    values = np.random.default_rng(8).uniform(0.3, 1, (5, 9, 14)).astype(np.float32)
    options = {"pixel_size": 1.0, "energy": 25.0, "distance": 30.0, "delta": 5e-7, "beta": 1e-9, "output": output}
    wanted = prep.paganin(values, halo=(2, 1), **options)
    monkeypatch.setattr(prep.phase, "_DEVICE_BYTES", 2 * 32 * 9 * 14)
    found = prep.paganin(cupy.asarray(values), halo=(2, 1), **options)
    assert error(found, wanted) < 1e-5
    again = cupy.asarray(values)
    assert prep.paganin(again, out=again, **options) is again
    assert error(again, prep.paganin(values, **options)) < 1e-5
    values[3, 1, 2] = np.nan
    with pytest.raises(UserError, match="1 values"):
        prep.paganin(cupy.asarray(values), **options)


@pytest.mark.parametrize("center", [7.0, 7.5, 7.3, 12.2])
@pytest.mark.parametrize("views", [8, 9])
@pytest.mark.parametrize("dtype", [np.float32, np.complex64, np.float64])
def test_fold(cupy, record_error, center, views, dtype):
    rng = np.random.default_rng(9)
    values = rng.normal(size=(views, 2, 20)).astype(dtype)
    if np.dtype(dtype).kind == "c":
        values += 1j * rng.normal(size=values.shape)
    angles = np.arange(views) * 360 / views
    wanted, degrees, axis = prep.fold_360(values, angles, center)
    found, device_degrees, device_axis = prep.fold_360(cupy.asarray(values), angles, center)
    assert (degrees == device_degrees).all()
    assert axis == device_axis
    assert error(found, wanted) < 1e-5
    record_error(found, wanted)


@pytest.mark.parametrize("mode", ["taper", "edge", "zero"])
def test_extension(cupy, mode):
    values = np.random.default_rng(10).normal(size=(2, 3, 5)).astype(np.float32)
    wanted = prep.extend(values, 3, 4, mode)
    found = prep.extend(cupy.asarray(values), 3, 4, mode)
    assert (found.get() == wanted).all()
    out = cupy.zeros((2, 3, 12), np.float32)
    assert prep.extend(cupy.asarray(values), 3, 4, mode, out=out) is out
    assert (out.get() == wanted).all()
