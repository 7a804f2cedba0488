"""Central slices summed on a device, by cuFINUFFT."""

import sys
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from dtomo.device import free_memory
from dtomo.kernels.cuda.filters import Continuation, lines_at_once

if TYPE_CHECKING:
    from dtomo.kernels.nufft import CentralSlices

WORKSPACE = 2**30
"""Bytes that the slices of one call of cuFINUFFT may take together; a single slice may take more."""


@lru_cache(maxsize=1)
def _load_libraries() -> None:
    """Load the CUDA libraries that cuFINUFFT was built against from where pip puts them: it only asks the system."""
    try:
        from cuda.pathfinder import DynamicLibNotFoundError, load_nvidia_dynamic_lib
    except ImportError:
        return
    for name in ("cudart", "cufft"):
        try:
            load_nvidia_dynamic_lib(name)
        except DynamicLibNotFoundError:
            return


def library() -> Any:
    """cuFINUFFT, or None where it is not installed, or finds no CUDA libraries."""
    if "cufinufft" not in sys.modules:
        _load_libraries()
    try:
        import cufinufft
    except ImportError:
        return None
    return cufinufft


def slice_bytes(samples: int, size: tuple[int, int]) -> int:
    """Device memory that one slice takes: samples, result, and the grid of twice its size with cuFFT's copy of it."""
    return 8 * samples + 8 * size[0] * size[1] * (1 + 2 * 4)


def slices_at_once(slices: int, samples: int, size: tuple[int, int]) -> int:
    """Slices in one call, the same in all calls or nearly so; cuFINUFFT counts their samples in 32 bits."""
    most = min(WORKSPACE // slice_bytes(samples, size), (2**31 - 1) // max(samples, 4 * size[0] * size[1]))
    calls = -(-slices // max(1, most))
    return -(-slices // calls)


def _with_room(work: Callable[[], Any], needed: int) -> Any:
    """What `work` returns; cuFINUFFT takes its memory beside CuPy's pool, which gives back what it keeps if it must.

    Raises
    ------
    cupy.cuda.memory.OutOfMemoryError
        `work` fails in a way that cuFINUFFT does not name, and less than `needed` bytes are free.
    """
    try:
        return work()
    except RuntimeError:
        free_memory()
    try:
        return work()
    except RuntimeError as error:
        import cupy

        free, total = cupy.cuda.Device().mem_info
        if free >= needed:
            raise
        raise cupy.cuda.memory.OutOfMemoryError(needed, total - free) from error


def _plan(size: tuple[int, int], together: int, tolerance: float, points: tuple[Any, Any]) -> Any:
    """A plan of type 1 on the present device and stream."""
    import cupy

    plan = library().Plan(
        1,
        size,
        n_trans=together,
        eps=tolerance,
        isign=1,
        dtype="complex64",
        gpu_maxbatchsize=together,
        gpu_device_id=cupy.cuda.Device().id,
        gpu_stream=cupy.cuda.get_current_stream().ptr,
    )
    plan.setpts(*points)
    return plan


def sum_slices(
    lines: Any, samples: "CentralSlices", size: tuple[int, int], length: int, extend: bool, tolerance: float
) -> Any:
    """`kernels.nufft.fourier_backproject` on a device: several slices in each call.

    cuFINUFFT spreads samples with atomic additions in single precision, in no fixed order: unlike everything else here
    the last bits of a slice may differ from run to run. Its grid has twice the size of the slice, which is its default
    (1.25 times on the host): that takes more memory, but a sample is spread over half as many points.
    """
    import cupy

    angles, _, slices = lines.shape
    height, width = size
    kept = samples.factor.shape[1]
    together = slices_at_once(slices, angles * kept, size)
    needed = together * slice_bytes(angles * kept, size)
    plan = _with_room(lambda: _plan(size, together, tolerance, samples.points), needed)
    continued = Continuation(lines, length, extend)
    strengths = cupy.zeros((together, angles, kept), np.complex64)
    flat = strengths.reshape(together, angles * kept)
    sums = cupy.empty((together, height, width), np.complex64)
    out = cupy.empty((height, width, slices), np.float32)
    step = max(1, lines_at_once(length) // together)
    for z in range(0, slices, together):
        count = min(together, slices - z)
        for k in range(0, angles, step):
            some = min(step, angles - k)
            spectra = continued.spectra(k * count, some * count, z, count).reshape(some, count, -1)
            target = strengths[:count, k : k + some].swapaxes(0, 1)
            np.multiply(spectra[:, :, :kept], samples.factor[k : k + some, None], out=target)
        _with_room(lambda: plan.execute(flat, out=sums), needed)
        # writes along z are not coalesced: small beside the transform
        np.moveaxis(out[:, :, z : z + count], -1, 0)[...] = sums[:count].real
    return out
