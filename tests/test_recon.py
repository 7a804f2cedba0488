"""Reconstruction through the API: arrays in and out, runs from disk to disk, and their faults."""

from pathlib import Path

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import Client, LocalCluster

from dtomo import algorithms, recon
from dtomo.errors import StoppedError, UserError
from dtomo.geometry import ParallelBeam
from dtomo.io import Scan, open_volume
from dtomo.operators import ParallelProjector
from dtomo.recon import cost, run
from dtomo.recon.prepare import line_integrals
from dtomo.recon.scans import check_usable, geometry_of, open_scan, origin_of, to_detector, to_scan
from dtomo.recon.slab import SlabSummary, repairs
from dtomo.runs import record
from dtomo.runs.session import Interrupted
from dtomo.settings import ReconSettings
from dtomo.simulate import simulate_scan


@pytest.fixture(scope="module")
def beam() -> ParallelBeam:
    return ParallelBeam(np.arange(0, 180, 6.0), 32, 14.7)


@pytest.fixture(scope="module")
def projections() -> np.ndarray:
    return np.random.default_rng(0).standard_normal((30, 20, 32)).astype(np.float32)


@pytest.fixture(scope="module")
def scan(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("scan") / "scan.h5"
    simulate_scan(path, size=48, rows=32, angles=60, center=29.0, photons=1e5)
    return path


def test_arrays_give_what_the_algorithms_give(beam, projections):
    operator = ParallelProjector(beam, 20, np.float32)
    expected = {
        "fbp": algorithms.fbp(projections, beam),
        "sirt": algorithms.sirt(operator, projections, iterations=3).solution,
        "cgls": algorithms.cgls(operator, projections, iterations=3).solution,
    }
    assert np.array_equal(recon.fbp(projections, beam), expected["fbp"])
    assert np.array_equal(recon.sirt(projections, beam, iterations=3), expected["sirt"])
    for found in (recon.fbp(projections, beam), recon.cgls(projections, beam, iterations=3)):
        assert isinstance(found, np.ndarray)
        assert found.dtype == np.float32
        assert found.shape == (20, 32, 32)


def test_total_variation_and_likelihood_of_arrays(beam, projections):
    """As the algorithms; slices of a Dask array are joined unless they are said to be by themselves."""
    operator = ParallelProjector(beam, projections.shape[1])
    positive = np.abs(projections)
    expected = algorithms.mlem(operator, positive, iterations=3).solution
    np.testing.assert_array_equal(recon.mlem(positive, beam, iterations=3), expected)
    coupled = algorithms.tv(operator, projections, strength=0.1, iterations=3).solution
    np.testing.assert_array_equal(recon.tv(projections, beam, strength=0.1, iterations=3), coupled)
    lazy = da.from_array(projections, chunks=(-1, 1, -1))
    with dask.config.set(scheduler="synchronous"):
        np.testing.assert_array_equal(recon.tv(lazy, beam, strength=0.1, iterations=3).compute(), coupled)
    apart = {"strength": 0.1, "iterations": 3, "spacing": (1, 1)}
    one = recon.tv(projections, beam, **apart)
    np.testing.assert_array_equal(recon.tv(lazy, beam, **apart).compute(), one)
    assert not np.array_equal(one, coupled)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("lsqr", {"damping": 0.5}), ("os_sart", {"subsets": 5, "lower": 0.0}), ("osem", {"subsets": 3}),
        ("fista", {"prior": algorithms.TotalVariation(0.1, (1, 1)), "data_term": algorithms.Huber(1.0)}),
        ("fista", {"prior": algorithms.Wavelets(0.1), "stop": algorithms.HeldOut(0.2)}),
        ("sirt", {"coarse": (2,), "mask": np.eye(32) == 0}), ("cgls", {"stop": algorithms.Discrepancy(0.5)}),
    ],
    ids=["lsqr", "os_sart", "osem", "variation", "wavelets", "coarse", "noise"],
)  # fmt: skip
def test_solvers_of_arrays(beam, projections, name, options):
    """As the algorithms, and with the same bits block by block."""
    data = np.abs(projections) if name == "osem" else projections
    whole = getattr(recon, name)(data, beam, iterations=4, **options)
    operator, solver = ParallelProjector(beam, 20), getattr(algorithms, name)
    given = {key: value for key, value in options.items() if key != "coarse"}
    if "coarse" in options:
        found = algorithms.coarse_to_fine(solver, operator, data, factors=options["coarse"], iterations=4, **given)
    else:
        found = solver(operator, data, iterations=4, **given)
    assert np.array_equal(whole, found.solution)
    lazy = getattr(recon, name)(da.from_array(data, chunks=(-1, 8, -1)), beam, iterations=4, **options)
    assert isinstance(lazy, da.Array)
    assert np.array_equal(lazy.compute(scheduler="synchronous"), whole)


