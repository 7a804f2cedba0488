"""Where a benchmark runs: a clean environment, the cores, and what is installed. Imports nothing slow."""

import importlib.metadata
import os
import platform
import sys
from pathlib import Path
from typing import Any

from dtomo import __version__

_MARK = "DTOMO_BENCHMARK_CORES"
SLOW = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")  # slow NumPy down where somebody has set them
_THREADS = ("DTOMO_THREADS", "NUMBA_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def available_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cores() -> int:
    """Cores that the benchmark uses."""
    return int(os.environ.get(_MARK, available_cores()))


def restart_clean(count: int | None = None) -> None:
    """Start this program again, once, with all threading libraries told to use `count` cores.

    They read their variables when they are loaded, so changing them later has no effect.
    """
    if _MARK in os.environ:
        return
    wanted = str(count or available_cores())
    clean = {name: value for name, value in os.environ.items() if name not in SLOW}
    clean |= {
        _MARK: wanted,
        "XLA_FLAGS": f"--xla_cpu_multi_thread_eigen=true intra_op_parallelism_threads={wanted}",
    }
    clean |= dict.fromkeys(_THREADS, wanted)
    sys.stdout.flush()
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], clean)


def processor() -> str:
    """Name of the processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def versions(packages: list[str]) -> dict[str, str]:
    """Installed versions of those packages that are installed."""
    found = {"dtomo": __version__, "python": platform.python_version()}
    for name in packages:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def describe(packages: list[str]) -> dict[str, Any]:
    """Machine and versions, for the JSON output."""
    return {"processor": processor(), "cores": cores(), "versions": versions(packages)}
