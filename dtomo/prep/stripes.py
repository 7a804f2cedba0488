"""Stripes of sinograms, the rings of slices: what is the same at every angle, and algotom's as the reference.

Figures, simulated sinogram of 1024 angles x 1600 columns (12 ellipses, noise 0.01; 50 columns with constant
and 15 with partial stripes, two bands of 12 columns, one fluctuating column), one thread: time; RMS error
against the undisturbed sinogram (0.0829 before); RMS of its means over the angles (0.0781 before); RMS change
of an undisturbed sinogram::

    combined      11 ms   0.0029   0.0007   0.00007
    sorting       17 ms   0.0183   0.0121   0.00033
    algotom     1000 ms   0.0110   0.0102   0.00111

The functions on single sinograms take arrays (angle, column) on the host, and (angle, row, column) on a device, where
small arrays have the row axis in front: (row, column, …).
"""

from collections.abc import Callable
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from dtomo.arrays import array_module, empty_aligned, is_array, on_device
from dtomo.errors import UserError
from dtomo.prep import stripe_kernels
from dtomo.threads import run_blocks

StripeMethod = Literal["combined", "sorting", "algotom", "none"]
"""How to remove stripes."""

_KNOTS = 16
_BLOCKS = 32
"""Runs of angles over which a sinogram is averaged before its columns are compared."""
_GROUPS = 8
"""Parts of the scan that must agree about a stripe."""
_PASSES = 2
"""Strong stripes disturb what is taken for the object's slopes: they are subtracted, and looked for again."""
_DOUBT = 12
"""Weight of what the parts differ by beyond four times the noise."""
_TUNING = 4.685
"""Deviations from which the biweight ignores a value: 95 % efficient for normal noise."""
_DEVICE_VALUES = 1 << 22
"""In an array of what is computed for some rows at a time on a device: 32 MiB in float64."""


