"""C27, the walltime: workers retire before it, staggered. What follows with a real Slurm is in tests/slurm."""

import re

import pytest

from dtomo.distributed.batch import BatchRequest, lifetime_of, parse_walltime
from dtomo.distributed.clusters import Resources

pytest.importorskip("dask_jobqueue")
from dtomo.distributed.slurm import job_script


@pytest.mark.parametrize("walltime", ["00:30:00", "2m", "1-00:00:00"])
def test_c27_workers_retire_before_the_walltime_and_not_all_at_once(walltime: str) -> None:
    script = job_script(Resources(4, 2, 10**9, kind="slurm"), {"walltime": walltime})
    found = re.search(r"--lifetime (\d+)s --lifetime-stagger (\d+)s", script)
    assert found
    lifetime, stagger = int(found[1]), int(found[2])
    seconds = parse_walltime(walltime)
    assert stagger > 0
    assert 0.5 * seconds < lifetime - stagger
    assert lifetime + stagger <= seconds - 20


def test_c27_the_walltime_of_the_site_counts_too() -> None:
    import dask

    with dask.config.set({"jobqueue.slurm.walltime": "00:30:00"}):
        script = job_script(Resources(4, 2, 10**9, kind="slurm"))
    assert "#SBATCH -t 00:30:00" in script
    lifetime, stagger = lifetime_of(BatchRequest(), 1800)
    assert f"--lifetime {lifetime}s --lifetime-stagger {stagger}s" in script
