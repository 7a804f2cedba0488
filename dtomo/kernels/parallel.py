"""Parallel-beam projector and exactly matched back-projector, where the arrays lie."""

from typing import Any

from dtomo.arrays import array_module, on_device
from dtomo.kernels import parallel_cpu
from dtomo.kernels.weights import Rays


def forward(volume: Any, sinogram: Any, rays: Rays, threads: int | None = None) -> None:
    """Project ``volume[y, x, z]`` into ``sinogram[angle, column, z]`` (overwritten).

    Parameters
    ----------
    volume, sinogram
        C-contiguous float32, both on the host or both on a device; complex data are two slices each.
    rays
        Joseph's (`weights.rays`).
    threads
        On the host: how many at most.

    Raises
    ------
    TypeError
        One array lies on the host and the other on a device.
    """
    array_module(volume, sinogram)
    if on_device(volume):
        from dtomo.kernels.cuda import parallel

        return parallel.forward(volume, sinogram, rays)
    return parallel_cpu.forward(volume, sinogram, rays, threads)


def adjoint(sinogram: Any, volume: Any, rays: Rays, threads: int | None = None) -> None:
    """Back-project ``sinogram[angle, column, z]`` into ``volume[y, x, z]`` (overwritten): the exact transpose.

    With `weights.interpolation` rays it is the back projection of filtered back projection instead. Parameters and
    errors as in `forward`.
    """
    array_module(volume, sinogram)
    if on_device(volume):
        from dtomo.kernels.cuda import parallel

        return parallel.adjoint(sinogram, volume, rays)
    return parallel_cpu.adjoint(sinogram, volume, rays, threads)


def adjoint_tiles(sinogram: Any, shape: tuple[int, int, int], rays: Rays, finish: parallel_cpu.Finish) -> bool:
    """As `parallel_cpu.adjoint_tiles`; False, nothing done, on a device as well."""
    return not on_device(sinogram) and parallel_cpu.adjoint_tiles(sinogram, shape, rays, finish)