def remove_stripes(
    attenuation: NDArray[Any],
    *,
    method: StripeMethod = "combined",
    snr: float = 3.0,
    large: int = 31,
    small: int = 11,
    order: Literal["projections", "sinograms"] = "projections",
    out: NDArray[np.float32] | None = None,
) -> NDArray[np.float32]:
    """Remove stripes from every sinogram, each by itself: the result does not depend on the slab.

    "combined" subtracts from each column what nearly all angles agree on. Neighbouring columns are compared
    over 32 runs of angles, and the differences averaged by Tukey's biweight, so that a feature of the object, which
    passes a column in part of the views, counts as an outlier. The sum of these averages is the profile of the
    stripes: a robust form of S. Titarenko, P. J. Withers, A. Yagola, Appl. Math. Lett. 23, 1489 (2010), where
    the squares of such differences tell the stripes. The profile's deviation from its running median is shrunk
    by its uncertainty and subtracted, so that a scan without stripes stays as it is; the uncertainty grows with
    how much eight parts of the scan disagree. Wide bands need steep edges in every part; a stripe in part of the
    angles must last for three eighths of the scan. Columns that fluctuate or stand still are interpolated. What
    is the same in the same columns at all angles, a thin needle or wall centred on the axis, is a stripe.

    "sorting" moves each column's distribution of values (16 quantile means) onto the median distribution of its
    neighbours, after N. T. Vo et al., Opt. Express 26, 28396 (2018), algorithm 3, in a faster form: it also meets
    stripes whose strength depends on the value, and weakens features near the axis. "algotom" is
    ``algotom.prep.removal.remove_all_stripe``, after the same paper.

    With fewer than 16 angles a stripe cannot be told from the object, and nothing is changed.

    Peak memory: the float32 result, and one sinogram per thread; three with "sorting". On a device "combined" takes
    about 200 MiB beside the result, "sorting" four sinograms, or 256 MiB if that is more; results agree with the CPU's
    to rounding, and "algotom" is not there.

    Parameters
    ----------
    attenuation
        (angle, row, column), or (row, angle, column) with ``order="sinograms"``; any real dtype, all finite.
        Angles in ascending order tell the object from stripes best.
    snr
        Ratio to the noise from which a deviation counts; greater is less sensitive.
    large, small
        Widths in columns of the medians for wide stripes and for all others; at most a twelfth of the
        columns, since what is that wide belongs to the object.
    order
        Axis order of the input and of the result.
    out
        float32 array to write to; may be `attenuation` itself.

    Returns
    -------
    array
        float32, shape and order of the input.

    Raises
    ------
    UserError
        An unknown method, an array without the three axes, or "algotom" on a device.
    """
    data = attenuation if is_array(attenuation) else np.asarray(attenuation)
    if method not in get_args(StripeMethod):
        raise UserError(f"there is no stripe method {method!r}; choose from {', '.join(get_args(StripeMethod))}")
    if order not in ("projections", "sinograms"):
        raise UserError(f"the axis order is projections or sinograms, not {order!r}")
    if data.ndim != 3 or 0 in data.shape or data.dtype.kind not in "buif":
        raise UserError(f"stripe removal needs real data with three axes, not {data.dtype} of shape {data.shape}")
    if not snr > 1 or small < 1 or large < 1:
        raise UserError(f"stripe removal needs snr > 1 and widths of at least 1, not {snr}, {large} and {small}")
    if method == "algotom" and on_device(data):
        raise UserError("algotom removes stripes on the CPU only; choose combined or sorting on a device")
    xp = array_module(data, out)
    if out is None:
        out = empty_aligned(data.shape, xp=xp)
        assert out is not None
    elif out.shape != data.shape or out.dtype != np.float32:
        raise UserError(f"the output must be float32 of shape {data.shape}, not {out.dtype} of shape {out.shape}")
    rows_first = (slice(None), slice(None), slice(None)) if order == "sinograms" else None
    source = data if rows_first else np.moveaxis(data, 1, 0)
    result = out if rows_first else np.moveaxis(out, 1, 0)
    if method == "none" or source.shape[1] < _KNOTS:
        result[...] = source
        return out
    widest = max(source.shape[2] // 12, 5)
    large, small = min(large, widest) | 1, min(small, widest) | 1
    if on_device(data):
        result[...] = source
        _filter_on_device(np.moveaxis(result, 0, 1), method, snr, large, small)
        return out
    sinogram_filter = _filter(method, snr, large, small)

    def row(start: int, stop: int) -> None:
        for k in range(start, stop):
            result[k] = sinogram_filter(source[k])

    run_blocks(row, source.shape[0], 1)
    return out


def _filter(method: str, snr: float, large: int, small: int) -> Callable[[NDArray[Any]], NDArray[Any]]:
    """The filter of one sinogram (angle, column)."""
    if method == "algotom":
        from algotom.prep.removal import remove_all_stripe

        def algotom(sinogram: NDArray[Any]) -> NDArray[Any]:
            single = np.array(sinogram, np.float32)
            # it refuses noise-free data, such as an empty slice
            if np.ptp(single.sum(axis=0)) == 0:
                return single
            try:
                return np.asarray(remove_all_stripe(single, snr=snr, la_size=large, sm_size=small))
            except ValueError as error:
                raise UserError(
                    f"algotom cannot remove the stripes of this sinogram ({error}); use another method"
                ) from error

        return algotom
    if method == "sorting":
        return lambda sinogram: _sorting(np.array(sinogram.T, np.float32, order="C"), small).T
    return lambda sinogram: _combined(np.array(sinogram, np.float32, order="C"), snr, large, small)


def _filter_on_device(values: Any, method: str, snr: float, large: int, small: int) -> None:
    """Filter (angle, row, column) in place, some rows at a time."""
    angles, rows, columns = values.shape
    most = _DEVICE_VALUES // _BLOCKS if method == "combined" else 4 * _DEVICE_VALUES // angles
    step = max(most // columns, 1)
    for start in range(0, rows, step):
        some = values[:, start : start + step]
        if method == "sorting":
            knots = _loops(some).quantile_means(np.sort(some, axis=0), min(_KNOTS, angles))
            _shift(some, knots, small)
        else:
            _combined(some, snr, large, small)


def _loops(values: Any) -> Any:
    """The module with the loops for arrays that lie where `values` do."""
    if on_device(values):
        from dtomo.kernels.cuda import stripes

        return stripes
    return stripe_kernels


def _combined(sinogram: NDArray[np.float32], snr: float, large: int, small: int) -> NDArray[np.float32]:
    """Bad columns interpolated and stripes subtracted, in place."""
    angles, count = sinogram.shape[0], sinogram.shape[-1]
    if count < 5:
        return sinogram
    loops = _loops(sinogram)
    roughness = loops.column_roughness(sinogram)
    level = _median(roughness, large)
    bad = (level > 0) & ((roughness > snr * level) | (roughness * snr * snr < level))
    bad &= bad.sum(axis=-1, keepdims=True) < count / 3
    loops.fill_columns(sinogram, bad)
    parts = _stripes(sinogram, snr, large, small)
    for k, part in enumerate(parts):
        views = sinogram[k * angles // _GROUPS : (k + 1) * angles // _GROUPS]
        views -= part
    return sinogram


def _stripes(sinogram: NDArray[np.float32], snr: float, large: int, small: int) -> NDArray[np.float32]:
    """What to subtract in each of the eight parts of the angles: (part, column) float32."""
    loops = _loops(sinogram)
    blocks = min(_BLOCKS, sinogram.shape[0] // _GROUPS * _GROUPS)
    differences = np.diff(loops.block_means(sinogram, blocks), axis=-2)
    profile = array_module(sinogram).zeros(sinogram.shape[1:])
    for _ in range(_PASSES):
        steps = differences - np.diff(profile).astype(np.float32)[..., np.newaxis]
        # the slopes of the object: what neighbouring differences of the same views share
        steps -= loops.running_median(steps, small)
        found, parts = _lasting(steps.astype(np.float64), snr, large, small)
        profile += found
    partial = _partial(parts - np.diff(found)[..., np.newaxis], snr, small)
    together: NDArray[np.float64] = np.moveaxis(profile[..., np.newaxis] + partial, -1, 0)
    return together.astype(np.float32, order="C")


def _lasting(
    steps: NDArray[np.float64], snr: float, large: int, small: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Stripes at all angles, from differences of neighbouring columns (difference, block); those of the parts."""
    location, spread, parts = _robust(steps)
    scatter = parts.std(axis=-1, ddof=1)
    alone = spread**2 / steps.shape[-1]
    # beyond the noise, parts differ by features, which last; a stripe may change its strength, not its sign
    doubt = np.where((parts * location[..., np.newaxis] > 0).all(axis=-1), 1, _DOUBT)
    noise = np.sqrt(alone + doubt * np.maximum(scatter**2 / _GROUPS - 4 * alone, 0))
    profile = _bands(location, scatter, snr, large)
    rest = _above_median(location - np.diff(profile), small)
    # a stripe shows in the two differences beside it; their noise, and some from the neighbours
    before, behind = np.concatenate([noise[..., :1], noise], -1), np.concatenate([noise, noise[..., -1:]], -1)
    beside = np.sqrt(1.15 / 4 * (before**2 + behind**2))
    return profile + _significant(rest, beside, snr, large), parts


def _robust(steps: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Location and spread of each line, and the medians of its eight parts."""
    if on_device(steps):
        found: tuple[Any, Any, Any] = _loops(steps).biweight(steps, _GROUPS, _TUNING)
        return found
    return *_biweight(steps), _middle(steps.reshape(len(steps), _GROUPS, -1))


def _heights(steps: NDArray[np.float64]) -> NDArray[np.float64]:
    """The profile with these steps along the last axis, from 0."""
    start: NDArray[np.float64] = array_module(steps).zeros((*steps.shape[:-1], 1))
    return np.concatenate([start, np.cumsum(steps, axis=-1)], -1)


def _bands(steps: NDArray[np.float64], scatter: NDArray[np.float64], snr: float, large: int) -> NDArray[np.float64]:
    """Stripes of up to half of `large` columns between two steps that every part of the scan shows."""
    usual = 1.4826 * _median(np.abs(steps), 4 * large + 1)
    steep = np.abs(steps) > snr * np.maximum(scatter, usual)
    heights = _heights(np.where(steep, steps, 0.0))
    # beyond the ends as at them, so that a single step is no band
    return heights - _median(heights, large, "nearest")


def _above_median(steps: NDArray[np.float64], size: int) -> NDArray[np.float64]:
    """Deviation of the profile with these steps from its running median."""
    profile = _heights(steps)
    return profile - _median(profile, size)


def _significant(
    profile: NDArray[np.float64], noise: NDArray[np.float64], snr: float, large: int
) -> NDArray[np.float64]:
    """The profile shrunk: by how far stripes about it exceed the noise, or by how far it does itself."""
    usual = (1.4826 * _median(np.abs(profile), large)) ** 2
    excess = np.maximum(usual - _median(noise**2, large), 0)
    tiny = np.finfo(np.float64).tiny
    common = excess / (excess + noise**2 + tiny)
    limit = snr * noise
    single = 1 - np.square(limit / np.maximum(np.abs(profile), limit + tiny))
    return profile * np.maximum(common, single)


def _partial(steps: NDArray[np.float64], snr: float, small: int) -> NDArray[np.float64]:
    """Strong stripes in at least three successive parts of the angles: (column, part)."""
    heights = np.moveaxis(_heights(np.moveaxis(steps, -1, -2)), -1, -2)
    profiles = heights - _median(heights, small, axis=-2)
    # a feature that moves on shows in other columns at other angles
    usual = _median(np.abs(profiles).max(axis=-1), small)
    strong = np.abs(profiles) > snr * usual[..., np.newaxis]
    return np.where(_thrice(strong & (profiles > 0)) | _thrice(strong & (profiles < 0)), profiles, 0.0)


def _thrice(parts: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """What is true in three successive parts, the last axis, in a row."""
    found: NDArray[np.bool_] = array_module(parts).zeros(parts.shape, bool)
    successive = parts[..., :-2] & parts[..., 1:-1] & parts[..., 2:]
    for first in range(3):
        found[..., first : first + successive.shape[-1]] |= successive
    return found


def _biweight(values: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Location by one step of Tukey's biweight, and spread (scaled median deviation), of each line."""
    middle = _middle(values)[:, np.newaxis]
    deviation = values - middle
    spread = 1.4826 * _middle(np.abs(deviation))
    scaled = deviation / (_TUNING * spread[:, np.newaxis] + np.finfo(np.float32).tiny)
    weight = np.square(np.maximum(1 - np.square(scaled), 0))
    return middle[:, 0] + (weight * deviation).sum(axis=1) / weight.sum(axis=1), spread


def _middle(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Median over the last axis."""
    ordered = np.sort(values, axis=-1)
    count = values.shape[-1]
    return np.asarray((ordered[..., (count - 1) // 2] + ordered[..., count // 2]) / 2)


def _sorting(columns: NDArray[np.float32], small: int) -> NDArray[np.float32]:
    """Move each column's distribution onto the median of its neighbours, in place; (column, angle)."""
    _shift(columns, stripe_kernels.quantile_means(np.sort(columns, axis=1), min(_KNOTS, columns.shape[1])), small)
    return columns


def _shift(values: NDArray[np.float32], knots: NDArray[np.float32], small: int) -> None:
    """Move values with their columns' quantile means, in place: onto the medians of neighbouring columns."""
    loops = _loops(values)
    # medians of ascending rows ascend, but for rounding
    loops.correct_by_value(values, knots, loops.running_median(knots, small))


def _median(values: NDArray[np.float64], size: int, mode: str = "reflect", axis: int = -1) -> NDArray[np.float64]:
    """Running median along one axis."""
    if on_device(values):
        from cupyx.scipy import ndimage
    else:
        from scipy import ndimage
    sizes = [1] * values.ndim
    sizes[axis] = size
    found: NDArray[np.float64] = ndimage.median_filter(values, size=tuple(sizes), mode=mode)
    return found
