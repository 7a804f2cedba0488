"""Volumes rotated and shifted on CUDA devices: one thread for each voxel of each result, neighbours along x.

Places are the whole numbers of the CPU kernels; what neighbouring threads read comes through the caches.
"""

from typing import Any

from numba import cuda

from dtomo.kernels.cuda.compiling import CudaKernel, cuda_kernel, device_function
from dtomo.kernels.rotation import samplers

THREADS = (16, 4, 4)  # of a block: along x, y, z

_linear, _cubic = samplers(device_function)
_SIGNATURES = [f"void({t}[::1], int64[:, :, ::1], {t}[:, :, :, ::1], {t})" for t in ("float32", "complex64")]


def rotate(volume: Any, table: Any, out: Any, outside: Any, order: int) -> None:
    """`dtomo.kernels.rotation.rotate` of a device array with a table on the device."""
    count, depth, height, width = out.shape
    kernel = _rotate_cubic if order == 3 else _rotate_linear
    blocks = -(-width // THREADS[0]), -(-height // THREADS[1]), -(-count * depth // THREADS[2])
    kernel.launch(blocks, volume.ravel(), table, out, outside)


def _rotation(sample: Any, name: str) -> CudaKernel:
    """The kernel that samples so: one thread for each voxel of a result."""

    def rotation(volume, table, out, outside):  # type: ignore[no-untyped-def]
        count, depth, height, width = out.shape
        x0, y0, layer0 = cuda.grid(3)
        across, down, on = cuda.gridsize(3)
        for layer in range(layer0, count * depth, on):
            number, z = layer // depth, layer % depth
            for y in range(y0, height, down):
                pz = table[number, 0, 0] * z + table[number, 0, 1] * y + table[number, 0, 3]
                py = table[number, 1, 0] * z + table[number, 1, 1] * y + table[number, 1, 3]
                px = table[number, 2, 0] * z + table[number, 2, 1] * y + table[number, 2, 3]
                dz, dy, dx = table[number, 0, 2], table[number, 1, 2], table[number, 2, 2]
                for x in range(x0, width, across):
                    places = pz + dz * x, py + dy * x, px + dx * x
                    value = sample(volume, depth, height, width, places[0], places[1], places[2], outside)
                    out[number, z, y, x] = value

    rotation.__name__ = name
    return cuda_kernel(*_SIGNATURES, threads=THREADS)(rotation)


_rotate_linear, _rotate_cubic = _rotation(_linear, "rotate_linear"), _rotation(_cubic, "rotate_cubic")
