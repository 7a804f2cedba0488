"""One cluster of processes for all tests of fits."""

from collections.abc import Iterator

import pytest
from distributed import Client

from dtomo.distributed.clusters import Resources, connect


@pytest.fixture(scope="session")
def fitting_client() -> Iterator[Client]:
    """Three workers with one thread each."""
    with connect(Resources(3, 1, 2**30, dashboard=None)) as client:
        yield client
