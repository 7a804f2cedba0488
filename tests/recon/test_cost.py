"""What a plan says of time: few slices at once cost more, and what a job must not outlive is said."""

import numpy as np
import pytest

import dtomo
from dtomo import io, simulate
from dtomo.distributed.clusters import Resources
from dtomo.recon import cost
from dtomo.settings import ReconSettings


@pytest.fixture(scope="module")
def scan(tmp_path_factory):
    path = tmp_path_factory.mktemp("cost") / "scan.h5"
    simulate.simulate_scan(path, size=64, angles=48, rows=96, seed=1)
    return io.open(path)


def plan(scan, resources, **settings):
    asked = ReconSettings(scan=scan.path, output="out.zarr", center=32.0, **settings)
    geometry = dtomo.ParallelBeam(np.asarray(scan.angles), scan.shape[2], center=32.0)
    return cost.make_plan(scan, asked, geometry, resources)


def test_few_slices_at_once_take_longer_each():
    assert cost._spread(64) == cost._spread(128) == 1
    each = [cost._spread(lanes) for lanes in (1, 2, 3)]
    assert each == [each[0]] * 3
    assert each[0] > cost._spread(16) > cost._spread(32) > 1
    assert cost._spread(65) < cost._spread(16)


def test_small_blocks_are_planned_to_take_longer(scan):
    resources = Resources(1, 1, 10**10)
    seconds = [
        plan(scan, resources, algorithm="sirt", iterations=1000, slab=slab).seconds["computing"] for slab in (64, 16, 2)
    ]
    assert seconds[0] < seconds[1] < seconds[2]


@pytest.mark.parametrize(
    ("walltime", "settings", "warned"),
    [
        ("1m", {"algorithm": "fbp"}, False),
        ("1m", {"algorithm": "sirt", "iterations": 10**6}, False),
        ("1m", {"algorithm": "sirt", "iterations": 10**6, "checkpoint_every": "never"}, True),
        ("1000h", {"algorithm": "sirt", "iterations": 10**6, "checkpoint_every": "never"}, False),
    ],
)
def test_a_slab_that_no_job_lives_to_finish_is_said(scan, walltime, settings, warned):
    pytest.importorskip("dask_jobqueue")
    resources = Resources(1, 1, 10**10, kind="slurm", options={"walltime": walltime})
    notes = [line for line in plan(scan, resources, **settings).lines() if "nothing of a slab is kept" in line]
    assert len(notes) == warned
