"""Pieces of `dtomo.kernels.matching`: checks, filters, transforms as far as a mask reaches, sums under a mask.

All for host and device arrays, except where the kernel of sums runs on the host only.
"""

import threading
from typing import Any

import numpy as np
import scipy.fft
from numpy.typing import ArrayLike, NDArray

from dtomo.arrays import array_module, empty_aligned, on_device
from dtomo.errors import UserError
from dtomo.kernels.compiling import kernel
from dtomo.kernels.wedges import frequencies

_BAND_EDGE = 2.0
"""Width of the soft edges of a band, in voxels of the transform of the shortest side."""

_ROUND = 1e-3
"""Of a mask's sum: how much one that is called spherical may differ from its mean over shells."""

_FLOOR = 1e-6
"""Of the mean square of a filtered volume: a local variance below that is rounding."""


_kept = threading.local()


def host(array: Any) -> NDArray[Any]:
    """A copy on the host of what lies on a device."""
    return array.get() if on_device(array) else array


def check_reference(
    volume: NDArray[Any], mask: NDArray[Any], band: tuple[float | None, float | None], max_shift: float | None
) -> None:
    """Refuse what a `Reference` cannot be made of (UserError)."""
    if volume.ndim != 3 or volume.shape != mask.shape or min(volume.shape) < 4:
        raise UserError(
            f"a reference and its mask are volumes (z, y, x) of one shape, 4 voxels or more to a side; got "
            f"{volume.shape} and {mask.shape}"
        )
    if np.iscomplexobj(volume) or np.iscomplexobj(mask):
        raise UserError("a reference and its mask are real volumes; got complex ones")
    if not (bool(np.isfinite(volume).all()) and bool(np.isfinite(mask).all())):
        raise UserError("a reference or its mask holds values that are no finite numbers")
    if not (float(mask.min()) >= 0 and float(mask.sum(dtype=np.float64)) > 0):
        raise UserError("a mask has no negative values, and some that are positive")
    if float(volume.max()) == float(volume.min()):
        raise UserError("a reference has the same value everywhere; there is nothing to compare")
    low, high = (0.0 if band[0] is None else band[0]), (0.5 if band[1] is None else band[1])
    if not 0 <= low < high:
        raise UserError(f"a band goes from a lower to a higher frequency in cycles per voxel; got {band}")
    if max_shift is not None and not (np.isfinite(max_shift) and max_shift >= 0):
        raise UserError(f"the longest shift is a number of voxels, 0 or more; got {max_shift}")


