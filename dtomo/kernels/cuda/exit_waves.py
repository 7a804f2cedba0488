"""Exit waves and their adjoints on CUDA devices: one thread for each pixel, neighbouring threads along columns."""

from typing import Any

from numba import cuda

from dtomo.kernels.cuda.compiling import cuda_kernel

THREADS = (32, 8)  # of a block: along columns, and along rows

_TYPES = ("complex64", "complex128")
_IMAGE = "{t}[:, :, ::1], int64[:, ::1]"
_WAVES = "{t}[:, :, :, :, ::1]"


def _signatures(arguments: str) -> list[str]:
    return [f"void({arguments.format(t=t)})" for t in _TYPES]


def product(probes: Any, image: Any, corners: Any, out: Any) -> None:
    """`dtomo.kernels.exit_waves.product` into `out`."""
    frames, layers, modes, rows, columns = out.shape
    _product.launch(_blocks(columns, rows, frames * layers * modes), probes, image, corners, out)


def times(waves: Any, image: Any, corners: Any, conjugate: bool) -> None:
    """`dtomo.kernels.exit_waves.times`."""
    frames, layers, modes, rows, columns = waves.shape
    _times.launch(_blocks(columns, rows, frames * layers * modes), waves, image, corners, int(conjugate))


def object_products(probes: Any, changes: Any, out: Any) -> None:
    """`dtomo.kernels.exit_waves.object_products`; `out` need not be contiguous."""
    frames, layers, rows, columns = out.shape
    _object_products.launch(_blocks(columns, rows, frames * layers), probes, changes, out)


def probe_products(image: Any, corners: Any, changes: Any) -> None:
    """`dtomo.kernels.exit_waves.probe_products`, into the first object mode of `changes`."""
    frames, _, modes, rows, columns = changes.shape
    _probe_products.launch(_blocks(columns, rows, frames * modes), image, corners, changes)


def probe_sum(image: Any, corners: Any, changes: Any, out: Any) -> None:
    """`dtomo.kernels.exit_waves.probe_sum`."""
    modes, rows, columns = out.shape
    _probe_sum.launch(_blocks(columns, rows, modes), image, corners, changes, out)


def _blocks(columns: int, rows: int, layers: int) -> tuple[int, int, int]:
    return -(-columns // THREADS[0]), -(-rows // THREADS[1]), layers


@cuda_kernel(*_signatures("{t}[:, :, :, ::1], " + _IMAGE + ", " + _WAVES), threads=THREADS)
def _product(probes, image, corners, out):  # type: ignore[no-untyped-def]
    frames, layers, modes, rows, columns = out.shape
    shared = probes.shape[0] == 1
    c0, r0, wave0 = cuda.grid(3)
    across, down, on = cuda.gridsize(3)
    for wave in range(wave0, frames * layers * modes, on):
        frame, layer, mode = wave // (layers * modes), wave // modes % layers, wave % modes
        own = 0 if shared else frame
        top, left = corners[frame, 0], corners[frame, 1]
        for r in range(r0, rows, down):
            for c in range(c0, columns, across):
                out[frame, layer, mode, r, c] = probes[own, mode, r, c] * image[layer, top + r, left + c]


@cuda_kernel(*_signatures(_WAVES + ", " + _IMAGE + ", int64"), threads=THREADS)
def _times(waves, image, corners, conjugate):  # type: ignore[no-untyped-def]
    frames, layers, modes, rows, columns = waves.shape
    c0, r0, wave0 = cuda.grid(3)
    across, down, on = cuda.gridsize(3)
    for wave in range(wave0, frames * layers * modes, on):
        frame, layer, mode = wave // (layers * modes), wave // modes % layers, wave % modes
        top, left = corners[frame, 0], corners[frame, 1]
        for r in range(r0, rows, down):
            for c in range(c0, columns, across):
                factor = image[layer, top + r, left + c]
                if conjugate:
                    factor = factor.conjugate()
                waves[frame, layer, mode, r, c] *= factor


@cuda_kernel(*_signatures("{t}[:, :, :, ::1], " + _WAVES + ", {t}[:, :, :, :]"), threads=THREADS)
def _object_products(probes, changes, out):  # type: ignore[no-untyped-def]
    frames, layers, modes, rows, columns = changes.shape
    shared = probes.shape[0] == 1
    c0, r0, layer0 = cuda.grid(3)
    across, down, on = cuda.gridsize(3)
    for number in range(layer0, frames * layers, on):
        frame, layer = number // layers, number % layers
        own = 0 if shared else frame
        for r in range(r0, rows, down):
            for c in range(c0, columns, across):
                total = probes[own, 0, r, c].conjugate() * changes[frame, layer, 0, r, c]
                for mode in range(1, modes):
                    total += probes[own, mode, r, c].conjugate() * changes[frame, layer, mode, r, c]
                out[frame, layer, r, c] = total


@cuda_kernel(*_signatures(_IMAGE + ", " + _WAVES), threads=THREADS)
def _probe_products(image, corners, changes):  # type: ignore[no-untyped-def]
    frames, layers, modes, rows, columns = changes.shape
    c0, r0, mode0 = cuda.grid(3)
    across, down, on = cuda.gridsize(3)
    for number in range(mode0, frames * modes, on):
        frame, mode = number // modes, number % modes
        top, left = corners[frame, 0], corners[frame, 1]
        for r in range(r0, rows, down):
            for c in range(c0, columns, across):
                total = image[0, top + r, left + c].conjugate() * changes[frame, 0, mode, r, c]
                for layer in range(1, layers):
                    total += image[layer, top + r, left + c].conjugate() * changes[frame, layer, mode, r, c]
                changes[frame, 0, mode, r, c] = total


@cuda_kernel(*_signatures(_IMAGE + ", " + _WAVES + ", {t}[:, :, ::1]"), threads=THREADS)
def _probe_sum(image, corners, changes, out):  # type: ignore[no-untyped-def]
    """Frames in their order."""
    frames, layers, modes, rows, columns = changes.shape
    c0, r0, mode0 = cuda.grid(3)
    across, down, on = cuda.gridsize(3)
    for mode in range(mode0, modes, on):
        for r in range(r0, rows, down):
            for c in range(c0, columns, across):
                total = out[mode, r, c]
                for frame in range(frames):
                    top, left = corners[frame, 0], corners[frame, 1]
                    for layer in range(layers):
                        total += image[layer, top + r, left + c].conjugate() * changes[frame, layer, mode, r, c]
                out[mode, r, c] = total
