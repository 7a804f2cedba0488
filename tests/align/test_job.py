"""`dtomo align` from disk to disk: what it writes, the same bits on a cluster and after an interruption."""

import json

import mrcfile
import numpy as np
import pytest
from distributed import Client, LocalCluster

import dtomo
from dtomo.align import aligned, cost, job, reprojection, views
from dtomo.align.cost import Effort, Sizes, make_plan, refuse_if_too_big
from dtomo.align.driver import Options
from dtomo.align.levels import empty_level
from dtomo.distributed import queue
from dtomo.distributed.clusters import resources
from dtomo.distributed.progress import Counter
from dtomo.errors import StoppedError, UserError
from dtomo.geometry import Alignment
from dtomo.io.tilts import read_alignment
from dtomo.settings import AlignmentSettings
from tests.align.scenes import TILTS, moved_views, rms

ANGLES = TILTS[::2]
SIZE = 40


@pytest.fixture(scope="module")
def series(tmp_path_factory):
    """A tilt series on disk whose empty space is at -7, and its true shifts."""
    folder = tmp_path_factory.mktemp("series")
    data, truth = moved_views(ANGLES, size=SIZE, most=4.0)
    with mrcfile.new(folder / "views.mrc", data - np.float32(7)) as file:
        file.set_image_stack()
        file.voxel_size = 3.0
    (folder / "views.rawtlt").write_text("".join(f"{angle:.2f}\n" for angle in ANGLES))
    return folder / "views.mrc", truth


def settings_of(series, output, **more):
    given = {"axis": "keep", "rounds": 4, "iterations": 8} | more
    return AlignmentSettings(scan=series[0], output=output, **given)


@pytest.fixture(scope="module")
def whole(series, tmp_path_factory):
    """A run that nothing disturbs."""
    output = tmp_path_factory.mktemp("runs") / "whole"
    return job.run(settings_of(series, output), quiet=True)


def same_files(one, other, but=("alignment.yaml", "dtomo.json")):
    names = sorted(item.name for item in one.iterdir() if item.name not in but)
    assert names == sorted(item.name for item in other.iterdir() if item.name not in but)
    assert all((one / name).read_bytes() == (other / name).read_bytes() for name in names)
    for name in ("shifts", "levels", "axis_angles", "axis"):
        found = [getattr(read_alignment(folder / "alignment.yaml"), name) for folder in (one, other)]
        np.testing.assert_array_equal(*found)


def test_what_is_written(series, whole):
    path, truth = series
    found = read_alignment(whole.output / "alignment.yaml")
    assert rms(found.shifts, truth, ANGLES).max() < 0.1
    np.testing.assert_allclose(found.shifts, whole.alignment.shifts, atol=1e-6)
    np.testing.assert_allclose(found.levels, -7, atol=0.04 * (whole.after.view.max() + 7))  # little is empty
    by_imod = read_alignment(whole.output / "alignment.xf", ANGLES, found.shape)
    np.testing.assert_allclose(by_imod.shifts, found.shifts, atol=1e-4)
    np.testing.assert_array_equal(np.loadtxt(whole.output / "alignment.tlt"), ANGLES)
    scan = dtomo.open(whole.output / "aligned.mrc")
    assert (scan.values, scan.center, scan.pixel_size) == ("integrals", (SIZE - 1) / 2, pytest.approx(3e-4))
    np.testing.assert_array_equal(scan.angles, ANGLES)
    wanted = aligned(dtomo.open(path).read().projections, whole.alignment)
    np.testing.assert_array_equal(scan.read().projections, wanted)
    with mrcfile.open(whole.output / "aligned.mrc") as file:
        assert (file.header.dmin, file.header.dmax) == (wanted.min(), wanted.max())
        assert file.header.rms == pytest.approx(wanted.std(), rel=1e-4)
    assert not (whole.output / ".dtomo").exists()
    summary = json.loads((whole.output.parent / "whole.summary.json").read_text())
    assert summary["misfit"] < 0.1
    assert summary["signed"] is False
    assert whole.after.misfit < 0.5 * whole.before.misfit
    assert whole.after.view.shape == whole.after.again.shape == (SIZE, SIZE)


def test_a_cluster_gives_the_same_bits(series, tmp_path, monkeypatch):
    """Where the views are too large for the client, so that rounds are done by the workers, in several bands."""
    monkeypatch.setattr(reprojection, "BAND", 16)
    monkeypatch.setattr(views, "HELD", len(ANGLES) * SIZE**2)  # a binning of 2 fits, 1 does not
    monkeypatch.setattr(cost, "HELD", views.HELD)
    job.run(settings_of(series, tmp_path / "here", workers=1), quiet=True)
    sent = []
    submitted = queue.run_tasks

    def run_tasks(client, function, shared, items, take):
        sent.append((function.__name__, len(items)))
        submitted(client, function, shared, items, take)

    monkeypatch.setattr(queue, "run_tasks", run_tasks)
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster, Client(cluster):
        there = settings_of(series, tmp_path / "there", cluster=cluster.scheduler_address)
        job.run(there, quiet=True)
    assert {("_band", 2), ("_means", 1), ("_read", 1), ("_planes", 2)} == set(sent)
    same_files(tmp_path / "here", tmp_path / "there")


