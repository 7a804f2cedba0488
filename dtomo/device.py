"""Traffic between the host and a device, and the device's memory: nothing else copies, and CuPy is imported here late.

Copies go through pinned memory, two buffers for each direction, on a stream for each direction, so that they overlap
what the device computes and the other direction. What is copied to is taken from the memory of the present stream, and
the copy begins when that stream has come to where it was then: memory that is reused is no longer read. What is copied
from must stay as it is until the copy has ended.
"""

import gc
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

from dtomo.arrays import empty_aligned, on_device
from dtomo.errors import StoppedError
from dtomo.threads import run_jobs

STAGE = 64 * 2**20
"""Bytes of a pinned buffer at most; four of them are in use."""

PLANS = 4
"""FFT plans that are kept. Not their bytes are limited: CuPy's cache then refuses transforms that are larger."""

SHARE = 0.9
"""Part of the free memory that the pool may take where no limit is given."""

_THREADED = 2**22
"""Bytes from which a copy in host memory is shared by threads."""

_FULL = ("bad_alloc", "ALLOC_FAILED", "MemoryAllocation", "OUT_OF_MEMORY")
"""What RMM, cuFFT, the CUDA runtime and the driver say when there is no memory; CuPy has an exception of its own."""

Result = TypeVar("Result")


class DeviceFull(StoppedError):
    """The device has no memory for half the work either."""


