"""The page on a real dashboard: how it gets there, what it shows, and what it outlives."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import numpy as np
import pytest
from bokeh.document import Document

from dtomo.dashboard import link, show_run
from dtomo.dashboard.page import View, show
from dtomo.dashboard.panels import mean_curve
from dtomo.dashboard.plugin import Page, install
from dtomo.dashboard.runs import Runs
from dtomo.distributed.slabs import cut

ROOT = Path(__file__).resolve().parents[2]


def get(address):
    """The text behind an address of this machine."""
    with urllib.request.urlopen(address, timeout=20) as answer:
        return answer.read().decode()


def texts(view):
    """All HTML of a view."""
    from bokeh.models import Div

    return "\n".join(div.text for div in view.root.select({"type": Div}) if div.visible)


class OnLoop:
    """A `View` that is made and updated where the server does it: in the scheduler's thread."""

    def __init__(self, runs, cluster):
        self._cluster = cluster
        self.view = self._call(lambda: View(runs, cluster.scheduler))

    def _call(self, function):
        async def call():
            return function()

        return self._cluster.sync(call)

    def update(self):
        self._call(self.view.update)

    def __getattr__(self, name):
        return getattr(self.view, name)


@pytest.fixture
def runs(client, cluster):
    """What the page on the cluster knows; forgotten at the beginning."""
    assert install(client) is None
    found = cluster.scheduler.plugins[Page.name].runs
    found.by_id.clear()
    return found


@pytest.fixture
def finished_run(client, runs, task, description, slabs, wait_until):
    """A run whose four slabs were worked on by two workers."""

    def run(complex_values=False, **changes):
        with show_run(client, **(description | changes)) as feed:
            client.gather([client.submit(task, feed, slab, complex_values, pure=False) for slab in slabs])
        state = runs.by_id[feed.run]
        wait_until(lambda: state.slabs_done == len(slabs))
        return state

    return run


def test_the_page_is_served_and_stands_in_the_menu_of_the_others(client, cluster):
    address = link(client)
    assert address.startswith("http://127.0.0.1:")
    assert address.endswith("/dtomo")
    page = get(address)
    assert "bokeh" in page
    assert "<title>dtomo</title>" in page or "Dtomo" in page
    for other in ("status", "workers", "info/main/workers.html"):
        assert get(address.removesuffix("dtomo") + other)
    assert 'href="dtomo"' in get(address.removesuffix("dtomo") + "status")


def test_it_is_brought_only_once(client, cluster):
    assert link(client) == link(client)
    before = len(cluster.scheduler.http_application.applications)
    page = cluster.scheduler.plugins[Page.name]
    assert install(client) is None
    assert len(cluster.scheduler.http_application.applications) == before
    assert cluster.scheduler.plugins[Page.name] is page
    assert get(link(client).removesuffix("dtomo") + "status").count('href="dtomo"') == 1


def test_without_a_run_there_is_help(cluster):
    view = OnLoop(Runs(), cluster)
    assert "No run yet" in texts(view)
    assert cluster.scheduler_address in texts(view)
    view.update()


def test_a_run_fills_the_page(finished_run, runs, cluster, slabs):
    run = finished_run()
    assert run.state == "done"
    assert {slab.worker for slab in run.slabs} <= set(cluster.scheduler.workers)
    assert [slab.curves() for slab in run.slabs] == [[[1, 0.5, 0.25, 0.125]]] * 4
    np.testing.assert_allclose(run.pictures["xz"][:, 0], np.repeat([1, 2, 3, 4], 16), rtol=1e-3)
    np.testing.assert_allclose(run.pictures["yz"][:, 0], np.repeat([1, 2, 3, 4], 16), rtol=1e-3)
    np.testing.assert_allclose(run.pictures["xy"], 3, rtol=1e-3)
    assert run.xy_slice == 32
    view = OnLoop(runs, cluster)
    said = texts(view)
    for words in ("out.zarr", "SIRT, 4 iterations", "64 × 24 × 32", "4 of 4", "finished"):
        assert words in said
    assert "<script>" not in said
    assert "&lt;script&gt;" in said
    assert view._slabs._source.data["state"] == ["done"] * 4
    assert view._slabs._source.data["part"] == [100] * 4
    np.testing.assert_allclose(view._curve._mean.data["y"], [1, 0.5, 0.25, 0.125])
    assert view._memory._source.data["plan"] == [0.3, 0.3]
    assert all(limit > 0 for limit in view._memory._source.data["limit"])
    picture = view._slices._sources["xz"].data["image"][0]
    assert picture.dtype == np.uint8
    assert (np.diff(picture[:, 0].astype(int)) >= 0).all()
    assert picture.min() >= 1


