"""The order of the tests: files that wait for jobs, clusters and commands come first, not at the end."""

from pathlib import Path

import pytest

SLOW = ("cli", "slurm", "cases", "distributed", "ptychotomo", "subtomo")
"""Folders, the slowest first."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Sort by folder; within one, and among all others, the order stays."""
    here = Path(__file__).parent

    def place(item: pytest.Item) -> int:
        folder = item.path.relative_to(here).parts[0]
        return SLOW.index(folder) if folder in SLOW else len(SLOW)

    items.sort(key=place)