def test_priors_that_couple_slices_need_them_all(beam, projections):
    lazy = da.from_array(projections, chunks=(-1, 8, -1))
    for prior in (algorithms.TotalVariation(0.1), algorithms.NuclearNorm(1.0), algorithms.Denoiser(abs)):
        assert recon.fista(projections, beam, prior=prior, iterations=1).shape == (20, 32, 32)
        if not isinstance(prior, algorithms.TotalVariation):
            with pytest.raises(UserError, match="joins all slices"):
                recon.fista(lazy, beam, prior=prior)
    with pytest.raises(UserError, match="fbp has no option 'coarse'"):
        recon.fbp(projections, beam, coarse=(2,))


def test_double_precision_becomes_single(beam, projections):
    assert np.array_equal(recon.fbp(projections.astype(np.float64), beam), recon.fbp(projections, beam))


def test_dask_in_dask_out_also_when_cut_along_the_angles(beam, projections):
    lazy = recon.fbp(da.from_array(projections, chunks=(7, 20, 11)), beam)
    assert isinstance(lazy, da.Array)
    assert lazy.dtype == np.float32
    assert lazy.shape == (20, 32, 32)
    assert np.array_equal(lazy.compute(scheduler="threads"), recon.fbp(projections, beam))


def test_dask_on_processes(beam, projections):
    lazy = recon.sirt(da.from_array(projections, chunks=(30, 8, 32)), beam, iterations=2)
    options = {"n_workers": 1, "threads_per_worker": 2, "host": "127.0.0.1", "dashboard_address": ":0"}
    with LocalCluster(**options) as cluster, Client(cluster):
        assert np.array_equal(lazy.compute(), recon.sirt(projections, beam, iterations=2))


@pytest.mark.parametrize("shape", [(29, 20, 32), (30, 20, 31), (30, 32), (30, 0, 32), (20, 30, 32)])
def test_shapes_that_do_not_fit_are_refused(beam, shape):
    with pytest.raises(UserError, match="projections"):
        recon.fbp(np.zeros(shape, np.float32), beam)
    with pytest.raises(UserError, match="projections"):
        recon.fbp(da.zeros(shape, dtype=np.float32), beam)


def test_columns_of_detector_and_of_cropped_and_binned_scan():
    settings = ReconSettings(scan="s", output="o", columns="10:90", bin=4)
    assert to_scan(10 + 1.5, settings) == 0
    assert to_scan(10 + 4 + 1.5, settings) == 1
    for column in (0.0, 17.3, 80.0):
        assert to_detector(to_scan(column, settings), settings) == pytest.approx(column)


def test_excluded_frames_are_left_out(scan):
    opened = open_scan(ReconSettings(scan=scan, output="o.zarr", exclude_frames="0,58:60"))
    assert opened.shape[0] == 57
    assert opened.angles[0] == 3.0
    assert opened.angles[-1] == 171.0


def test_run_returns_its_plan_axis_and_summary(scan, tmp_path, capsys):
    done = run(ReconSettings(scan=scan, output=tmp_path / "out.mrc", center=29.0, workers=1), quiet=True)
    assert capsys.readouterr() == ("", "")
    assert done.axis.detector_column == 29.0
    assert len(done.plan.slabs) == len(done.summary["slabs"])
    assert open_volume(done.output).shape == (32, 56, 56)


def test_planned_only_touches_nothing(scan, tmp_path, capsys):
    done = run(ReconSettings(scan=scan, output=tmp_path / "out.zarr", center=29.0), plan_only=True)
    assert "memory per worker" in capsys.readouterr().out
    assert done.summary == {}
    assert not list(tmp_path.iterdir())


def test_plan_takes_smaller_steps_where_memory_is_short(scan):
    settings = ReconSettings(scan=scan, output="o.zarr", center=29.0)
    opened = open_scan(settings)
    beam = ParallelBeam(opened.angles, 56, 29.0)
    roomy = cost.make_plan(opened, settings, beam, cost.Resources(1, 1, 10**10))
    short = cost.make_plan(opened, settings, beam, cost.Resources(1, 1, roomy.worker_memory - 300_000))
    assert roomy.block == len(roomy.slabs[0]) == 32
    assert short.fits
    assert short.block < roomy.block
    assert not cost.make_plan(opened, settings, beam, cost.Resources(1, 1, 10**6)).fits


