"""What is made of the events of runs."""

import math

import numpy as np
import pytest

from dtomo.dashboard.runs import KEPT, Runs
from dtomo.dashboard.thumbnails import pack


class Clock:
    """Time that stands still until it is moved."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def runs(clock):
    return Runs(clock)


def begin(run="a", **changes):
    """The first event of a run of four slabs of 16 slices."""
    return {
        "run": run,
        "kind": "begin",
        "client": "client-1",
        "name": "out.zarr",
        "shape": [64, 20, 30],
        "slabs": [[0, 16], [16, 32], [32, 48], [48, 64]],
        "done": [],
        "algorithm": "sirt",
        "iterations": 10,
        "unit": "1/µm",
        "planned_memory": 10**9,
        "settings": {"center": "auto"},
    } | changes


def about(slab, kind, run="a", **more):
    return {"run": run, "slab": slab, "worker": "tcp://w:1", "kind": kind, **more}


def norms(slab, values, *, first=0, start=None, slices=16):
    start = 16 * slab if start is None else start
    return about(slab, "residuals", start=start, slices=slices, first=first, norms=values)


def test_a_run_from_beginning_to_end(runs, clock):
    runs.take(begin())
    run = runs.by_id["a"]
    assert (run.state, run.slabs_done, run.slices_done) == ("running", 0, 0)
    assert math.isnan(run.seconds_left(clock.now))
    for slab in range(4):
        runs.take(about(slab, "running"))
        clock.now += 10
        runs.take(about(slab, "done"))
        assert run.slabs_done == slab + 1
        assert run.seconds_left(clock.now) == pytest.approx(10 * (3 - slab))
        assert run.throughput(clock.now) == pytest.approx(1.6)
    runs.take({"run": "a", "kind": "end", "state": "done", "why": ""})
    clock.now += 1000
    assert (run.state, run.elapsed(clock.now)) == ("done", 40)
    assert run.history == [(0, 0), (10, 16), (20, 32), (30, 48), (40, 64)]


def test_what_was_done_before_does_not_count_for_the_speed(runs, clock):
    runs.take(begin(done=[0, 1]))
    run = runs.by_id["a"]
    assert run.slabs_done == 2
    runs.take(about(2, "running"))
    clock.now += 10
    runs.take(about(2, "done"))
    assert run.seconds_left(clock.now) == pytest.approx(10)


def test_iterations_are_parts_of_a_slab(runs, clock):
    runs.take(begin())
    run = runs.by_id["a"]
    runs.take(about(0, "running"))
    clock.now += 5
    runs.take(norms(0, [4.0, 2.0, 1.0, 0.5, 0.25, 0.125]))
    assert run.slabs[0].part_done(10) == pytest.approx(0.5)
    assert run.seconds_left(clock.now) == pytest.approx(35)
    assert run.slabs[0].curves() == [[1, 0.5, 0.25, 0.125, 0.0625, 0.03125]]


def test_a_slab_in_blocks_has_a_curve_of_each(runs):
    runs.take(begin())
    runs.take(about(0, "running"))
    runs.take(norms(0, [2.0, 1.0], slices=4))
    runs.take(norms(0, [8.0, 2.0], start=4, slices=4))
    slab = runs.by_id["a"].slabs[0]
    assert slab.curves() == [[1, 0.5], [1, 0.25]]
    assert slab.part_done(10) == pytest.approx(0.05)


def test_residuals_that_come_late_or_twice_find_their_place(runs):
    runs.take(begin())
    runs.take(about(0, "running"))
    slab = runs.by_id["a"].slabs[0]
    runs.take(norms(0, [1.0], first=2))
    assert slab.norms[0][2] == 1
    assert np.isnan(slab.norms[0][:2]).all()
    runs.take(norms(0, [5.0, 4.0, 3.0, 2.0]))
    runs.take(norms(0, [2.5, 1.5], first=3))
    assert slab.norms[0] == [5, 4, 3, 2.5, 1.5]
    runs.take(about(0, "running"))
    assert not slab.norms


def test_an_empty_slab_has_no_curve(runs):
    runs.take(begin())
    runs.take(norms(0, [0.0, 0.0]))
    assert runs.by_id["a"].slabs[0].curves() == []


def test_what_a_lost_worker_had_waits_again(runs):
    runs.take(begin())
    for slab in (0, 1):
        runs.take(about(slab, "running"))
    runs.take(about(1, "done"))
    runs.lose_worker("tcp://another:1")
    assert [slab.state for slab in runs.by_id["a"].slabs[:2]] == ["running", "done"]
    runs.lose_worker("tcp://w:1")
    assert [slab.state for slab in runs.by_id["a"].slabs[:2]] == ["waiting", "done"]


def test_a_run_without_its_client_is_lost_but_its_last_word_counts(runs, clock):
    runs.take(begin())
    runs.take(about(0, "running"))
    runs.lose_client("client-2")
    assert runs.by_id["a"].state == "running"
    runs.lose_client("client-1")
    run = runs.by_id["a"]
    assert (run.state, run.slabs[0].state) == ("lost", "waiting")
    runs.take({"run": "a", "kind": "end", "state": "stopped", "why": "no space"})
    assert (run.state, run.why) == ("stopped", "no space")
    runs.lose_client("client-1")
    assert run.state == "stopped"


def test_pictures_fill_slab_by_slab(runs):
    runs.take(begin())
    run = runs.by_id["a"]
    runs.take(about(1, "picture", plane="xz", row=16, **pack(np.full((16, 30), 7, np.float32))))
    assert np.isnan(run.pictures["xz"][:16]).all()
    np.testing.assert_allclose(run.pictures["xz"][16:32], 7, rtol=1e-3)
    runs.take(about(0, "picture", plane="xz", row=0, **pack(np.full((16, 30), 3, np.float32))))
    assert np.isfinite(run.pictures["xz"][:32]).all()
    assert run.picture_version == 2


def test_the_middle_slice_stays_once_it_is_there(runs):
    runs.take(begin())
    run = runs.by_id["a"]
    for number, value in ((8, 1), (32, 2), (8, 3)):
        runs.take(about(0, "picture", plane="xy", slice=number, **pack(np.full((20, 30), value, np.float32))))
    assert run.xy_slice == 32
    np.testing.assert_allclose(run.pictures["xy"], 2, rtol=1e-3)


def test_only_the_last_runs_are_kept(runs):
    for number in range(KEPT + 3):
        runs.take(begin(run=str(number)))
    assert list(runs.by_id) == [str(number) for number in range(3, KEPT + 3)]
    runs.take(about(0, "running", run="0"))  # of a run that is forgotten


GOOD_PICTURE = pack(np.ones((16, 30), np.float32))


@pytest.mark.parametrize(
    "message",
    [
        {},
        {"run": "a"},
        {"run": "b", "kind": "begin"},
        begin("b", shape=[64, 20]),
        begin("b", shape=[0, 20, 30]),
        begin("b", shape="64"),
        begin("b", slabs=[]),
        begin("b", slabs=[[0]]),
        begin("b", settings=None),
        about(99, "running"),
        about(-1, "running"),
        about("x", "running"),
        about(0, "residuals"),
        norms(0, ["x"]),
        norms(0, [1.0], first=-3),
        norms(0, [1.0], first=10**9),
        about(0, "picture", plane="xz", row=60, **GOOD_PICTURE),
        about(0, "picture", plane="xz", row=-1, **GOOD_PICTURE),
        about(0, "picture", plane="zz", row=0, **GOOD_PICTURE),
        about(0, "picture", plane="xy", slice=32, **pack(np.ones((3, 30), np.float32))),
        about(0, "picture", plane="xz", row=0, **{**GOOD_PICTURE, "data": b"12"}),
        about(0, "picture", plane="xz", row=0, **{**GOOD_PICTURE, "shape": [8, 60]}),
    ],
)
def test_events_of_no_run_are_refused_and_leave_the_others_alone(runs, message):
    runs.take(begin())
    with pytest.raises((KeyError, TypeError, ValueError)):
        runs.take(message)
    run = runs.by_id["a"]
    assert list(runs.by_id) == ["a"]
    assert {slab.state for slab in run.slabs} == {"waiting"}
    assert run.picture_version == 0
