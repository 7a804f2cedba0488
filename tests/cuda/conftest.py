"""Tests of device code without a device: kernels in the simulator, arrays of the stand-in for CuPy.

The simulator has to be chosen before Numba is imported: ``NUMBA_ENABLE_CUDASIM=1 python -m pytest tests/cuda``.
With ``DTOMO_KERNEL_ERRORS=FILE`` the run leaves there, as JSON, which kernels were launched and how far their results
lay from the CPU's: ``benchmarks.kernels`` puts that into its table.
"""

import functools
import json
import os
from pathlib import Path

import pytest

from tests import stand_in

SIMULATED = os.environ.get("NUMBA_ENABLE_CUDASIM") == "1"
ERRORS = os.environ.get("DTOMO_KERNEL_ERRORS")
seen: dict[str, dict] = {}  # kernel -> launches, error
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


@pytest.fixture
def record_error():
    """Called with a kernel's name (``"parallel.forward"``) and its relative error against the CPU."""

    def record(kernel, error):
        found = seen.setdefault(kernel, {"launches": 0, "error": None})
        found["error"] = max(float(error), found["error"] or 0.0)

    return record


@pytest.fixture(autouse=True)
def count_launches(monkeypatch):
    """Which kernels of the package are launched, and how often."""
    if not SIMULATED or ERRORS is None:
        return
    from dtomo.kernels.cuda.compiling import CudaKernel

    launch = CudaKernel.launch

    @functools.wraps(launch)
    def counted(kernel, *args, **kwargs):
        if kernel.function.__module__.startswith("dtomo."):
            seen.setdefault(kernel.name, {"launches": 0, "error": None})["launches"] += 1
        return launch(kernel, *args, **kwargs)

    monkeypatch.setattr(CudaKernel, "launch", counted)


def pytest_sessionfinish():
    if SIMULATED and ERRORS is not None:
        Path(ERRORS).write_text(json.dumps(dict(sorted(seen.items())), indent=1))