def test_pictures_are_not_kept_in_the_list_of_events(finished_run, client, cluster):
    finished_run()
    events = [message for _, message in client.get_events("dtomo")]
    pictures = [message for message in events if message.get("kind") == "picture"]
    assert len(pictures) >= 9
    assert not any("data" in message for message in pictures)
    assert all(len(json.dumps(message)) < 4000 for message in events)


def test_a_complex_volume_has_magnitude_and_phase(finished_run, runs, cluster):
    finished_run(complex_values=True)
    view = OnLoop(runs, cluster)
    assert view._slices._choice.visible
    assert "1/µm" in texts(view)
    view._slices._choice.active = 1
    view.update()
    assert " rad " in texts(view)


def test_a_run_without_iterations_shows_slices_over_time(finished_run, runs, cluster):
    finished_run(iterations=None, algorithm="fbp")
    view = OnLoop(runs, cluster)
    residuals, slices = view._curve.plots
    assert (residuals.visible, slices.visible) == (False, True)
    assert view._curve._made.data["y"][-1] == 64


def test_one_run_after_another_and_back_to_the_first(finished_run, runs, cluster):
    finished_run(name="first.zarr")
    view = OnLoop(runs, cluster)
    assert not view._select.visible
    finished_run(name="second.zarr", shape=(64, 40, 10))
    view.update()
    assert "second.zarr" in texts(view)
    assert view._select.visible
    view._select.value = next(iter(runs.by_id))
    view.update()
    assert "first.zarr" in texts(view)
    runs.by_id.clear()
    view.update()
    assert "No run yet" in texts(view)


def test_a_run_that_stops_says_why(client, runs, description, cluster):
    with pytest.raises(RuntimeError, match="disk"), show_run(client, **description):
        raise RuntimeError("the disk <b>is full</b>")
    said = texts(OnLoop(runs, cluster))
    assert "stopped" in said
    assert "the disk &lt;b&gt;is full" in said


def test_a_killed_worker_gives_its_slab_back(client, runs, description, slabs, cluster, wait_until):
    def hang(feed, slab):
        from dtomo.dashboard import watch_slab

        with watch_slab(feed, slab):
            time.sleep(60)

    with show_run(client, **description) as feed:
        worker = client.run(os.getpid)
        address, process = next(iter(worker.items()))
        future = client.submit(hang, feed, slabs[1], workers=address, retries=0, pure=False)
        slab = runs.by_id[feed.run].slabs[1]
        wait_until(lambda: slab.state == "running")
        view = OnLoop(runs, cluster)
        assert view._slabs._source.data["state"][1] == "running"
        client.cancel(future, force=True)
        os.kill(process, signal.SIGKILL)
        wait_until(lambda: slab.state == "waiting")
        view.update()
        assert view._slabs._source.data["state"][1] == "waiting"
    client.wait_for_workers(2, timeout=60)


def test_a_client_that_goes_away_leaves_a_lost_run(cluster, runs, description, wait_until):
    from distributed import Client

    with Client(cluster) as other:
        shown = show_run(other, **description)
        feed = shown.__enter__()
    wait_until(lambda: runs.by_id[feed.run].state == "lost")
    assert "is gone" in texts(OnLoop(runs, cluster))
    shown.__exit__(None, None, None)  # nobody is there to be told
    assert runs.by_id[feed.run].state == "lost"


def test_nonsense_under_the_same_topic_harms_nothing(client, runs, finished_run):
    finished_run()
    for message in (None, "text", 7, [], {}, {"run": "x"}, {"run": [1], "kind": {}}, {"run": "x", "kind": "begin"}):
        client.log_event("dtomo", message)
    assert len(runs.by_id) == 1
    assert finished_run().state == "done"


