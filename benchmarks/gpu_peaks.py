"""What a device can do at best, measured: copies, multiply-adds, loads from shared memory.

Projectors read two samples from the first-level cache for two multiply-adds. Shared memory is the same memory as that
cache (CUDA C++ Programming Guide, compute capabilities 7.x to 10.x), read without a conflict at 128 bytes per cycle of
a multiprocessor: that rate is their limit as far as samples are not kept in registers.
"""

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from numba import cuda

from benchmarks.gpu_place import Place
from dtomo.kernels.cuda.compiling import KERNELS, cuda_kernel

CHAINS, UNROLLED = 8, 16
BLOCKS = 8
"""Of 256 threads on each multiprocessor: all that fit."""
_FACTOR, _SUMMAND = np.float32(0.999), np.float32(1e-3)


@cuda_kernel("void(float32[::1], int64)", threads=(256,))
def multiply_add(out, rounds):  # type: ignore[no-untyped-def]
    """Eight independent chains of 16 multiply-adds in each round, in registers."""
    start = np.float32(cuda.threadIdx.x)
    a, b, c, d = start, start + np.float32(1), start + np.float32(2), start + np.float32(3)
    e, f, g, h = start + np.float32(4), start + np.float32(5), start + np.float32(6), start + np.float32(7)
    for _ in range(rounds):
        for _ in range(UNROLLED):
            a, b = cuda.fma(a, _FACTOR, _SUMMAND), cuda.fma(b, _FACTOR, _SUMMAND)
            c, d = cuda.fma(c, _FACTOR, _SUMMAND), cuda.fma(d, _FACTOR, _SUMMAND)
            e, f = cuda.fma(e, _FACTOR, _SUMMAND), cuda.fma(f, _FACTOR, _SUMMAND)
            g, h = cuda.fma(g, _FACTOR, _SUMMAND), cuda.fma(h, _FACTOR, _SUMMAND)
    out[cuda.grid(1)] = a + b + c + d + e + f + g + h


SHARED = 4096
"""Values in shared memory: 16 kB, in any device."""


@cuda_kernel("void(float32[::1], int64)", threads=(256,))
def read_shared(out, rounds):  # type: ignore[no-untyped-def]
    """Eight loads in each round; neighbouring threads read neighbouring values."""
    memory = cuda.shared.array(SHARED, numba.float32)
    for k in range(cuda.threadIdx.x, SHARED, cuda.blockDim.x):
        memory[k] = np.float32(k % 7)
    cuda.syncthreads()
    at = np.uint32(cuda.threadIdx.x)
    a, b, c, d = np.float32(0), np.float32(0), np.float32(0), np.float32(0)
    for _ in range(rounds):
        a += memory[at]
        b += memory[at + np.uint32(256)]
        c += memory[at + np.uint32(512)]
        d += memory[at + np.uint32(768)]
        a += memory[at + np.uint32(1024)]
        b += memory[at + np.uint32(1280)]
        c += memory[at + np.uint32(1536)]
        d += memory[at + np.uint32(1792)]
        at = (at + np.uint32(32)) & np.uint32(1023)
    out[cuda.grid(1)] = a + b + c + d


for _kernel in (multiply_add, read_shared):
    KERNELS.pop(_kernel.name)  # the package's own are walked there


def peaks(place: Place, size: int, seconds: float = 0.05) -> dict[str, Any]:
    """Bytes per second of copies, operations per second in float32, bytes per second from shared memory.

    Parameters
    ----------
    place
        Where.
    size
        Bytes of the arrays that are copied.
    seconds
        How long kernels run, at least.
    """
    found: dict[str, Any] = copies(place, size)
    if not place.is_device:
        from benchmarks.environment import cores
        from benchmarks.peak import fma_peak

        return found | {"fma": fma_peak(cores(), seconds, 2), "shared": None}
    runtime = place.xp.cuda.runtime
    blocks = runtime.getDeviceProperties(place.xp.cuda.Device().id)["multiProcessorCount"] * BLOCKS
    out = place.xp.empty(blocks * multiply_add.threads[0], np.float32)
    operations = 2.0 * CHAINS * UNROLLED * out.size
    found["fma"] = _rate(place, lambda rounds: multiply_add.launch(blocks, out, rounds), operations, seconds)
    found["shared"] = _rate(place, lambda rounds: read_shared.launch(blocks, out, rounds), 8 * 4.0 * out.size, seconds)
    return found


def _rate(place: Place, launch: Callable[[int], None], each: float, seconds: float) -> float:
    """What a kernel does per second, if a round is `each`, in as many rounds as fill so many seconds."""
    launch(1)  # compiles
    rounds = 256
    while place.seconds(lambda: launch(rounds), 1)[0] < seconds and rounds < 2**30:  # noqa: B023
        rounds *= 4
    return each * rounds / min(place.seconds(lambda: launch(rounds), 5))


def copies(place: Place, size: int) -> dict[str, float]:
    """Bytes per second: pinned and pageable memory up and down, through the staging buffers, and within the device.

    Within the device each byte is read and written, and counts twice.
    """
    count = size // 4
    host = np.ones(count, np.float32)
    here = place.xp.ones(count, np.float32)
    other = place.xp.empty_like(here)
    tasks: dict[str, Callable[[], Any]] = {"within": lambda: np.copyto(other, here)}
    if place.is_device:
        from dtomo.device import to_device, to_host

        pinned = np.frombuffer(place.xp.cuda.alloc_pinned_memory(size), np.float32, count)
        pinned[:] = host
        tasks |= {
            "up_pageable": lambda: here.set(host),
            "up_pinned": lambda: here.set(pinned),
            "up_staged": lambda: to_device(host),
            "down_pageable": lambda: here.get(out=host),
            "down_pinned": lambda: here.get(out=pinned),
            "down_staged": lambda: to_host(here, host),
        }
    rates = {}
    for name, task in tasks.items():
        task()
        rates[name] = (2 if name == "within" else 1) * 4 * count / min(place.seconds(task, 5, 2.0))
    return rates
