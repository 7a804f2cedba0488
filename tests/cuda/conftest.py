"""Tests of device code without a device: kernels in the simulator, arrays of the stand-in for CuPy.

The simulator has to be chosen before Numba is imported: ``NUMBA_ENABLE_CUDASIM=1 python -m pytest tests/cuda``.
"""

import os
from pathlib import Path

import pytest

from tests import stand_in

SIMULATED = os.environ.get("NUMBA_ENABLE_CUDASIM") == "1"
needs_simulator = pytest.mark.skipif(not SIMULATED, reason="runs with NUMBA_ENABLE_CUDASIM=1")


def pytest_collection_modifyitems(items):
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents and item.get_closest_marker("without_simulator") is None:
            item.add_marker(needs_simulator)


@pytest.fixture
def cupy(monkeypatch):
    """The stand-in, in CuPy's place while the test runs."""
    return stand_in.install(monkeypatch)
