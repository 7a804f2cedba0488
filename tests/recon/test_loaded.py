"""Kernels are loaded in the server that workers are forked from."""

import os
import subprocess
import sys

import pytest

_IMPORT = """
import dtomo.recon.slab
import dtomo.recon.loaded, os
print(len(os.listdir("/proc/self/task")))
"""

needs_proc = pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="threads are counted in /proc")


def _run(program: str, **variables: str) -> str:
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1"} | variables
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@needs_proc
def test_loading_starts_no_thread():
    # a process with threads must not be forked
    from dtomo.recon.loaded import load_kernels

    load_kernels()  # so that there are compiled kernels
    assert _run(_IMPORT) == "1"


@needs_proc
def test_nothing_is_compiled_where_nothing_was(tmp_path):
    assert _run(_IMPORT, NUMBA_CACHE_DIR=str(tmp_path)) == "1"
    assert not list(tmp_path.rglob("*.nbi"))


def test_the_number_of_threads_is_as_before():
    from dtomo.recon.loaded import load_kernels
    from dtomo.threads import get_threads, set_threads

    before = get_threads()
    set_threads(3)
    try:
        load_kernels()
        assert get_threads() == 3
    finally:
        set_threads(before)


def test_a_slab_finds_its_kernels_loaded():
    program = """
from dtomo.kernels import parallel_cpu
from dtomo.kernels.layout import _transpose
from dtomo.recon.loaded import load_kernels
load_kernels()
import numpy as np, dtomo
kernels = parallel_cpu._adjoint, _transpose
loaded = [len(kernel.signatures) for kernel in kernels]
data = np.ones((30, 64, 48), np.float32)
dtomo.algorithms.fbp(data, dtomo.ParallelBeam(np.arange(30) * 6.0, 48))
print(loaded == [len(kernel.signatures) for kernel in kernels], min(loaded))
"""
    assert _run(program) == "True 1"
