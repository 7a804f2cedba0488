"""C14: chunks, slabs and workers do not change a bit of the answer."""

from pathlib import Path

import dask.array as da
import numpy as np
import pytest

import dtomo
from dtomo.distributed.clusters import Resources, connect
from dtomo.geometry import ParallelBeam
from dtomo.recon import run
from dtomo.recon.prepare import line_integrals
from dtomo.recon.scans import open_scan
from dtomo.settings import ReconSettings
from dtomo.simulate import simulate_scan

SLICES = 37


@pytest.fixture(scope="module")
def beam() -> ParallelBeam:
    rng = np.random.default_rng(14)
    return ParallelBeam(np.sort(rng.uniform(0, 180, 19)), 33, 15.3)


@pytest.fixture(scope="module")
def projections() -> np.ndarray:
    return np.random.default_rng(1).standard_normal((19, SLICES, 33)).astype(np.float32)


SOLVERS = {
    "fbp": lambda data, beam: dtomo.recon.fbp(data, beam),
    "fbp-nufft": lambda data, beam: dtomo.recon.fbp(data, beam, method="nufft"),
    "fbp-backprojection": lambda data, beam: dtomo.recon.fbp(data, beam, method="backprojection"),
    "sirt": lambda data, beam: dtomo.recon.sirt(data, beam, iterations=5),
    "cgls": lambda data, beam: dtomo.recon.cgls(data, beam, iterations=5),
    "lsqr": lambda data, beam: dtomo.recon.lsqr(data, beam, iterations=5),
    "os_sart": lambda data, beam: dtomo.recon.os_sart(data, beam, iterations=2, subsets=5),
    "tv": lambda data, beam: dtomo.recon.tv(data, beam, strength=1.0, spacing=(1, 1), iterations=5),
    "fista": lambda data, beam: dtomo.recon.fista(data, beam, prior=dtomo.algorithms.Wavelets(1.0), iterations=5),
}


@pytest.mark.parametrize("solver", SOLVERS)
def test_chunks_of_8_1_and_37_give_the_same_bits(solver: str, beam: ParallelBeam, projections: np.ndarray) -> None:
    solve = SOLVERS[solver]
    before = projections.copy()
    whole = solve(projections, beam)
    assert whole.shape == (SLICES, 33, 33)
    for chunk in (8, 1, 37):
        lazy = solve(da.from_array(projections, chunks=(19, chunk, 33)), beam)
        assert lazy.chunks[0] == da.core.normalize_chunks(chunk, (SLICES,))[0]
        assert np.array_equal(lazy.compute(scheduler="synchronous"), whole), f"chunks of {chunk}"
    assert np.array_equal(projections, before), "the input was changed in place"


@pytest.mark.parametrize("solver", SOLVERS)
def test_one_slice_alone_equals_that_slice_of_the_whole(
    solver: str, beam: ParallelBeam, projections: np.ndarray
) -> None:
    solve = SOLVERS[solver]
    whole = solve(projections, beam)
    for row in (0, 17, 36):
        assert np.array_equal(solve(projections[:, row : row + 1], beam)[0], whole[row])


@pytest.fixture(scope="module")
def scan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("c14") / "scan.h5"
    simulate_scan(path, size=40, rows=52, angles=48, photons=1e5)
    return path


@pytest.fixture(scope="module")
def one_worker(scan: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, np.ndarray]:
    """Volumes of all algorithms from one worker and one slab."""
    return _volumes(scan, tmp_path_factory.mktemp("one"), workers=1, slab=52)


def _volumes(scan: Path, folder: Path, *, workers: int, slab: int) -> dict[str, np.ndarray]:
    found = {}
    with connect(Resources(workers, 1, 2_000_000_000, dashboard=":0")) as client:
        for algorithm in ("fbp", "sirt", "cgls"):
            settings = ReconSettings(
                scan=scan,
                output=folder / f"{algorithm}.zarr",
                center=23.9,
                algorithm=algorithm,
                iterations=4,
                slab=slab,
                cluster=client.scheduler.address,
            )
            done = run(settings, quiet=True)
            assert done.plan.resources.workers == workers
            found[algorithm] = np.asarray(dtomo.io.open_volume(settings.output).array)
    return found


@pytest.mark.parametrize(("workers", "slab"), [(2, 16), (3, 10)])
def test_workers_and_slabs_do_not_change_the_bits(
    scan: Path, tmp_path: Path, one_worker: dict[str, np.ndarray], workers: int, slab: int
) -> None:
    for algorithm, found in _volumes(scan, tmp_path, workers=workers, slab=slab).items():
        expected = one_worker[algorithm]
        assert np.isfinite(expected).all()
        assert expected.std() > 0
        assert np.array_equal(expected, found), f"{algorithm}, {workers} workers, slabs of {slab}"


def _phase_settings(scan: Path) -> ReconSettings:
    return ReconSettings(
        scan=scan, output="unused.zarr", delta_beta=400, energy=20, distance=100, pixel_size=2.0, zingers=0
    )


def test_phase_filter_with_a_halo_of_20_in_chunks_of_10_and_a_short_last_one(scan: Path) -> None:
    settings = _phase_settings(scan)
    opened = open_scan(settings)
    halo = dtomo.prep.paganin_halo_rows(pixel_size=2.0, energy=20, distance=100, delta_beta=400)
    assert halo >= 20
    whole, _ = line_integrals(opened, settings, slice(0, 52))
    for first in range(0, 52, 10):
        last = min(first + 10, 52)
        part, _ = line_integrals(opened, settings, slice(first, last))
        assert np.array_equal(part, whole[:, first:last]), f"rows {first}:{last}"


def test_phase_filter_in_bands_is_that_of_all_rows_at_once(tmp_path: Path) -> None:
    path = tmp_path / "tall.h5"
    simulate_scan(path, size=32, rows=150, angles=4, photons=1e6, rings=False, dead_pixels=0, zingers=0)
    settings = _phase_settings(path).model_copy(update={"stripes": "none"})
    opened = open_scan(settings)
    raw = opened.read(slice(0, 150))
    transmission, _ = dtomo.prep.normalize(raw.projections, raw.flats, raw.darks)
    expected = dtomo.prep.paganin(transmission, pixel_size=2.0, energy=20, distance=100, delta_beta=400)
    found, _ = line_integrals(opened, settings, slice(0, 150))
    assert np.abs(found - expected).max() < 2e-4 * np.abs(expected).max()
