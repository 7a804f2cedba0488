"""What solvers of ptychography divide by and step along: light on the object, light through it, and step lengths.

All of one block of frames, whose sums are taken in the order of the frames.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtomo.arrays import array_module, on_device, writeable_view
from dtomo.kernels.compiling import kernel
from dtomo.kernels.exit_waves import under
from dtomo.threads import run_jobs

PRODUCTS = 5
"""⟨x, x⟩, ⟨y, y⟩, ⟨x, y⟩, ⟨x, χ⟩, ⟨y, χ⟩ of changes x and y of the exit waves; see `products`."""


def light(
    power: NDArray[Any], weights: NDArray[Any], corners: NDArray[np.int64], shape: tuple[int, int]
) -> NDArray[Any]:
    """Σ over frames of weight times |P|², real ``(row, column)``.

    Parameters
    ----------
    power
        Σ over modes of |P|², real ``(row, column)``.
    weights
        Of each frame, float64 ``(frame,)``, on the host.
    corners
        Row and column of the result under pixel [0, 0] of each frame, int64 ``(frame, 2)``, on the host; not checked.
    shape
        Rows and columns of the result.
    """
    out = array_module(power).zeros(shape, power.dtype)
    rows, columns = power.shape
    if on_device(power):
        for weight, (top, left) in zip(weights.tolist(), corners.tolist()):
            out[top : top + rows, left : left + columns] += weight * power
        return out
    _light(writeable_view(np.ascontiguousarray(power)), weights.astype(power.dtype), corners, out)
    return out


def transmitted(image: NDArray[Any], weights: NDArray[Any], corners: NDArray[np.int64], out: NDArray[Any]) -> None:
    """Add Σ over frames and modes of weight times |T|² under the frame to `out`, real ``(row, column)``.

    Parameters
    ----------
    image
        Object ``(object mode, row, column)``, complex.
    weights, corners
        As in `light`.
    out
        Of the shape of a frame.
    """
    rows, columns = out.shape
    if on_device(image):
        for weight, (top, left) in zip(weights.tolist(), corners.tolist()):
            part = image[:, top : top + rows, left : left + columns]
            out += weight * (part.real**2 + part.imag**2).sum(0)
        return
    _transmitted(writeable_view(np.ascontiguousarray(image)), weights.astype(out.dtype), corners, out)


def products(
    probes: NDArray[Any],
    image: NDArray[Any],
    corners: NDArray[np.int64],
    image_change: NDArray[Any],
    probe_changes: NDArray[Any],
    waves: NDArray[Any],
) -> NDArray[np.float64]:
    """Inner products that give the best steps along changes of object and probe, for each frame ``(frame, 5)``.

    With x = P ΔT and y = ΔP T, and real parts of inner products over all modes and pixels: ⟨x, x⟩, ⟨y, y⟩, ⟨x, y⟩,
    ⟨x, χ⟩, ⟨y, χ⟩. M. Odstrčil, A. Menzel and M. Guizar-Sicairos, Optics Express 26 (2018) 3108, equation 21.

    Parameters
    ----------
    probes
        ``(frame, mode, row, column)``, complex; one frame: the same probe for all.
    image, image_change
        Object, and its change ΔT, ``(object mode, row, column)``.
    corners
        Row and column of the object under pixel [0, 0] of each frame, int64 ``(frame, 2)``; not checked.
    probe_changes
        ΔP, as `probes`.
    waves
        χ ``(frame, object mode, mode, row, column)``.
    """
    count, patch = len(corners), waves.shape[-2:]
    if on_device(waves):
        x = probes[:, None] * under(image_change, corners, patch)[:, :, None]
        y = probe_changes[:, None] * under(image, corners, patch)[:, :, None]
        pairs = ((x, x), (y, y), (x, y), (x, waves), (y, waves))
        sums = [(a.real * b.real + a.imag * b.imag).sum((1, 2, 3, 4), dtype=np.float64) for a, b in pairs]
        return array_module(waves).stack(sums, 1)
    out = np.zeros((count, PRODUCTS))
    arrays = (probes, image, image_change, probe_changes, waves)
    ready = [writeable_view(np.ascontiguousarray(array)) for array in arrays]
    run_jobs(lambda span: _products(span, corners, *ready, out), count)
    return out


@kernel
def _light(power, weights, corners, out):  # type: ignore[no-untyped-def]
    rows, columns = power.shape
    for frame in range(len(corners)):
        top, left = corners[frame]
        weight = weights[frame]
        for r in range(rows):
            source, target = power[r], out[top + r, left : left + columns]
            for c in range(columns):
                target[c] += weight * source[c]


@kernel
def _transmitted(image, weights, corners, out):  # type: ignore[no-untyped-def]
    rows, columns = out.shape
    for frame in range(len(corners)):
        top, left = corners[frame]
        weight = weights[frame]
        for mode in range(len(image)):
            for r in range(rows):
                source, target = image[mode, top + r, left : left + columns], out[r]
                for c in range(columns):
                    target[c] += weight * (source[c].real * source[c].real + source[c].imag * source[c].imag)


@kernel
def _products(jobs, corners, probes, image, image_change, probe_changes, waves, out):  # type: ignore[no-untyped-def]
    """Each column has sums of its own, so that several are taken at once."""
    _, layers, modes, rows, columns = waves.shape
    sums = np.empty((5, columns), waves.real.dtype)
    for frame in range(jobs[0], jobs[1]):
        top, left = corners[frame]
        own = probes[frame if probes.shape[0] > 1 else 0]
        change = probe_changes[frame if probe_changes.shape[0] > 1 else 0]
        sums[...] = 0
        xx, yy, xy, xc, yc = sums[0], sums[1], sums[2], sums[3], sums[4]
        for layer in range(layers):
            for mode in range(modes):
                for r in range(rows):
                    p, dp, chi = own[mode, r], change[mode, r], waves[frame, layer, mode, r]
                    t = image[layer, top + r, left : left + columns]
                    dt = image_change[layer, top + r, left : left + columns]
                    for c in range(columns):
                        x, y, z = p[c] * dt[c], dp[c] * t[c], chi[c]
                        xx[c] += x.real * x.real + x.imag * x.imag
                        yy[c] += y.real * y.real + y.imag * y.imag
                        xy[c] += x.real * y.real + x.imag * y.imag
                        xc[c] += x.real * z.real + x.imag * z.imag
                        yc[c] += y.real * z.real + y.imag * z.imag
        for k in range(5):
            for c in range(columns):
                out[frame, k] += sums[k, c]