class _Buffer:
    """Pinned memory, and the event after which it may be written to again."""

    def __init__(self) -> None:
        self.memory: NDArray[np.uint8] = np.empty(0, np.uint8)
        self.free: Any = None

    def array(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """An array in it, once the last copy has ended; grows up to `STAGE`."""
        import cupy

        if self.free is not None:
            self.free.synchronize()
            self.free = None
        size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        if self.memory.nbytes < size:
            rounded = 1 << max(16, (size - 1).bit_length())
            self.memory = np.frombuffer(cupy.cuda.alloc_pinned_memory(rounded), np.uint8, rounded)
        return self.memory[:size].view(dtype).reshape(shape)


class _Lane:
    """One direction of one device: a stream, two buffers in turn, a thread; one array at a time."""

    def __init__(self, name: str) -> None:
        import cupy

        self.stream = cupy.cuda.Stream(non_blocking=True)
        self.buffers = (_Buffer(), _Buffer())
        self.lock = threading.Lock()
        self.thread = ThreadPoolExecutor(1, thread_name_prefix=f"dtomo-{name}")

    def up(self, host: NDArray[Any], device: Any, after: Any) -> Any:
        """Copy to C-contiguous device memory; the event at the end."""
        with self.lock:
            self.stream.wait_event(after)
            try:
                for number, cut in enumerate(_cuts(host.shape, STAGE // host.itemsize)):
                    buffer, piece = self.buffers[number % 2], device[cut] if cut else device
                    staged = buffer.array(piece.shape, device.dtype)
                    _copy(staged, host[cut])
                    piece.set(staged, stream=self.stream)
                    buffer.free = self.stream.record()
                return self.stream.record()
            except BaseException:
                self.stream.synchronize()  # what is written to may be given back now
                raise

    def down(self, device: Any, host: NDArray[Any], after: Any) -> None:
        """Copy from C-contiguous device memory; the values are there on return."""
        with self.lock:
            self.stream.wait_event(after)
            waiting: tuple[Any, NDArray[Any], NDArray[Any]] | None = None
            try:
                for number, cut in enumerate(_cuts(host.shape, STAGE // device.itemsize)):
                    piece = device[cut] if cut else device
                    staged = self.buffers[number % 2].array(piece.shape, device.dtype)
                    piece.get(stream=self.stream, out=staged, blocking=False)
                    coming = self.stream.record(), staged, host[cut] if cut else host
                    if waiting is not None:
                        _land(*waiting)
                    waiting = coming
                if waiting is not None:
                    _land(*waiting)
            finally:
                self.stream.synchronize()  # has ended, but for an exception


_lanes: dict[tuple[Any, int, str], _Lane] = {}
_lanes_lock = threading.Lock()


def _lane(name: str) -> _Lane:
    """The lane "up" or "down" of the present device."""
    import cupy

    key = (cupy, cupy.cuda.Device().id, name)
    with _lanes_lock:
        if key not in _lanes:
            _lanes[key] = _Lane(name)
        return _lanes[key]


def _cuts(shape: tuple[int, ...], most: int) -> Iterator[tuple[Any, ...]]:
    """Indices that cut a C-contiguous array into contiguous pieces of at most `most` elements."""
    if 0 in shape:
        return
    if not shape:
        yield ()
        return
    inner = int(np.prod(shape[1:], dtype=np.int64))
    if inner <= most:
        step = most // inner
        yield from ((slice(first, min(first + step, shape[0])),) for first in range(0, shape[0], step))
    else:
        yield from ((k, *rest) for k in range(shape[0]) for rest in _cuts(shape[1:], most))


def _copy(target: NDArray[Any], source: NDArray[Any]) -> None:
    """A copy within host memory."""
    if source.ndim == 0 or source.nbytes < _THREADED:
        target[...] = source
        return

    def work(span: tuple[int, int]) -> None:
        target[span[0] : span[1]] = source[span[0] : span[1]]

    run_jobs(work, len(source))


def _land(event: Any, staged: NDArray[Any], target: NDArray[Any]) -> None:
    event.synchronize()
    _copy(target, staged)


def _memory_order(array: Any) -> tuple[int, ...]:
    """Axes from the slowest in memory to the fastest."""
    return tuple(int(axis) for axis in np.argsort([-abs(step) for step in array.strides], kind="stable"))


def _back(axes: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(int(axis) for axis in np.argsort(axes))


def to_device(host: Any) -> Any:
    """The array on the present device, in the same order of memory; one that is there is returned as it is.

    Parameters
    ----------
    host
        NumPy array of any shape, dtype (in any order of bytes) and strides; a device array; or None, which is returned.

    Returns
    -------
    cupy.ndarray
        Ready for work on the present stream, without a wait.
    """
    if host is None or on_device(host):
        return host
    import cupy

    axes = _memory_order(host)
    inside = host.transpose(axes)
    device = cupy.empty(inside.shape, inside.dtype.newbyteorder("="))
    stream = cupy.cuda.get_current_stream()
    stream.wait_event(_lane("up").up(inside, device, stream.record()))
    return device.transpose(_back(axes))


def to_host(device: Any, out: NDArray[Any] | None = None) -> Any:
    """The array in host memory, in the same order of memory; one that is there is returned as it is, or put in `out`.

    Parameters
    ----------
    device
        CuPy array of any shape, dtype and strides, or a NumPy array.
    out
        Where to, of the same shape and any strides; default: new memory, 64-byte aligned.
    """
    if not on_device(device):
        if out is None:
            return device
        out[...] = device
        return out
    out, arguments = _down(device, out)
    _lane("down").down(*arguments)
    return out


def _down(device: Any, out: NDArray[Any] | None) -> tuple[NDArray[Any], tuple[Any, NDArray[Any], Any]]:
    """Where to, and the arguments of `_Lane.down`."""
    import cupy

    axes = _memory_order(device)
    inside = device.transpose(axes)
    if not inside.flags.c_contiguous:
        inside = cupy.ascontiguousarray(inside)
    if out is None:
        out = empty_aligned(inside.shape, inside.dtype).transpose(_back(axes))
    if out.shape != device.shape:
        raise ValueError(f"an array of shape {device.shape} does not go into one of {out.shape}")
    return out, (inside, out.transpose(axes), cupy.cuda.get_current_stream().record())


class Upload:
    """An array on its way to the device, made and copied in a thread; room for it is taken now.

    The copy waits for the work that was sent to the present stream before, and for none that comes after.

    Parameters
    ----------
    shape, dtype
        Of the array.
    make
        Called in the thread; returns a host array of this shape and dtype, which is then copied.
    """

    def __init__(self, shape: tuple[int, ...], dtype: DTypeLike, make: Callable[[], NDArray[Any]]) -> None:
        import cupy

        self._device = cupy.empty(shape, dtype)
        after = cupy.cuda.get_current_stream().record()
        lane, place = _lane("up"), cupy.cuda.Device()

        def work(device: Any = self._device) -> None:
            host = make()
            if host.shape != device.shape or host.dtype.newbyteorder("=") != device.dtype:
                raise ValueError(f"{host.dtype}{list(host.shape)} is not what was announced")
            with place:
                lane.up(host, device, after).synchronize()

        self._future: Future[None] = lane.thread.submit(work)

    def wait(self) -> BaseException | None:
        """Wait for the end; what `make` or the copy raised."""
        return self._future.exception()

    def result(self) -> Any:
        """The device array, once it is there; raises what `make` raised."""
        self._future.result()
        return self._device


def begin_download(device: Any, out: NDArray[Any]) -> "Future[NDArray[Any]]":
    """Copy to `out` in a thread, once the work sent to the present stream so far is done.

    `device` must stay as it is until the future is done.
    """
    import cupy

    out, arguments = _down(device, out)
    lane, place = _lane("down"), cupy.cuda.Device()

    def work() -> NDArray[Any]:
        with place:
            lane.down(*arguments)
        return out

    return lane.thread.submit(work)


def available() -> bool:
    """Whether this process may compute on a device: CuPy is installed and the driver has one. Creates no context."""
    try:
        import cupy

        return bool(cupy.cuda.runtime.getDeviceCount() > 0)
    except (ImportError, RuntimeError):  # CUDARuntimeError: no driver, or no device
        return False


def limit_memory(size: int | None = None) -> int:
    """Let CuPy's pool take at most `size` bytes of the present device, or `SHARE` of what is free.

    A limit of the environment (``CUPY_GPU_MEMORY_LIMIT``) stays where no size is given. Where RMM gives the memory, the
    size of its pool is the limit.

    Returns
    -------
    int
        The limit.
    """
    import cupy

    pool = cupy.get_default_memory_pool()
    if size is None and not pool.get_limit():
        size = int(SHARE * (cupy.cuda.Device().mem_info[0] + pool.total_bytes()))
    if size is not None:
        pool.set_limit(size=size)
    return int(pool.get_limit())


def bound_plan_cache(plans: int = PLANS) -> None:
    """Keep at most so many FFT plans, with their work areas, for this thread: CuPy has a cache for each."""
    from cupy.fft.config import get_plan_cache

    get_plan_cache().set_size(plans)


def free_memory() -> None:
    """Give back what is kept for later: FFT plans of this thread, and blocks of the pool that no array uses."""
    import cupy
    from cupy.fft.config import get_plan_cache

    gc.collect()  # arrays in cycles, as a traceback makes them
    get_plan_cache().clear()
    cupy.cuda.Device().synchronize()
    cupy.get_default_memory_pool().free_all_blocks()


def memory_left() -> tuple[int, int]:
    """Bytes that may still be allocated on the present device, and bytes that may be in all."""
    import cupy

    pool = cupy.get_default_memory_pool()
    free, total = cupy.cuda.Device().mem_info
    free += pool.free_bytes()
    limit = pool.get_limit()
    return (int(min(free, limit - pool.used_bytes())), int(min(total, limit))) if limit else (int(free), int(total))


def memory_taken() -> int:
    """Bytes of the present device that CuPy's pool has taken."""
    import cupy

    return int(cupy.get_default_memory_pool().total_bytes())


def is_full(error: BaseException) -> bool:
    """Whether an exception says that a device has no memory left."""
    cupy = sys.modules.get("cupy")
    if cupy is None:
        return False
    return isinstance(error, cupy.cuda.memory.OutOfMemoryError) or any(mark in str(error) for mark in _FULL)


class BlockSize:
    """How much is worked on at a time: halved once when a device has no memory for it.

    Attributes
    ----------
    value
        At most so many.
    """

    def __init__(self, value: int) -> None:
        self.value, self._halved = max(1, value), False

    def tried(self, work: Callable[[], Result], release: Callable[[], object] | None = None) -> Result | None:
        """What `work` returns; None if it found no memory and the size is halved now, all unused memory given back.

        Parameters
        ----------
        work
            Called once; it may be called again afterwards, with less to do.
        release
            Called when there was no memory: lets go of arrays that are held elsewhere.

        Raises
        ------
        DeviceFull
            No memory, and the size was halved before.
        """
        try:
            return work()
        except Exception as error:
            if not is_full(error):
                raise
            needed = int(getattr(error, "_size", 0))
        if release is not None:
            release()
        free_memory()  # behind the handler: the exception held the arrays
        if self._halved or self.value == 1:
            raise DeviceFull(_sentence(needed, self.value))
        self.value, self._halved = -(-self.value // 2), True
        return None


def _sentence(needed: int, size: int) -> str:
    free, total = memory_left()
    what = f"{needed / 1e9:.3g} GB more" if needed else "more"
    has = f"{free / 1e9:.3g} of {total / 1e9:.3g} GB free"
    return f"the device has no memory for a block of {size}: it needs {what} and has {has}"
