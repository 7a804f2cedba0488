"""Line integrals of a small scan whose rows lie on a device, against the CPU's."""

import dataclasses

import numpy as np
import pytest

import dtomo
from dtomo import io
from dtomo.device import to_device
from dtomo.io import write_zarr_scan
from dtomo.kernels.cuda.compiling import CudaKernel
from dtomo.recon.prepare import line_integrals
from dtomo.settings import ReconSettings

ANGLES, ROWS, COLUMNS = 24, 3, 56


@pytest.fixture(autouse=True)
def few_threads(monkeypatch):
    launch = CudaKernel.launch

    def small(kernel, blocks, *arguments):
        blocks = (blocks,) if isinstance(blocks, int) else blocks
        launch(kernel, tuple(min(n, 2) for n in blocks), *arguments, threads=(4,))

    monkeypatch.setattr(CudaKernel, "launch", small)


def on_the_device(raw):
    return io.RawSlab(*(to_device(getattr(raw, field.name)) for field in dataclasses.fields(raw)))


def open_scan(path, frames, flats=None, darks=None, values="counts", turn=180):
    write_zarr_scan(
        path, frames=frames, shape=frames.shape, dtype=frames.dtype, flats=flats, darks=darks,
        angles=np.arange(len(frames)) * turn / len(frames), extra={"values": values},
    )  # fmt: skip
    return dtomo.open(path)


@pytest.fixture
def counts():
    """Frames, flats and darks with dead and hot pixels, a zinger and a stripe."""
    rng = np.random.default_rng(1)
    place = np.arange(COLUMNS) - COLUMNS / 2
    turn = np.linspace(0, np.pi, ANGLES)[:, np.newaxis, np.newaxis]
    object_ = 2 * np.exp(-(((place - 8 * np.cos(turn + np.arange(ROWS)[:, np.newaxis])) / 14) ** 2))
    gain = rng.uniform(0.9, 1.1, (ROWS, COLUMNS))
    gain[:, 40] *= 0.95
    frames = rng.poisson(20000 * np.exp(-object_) * gain) + 100
    frames[:, 1, 20] = 100
    frames[5, 0, 30] = 60000
    frames[7, 2, 10:12] = 90
    flats = rng.poisson(20000 * gain * np.ones((4, 1, 1))) + 100
    flats[:, 1, 20] = 100
    darks = rng.integers(95, 105, (3, ROWS, COLUMNS))
    darks[:, 2, 50] = 30000
    return [a.astype(np.uint16) for a in (frames, flats, darks)]


def compared(scan, cupy, fold_about=None, tolerance=1e-5, **options):
    """Line integrals by both; the device's as NumPy's array."""
    settings = ReconSettings(scan=scan.path, output="volume.zarr", **options)
    rows = slice(0, scan.shape[1])
    wanted, report = line_integrals(scan, settings, rows, fold_about)
    found, repairs = line_integrals(scan, settings, rows, fold_about, arrive=on_the_device)
    assert isinstance(found, cupy.ndarray)
    assert found.dtype == wanted.dtype
    assert found.shape == wanted.shape
    assert dataclasses.asdict(repairs) == dataclasses.asdict(report)
    assert np.isfinite(wanted).all()
    assert abs(found.get() - wanted).max() < tolerance * abs(wanted).max()
    return wanted, report


def test_of_counts(cupy, counts, tmp_path):
    scan = open_scan(tmp_path / "scan.zarr", *counts)
    values, report = compared(scan, cupy)
    assert report.dead_pixels == 2
    assert report.not_positive > 0
    assert 1 < values.max() < 12


def test_rows_read_by_a_function_have_the_same_bits(cupy, counts, tmp_path):
    scan = open_scan(tmp_path / "scan.zarr", *counts)
    read = []

    def rows_on_the_device(rows):
        read.append(rows)
        return on_the_device(scan.read(rows))

    settings = ReconSettings(scan=scan.path, output="volume.zarr")
    whole, _ = line_integrals(scan, settings, slice(0, 3), arrive=on_the_device)
    part, _ = line_integrals(scan, settings, slice(1, 2), read=rows_on_the_device)
    assert read == [slice(1, 2)]
    assert (part.get() == whole.get()[:, 1:2]).all()


def test_of_transmissions_in_double_precision(cupy, counts, tmp_path):
    frames = counts[0] / 20000
    frames[3, 1, :4] = np.nan
    scan = open_scan(tmp_path / "scan.zarr", frames, values="transmission")
    _, report = compared(scan, cupy, zingers=0.5)
    assert report.not_finite == 4


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex64, np.complex128])
def test_of_integrals(cupy, tmp_path, dtype):
    rng = np.random.default_rng(2)
    frames = rng.normal(size=(ANGLES, 2, COLUMNS)).astype(dtype)
    if np.dtype(dtype).kind == "c":
        frames += 1j * rng.normal(size=frames.shape)
    frames[1, 1, 5:8] = np.nan
    frames[2, 0] = np.inf
    scan = open_scan(tmp_path / "scan.zarr", frames, values="integrals")
    for stripes in ("combined", "none"):
        values, report = compared(scan, cupy, stripes=stripes)
        assert report.not_finite >= 3
    assert (values[2, 0] == 0).all()


def test_of_phase(cupy, counts, tmp_path):
    scan = open_scan(tmp_path / "scan.zarr", *counts)
    scan = dataclasses.replace(scan, pixel_size=2.0, energy=25.0, sample_detector_distance=20.0)
    compared(scan.crop(slice(1, 3), slice(5, 52)), cupy, delta_beta=500.0)


def test_of_a_full_turn(cupy, counts, tmp_path):
    scan = open_scan(tmp_path / "scan.zarr", *counts, turn=360)
    values, _ = compared(scan, cupy, fold_about=10.3)
    assert values.shape[2] > COLUMNS
