"""What a task sends while it works."""

import time

import numpy as np
import pytest

from dtomo import ParallelBeam
from dtomo.algorithms import State, cgls, sirt
from dtomo.dashboard import feed as feeds
from dtomo.dashboard import watch_slab
from dtomo.dashboard.feed import Feed, SlabFeed
from dtomo.dashboard.thumbnails import Grid, unpack
from dtomo.distributed.slabs import Slab
from dtomo.operators import ParallelProjector

SLAB = Slab(0, 0, 4)


@pytest.fixture
def sent():
    return []


@pytest.fixture
def reports(sent):
    """Reports of a slab of four slices, the first of eight."""
    return SlabFeed(Grid((8, 16, 16)), SLAB, sent.append)


@pytest.fixture
def problem():
    """An operator and its data."""
    beam = ParallelBeam(np.arange(0.0, 180, 20), 16)
    operator = ParallelProjector(beam, 4, np.float32)
    truth = operator.zeros()
    truth[:, 5:11, 4:12] = 1
    return operator, operator.forward(truth)


class Keeper:
    """Checkpoints in memory."""

    def __init__(self, state=None):
        self.state, self.offered = state, []

    def restore(self):
        return self.state

    def offer(self, state):
        self.offered.append(state.iteration)


def residuals(sent):
    """(first iteration, norm) of all that was sent."""
    found = {}
    for message in sent:
        if message["kind"] == "residuals":
            assert (message["start"], message["slices"]) == (0, 4)
            found |= {message["first"] + i: norm for i, norm in enumerate(message["norms"])}
    return found


@pytest.mark.parametrize("solver", [sirt, cgls])
def test_watching_changes_no_bit_and_tells_all_residuals(solver, reports, sent, problem, monkeypatch):
    monkeypatch.setattr(feeds, "PICTURES_APART", 0.0)
    monkeypatch.setattr(feeds, "SHARE", 1e9)
    reports = SlabFeed(Grid((8, 16, 16)), SLAB, sent.append)
    alone = solver(*problem, iterations=7)
    keeper = Keeper()
    solving = reports.solving(SLAB, keeper, scale=10.0)
    watched = solver(*problem, iterations=7, callback=solving.callback, checkpoints=solving)
    reports.flush()
    np.testing.assert_array_equal(watched.solution, alone.solution)
    assert keeper.offered == [1, 2, 3, 4, 5, 6]
    norms = residuals(sent)
    assert sorted(norms) == list(range(7))
    np.testing.assert_allclose([norms[i] for i in range(7)], np.linalg.norm(alone.residuals, axis=1))
    pictures = [unpack(message) for message in sent if message.get("plane") == "xz"]
    assert len(pictures) == 6
    before_last = solver(*problem, iterations=6).solution
    np.testing.assert_allclose(pictures[-1], 10 * before_last[:, 8, :], rtol=2e-3, atol=1e-2)


def test_a_run_that_goes_on_tells_what_was_before(reports, sent, problem):
    state = State({}, np.full((3, 4), 2.0))
    solving = reports.solving(SLAB, Keeper(state))
    assert solving.restore() is state
    solving.callback(3, np.full(4, 0.5))
    reports.flush()
    assert residuals(sent) == {0: 4.0, 1: 4.0, 2: 4.0, 3: 1.0}


def test_residuals_wait_for_one_another(reports, sent):
    solving = reports.solving(SLAB)
    for iteration in range(1000):
        solving.callback(iteration, np.ones(4))
    reports.flush()
    assert len(sent) <= 4
    assert sorted(residuals(sent)) == list(range(1000))


def test_pictures_of_what_is_not_done_are_rare(reports, sent):
    part = np.ones((4, 16, 16), np.float32)
    began = time.monotonic()
    for _ in range(200):
        reports.picture(part, final=False)
    assert time.monotonic() - began < feeds.PICTURES_APART
    assert sent == []
    reports.picture(part)
    assert {message["plane"] for message in sent} == {"xy", "xz", "yz"}


def test_only_the_first_slab_and_that_in_the_middle_show_a_whole_slice(sent):
    part = np.ones((4, 16, 16), np.float32)
    for index, slice_shown in ((0, 2), (1, None), (2, 8), (3, None)):
        sent.clear()
        SlabFeed(Grid((16, 16, 16)), Slab(index, 4 * index, 4 * index + 4), sent.append).picture(part)
        assert [message["slice"] for message in sent if message["plane"] == "xy"] == (
            [] if slice_shown is None else [slice_shown]
        )


@pytest.mark.parametrize("feed", [None, Feed("run", (8, 16, 16))])
def test_without_a_page_or_outside_of_a_worker_nothing_happens(feed, problem, monkeypatch):
    def no_work(*arguments, **options):
        raise AssertionError("a picture was made for nobody")

    monkeypatch.setattr(Grid, "cut", no_work)
    with watch_slab(feed, SLAB) as reports:
        solving = reports.solving(SLAB)
        result = sirt(*problem, iterations=3, callback=solving.callback, checkpoints=solving)
        reports.picture(result.solution)
    np.testing.assert_array_equal(result.solution, sirt(*problem, iterations=3).solution)


def test_what_goes_with_the_tasks_is_small():
    from distributed.protocol.pickle import dumps

    assert len(dumps(Feed("0" * 32, (2000, 2000, 2000)))) < 300
