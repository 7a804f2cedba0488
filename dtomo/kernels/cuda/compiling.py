"""How kernels for devices are declared, compiled on first use, and launched on CuPy arrays."""

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numba
from numba import cuda

device_function = cuda.jit(device=True, inline="always")
"""Decorator of functions that kernels call."""

KERNELS: dict[str, "CudaKernel"] = {}
"""All kernels of the modules imported so far, by ``module.name``."""

MOST_BLOCKS = 2**31 - 1
"""Along the first axis of a grid; 65535 along the others."""

LEGACY_STREAM = 1
"""The default stream by the name that DLPack knows; CuPy calls it 0, and warns when numba-cuda passes that on."""


def simulated() -> bool:
    """Whether kernels run in Numba's simulator (``NUMBA_ENABLE_CUDASIM=1``)."""
    return bool(numba.config.ENABLE_CUDASIM)


def memory_of(argument: Any) -> Any:
    """An argument as kernels take it: CuPy arrays and numbers as they are."""
    return argument


class CudaKernel:
    """A kernel with the types of its arguments: compiled for the present device when first launched.

    Attributes
    ----------
    function
        In Python, as the simulator runs it.
    signatures
        ``"void(float32[::1], int64)"``, …
    threads
        Shape of a block of threads, the fastest axis first.
    registers
        At most so many per thread; None: as the compiler likes.
    """

    def __init__(
        self, function: Callable[..., Any], signatures: Sequence[str], threads: tuple[int, ...], registers: int | None
    ) -> None:
        self.function, self.signatures, self.threads, self.registers = function, tuple(signatures), threads, registers
        self.name = f"{function.__module__.rsplit('.', 1)[-1]}.{function.__name__.lstrip('_')}"
        self._compiled: Any = None
        self._lock = threading.Lock()

    def launch(self, blocks: int | tuple[int, ...], *arguments: Any, threads: tuple[int, ...] | None = None) -> None:
        """Run on CuPy's present stream; kernels stride over the grid, so that any number of blocks is right."""
        blocks = (blocks,) if isinstance(blocks, int) else blocks
        grid = tuple(max(1, min(int(n), MOST_BLOCKS if axis == 0 else 65535)) for axis, n in enumerate(blocks))
        stream: Any = 0
        if not simulated():
            import cupy

            stream = cuda.external_stream(cupy.cuda.get_current_stream().ptr or LEGACY_STREAM)
        self._ready()[grid, threads or self.threads, stream](*(memory_of(argument) for argument in arguments))

    def _ready(self) -> Any:
        with self._lock:
            if self._compiled is None and simulated():
                self._compiled = cuda.jit(self.function)
            elif self._compiled is None:
                # the present stream orders all work: no wait for the array's producer
                numba.config.CUDA_ARRAY_INTERFACE_SYNC = False
                # sums of slabs, small scans: few blocks are meant, and numba-cuda warns of every number below 128
                numba.config.CUDA_LOW_OCCUPANCY_WARNINGS = 0
                limits = {} if self.registers is None else {"max_registers": self.registers}
                self._compiled = cuda.jit(list(self.signatures), fastmath=False, **limits)(self.function)
        return self._compiled


def cuda_kernel(
    *signatures: str, threads: tuple[int, ...], registers: int | None = None
) -> Callable[[Callable[..., Any]], CudaKernel]:
    """Declare a kernel: its signatures, the usual block of threads, and a limit of registers."""

    def declare(function: Callable[..., Any]) -> CudaKernel:
        kernel = CudaKernel(function, signatures, threads, registers)
        KERNELS[kernel.name] = kernel
        return kernel

    return declare
