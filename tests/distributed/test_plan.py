"""The plan in words, and its refusal."""

import dataclasses

import pytest

from dtomo.distributed.clusters import Resources
from dtomo.distributed.plan import Plan, refuse_if_too_big, size
from dtomo.distributed.slabs import cut
from dtomo.errors import UserError


def _plan(memory: int, height: int = 64) -> Plan:
    return Plan(
        slabs=tuple(cut(256, height)),
        block=height,
        resources=Resources(2, 1, memory),
        worker_parts={"programs": 300_000_000, "volume": height * 10_000_000},
        client_parts={"programs": 200_000_000},
        bytes_read=2_000_000_000,
        bytes_written=1_000_000_000,
        seconds={"reading": 4.0, "computing": 61.0},
    )


def test_plan_says_tasks_memory_bytes_and_time() -> None:
    text = "\n".join(_plan(1_500_000_000).lines())
    for part in (
        "tasks: 4, each a slab of 64 slices",
        "2 with 1 thread each",
        "940 MB of 1.5 GB",
        "2.0 GB",
        "1.0 GB",
        "1 min 05 s",
    ):
        assert part in text


def test_plan_that_fits_passes() -> None:
    refuse_if_too_big(_plan(940_000_000), None)


def test_refusal_names_the_slab_that_fits() -> None:
    with pytest.raises(UserError, match=r"needs 940 MB but is limited to 500 MB; --slab 16 would fit"):
        refuse_if_too_big(_plan(500_000_000), _plan(500_000_000, 16))


def test_refusal_names_the_memory_when_no_slab_fits() -> None:
    with pytest.raises(UserError, match=r"--memory 987MB"):
        refuse_if_too_big(_plan(100_000_000), None)


def test_refusal_names_fewer_workers_where_they_share_the_memory() -> None:
    shared = dataclasses.replace(_plan(0), resources=Resources(5000, 1, 10_000_000, shared=True))
    with pytest.raises(UserError, match=r"its share of the free memory; give --workers 50 or fewer"):
        refuse_if_too_big(shared, None)
    alone = dataclasses.replace(_plan(0), resources=Resources(1, 1, 100_000_000, shared=True))
    with pytest.raises(UserError, match=r"--memory 987MB"):
        refuse_if_too_big(alone, None)


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (1500, "1.5 kB"), (25e6, "25 MB"), (1.5e9, "1.5 GB"), (3e12, "3.0 TB")],
)
def test_sizes(count: float, text: str) -> None:
    assert size(count) == text


def test_devices_are_in_the_plan() -> None:
    for devices, line in ((("3", "1"), "devices: worker 0 on 3, worker 1 on 1"), ((), "devices: none listed")):
        lines = dataclasses.replace(_plan(10**9), resources=Resources(2, 1, 10**9, devices=devices)).lines()
        assert [found for found in lines if found.startswith(line)]
    assert not [found for found in _plan(10**9).lines() if found.startswith("devices")]
