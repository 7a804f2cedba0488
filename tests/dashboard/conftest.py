"""A cluster with a dashboard, and runs on it whose tasks only report."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from dtomo.distributed.slabs import Slab, cut

SHAPE = (64, 24, 32)


@pytest.fixture(scope="package")
def cluster() -> Iterator[Any]:
    """Two workers that come back when they are killed, and a dashboard on some port."""
    from distributed import LocalCluster

    with LocalCluster(n_workers=2, threads_per_worker=1, host="127.0.0.1", dashboard_address="127.0.0.1:0") as local:
        yield local


@pytest.fixture
def client(cluster: Any) -> Iterator[Any]:
    """A client of that cluster."""
    from distributed import Client

    with Client(cluster) as connected:
        connected.wait_for_workers(2, timeout=60)
        yield connected


@pytest.fixture
def slabs() -> list[Slab]:
    """Of a volume of `SHAPE`."""
    return cut(SHAPE[0], 16)


@pytest.fixture
def description(slabs: list[Slab]) -> dict[str, Any]:
    """What `show_run` is told of a run."""
    return {
        "name": "out.zarr",
        "shape": SHAPE,
        "slabs": slabs,
        "algorithm": "sirt",
        "iterations": 4,
        "unit": "1/µm",
        "planned_memory": 300_000_000,
        "settings": {"scan": "<script>alert(1)</script>.h5", "center": "auto"},
    }


@pytest.fixture
def task() -> Callable[..., None]:
    """Reports like the reconstruction of a slab; of a kind that is sent to workers by value."""

    def work(feed: Any, slab: Slab, complex_values: bool = False) -> None:
        from dtomo.dashboard import watch_slab

        with watch_slab(feed, slab) as reports:
            solving = reports.solving(slab)
            for iteration in range(4):
                solving.callback(iteration, np.full(len(slab), 2.0**-iteration))
            part = np.full((len(slab), *feed.shape[1:]), slab.index + 1, np.complex64 if complex_values else np.float32)
            reports.picture(part)

    return work


def until(condition: Callable[[], Any], seconds: float = 20.0) -> Any:
    """What `condition` returns once that is true.

    Raises
    ------
    AssertionError
        It is not within `seconds`.
    """
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found = condition()
        if found:
            return found
        time.sleep(0.05)
    raise AssertionError(f"not within {seconds} s: {condition}")


@pytest.fixture
def wait_until() -> Callable[..., Any]:
    """`until`, for tests that cannot import this file."""
    return until
