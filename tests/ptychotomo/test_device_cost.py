"""Plans of joint runs on devices: what stays there, what comes for a time, what is refused with what would do."""

import dataclasses
from typing import Any

import pytest

from dtomo.distributed.clusters import Resources
from dtomo.errors import UserError
from dtomo.ptychotomo import cost
from dtomo.settings import JointSettings

SMALL = cost.JointSizes(JointSettings(scan="scan.h5", output="out.zarr"), (40 * 90, 64, 64), 2, 90, 512, 512)


def plan(share: float | None, workers: int = 2, memory: float = 64e9, rows: int | None = None, **changes: Any) -> Any:
    settings = SMALL.settings.model_copy(update=changes)
    kind = "local" if share is None else "cuda"
    resources = Resources(workers, 1, int(memory), kind=kind)
    if share is not None:
        devices = tuple(map(str, range(workers)))
        resources = dataclasses.replace(resources, devices=devices, device_share=int(share))
    return cost.make_plan(dataclasses.replace(SMALL, settings=settings), resources, rows)


def test_a_cpu_has_no_device() -> None:
    found = plan(None)
    assert found.device_parts == {}
    assert found.device_slabs is None
    assert "device" not in "\n".join(found.lines())


@pytest.mark.parametrize("engine", ["adam", "cg", "admm"])
def test_where_there_is_room_all_stays_on_the_devices(engine: str) -> None:
    found = plan(80e9, engine=engine)
    assert found.fits
    assert (found.device_slabs, found.slab_memory) == (None, None)
    assert found.slab_rows == 256
    assert found.device_parts["slabs"] == 256 * SMALL_ROW[engine]
    assert found.frame_memory == found.device_parts["frames kept"] == 40 * 90 * 64 * 64 * 2 // 2
    assert found.worker_parts["slabs"] == 0
    assert found.device_memory < 80e9
    text = "\n".join(found.lines())
    for part in (
        "slabs: 2 of 256 rows, on the device",
        "devices: worker 0 on 0",
        "device memory per worker",
        "of the CPU",
    ):
        assert part in text


SMALL_ROW = {"adam": 512**2 * 28, "cg": 512**2 * 32, "admm": 512**2 * 8 + 90 * 512 * 20}
"""Bytes of a row of the volume with all that goes with it."""


def test_slabs_that_do_not_fit_lie_on_the_host_and_come_one_at_a_time() -> None:
    row = SMALL_ROW["adam"]
    found = plan(4.5e9, workers=1, rows=64)
    assert found.fits
    assert found.slabs == 8
    assert found.device_slabs is not None
    there = found.device_slabs // (64 * row)
    assert 0 < there < 7
    assert found.device_parts["slabs"] == (there + 1) * 64 * row
    assert found.worker_parts["slabs"] == (8 - there) * 64 * row
    assert found.frame_memory == 0
    assert "brought to the device one at a time" in "\n".join(found.lines())
    filed = plan(4.5e9, workers=1, rows=64, memory=3e9)
    assert filed.device_slabs == found.device_slabs
    assert filed.slab_memory is not None
    assert "in files" in "\n".join(filed.lines())


def test_slabs_are_cut_until_they_fit() -> None:
    whole, cut = plan(80e9, workers=1), plan(4.5e9, workers=1)
    assert whole.slab_rows == 512
    assert cut.fits
    assert SMALL.least_rows <= cut.slab_rows < 512


def test_what_does_not_fit_is_refused_with_what_would() -> None:
    with pytest.raises(UserError, match=r"needs .* of its device's memory .*give --slab-rows 64, more --device-memory"):
        cost.refuse_if_too_big(plan(3e9, workers=1, rows=512))
    with pytest.raises(UserError, match=r"of 64 rows, the lowest, take .* --device-memory.* --cluster local"):
        cost.refuse_if_too_big(plan(1e9, workers=1))
    cost.refuse_if_too_big(plan(4.5e9, workers=1))


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"total_variation": 1.0}, "on the way"),
        ({"modes": 3}, "exit waves"),
        ({"own_probes": True}, "shared"),
        ({"slices": 4}, "exit waves"),
    ],
)
def test_what_is_asked_for_takes_memory(changes: dict[str, Any], part: str) -> None:
    assert plan(80e9, **changes).device_parts[part] > plan(80e9).device_parts[part]
