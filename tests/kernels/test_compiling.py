"""Compiled kernels are kept between runs, and never out of date."""

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from dtomo.kernels import compiling

SCRIPT = """
import numpy as np
from dtomo.kernels.sums import _dot_blocks, dot_slices
assert dot_slices(np.ones((5, 2), np.float32), np.ones((5, 2), np.float32)).tolist() == [5, 5]
print(sum(_dot_blocks.stats.cache_hits.values()), sum(_dot_blocks.stats.cache_misses.values()))
"""


def run(folder):
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(folder)}
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, check=True)
    return [int(number) for number in done.stdout.split()]


def test_second_run_loads_what_the_first_compiled(tmp_path):
    assert run(tmp_path) == [0, 1]
    assert any(tmp_path.rglob("*.nbi"))
    assert run(tmp_path) == [1, 0]


def test_a_folder_that_cannot_be_written_is_no_obstacle(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    assert sum(run(blocked)) == 1


def test_folder_is_named_by_the_sources(tmp_path, monkeypatch):
    """By what stands in them: a kernel that is inlined into another must not be found as it was."""
    monkeypatch.setattr(compiling, "__file__", str(tmp_path / "compiling.py"))
    names = []
    for text in ("x = 1", "x = 2", "x = 1"):
        (tmp_path / "kernel.py").write_text(text)
        names.append(os.path.basename(compiling.cache_folder.__wrapped__()))
    assert names[0] == names[2] != names[1]
    assert len(names[0]) == 16


OTHER_PROCESSOR = """
import hashlib
import numpy as np
from dtomo.geometry import ParallelBeam
from dtomo.operators import ParallelProjector

beam = ParallelBeam(np.arange(20) * 9.0 + 1, 47, 22.3, width=40, height=33)
operator = ParallelProjector(beam, 1)
x, y = (np.random.default_rng(0).random(shape, np.float32) for shape in (operator.shape_in, operator.shape_out))
for result in (operator.forward(x), operator.adjoint(y)):
    print(hashlib.sha256(result.tobytes()).hexdigest())
"""


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() != "x86_64", reason="names processors of one family")
def test_compiled_for_a_processor_without_wide_vectors(tmp_path):
    """NUMBA_CPU_NAME sets what code is made for (a cache shared by unlike nodes): the same bits, by other code."""
    found = []
    for name in (None, "haswell"):
        environment = dict(os.environ)
        if name:
            environment |= {"NUMBA_CACHE_DIR": str(tmp_path), "NUMBA_CPU_NAME": name, "NUMBA_CPU_FEATURES": ""}
        done = subprocess.run(
            [sys.executable, "-c", OTHER_PROCESSOR], env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr[-500:]
        found.append(done.stdout)
    assert found[0] == found[1]


def test_kept_where_the_user_or_the_system_keeps_such_things(tmp_path, monkeypatch):
    for name in ("NUMBA_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert Path(compiling.cache_folder.__wrapped__()).parent == tmp_path / ".cache" / "dtomo"
    for name in ("XDG_CACHE_HOME", "NUMBA_CACHE_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name))
        assert Path(compiling.cache_folder.__wrapped__()).parent == tmp_path / name / "dtomo"
