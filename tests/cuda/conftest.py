"""Tests of device code without a device: kernels in the simulator, arrays of the stand-in for CuPy.

The simulator has to be chosen before Numba is imported: ``NUMBA_ENABLE_CUDASIM=1 python -m pytest tests/cuda``.
With ``DTOMO_KERNEL_ERRORS=FILE`` the run leaves there, as JSON, which kernels were launched and how far their results
lay from the CPU's: ``benchmarks.kernels`` puts that into its table.
"""

import functools
import json
import os
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from tests import stand_in

SIMULATED = os.environ.get("NUMBA_ENABLE_CUDASIM") == "1"
ERRORS = os.environ.get("DTOMO_KERNEL_ERRORS")
seen: dict[str, dict] = {}  # kernel -> launches, error
launched: set[str] = set()  # kernels, by the present test
needs_simulator = pytest.mark.skipif(not SIMULATED, reason="runs with NUMBA_ENABLE_CUDASIM=1")


def pytest_collection_modifyitems(items):
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents and item.get_closest_marker("without_simulator") is None:
            item.add_marker(needs_simulator)


@pytest.fixture(scope="session", autouse=True)
def threads_take_turns_quickly():
    """The simulator's main thread polls while the others wait for their turn: five times faster so."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    yield
    sys.setswitchinterval(before)


@pytest.fixture(scope="session", autouse=True)
def shared_arrays_are_one():
    """Two of the simulator's threads that ask for a shared array at the same time each get their own; not so here."""
    if not SIMULATED:
        yield
        return
    from numba import types
    from numba.cuda.simulator.kernelapi import FakeCUDAShared
    from numba.np.numpy_support import as_dtype

    lock = threading.Lock()

    def array(self, shape, dtype):
        caller = sys._getframe(1)
        with lock:
            place = caller.f_code.co_filename, caller.f_lineno
            if place not in self._allocations:
                self._allocations[place] = np.empty(shape, as_dtype(dtype) if isinstance(dtype, types.Type) else dtype)
            return self._allocations[place]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FakeCUDAShared, "array", array)
        yield


@pytest.fixture
def cupy(monkeypatch):
    """The stand-in, in CuPy's place while the test runs."""
    return stand_in.install(monkeypatch)


@pytest.fixture
def record_error():
    """Called with a device result and the one it should be: the error of all kernels launched since the last call."""

    def record(found, expected):
        found, expected = (np.asarray(a.get() if hasattr(a, "get") else a) for a in (found, expected))
        error = float(np.abs(found - expected).max() / (np.abs(expected).max() or 1))
        for kernel in launched:
            seen[kernel]["error"] = max(error, seen[kernel]["error"] or 0.0)
        launched.clear()

    return record


@pytest.fixture(autouse=True)
def count_launches(monkeypatch):
    """Which kernels of the package are launched, and how often."""
    launched.clear()
    if not SIMULATED or ERRORS is None:
        return
    from dtomo.kernels.cuda.compiling import CudaKernel

    launch = CudaKernel.launch

    @functools.wraps(launch)
    def counted(kernel, *args, **kwargs):
        if kernel.function.__module__.startswith("dtomo."):
            seen.setdefault(kernel.name, {"launches": 0, "error": None})["launches"] += 1
            launched.add(kernel.name)
        return launch(kernel, *args, **kwargs)

    monkeypatch.setattr(CudaKernel, "launch", counted)


def pytest_sessionfinish():
    if SIMULATED and ERRORS is not None:
        Path(ERRORS).write_text(json.dumps(dict(sorted(seen.items())), indent=1))


@pytest.fixture
def small_blocks(monkeypatch):
    """The projector in blocks of few threads: the simulator makes a thread of Python for each."""
    from dtomo.kernels.cuda import parallel, parallel_adjoint, parallel_forward

    for module in (parallel, parallel_forward, parallel_adjoint):
        for name, value in {"LANES": 4, "FEW": 1, "ROWS": 8}.items():
            if hasattr(module, name):
                monkeypatch.setattr(module, name, value)
    for function in (parallel.forward, parallel.adjoint):
        monkeypatch.setattr(function, "__defaults__", (parallel.Grid(4, 2),))


@pytest.fixture
def few_threads(monkeypatch):
    """The simulator starts a thread for each of CUDA's; results do not depend on how many there are."""
    from dtomo.kernels.cuda import compiling, filters, parallel, parallel_adjoint, parallel_forward

    launch = compiling.CudaKernel.launch

    def smaller(kernel, blocks, *arguments, threads=None):
        if threads is None:
            threads = tuple(min(count, 2 if axis == 0 else 1) for axis, count in enumerate(kernel.threads))
        blocks = (blocks,) if isinstance(blocks, int) else blocks
        launch(kernel, (1,) * len(blocks), *arguments, threads=threads)

    monkeypatch.setattr(compiling.CudaKernel, "launch", smaller)
    for module in (parallel, parallel_forward, parallel_adjoint):
        for name, value in {"LANES": 2, "FEW": 1, "STRIP": 4, "ROWS": 8, "ANGLES": 5}.items():
            if hasattr(module, name):
                monkeypatch.setattr(module, name, value)
    monkeypatch.setattr(filters, "WORKSPACE", 16 * 16 * 10)
