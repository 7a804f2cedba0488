"""Large blocks of memory, kept for the next array by processes that work through slabs one after another.

Memory given back to the system is handed out page by page again, cleared, and on virtual machines that return it to
their host at 2 to 10 seconds per gigabyte: more than what a slab's kernels take. A worker keeps what it had.
"""

import resource
import sys
import threading
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

ALIGNMENT = 64
"""Bytes: one cache line, one AVX-512 register."""

SMALLEST = 2**20
"""Bytes from which a block is worth keeping."""

_PAGE = 4096


class Block:
    """Bytes that go back to their store once no array uses them any more."""

    def __init__(self, memory: NDArray[np.uint8], store: "BlockStore") -> None:
        self._memory, self._store = memory, store
        self.__array_interface__ = memory.__array_interface__

    def __del__(self) -> None:
        self._store.returned.append((self._memory.nbytes, self._memory if self._store.keeping else None))


class BlockStore:
    """Blocks in use and blocks kept: together never more than were in use at the worst moment.

    A block serves requests of two thirds of its size or more. Safe to use from several threads.
    """

    def __init__(self) -> None:
        self.keeping = False
        self.returned: deque[tuple[int, NDArray[np.uint8] | None]] = deque()  # no lock: arrays end anywhere
        self._kept: list[NDArray[np.uint8]] = []
        self._used = self._most = 0
        self._lock = threading.Lock()

    @property
    def kept(self) -> int:
        """Bytes kept that no array uses now."""
        with self._lock:
            self._take_back()
            return sum(memory.nbytes for memory in self._kept)

    def empty(self, size: int) -> NDArray[np.uint8]:
        """Uninitialised bytes that begin on a page."""
        with self._lock:
            self._take_back()
            fitting = [i for i, memory in enumerate(self._kept) if size <= memory.nbytes <= 3 * size // 2]
            if fitting:
                memory = self._kept.pop(min(fitting, key=lambda i: self._kept[i].nbytes))
            else:
                self._make_room(size)
                memory = _pages(size)
            self._used += memory.nbytes
            self._most = max(self._most, self._used)
        return np.asarray(Block(memory, self))[:size]

    def release(self) -> None:
        """Give all that is not in use back to the system."""
        with self._lock:
            self._take_back()
            self._kept.clear()
            self._most = self._used

    def _take_back(self) -> None:
        while self.returned:
            size, memory = self.returned.popleft()
            self._used -= size
            if memory is not None:
                self._kept.append(memory)

    def _make_room(self, size: int) -> None:
        """Let blocks go, the smallest first, until a new one does not raise the highest total."""
        self._kept.sort(key=lambda memory: memory.nbytes, reverse=True)
        while self._kept and self._used + size + sum(memory.nbytes for memory in self._kept) > self._most:
            self._kept.pop()


def _pages(size: int) -> NDArray[np.uint8]:
    """New bytes that begin on a page."""
    raw = np.empty(-(-size // _PAGE) * _PAGE + _PAGE, np.uint8)
    start = -raw.ctypes.data % _PAGE
    return raw[start : start + -(-size // _PAGE) * _PAGE]


_store = BlockStore()


def keep_memory(keep: bool = True) -> None:
    """Whether this process keeps the memory of large arrays for later ones; at first it does not."""
    _store.keeping = keep
    if not keep:
        _store.release()


def empty_bytes(size: int) -> NDArray[np.uint8]:
    """`size` uninitialised bytes that begin on a border of `ALIGNMENT`, from what is kept where that fits."""
    if _store.keeping and size >= SMALLEST:
        return _store.empty(size)
    raw: NDArray[Any] = np.empty(size + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + size]


def peak_memory() -> int:
    """Highest resident memory of this process so far, in bytes.

    From Linux's ``VmHWM`` where there is one: ``ru_maxrss`` also counts what the parent held when it forked.
    """
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