def test_an_interrupted_run_goes_on_with_the_same_bits(series, whole, tmp_path, monkeypatch):
    said = []

    def say(self, line):
        said.append(line)
        if len(said) == 5:
            raise KeyboardInterrupt

    wanted = settings_of(series, tmp_path / "run", checkpoint_every="1it")
    with monkeypatch.context() as patched:
        patched.setattr(Counter, "say", say)
        with pytest.raises(StoppedError, match="--resume"):
            job.run(wanted, quiet=True)
    assert (tmp_path / "run" / ".dtomo").is_dir()
    assert not (tmp_path / "run" / "alignment.yaml").exists()
    with pytest.raises(UserError, match="resume"):
        job.run(wanted, quiet=True)
    with pytest.raises(UserError, match="begun with other settings"):
        job.run(settings_of(series, tmp_path / "run", rounds=5), resume=True, quiet=True)
    again = []
    monkeypatch.setattr(Counter, "say", lambda self, line: again.append(line))
    job.run(wanted, resume=True, quiet=True)
    assert not any(line in said[:3] for line in again)  # what was done is not done again
    same_files(whole.output, tmp_path / "run")


def test_views_in_zarr_and_a_known_beginning(series, whole, tmp_path):
    begin = whole.output / "alignment.yaml"
    done = job.run(
        settings_of(series, tmp_path / "run", begin=begin, rounds=0, views="zarr"), quiet=True, pictures=False
    )
    np.testing.assert_allclose(done.alignment.shifts, whole.alignment.shifts, atol=1e-5)
    scan = dtomo.open(tmp_path / "run" / "aligned.zarr")
    assert scan.values == "integrals"
    wanted = aligned(dtomo.open(series[0]).read().projections, done.alignment)
    np.testing.assert_array_equal(scan.read().projections, wanted)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"output": "out.mrc"}, "a folder of files"),
        ({"output": "whole"}, "exists"),
        ({"finest": 9}, "leaves less than 8 pixels"),
        ({"exclude_frames": "2:20"}, "has 2 views"),
        ({"begin": "other.yaml"}, "other.yaml"),
        ({"flats": "no.tif"}, "no.tif"),
        ({"memory": "100MB", "workers": 2}, None),
    ],
)
def test_what_is_refused(series, whole, tmp_path, more, message):
    from dtomo.io.tilts import write_alignment

    write_alignment(tmp_path / "other.yaml", Alignment(np.arange(5.0), (8, 8)))
    given = {name: tmp_path / value if str(value).startswith("other") else value for name, value in more.items()}
    output = given.pop("output", "out")
    output = whole.output if output == "whole" else tmp_path / output
    if message is None:
        sizes = Sizes(Alignment(np.zeros(100), (4000, 4000)), Options(), 2)
        plan = make_plan(sizes, resources("local", workers=2, threads=1, memory="1GB"))
        assert not sizes.here
        with pytest.raises(UserError, match=r"limited to 1.0 GB; give --memory"):
            refuse_if_too_big(plan)
        return
    with pytest.raises(UserError, match=message):
        job.run(settings_of(series, output, **given), quiet=True)
    assert sorted(item.name for item in tmp_path.iterdir()) == ["other.yaml"]


def test_settings_that_contradict_each_other(series):
    with pytest.raises(UserError, match="leave --axis-angle out"):
        settings_of(series, "out", begin="a.yaml", axis_angle=3)
    with pytest.raises(UserError, match="--axis search looks everywhere"):
        settings_of(series, "out", begin="a.yaml", axis="search")
    with pytest.raises(UserError, match="must be auto or a number"):
        settings_of(series, "out", level="dark")


def test_the_plan_is_printed_and_nothing_else(series, tmp_path, capsys):
    job.run(settings_of(series, tmp_path / "run"), plan_only=True, quiet=True)
    said = capsys.readouterr().out
    assert f"{len(ANGLES)} of {SIZE} × {SIZE}, in rounds at binning 2, 1" in said
    assert "memory of the client" in said
    assert not list(tmp_path.iterdir())


def test_effort_rises_to_the_end():
    sizes = Sizes(Alignment(np.zeros(10), (128, 128)), Options(axis="refine"), 2)
    effort = Effort(sizes)
    said = [effort.add(binning, 1.0) for binning in (8, 4, 2, 1) for _ in range(10)]
    assert said == sorted(said)
    assert 0 <= said[10] < 50 < said[-1] <= 99


def test_the_level_of_empty_space():
    random = np.random.default_rng(0)
    view = np.full((60, 80), -31890.0) + random.normal(0, 5, (60, 80))
    view[20:40] += 20000 * random.uniform(size=(20, 80))
    assert empty_level(view) == pytest.approx(-31890, abs=5)
    assert empty_level(np.full((4, 4), 3.0)) == 3
    assert empty_level(np.full((4, 4), np.nan)) == 0
