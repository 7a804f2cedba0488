"""Compiling kernels once: where compiled code is kept between runs."""

import hashlib
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numba
import numpy


@cache
def cache_folder() -> str:
    """Folder of the compiled kernels of exactly this source: ``NUMBA_CACHE_DIR`` or ``~/.cache/dtomo``.

    Numba looks only at the file of the kernel itself; the name of the folder holds a hash of all kernel sources and
    the versions they are compiled with, so that no stale code is ever loaded.
    """
    digest = hashlib.sha256(f"{numba.__version__} {numpy.__version__}".encode())
    for source in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(source.read_bytes())
    base = os.environ.get("NUMBA_CACHE_DIR") or os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return str(Path(base) / "dtomo" / digest.hexdigest()[:16])


def kernel(function: Callable[..., Any]) -> Any:
    """Compile on first use, without the GIL, and keep the result on disk."""
    before = numba.config.CACHE_DIR
    numba.config.CACHE_DIR = cache_folder()
    try:
        return numba.njit(nogil=True, cache=True, error_model="numpy")(function)
    finally:
        numba.config.CACHE_DIR = before
