"""What every worker process of dtomo gets and does first, whoever starts it."""

import ctypes
import os
import signal
from typing import Any

from distributed import WorkerPlugin

from dtomo.distributed.devices import OWN_DEVICE, POOL
from dtomo.memory import keep_memory
from dtomo.threads import take_share

_NOT_INITIALIZED = 3  # CUDA_ERROR_NOT_INITIALIZED of the driver

_driver_was_started = False


def dask_setup(worker: Any) -> None:
    """Leave Ctrl-C to the client (it is sent to the whole group), which decides; keep memory for later slabs.

    A worker first imports the program that started it, and with it perhaps dtomo, before it is told its threads.
    """
    global _driver_was_started
    take_share()
    keep_memory()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _driver_was_started = cuda_is_initialized()


def cuda_is_initialized(library: str = "libcuda.so.1") -> bool:
    """Whether something in this process has initialized CUDA; finds out without loading or initializing it.

    The driver reads CUDA_VISIBLE_DEVICES then, once: what the variable says afterwards has no effect.
    """
    if not hasattr(os, "RTLD_NOLOAD"):
        return False
    try:
        driver = ctypes.CDLL(library, mode=os.RTLD_NOLOAD | os.RTLD_NOW)
    except OSError:  # not loaded
        return False
    return driver.cuDeviceGetCount(ctypes.byref(ctypes.c_int())) != _NOT_INITIALIZED


class OwnDevice(WorkerPlugin):
    """Makes sure that a worker uses the device of its environment and no other, and sets up its pool of memory."""

    name = "dtomo-own-device"

    def setup(self, worker: Any) -> None:
        """Called by the worker before it registers with the scheduler."""
        if _driver_was_started:
            raise RuntimeError(
                "CUDA was initialized before the worker had its device: a module that the program imports uses "
                "CUDA at its top level"
            )
        if POOL in os.environ and os.environ.get(OWN_DEVICE):
            _start_pool(int(os.environ[POOL]))


def _start_pool(size: int) -> None:
    """Let CuPy take device memory from a pool of `size` bytes that does not grow."""
    import cupy
    import rmm
    from rmm.allocators.cupy import rmm_cupy_allocator

    size = size // 256 * 256  # RMM wants multiples of this
    rmm.reinitialize(pool_allocator=True, initial_pool_size=size, maximum_pool_size=size)
    cupy.cuda.set_allocator(rmm_cupy_allocator)