def test_resume_of_nothing_is_a_run(scan, tmp_path):
    settings = ReconSettings(scan=scan, output=tmp_path / "out.zarr", center=29.0, rows="0:8", workers=1)
    run(settings, resume=True, quiet=True)
    assert open_volume(tmp_path / "out.zarr").shape[0] == 8


def test_a_run_that_had_only_just_begun_is_resumed(scan, tmp_path, monkeypatch):
    """Stopped after its output was made and before its settings were written."""
    settings = ReconSettings(scan=scan, output=tmp_path / "out.zarr", center=29.0, rows="0:8", workers=1)

    def stopped(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(record, "write_run", stopped)
        with pytest.raises(Interrupted, match="--resume finishes it"):
            run(settings, quiet=True)
    run(settings, resume=True, quiet=True)
    assert open_volume(tmp_path / "out.zarr").shape[0] == 8
    assert record.run_file(tmp_path / "out.zarr").exists()


def test_a_slab_that_kills_every_worker_is_named(scan, tmp_path, monkeypatch):
    """Workers limited to less than their libraries take, past the plan that would refuse it.

    Now and then they die before they are given anything, which is said by another sentence.
    """
    monkeypatch.setattr(cost, "PROGRAMS", 0)
    settings = ReconSettings(scan=scan, output=tmp_path / "out.zarr", center=29.0, workers=1, memory="90MB")
    killed = r"rows 0:32 \(slab 1 of 1\) killed each of the 3 workers.*memory"
    with pytest.raises(StoppedError, match=rf"{killed}|no worker is left.* they need more --memory") as caught:
        run(settings, quiet=True)
    assert caught.value.exit_code == 3
    with pytest.raises(UserError, match="unfinished"):
        open_volume(tmp_path / "out.zarr")
    again = settings.model_copy(update={"memory": "2GB"})
    run(again, resume=True, quiet=True)
    assert open_volume(tmp_path / "out.zarr").shape == (32, 56, 56)


def test_input_that_vanishes_stops_the_run(scan, tmp_path, monkeypatch):
    copy = tmp_path / "copy.h5"
    copy.write_bytes(scan.read_bytes())
    from dtomo.recon import job

    create = job._create

    def create_and_lose_the_input(*args, **options):
        writer = create(*args, **options)
        copy.rename(tmp_path / "elsewhere.h5")
        return writer

    monkeypatch.setattr(job, "_create", create_and_lose_the_input)
    with pytest.raises(StoppedError, match=r"copy.h5.*--resume"):
        run(ReconSettings(scan=copy, output=tmp_path / "out.zarr", center=29.0, workers=1), quiet=True)


def test_a_scheduler_of_ones_own(scan, tmp_path):
    expected = tmp_path / "local.zarr"
    run(ReconSettings(scan=scan, output=expected, center=29.0, workers=1), quiet=True)
    options = {"n_workers": 1, "threads_per_worker": 3, "host": "127.0.0.1", "dashboard_address": ":0"}
    with LocalCluster(**options) as cluster:
        settings = ReconSettings(
            scan=scan, output=tmp_path / "own.zarr", center=29.0, cluster=cluster.scheduler_address, slab=8
        )
        run(settings, quiet=True)
    assert np.array_equal(*(np.asarray(open_volume(path).array) for path in (expected, tmp_path / "own.zarr")))


def test_peak_memory_is_near_the_plan(tmp_path):
    """A slab of 16 slices of 512 × 512 from 400 angles, in one worker."""
    path = tmp_path / "scan.h5"
    simulate_scan(path, size=440, rows=32, columns=512, angles=400, rings=False)
    settings = ReconSettings(scan=path, output=tmp_path / "out.zarr", center=255.5, workers=1, slab=32)
    done = run(settings, quiet=True)
    measured = max(done.summary["peak_memory"].values())
    # less where libraries were loaded before the worker was forked: their pages are not its own
    assert 0.65 * done.plan.worker_memory <= measured <= 1.2 * done.plan.worker_memory


@pytest.fixture(scope="module")
def tall(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("tall") / "tall.h5"
    simulate_scan(path, size=32, rows=150, angles=6, center=18.0)
    return path


PHASE = {"delta_beta": 400, "energy": 20, "distance": 100, "pixel_size": 2.0}
"""A halo of 25 rows."""


@pytest.mark.parametrize(("rows", "bin"), [((70, 100), 1), ((0, 9), 1), ((127, 150), 1), ((40, 96), 2), ((41, 71), 2)])
def test_phase_retrieval_of_cropped_rows_is_that_of_the_whole(tall, rows, bin):
    settings = ReconSettings(scan=tall, output="o.zarr", bin=bin, rows=(rows[0] % bin, 150), **PHASE)
    whole, _ = line_integrals(open_scan(settings), settings, slice(0, (150 - rows[0] % bin) // bin))
    settings = settings.model_copy(update={"rows": rows})
    opened = open_scan(settings)
    part, report = line_integrals(opened, settings, slice(0, opened.shape[1]))
    assert np.array_equal(part, whole[:, rows[0] // bin : rows[0] // bin + opened.shape[1]])
    assert report.pixels == opened.shape[1] * opened.shape[2]


@pytest.mark.parametrize("phase", [{}, PHASE])
def test_bytes_planned_are_the_bytes_read(tall, monkeypatch, phase):
    settings = ReconSettings(scan=tall, output="o.zarr", rows="50:120", center=18.0, slab=32, **phase)
    opened = open_scan(settings)
    plan = cost.make_plan(opened, settings, geometry_of(opened, 18.0, False), cost.Resources(1, 1, 10**10))
    rows = []
    read = Scan.read
    monkeypatch.setattr(Scan, "read", lambda scan, part, *more: rows.append(part.stop - part.start) or read(scan, part))
    for slab in plan.slabs:
        for block in slab.blocks(plan.block):
            line_integrals(opened, settings, block.rows)
    assert plan.bytes_read == sum(rows) * opened.shape[0] * opened.shape[2] * 2
    largest = max(rows) * opened.shape[0] * opened.shape[2] * 4
    assert plan.worker_memory >= cost.PROGRAMS + 2 * largest


def test_a_dead_row_in_the_middle_is_no_reason_to_refuse(scan):
    settings = ReconSettings(scan=scan, output="o.zarr")
    opened = open_scan(settings)
    flats = opened.flat_source.read()
    flats[:, 16] = 0
    check_usable(opened.replace(flats=flats), settings)
    flats[:] = 0
    with pytest.raises(UserError, match=r"scan.h5 holds no usable value in the detector rows looked at \(3, "):
        check_usable(opened.replace(flats=flats), settings)


def test_a_single_angle_is_noted(scan):
    settings = ReconSettings(scan=scan, output="o.zarr", exclude_frames="1:60")
    assert any("have one angle, 0" in warning for warning in open_scan(settings).warnings)
    assert not open_scan(settings.model_copy(update={"exclude_frames": ()})).warnings


def _summary(dead: int, repaired: int) -> SlabSummary:
    return SlabSummary(0, 1, {}, 1000, dead, 50_000, repaired, None, 1, 1)


@pytest.mark.parametrize(
    ("dead", "repaired", "words"),
    [
        (0, 0, ""),
        (3, 0, "raw data: 6 of 2000 pixels are dead (0.3 %)"),
        (0, 5, "raw data: 10 of 100000 values were repaired (0.01 %)"),
        (3, 9000, "warning: much of the raw data is unusable: 6 of 2000 pixels are dead (0.3 %) and 18000 of 100000 v"),
    ],
)
def test_repairs_are_told(dead, repaired, words):
    assert repairs([_summary(dead, repaired)] * 2).startswith(words)
    assert bool(repairs([_summary(dead, repaired)])) == bool(words)


def test_the_axis_has_one_place_in_all_volumes_of_a_scan(scan):
    """56 columns of 2 µm: the axis lies at 55 µm."""
    for changes in ({}, {"bin": 2}, {"columns": "5:50"}, {"columns": "3:40", "bin": 3, "rows": "4:30"}):
        opened = open_scan(ReconSettings(scan=scan, output="o.zarr", **changes))
        geometry = geometry_of(opened, 20.0, False)
        z, y, x = origin_of(opened, geometry)
        assert y + (geometry.height - 1) / 2 * opened.pixel_size == pytest.approx(55)
        assert x + (geometry.width - 1) / 2 * opened.pixel_size == pytest.approx(55)
        assert z == pytest.approx({1: 0, 2: 1, 3: 10}[opened.binning])
    plain = open_scan(ReconSettings(scan=scan, output="o.zarr"))
    assert origin_of(plain, geometry_of(plain, 20.0, False)) == (0, 0, 0)
    turned = plain.replace(angles=np.arange(60) * 6.0)
    folded = geometry_of(turned, 10.0, True)
    assert origin_of(turned, folded)[1] == pytest.approx(55 - (folded.width - 1))
    assert origin_of(turned, folded)[1] < 0
