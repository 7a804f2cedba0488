"""Which tests run, and in which order: files that wait for jobs, clusters and commands come first, not at the end."""

import signal
import threading
from pathlib import Path

import pytest

SLOW = ("cli", "slurm", "cases", "distributed", "ptychotomo", "subtomo")
"""Folders, the slowest first."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="also long variants of what other tests show")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is slow, and sort by folder; within one, and among all others, the order stays."""
    if not config.getoption("--slow"):
        config.hook.pytest_deselected(items=[item for item in items if item.get_closest_marker("slow")])
        items[:] = [item for item in items if not item.get_closest_marker("slow")]
    here = Path(__file__).parent

    def place(item: pytest.Item) -> int:
        folder = item.path.relative_to(here).parts[0]
        return SLOW.index(folder) if folder in SLOW else len(SLOW)

    items.sort(key=place)


@pytest.fixture(autouse=True)
def ctrl_c_interrupts() -> None:
    """Tests that import dask-jobqueue by themselves lose what Ctrl-C does: put it back for the next."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.default_int_handler)
