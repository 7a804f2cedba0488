"""Checkpoints in the settings, in the plan and in the API for arrays."""

from pathlib import Path

import dask.array as da
import numpy as np
import pytest

from dtomo import recon
from dtomo.distributed.clusters import Resources
from dtomo.errors import UserError
from dtomo.geometry import ParallelBeam
from dtomo.io import Checkpoints, Schedule
from dtomo.io.checkpoints import GENERATIONS
from dtomo.recon import cost, run
from dtomo.recon.scans import geometry_of, open_scan
from dtomo.settings import ReconSettings, checkpoint_interval
from dtomo.simulate import simulate_scan


@pytest.fixture(scope="module")
def scan(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("scan") / "scan.h5"
    simulate_scan(path, size=48, rows=96, angles=20, center=29.0)
    return path


@pytest.mark.parametrize(
    ("given", "kept", "interval"),
    [
        ("10", "10", (10, None)), (10, "10", (10, None)), (0.5, "0.5", (0.5, None)), ("20it", "20it", (None, 20)),
        (" 20 IT ", "20it", (None, 20)), ("never", "never", (None, None)), ("Never", "never", (None, None)),
    ],
)  # fmt: skip
def test_intervals(given, kept, interval):
    settings = ReconSettings(scan="/s", output="/o", checkpoint_every=given)
    assert settings.checkpoint_every == kept
    assert checkpoint_interval(settings.checkpoint_every) == interval
    assert ReconSettings(**settings.plain()) == settings
    assert "checkpoint_every" not in settings.that_decide_the_result()


@pytest.mark.parametrize(
    "wrong", ["", "it", "0", 0, "-1", "0it", "1.5it", "nan", "inf", "ten", True, None, [1], "1e999", "20 its"]
)
def test_what_is_no_interval(wrong):
    with pytest.raises(UserError, match=r"--checkpoint-every: must be minutes such as 10, iterations such as 20it, or"):
        ReconSettings(scan="s", output="o", checkpoint_every=wrong)


def _plan(scan, memory=10**10, **more):
    settings = ReconSettings(scan=scan, output="o.zarr", center=29.0, slab=32, **more)
    opened = open_scan(settings)
    geometry = geometry_of(opened, 29.0, False)
    plan = cost.make_plan(opened, settings, geometry, Resources(2, 1, memory))
    return plan, 32 * geometry.width * geometry.height * 4, 32 * 20 * geometry.columns * 4


def test_the_plan_counts_checkpoints_on_disk(scan):
    plan, volume, data = _plan(scan, algorithm="cgls")
    assert plan.scratch["checkpoints"] == 2 * (GENERATIONS + 1) * (2 * volume + data)
    assert any("checkpoints" in line and "on disk" in line for line in plan.lines())
    assert _plan(scan, algorithm="sirt")[0].scratch["checkpoints"] == 2 * (GENERATIONS + 1) * volume
    for options in ({"algorithm": "fbp"}, {"algorithm": "sirt", "checkpoint_every": "never"}):
        assert not _plan(scan, **options)[0].scratch


def test_bytes_of_a_state_are_those_on_disk(scan, tmp_path):
    """Of both algorithms, on a block of one slice."""
    from dtomo.algorithms import cgls, sirt
    from dtomo.operators import ParallelProjector

    geometry = ParallelBeam(np.arange(20.0), 56)
    operator = ParallelProjector(geometry, 1)
    data = np.ones(operator.shape_out, np.float32)
    for method in (sirt, cgls):
        folder = tmp_path / method.__name__
        method(operator, data, iterations=2, checkpoints=Checkpoints(folder, schedule=Schedule(iterations=1)))
        stored = sum(item.stat().st_size for item in folder.rglob("*") if item.is_file())
        settings = ReconSettings(scan="s.h5", output="o.zarr", algorithm=method.__name__)
        expected = cost.state_bytes(settings, 56 * 56 * 4, 20 * 56 * 4)
        assert expected <= stored <= expected + 12_000  # metadata, history


def test_finished_blocks_are_counted_where_slabs_are_cut(scan):
    whole, volume, _ = _plan(scan, algorithm="cgls")
    short, _, _ = _plan(scan, memory=whole.worker_memory - 500_000, algorithm="cgls")
    assert short.fits
    assert short.block < 32
    part = short.block / 32
    assert short.scratch["checkpoints"] < part * whole.scratch["checkpoints"] + 2 * volume + 1
    assert short.scratch["checkpoints"] > part * whole.scratch["checkpoints"] + volume


@pytest.mark.parametrize("algorithm", ["fbp", "sirt", "cgls"])
def test_where_not_one_slice_fits_the_plan_refuses_in_a_sentence(scan, tmp_path, algorithm):
    """Out-of-core has its end where a single slice does not fit: nothing is touched, and what would do is said."""
    settings = ReconSettings(
        scan=scan, output=tmp_path / "out.zarr", center=29.0, algorithm=algorithm, workers=1, memory="100MB"
    )
    with pytest.raises(
        UserError, match=r"a worker needs .* but is limited to 100 MB and no smaller slab fits; give --me"
    ):
        run(settings, quiet=True)
    assert not list(tmp_path.iterdir())


def test_arrays_go_on_from_checkpoints(tmp_path):
    beam = ParallelBeam(np.arange(0, 180, 6.0), 32, 14.7)
    projections = np.random.default_rng(0).standard_normal((30, 4, 32)).astype(np.float32)
    keep = {"checkpoints": Checkpoints(tmp_path, schedule=Schedule(iterations=1))}
    recon.cgls(projections, beam, iterations=3, **keep)
    seen = []
    found = recon.cgls(projections, beam, iterations=6, callback=lambda n, norms: seen.append(n), **keep)
    assert seen == [2, 3, 4, 5]
    assert np.array_equal(found, recon.cgls(projections, beam, iterations=6))


def test_checkpoints_of_dask_arrays_are_refused(tmp_path):
    beam = ParallelBeam(np.arange(0, 180, 6.0), 32, 14.7)
    lazy = da.zeros((30, 8, 32), dtype=np.float32, chunks=(30, 4, 32))
    with pytest.raises(UserError, match="each block of a Dask array"):
        recon.sirt(lazy, beam, iterations=3, checkpoints=Checkpoints(tmp_path))