def test_a_document_as_the_server_makes_it(cluster, runs, finished_run):
    finished_run()
    document = Document()

    async def fill():
        show(runs, cluster.scheduler, {"pages": [], "plots": []}, document)

    cluster.sync(fill)
    assert document.title == "dtomo"
    assert len(document.session_callbacks) == 1
    document.validate()

    async def update():
        document.session_callbacks[0].callback()

    cluster.sync(update)
    assert len(json.dumps(document.to_json(), default=str)) < 3_000_000


def test_the_mean_has_no_step_where_a_curve_ends():
    falling = [0.5**i for i in range(6)]
    slower = [0.8**i for i in range(3)]
    mean = mean_curve([falling, slower], 6)
    np.testing.assert_allclose(mean[:3], [1, 0.4**0.5, 0.4])
    np.testing.assert_allclose(np.divide(mean[3:], mean[2:5]), 0.5)
    assert mean_curve([], 0) == []
    assert mean_curve([[1.0, 0.0, np.nan]], 3) == [1, 1, 1]


def test_many_slabs_are_still_a_small_page(cluster, client, runs, description):
    slabs = cut(8000, 16)
    changes = {"slabs": slabs, "shape": (8000, 8000, 8000), "iterations": 100}
    with show_run(client, **(description | changes)) as feed:
        run = runs.by_id[feed.run]
        for index, slab in enumerate(slabs):
            block = {"start": slab.start, "slices": len(slab), "first": 0, "norms": [2.0**-i for i in range(100)]}
            run.take({"slab": index, "kind": "residuals", **block}, 0.0)
        began = time.perf_counter()
        view = OnLoop(runs, cluster)
        assert time.perf_counter() - began < 5
        assert len(view._curve._each.data["xs"]) <= 64
        assert len(view._slabs._source.data["start"]) == 500


def test_workers_do_not_load_bokeh_for_it(client, finished_run):
    finished_run()
    loaded = client.run(lambda: sorted({name.split(".")[0] for name in sys.modules} & {"bokeh", "matplotlib"}))
    assert set(map(tuple, loaded.values())) == {()}


@pytest.fixture
def scheduler_process(tmp_path):
    """Starts a scheduler of its own with changes to its environment, and returns its address."""
    running = []

    def start(**environment):
        file = tmp_path / "scheduler.json"
        words = ["--host", "127.0.0.1", "--port", "0", "--dashboard-address", "127.0.0.1:0"]
        line = [sys.executable, "-m", "distributed.cli.dask_scheduler", *words, "--scheduler-file", str(file)]
        process = subprocess.Popen(
            line, cwd=tmp_path, env=os.environ | environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        running.append(process)
        end = time.monotonic() + 60
        while time.monotonic() < end:
            if file.exists() and file.read_text().strip():
                return json.loads(file.read_text())["address"]
            time.sleep(0.1)
        raise AssertionError("the scheduler did not start")

    yield start
    for process in running:
        process.terminate()
        process.wait(20)


def test_a_scheduler_far_away_gets_the_page(scheduler_process, description):
    from distributed import Client

    with Client(scheduler_process(PYTHONPATH=str(ROOT))) as client:
        address = link(client)
        assert address.endswith("/dtomo")
        assert "Dtomo" in get(address)
        with show_run(client, **description) as feed:
            assert feed is not None


@pytest.mark.parametrize("missing", ["dtomo", "bokeh"])
def test_a_scheduler_that_cannot_have_it_is_no_obstacle(scheduler_process, description, tmp_path, missing):
    from distributed import Client

    (tmp_path / "sitecustomize.py").write_text(f"import sys\nsys.modules[{missing!r}] = None\n")
    with Client(scheduler_process(PYTHONPATH=f"{tmp_path}{os.pathsep}{ROOT}")) as client:
        said = link(client)
        assert "/status (without the dtomo page: the scheduler cannot" in said
        assert missing in said
        with show_run(client, **description) as feed:
            assert feed is None
        assert client.get_events("dtomo") == ()


@pytest.mark.filterwarnings("ignore:Port .* is already in use")
def test_a_scheduler_without_a_dashboard_is_none_either(description):
    from distributed import Client, LocalCluster

    with LocalCluster(n_workers=0, processes=False, dashboard_address=None) as local, Client(local) as client:
        assert install(client) == "the scheduler runs without a dashboard"
        with show_run(client, **description) as feed:
            assert feed is None
