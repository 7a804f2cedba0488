"""Plans: what fits is said to fit, frames are kept as far as memory goes, refusals name what would do."""

import dataclasses

import pytest

from dtomo.distributed.clusters import Resources
from dtomo.errors import UserError
from dtomo.ptycho import cost
from dtomo.settings import PtychoSettings


def _plan(memory=2e9, workers=2, frames=(400, 128, 128), size=(1024, 1024), before=None, shared=False, **changes):
    settings = PtychoSettings(**{"scan": "scan.cxi", "output": "out.h5", **changes})
    resources = Resources(workers, 1, int(memory), shared=shared)
    return cost.make_plan(settings, cost.Sizes(settings, frames, 2, size), resources, before)


def test_a_plan_is_told_in_lines():
    lines = "\n".join(_plan().lines())
    for part in ("400 of 128 × 128", "1024 × 1024", "workers: 2", "memory per worker", "client", "time: about"):
        assert part in lines


def test_one_local_worker_is_this_process():
    plan = _plan(workers=1)
    assert plan.here
    assert "this process" in "\n".join(plan.lines())
    assert not _plan(workers=2).here


@pytest.mark.parametrize(
    ("frames", "changes", "workers"),
    [
        ((60, 32, 32), {}, 1),
        ((60, 32, 32), {"engine": "cg", "modes": 3}, 1),
        ((60, 32, 32), {"workers": 4}, 4),
        ((60, 32, 32), {"tile": 64}, 4),
        ((4000, 128, 128), {}, 4),
    ],
)
def test_small_scans_are_worked_on_by_one_process_unless_asked_otherwise(frames, changes, workers):
    settings = PtychoSettings(**{"scan": "scan.cxi", "output": "out.h5", **changes})
    sizes = cost.Sizes(settings, frames, 2, (300, 300))
    found = cost.suited(settings, sizes, Resources(4, 2, 10**9, shared=True))
    assert (found.workers, found.cores) == (workers, 8)
    assert found.memory * found.workers == 4 * 10**9


def test_small_scans_on_other_clusters_stay_there():
    settings = PtychoSettings(scan="scan.cxi", output="out.h5", cluster="slurm")
    resources = Resources(4, 2, 10**9, kind="slurm")
    assert cost.suited(settings, cost.Sizes(settings, (60, 32, 32), 2, (300, 300)), resources) is resources


def test_two_gigabytes_of_frames_fit_two_workers_of_600_megabytes_by_reading_again():
    plan = _plan(600e6, frames=(65536, 128, 128), size=(1024, 1024), engine="adam")
    assert plan.fits
    assert 0 < plan.frame_memory < 2**30
    assert plan.bytes_read > 10 * 2**31
    assert "read again" in "\n".join(plan.lines())
    roomy = _plan(4e9, frames=(65536, 128, 128), engine="adam")
    assert roomy.frame_memory == 2**30
    assert roomy.bytes_read == 2**31


def test_more_of_anything_takes_more():
    least = _plan()
    for changes in (
        {"modes": 3},
        {"object_modes": 2},
        {"slices": 3, "slice_distance": 1.0},
        {"opr": 2},
        {"engine": "dm"},
    ):
        assert _plan(**changes).worker_memory > least.worker_memory, changes
    assert _plan(epochs=200).seconds["computing"] == pytest.approx(2 * least.seconds["computing"])


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"memory": 3e8}, ["limited to 300 MB", "--memory", "--engine rpie"]),
        ({"memory": 4e8, "engine": "dm", "frames": (4000, 128, 128)}, ["exit waves", "--engine lsqml"]),
        ({"memory": 6e8, "workers": 8, "shared": True, "size": (3000, 3000)}, ["--workers"]),
    ],
)
def test_what_does_not_fit_is_refused_with_what_would(changes, parts):
    plan = _plan(**changes)
    assert not plan.fits
    with pytest.raises(UserError) as raised:
        cost.refuse_if_too_big(plan)
    for part in parts:
        assert part in str(raised.value)


def test_what_is_named_as_enough_memory_is_enough():
    plan = _plan(3e8)
    assert _plan(1.05 * plan.worker_memory).fits


def test_large_objects_are_cut_only_where_they_do_not_fit():
    large = {"size": (16384, 4096), "frames": (1000, 128, 128), "engine": "adam", "workers": 4}
    assert _plan(16e9, **large).tile is None
    cut = _plan(2.5e9, **large)
    assert cut.tile == 768
    assert cut.fits
    assert "tiles of 768 rows" in "\n".join(cut.lines())
    assert _plan(2.5e9, **{**large, "engine": "cg"}).tile is None
    assert _plan(2.5e9, before="no", **large).tile is None
    assert _plan(16e9, before=1024, **large).tile == 1024


@pytest.mark.parametrize(
    ("changes", "part"),
    [({"tile": 256, "engine": "cg"}, "--engine adam"), ({"tile": 100, "engine": "adam"}, "129 rows")],
)
def test_tiles_that_cannot_be_are_refused(changes, part):
    with pytest.raises(UserError, match=part):
        _plan(**changes)


def test_a_device_holds_what_a_worker_would():
    settings = PtychoSettings(scan="scan.cxi", output="out.h5")
    resources = Resources(2, 1, int(8e9), devices=("0", "1"), kind="cuda", device_share=int(4e9))
    plan = cost.make_plan(settings, cost.Sizes(settings, (400, 128, 128), 2, (1024, 1024)), resources)
    assert plan.fits
    assert 0 < plan.device_memory <= 4e9
    small = dataclasses.replace(resources, device_share=int(5e7))
    with pytest.raises(UserError, match="--device-memory"):
        cost.refuse_if_too_big(cost.make_plan(settings, plan.sizes, small))