def check_particle(
    particle: NDArray[Any], weights: NDArray[Any], other: NDArray[Any] | None, shape: tuple[int, int, int]
) -> None:
    """Refuse what cannot be prepared (UserError)."""
    half = (*shape[:2], shape[2] // 2 + 1)
    if particle.shape != shape or np.iscomplexobj(particle):
        raise UserError(f"a particle is a real volume of the reference's shape {shape}; got {particle.shape}")
    for one in (weights, other):
        if one is not None and (one.shape != half or np.iscomplexobj(one)):
            raise UserError(f"weights of a box {shape} are real and of shape {half}; got {one.shape}")


def checked_rotations(rotations: ArrayLike) -> NDArray[np.float64]:
    """Matrices ``(rotation, 3, 3)``; anything else is refused (UserError)."""
    matrices = np.asarray(rotations, np.float64)
    if matrices.ndim != 3 or matrices.shape[1:] != (3, 3) or not np.isfinite(matrices).all():
        raise UserError(f"rotations are finite matrices of shape (rotation, 3, 3); got {matrices.shape}")
    off = np.abs(matrices @ matrices.swapaxes(1, 2) - np.eye(3)).max((1, 2)) > 1e-4
    off |= np.linalg.det(matrices) < 0
    if off.any():
        raise UserError(f"matrix {int(np.argmax(off))} is no rotation: its transpose is not its inverse, or it mirrors")
    return matrices


def is_spherical(mask: NDArray[Any]) -> bool:
    """Whether a mask is, but for a thousandth of its sum, a function of the distance from n // 2."""
    values = host(mask).astype(np.float64)
    z, y, x = np.ogrid[tuple(slice(-(n // 2), n - n // 2) for n in mask.shape)]
    squares = (z * z + y * y + x * x).ravel()
    total, count = np.bincount(squares, values.ravel()), np.bincount(squares)
    mean = (total / np.maximum(count, 1))[squares].reshape(values.shape)
    inside = (squares <= min((n - 1) // 2 for n in mask.shape) ** 2).reshape(values.shape)
    rest = np.abs(values - mean)[inside].sum() + values[~inside].sum()
    return bool(rest <= _ROUND * values.sum())


def reach_of(mask: NDArray[Any], spherical: bool) -> tuple[slice, slice]:
    """Planes and rows that the mask has values in, after any rotation if it turns."""
    used = host(mask) > 0
    if spherical:
        planes, rows = np.flatnonzero(used.any((1, 2))), np.flatnonzero(used.any((0, 2)))
        return slice(int(planes[0]), int(planes[-1]) + 1), slice(int(rows[0]), int(rows[-1]) + 1)
    middle = [n // 2 for n in mask.shape]
    reach = int(np.ceil(np.linalg.norm(np.argwhere(used) - middle, axis=1).max())) + 1
    first, second = (slice(max(c - reach, 0), min(c + reach + 1, n)) for c, n in zip(middle[:2], mask.shape))
    return first, second


def without_background(volume: NDArray[Any], mask: NDArray[Any]) -> NDArray[Any]:
    """The volume less its mean outside the mask, or less its mean where the mask leaves nothing out."""
    outside = mask == 0
    count = int(outside.sum())
    values = volume.astype(np.float64)
    mean = float((values * outside).sum()) / count if count else float(values.mean())
    return (values - mean).astype(np.float32)


def band_filter(shape: tuple[int, int, int], band: tuple[float | None, float | None]) -> NDArray[np.float32]:
    """1 within the band, falling to 0 like a cosine beyond it; 0 beyond 0.5. ``(z, y, x // 2 + 1)``, on the host."""
    z, y, x = frequencies(shape)
    radius = np.sqrt(z * z + y * y + x * x)
    edge = _BAND_EDGE / min(shape)
    kept = (radius <= 0.5 + 1e-9).astype(np.float64)
    for limit, sign in ((band[0], -1), (band[1], 1)):
        if limit is not None:
            beyond = np.clip(sign * (radius - limit) / edge, 0, 1)
            kept *= 0.5 + 0.5 * np.cos(np.pi * beyond)
    kept[kept < 1e-12] = 0
    return kept.astype(np.float32)


def highest_frequency(band: NDArray[np.float32]) -> float:
    """Of those that a filter ``(z, y, x // 2 + 1)`` passes, cycles per voxel."""
    depth, height, half = band.shape
    used = np.argwhere(band > 0)
    scale = scipy.fft.fftfreq(depth)[used[:, 0]], scipy.fft.fftfreq(height)[used[:, 1]]
    return float(np.sqrt(scale[0] ** 2 + scale[1] ** 2 + (used[:, 2] * (0.5 / max(half - 1, 1))) ** 2).max())


def axes_of(shape: tuple[int, int, int], columns: int) -> tuple[Any, Any, Any]:
    """Frequencies of the axes z, y, x, float32, cycles per voxel."""
    z, y, x = (axis.ravel().astype(np.float32) for axis in frequencies(shape))
    return z, y, x[:columns]


def phases(shape: tuple[int, int, int], start: tuple[int, ...]) -> NDArray[np.complex64]:
    """What multiplies a half transform when the volume moves by whole voxels (z, y, or z, y, x)."""
    total: Any = 1.0
    for axis, offset in zip(frequencies(shape), start):
        total = total * np.exp(-2j * np.pi * axis * offset)
    return np.broadcast_to(total, (*shape[:2], shape[2] // 2 + 1)).astype(np.complex64)


def ranges_of(spectrum: NDArray[Any], filters: NDArray[Any]) -> NDArray[np.int32]:
    """In each row ``(z, y)`` the first frequency that counts on either side, and the one after the last."""
    used = host((spectrum != 0) | (filters != 0))
    any_used, count = used.any(2), used.shape[2]
    first = np.where(any_used, used.argmax(2), 0)
    last = np.where(any_used, count - used[:, :, ::-1].argmax(2), 0)
    return np.ascontiguousarray(np.stack([first, last], 2), np.int32)


def whole_rows(shape: tuple[int, int, int]) -> NDArray[np.int32]:
    """Ranges of rows in which every frequency counts."""
    ranges = np.zeros((*shape[:2], 2), np.int32)
    ranges[..., 1] = shape[2] // 2 + 1
    return ranges


def _fft(array: NDArray[Any]) -> Any:
    """The FFT functions of where an array lies; transforms of a host array run on the thread that asks for them."""
    if on_device(array):
        from cupyx.scipy import fft

        return fft
    return scipy.fft


def forward(volumes: NDArray[Any]) -> NDArray[Any]:
    """Half transforms over the last three axes."""
    return _fft(volumes).rfftn(volumes, axes=(-3, -2, -1))


def backward(transforms: NDArray[Any], width: int) -> NDArray[Any]:
    """Real volumes from half transforms, `width` along x."""
    shape = (*transforms.shape[-3:-1], width)
    return _fft(transforms).irfftn(transforms, s=shape, axes=(-3, -2, -1))


def scratch(shape: tuple[int, ...], like: NDArray[Any]) -> NDArray[np.complex64]:
    """Memory for transforms, complex64, that the next call of this thread uses again; holds anything.

    New memory comes page by page, which takes as long as the transforms themselves.
    """
    if on_device(like):
        return array_module(like).empty(shape, np.complex64)  # from CuPy's pool
    size = int(np.prod(shape))
    if getattr(_kept, "memory", None) is None or _kept.memory.size < size or _kept.memory.size > 4 * size:
        _kept.memory = empty_aligned((size,), np.complex64)
    return _kept.memory[:size].reshape(shape)


def backward_part(transforms: NDArray[Any], deep: int, high: int, width: int) -> NDArray[Any]:
    """The first planes and rows of the volumes of half transforms, whose memory is used up."""
    fft = _fft(transforms)
    planes = fft.ifft(transforms, axis=-3, overwrite_x=True)[..., :deep, :, :]
    rows = fft.ifft(planes, axis=-2, overwrite_x=True)[..., :high, :]
    return fft.irfft(rows, width, axis=-1)


def forward_part(
    volumes: NDArray[Any], shape: tuple[int, int, int], columns: int, memory: NDArray[Any] | None = None
) -> NDArray[Any]:
    """The first columns of the half transforms of volumes that are 0 behind the planes and rows they have.

    `memory` takes the transforms, ``(volume, z, y, columns)``; None: new memory.
    """
    fft = _fft(volumes)
    deep, high = volumes.shape[-3:-1]
    whole = (*volumes.shape[:-3], *shape[:2], columns)
    out = array_module(volumes).empty(whole, np.complex64) if memory is None else memory
    part = out[..., :deep, :, :]
    part[..., :high, :] = fft.rfft(volumes, axis=-1)[..., :columns]
    part[..., high:, :] = 0
    part[...] = fft.fft(part, axis=-2, overwrite_x=True)  # in place already, where the library can
    out[..., deep:, :, :] = 0
    return fft.fft(out, axis=-3, overwrite_x=True)


def mask_in_place(volumes: NDArray[Any], masks: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Multiply volumes by masks; returns the sums of M t and of M t² of each, float64, on the host."""
    if on_device(volumes):
        masked = volumes * masks
        squares = host((masked * volumes).sum((1, 2, 3), dtype=np.float64))
        volumes[...] = masked
        return host(masked.sum((1, 2, 3), dtype=np.float64)), squares
    sums = np.empty((2, len(volumes)))
    for k, volume in enumerate(volumes):
        mask = masks[min(k, len(masks) - 1)]
        sums[:, k] = _mask_rows(volume.reshape(-1, volume.shape[-1]), mask, np.empty(2))
    return sums[0], sums[1]


@kernel
def _mask_rows(volume, mask, sums):  # type: ignore[no-untyped-def]
    """Sums over the rows of a plane in single precision, column by column, of columns and planes in double."""
    depth, height, width = mask.shape
    totals = np.empty((2, width), np.float32)
    sums[:] = 0
    for z in range(depth):
        totals[:] = 0
        for row in range(z * height, (z + 1) * height):
            for x in range(width):
                value = volume[row, x]
                masked = value * mask[z, row - z * height, x]
                totals[0, x] += masked
                totals[1, x] += masked * value
                volume[row, x] = masked
        for x in range(width):
            sums[0] += totals[0, x]
            sums[1] += totals[1, x]
    return sums


def moments(
    sums: NDArray[np.float64], squares: NDArray[np.float64], totals: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Weighted means and deviations under masks; a deviation of 0 where there is nothing but rounding."""
    mean, square = sums / totals, squares / totals
    variance = square - mean**2
    return mean, np.sqrt(np.where(variance > _FLOOR * square, variance, 0))


def gains(sums: NDArray[Any], squares: NDArray[Any], totals: Any) -> NDArray[np.float32]:
    """1 / (p σ) from sums of v and v² under masks; 0 where σ is rounding. The mean of v² over the box is 1."""
    xp = array_module(sums)
    total = xp.asarray(np.reshape(totals, (-1, 1, 1, 1)))
    variance = squares / total - (sums / total) ** 2
    found = xp.where(variance > _FLOOR, 1 / (total * xp.sqrt(xp.maximum(variance, _FLOOR))), 0)
    return found.astype(np.float32)


def normalise(
    products: NDArray[Any], means: NDArray[Any], deviations: NDArray[Any], local_means: Any, local_gains: Any
) -> NDArray[np.float32]:
    """Scores ``(map, z, y, x)`` from Σ M t v: less the mean of t, over both deviations; 0 where one is 0."""
    xp = array_module(products)
    scale = np.where(deviations > 0, 1 / np.where(deviations > 0, deviations, 1), 0)
    mean = xp.asarray(means.astype(np.float32).reshape(-1, 1, 1, 1))
    factor = xp.asarray(scale.astype(np.float32).reshape(-1, 1, 1, 1))
    return (products - mean * local_means) * (local_gains * factor)
