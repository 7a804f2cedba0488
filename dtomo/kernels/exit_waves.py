"""Exit waves of ptychography and their adjoint: probe times object, both read in place.

Waves are ``(frame, object mode, mode, row, column)``: every mode of the object times every mode of the probe. Called
for a few frames at a time, so that what one stage writes the next one finds in the cache.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtomo.arrays import array_module, empty_aligned, on_device, writeable_view
from dtomo.kernels.compiling import kernel
from dtomo.threads import run_jobs


def product(probes: NDArray[Any], image: NDArray[Any], corners: NDArray[np.int64]) -> NDArray[Any]:
    """Probe times the object under it, ``(frame, object mode, mode, row, column)``.

    Parameters
    ----------
    probes
        ``(frame, mode, row, column)``, complex; one frame: the same probe for all.
    image
        Object ``(object mode, row, column)``, of the same dtype.
    corners
        Row and column of the object under pixel [0, 0] of each frame, int64 ``(frame, 2)``; not checked: the frames
        must lie within the object.
    """
    modes, rows, columns = probes.shape[1:]
    shape = (len(corners), len(image), modes, rows, columns)
    out = empty_aligned(shape, probes.dtype, array_module(probes, image, corners))
    arrays = _ready(probes), _ready(image), corners, out
    if on_device(probes):
        from dtomo.kernels.cuda import exit_waves as device

        device.product(*arrays)
        return out
    run_jobs(lambda span: _product(span, *arrays), len(corners))
    return out


def under(image: NDArray[Any], corners: NDArray[np.int64], patch: tuple[int, int]) -> NDArray[Any]:
    """The parts of an image ``(…, row, column)`` under frames, ``(frame, …, row, column)``; for devices."""
    xp = array_module(image, corners)
    rows = corners[:, 0, None, None] + xp.arange(patch[0])[:, None]
    columns = corners[:, 1, None, None] + xp.arange(patch[1])
    return xp.ascontiguousarray(xp.moveaxis(image[..., rows, columns], -3, 0))


def times(waves: NDArray[Any], image: NDArray[Any], corners: NDArray[np.int64], *, conjugate: bool = False) -> None:
    """Multiply waves by the object under them, or by its conjugate, in place.

    Parameters
    ----------
    waves
        ``(frame, object mode, mode, row, column)``, complex.
    image, corners
        As in `product`.
    conjugate
        The adjoint.
    """
    arrays = waves, _ready(image), corners
    if on_device(waves):
        from dtomo.kernels.cuda import exit_waves as device

        device.times(*arrays, conjugate)
        return
    run_jobs(lambda span: _times(span, *arrays, conjugate), len(corners))


def object_products(probes: NDArray[Any], changes: NDArray[Any], out: NDArray[Any]) -> None:
    """Adjoint of `product` for the object: out = Σ over probe modes of conj(P) χ; see `dtomo.kernels.patches.add`.

    Parameters
    ----------
    probes
        As in `product`.
    changes
        χ, as waves.
    out
        ``(frame, object mode, row, column)``, written to.
    """
    arrays = _ready(probes), _ready(changes), out
    if on_device(probes):
        from dtomo.kernels.cuda import exit_waves as device

        device.object_products(*arrays)
        return
    run_jobs(lambda span: _object_products(span, *arrays), len(out))


def probe_products(image: NDArray[Any], corners: NDArray[np.int64], changes: NDArray[Any]) -> NDArray[Any]:
    """Adjoint of `product` for the probe of each frame, ``(frame, mode, row, column)``: Σ conj(O) χ.

    Parameters
    ----------
    image, corners
        As in `product`.
    changes
        χ, as waves; overwritten: the result lies in its memory.
    """
    first = changes[:, 0]
    arrays = _ready(image), corners, changes
    if on_device(changes):
        from dtomo.kernels.cuda import exit_waves as device

        device.probe_products(*arrays)
        return first
    run_jobs(lambda span: _probe_products(span, *arrays), len(corners))
    return first


def probe_sum(image: NDArray[Any], corners: NDArray[np.int64], changes: NDArray[Any], out: NDArray[Any]) -> None:
    """`probe_products`, summed over the frames in their order, added to `out` ``(mode, row, column)``."""
    arrays = _ready(image), corners, _ready(changes), out
    if on_device(changes):
        from dtomo.kernels.cuda import exit_waves as device

        device.probe_sum(*arrays)
        return
    _probe_sum(*arrays)


def _ready(array: NDArray[Any]) -> NDArray[Any]:
    return writeable_view(array_module(array).ascontiguousarray(array))


@kernel
def _product(jobs, probes, image, corners, out):  # type: ignore[no-untyped-def]
    _, layers, modes, rows, columns = out.shape
    shared = probes.shape[0] == 1
    for frame in range(jobs[0], jobs[1]):
        top, left = corners[frame]
        own = probes[0 if shared else frame]
        for layer in range(layers):
            for mode in range(modes):
                for r in range(rows):
                    p, target = own[mode, r], out[frame, layer, mode, r]
                    t = image[layer, top + r, left : left + columns]
                    for c in range(columns):
                        target[c] = p[c] * t[c]


@kernel
def _times(jobs, waves, image, corners, conjugate):  # type: ignore[no-untyped-def]
    _, layers, modes, rows, columns = waves.shape
    for frame in range(jobs[0], jobs[1]):
        top, left = corners[frame]
        for layer in range(layers):
            for mode in range(modes):
                for r in range(rows):
                    target, t = waves[frame, layer, mode, r], image[layer, top + r, left : left + columns]
                    if conjugate:
                        for c in range(columns):
                            target[c] *= np.conj(t[c])
                    else:
                        for c in range(columns):
                            target[c] *= t[c]


@kernel
def _object_products(jobs, probes, changes, out):  # type: ignore[no-untyped-def]
    _, layers, modes, rows, columns = changes.shape
    shared = probes.shape[0] == 1
    for frame in range(jobs[0], jobs[1]):
        own = probes[0 if shared else frame]
        for layer in range(layers):
            for r in range(rows):
                target, p, change = out[frame, layer, r], own[0, r], changes[frame, layer, 0, r]
                for c in range(columns):
                    target[c] = np.conj(p[c]) * change[c]
                for mode in range(1, modes):
                    p, change = own[mode, r], changes[frame, layer, mode, r]
                    for c in range(columns):
                        target[c] += np.conj(p[c]) * change[c]


@kernel
def _probe_products(jobs, image, corners, changes):  # type: ignore[no-untyped-def]
    _, layers, modes, rows, columns = changes.shape
    for frame in range(jobs[0], jobs[1]):
        top, left = corners[frame]
        for mode in range(modes):
            for r in range(rows):
                target, t = changes[frame, 0, mode, r], image[0, top + r, left : left + columns]
                for c in range(columns):
                    target[c] *= np.conj(t[c])
                for layer in range(1, layers):
                    t, change = image[layer, top + r, left : left + columns], changes[frame, layer, mode, r]
                    for c in range(columns):
                        target[c] += np.conj(t[c]) * change[c]


@kernel
def _probe_sum(image, corners, changes, out):  # type: ignore[no-untyped-def]
    frames, layers, modes, rows, columns = changes.shape
    for mode in range(modes):
        for r in range(rows):
            target = out[mode, r]
            for frame in range(frames):
                top, left = corners[frame]
                for layer in range(layers):
                    t, change = image[layer, top + r, left : left + columns], changes[frame, layer, mode, r]
                    for c in range(columns):
                        target[c] += np.conj(t[c]) * change[c]
