"""Flat and dark correction, safe logarithm, dead and hot pixels.

Every function treats a detector row (a slice of the volume) by itself, so results have the same bits
however the rows are cut into slabs and however many threads run.

Projections on a device are worked on there, flats, darks and results lie there too, and only numbers for reports come
back. The same values are repaired as on the CPU; results agree to float32 rounding, not to the bit: the device has a
logarithm and an interpolation of its own.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from dtomo.arrays import array_module, empty_aligned, is_array, on_device
from dtomo.errors import UserError
from dtomo.prep import line_kernels, stripe_kernels
from dtomo.threads import run_blocks

REPAIR_RULE = (
    "dead pixels and values that are not finite take the straight line between their nearest good "
    "neighbours in "
    "the detector row; transmissions that are not positive take the smallest positive one of their "
    "detector row"
)
"""What is done to bad values, for reports."""

_KERNEL_DTYPES = frozenset(map(np.dtype, ("u1", "u2", "u4", "i2", "i4", "f4")))
_BLOCK_VALUES = 1 << 19


@dataclasses.dataclass(frozen=True)
class NormalizeReport:
    """What flat correction and logarithm found and repaired; reports of slabs add up with ``+``.

    Parameters
    ----------
    pixels
        Detector pixels seen.
    dead_pixels
        Pixels repaired in every frame: flat not above dark, flat or dark not finite, or given as bad.
    values
        Values seen (pixels times frames).
    not_finite
        Values repaired because they were NaN or infinite (outside dead pixels).
    not_positive
        Values repaired because the logarithm does not exist.
    empty_lines
        Detector rows of single frames without one usable value; set to transmission 1.
    lines_without_air
        Detector rows of single frames whose air columns were not positive; left as they were.
    warnings
        Sentences about frames that look wrong.
    """

    pixels: int = 0
    dead_pixels: int = 0
    values: int = 0
    not_finite: int = 0
    not_positive: int = 0
    empty_lines: int = 0
    lines_without_air: int = 0
    warnings: tuple[str, ...] = ()

    def __add__(self, other: "NormalizeReport") -> "NormalizeReport":
        fields = [field.name for field in dataclasses.fields(self) if field.name != "warnings"]
        counts = {name: getattr(self, name) + getattr(other, name) for name in fields}
        return NormalizeReport(**counts, warnings=tuple(dict.fromkeys(self.warnings + other.warnings)))

    @property
    def repaired(self) -> int:
        """Single values repaired, dead pixels not counted."""
        return self.not_finite + self.not_positive

    def __str__(self) -> str:
        parts = [
            f"{self.dead_pixels} of {self.pixels} pixels are dead",
            f"{self.repaired} of {self.values} values were repaired "
            f"({self.not_positive} not positive, {self.not_finite} not finite)",
        ]
        if self.empty_lines:
            parts.append(f"{self.empty_lines} detector lines had no usable value and were set to transmission 1")
        if self.lines_without_air:
            parts.append(f"{self.lines_without_air} detector lines had no positive air and were not levelled")
        rule = f" ({REPAIR_RULE})" if self.dead_pixels or self.repaired else ""
        return "; ".join(parts) + rule


def _projections(array: NDArray[Any], what: str = "projections") -> NDArray[Any]:
    array = array if is_array(array) else np.asarray(array)
    if array.ndim != 3 or 0 in array.shape:
        raise UserError(
            f"{what} must have the three axes (angle, row, column), none empty, but have the shape {array.shape}"
        )
    if array.dtype.kind not in "buif":
        raise UserError(f"{what} must be real numbers, but their type is {array.dtype}")
    return array


def _native(block: NDArray[Any]) -> NDArray[Any]:
    """Contiguous, native byte order, a dtype that the kernels know."""
    dtype = block.dtype.newbyteorder("=")
    known: NDArray[Any] = array_module(block).ascontiguousarray(block, dtype if dtype in _KERNEL_DTYPES else np.float32)
    return known


def _numbers(values: Any) -> list[Any]:
    """The elements of a small array, on the host: from a device this waits for all work before."""
    return list(values.tolist())


def average_frames(
    frames: NDArray[Any] | None,
    shape: tuple[int, int],
    *,
    average: Literal["mean", "median"] = "mean",
    exclude: Sequence[int] = (),
    what: str = "flats",
    xp: Any = np,
) -> NDArray[np.float32]:
    """One frame from a stack of flats or darks.

    Parameters
    ----------
    frames
        (frame, row, column) of any real dtype and any number of frames, or one frame (row, column). None or
        no frames: zeros for darks, ones for flats.
    shape
        (rows, columns) of the projections, which the frames must match.
    average
        Mean (summed in float64) or median over the frames.
    exclude
        Numbers of frames to leave out.
    what
        "flats" or "darks", for the default and for messages.
    xp
        NumPy or CuPy: where the default is made. Frames are averaged where they lie.

    Returns
    -------
    array
        (row, column), float32.

    Raises
    ------
    UserError
        Frames of another shape, an excluded frame that does not exist, or no frame left.
    """
    if frames is None or (np.ndim(frames) == 3 and len(frames) == 0):
        default: NDArray[np.float32] = xp.full(shape, 1 if what == "flats" else 0, np.float32)
        return default
    stack = frames if is_array(frames) else np.asarray(frames)
    stack = stack[np.newaxis] if stack.ndim == 2 else stack
    if stack.ndim != 3 or stack.shape[1:] != tuple(shape) or stack.dtype.kind not in "buif":
        raise UserError(
            f"the {what} have the shape {np.shape(frames)} and type {stack.dtype}, but the projections need "
            f"(frame, row, column) = (any, {shape[0]}, {shape[1]}) of real numbers; give {what} of the "
            "same detector area"
        )
    if exclude:
        if not all(-len(stack) <= number < len(stack) for number in exclude):
            raise UserError(f"cannot leave out frames {list(exclude)} of the {what}: there are only {len(stack)}")
        left_out = {number % len(stack) for number in exclude}
        if len(left_out) == len(stack):
            raise UserError(f"all frames of the {what} are left out; keep at least one")
        stack = stack[[number for number in range(len(stack)) if number not in left_out]]
    if average == "median":
        middle: NDArray[np.float32] = np.median(stack, axis=0).astype(np.float32)
        return middle
    if average != "mean":
        raise UserError(f"flats and darks can be averaged by mean or median, not by {average!r}")
    if not on_device(stack):
        return np.asarray(np.mean(stack, axis=0, dtype=np.float64), np.float32)
    total = array_module(stack).zeros(shape, np.float64)
    for frame in stack:  # in the order of the CPU, whatever the number of rows
        total += frame
    mean: NDArray[np.float32] = (total / len(stack)).astype(np.float32)
    return mean


def check_frames(
    flats: NDArray[Any] | None, darks: NDArray[Any] | None, exclude_darks: Sequence[int] = ()
) -> tuple[str, ...]:
    """Sentences about darks that are as bright as the flats (a flat stored among the darks, or a shutter left
    open).

    A dark is named when its median lies nearer to the median flat than to the lowest dark, or, with one dark
    or all alike, when it reaches half of the flat.
    """
    if flats is None or darks is None or not np.size(flats) or not np.size(darks):
        return ()
    stack = darks if is_array(darks) else np.asarray(darks)
    stack = stack[np.newaxis] if stack.ndim == 2 else stack
    levels = np.array(_numbers(np.median(stack.reshape(len(stack), -1), axis=1)), np.float64)
    flat = float(np.median(flats))
    bound = max((flat + float(levels.min())) / 2, flat / 2)
    bright = [k for k in range(len(stack)) if levels[k] >= bound and k not in set(exclude_darks)]
    if not bright or not flat > 0:
        return ()
    names = ", ".join(map(str, bright))
    level = np.median(levels[bright])
    return (
        f"dark frame {names} (of {len(stack)}) is as bright as a flat (median {level:g}, flat {flat:g}); "
        f"leave it out by its number if it was stored there by mistake",
    )


def normalize(
    projections: NDArray[Any],
    flats: NDArray[Any] | None = None,
    darks: NDArray[Any] | None = None,
    *,
    minus_log: bool = False,
    average: Literal["mean", "median"] = "mean",
    bad_pixels: NDArray[np.bool_] | None = None,
    air_columns: tuple[int, int] = (0, 0),
    exclude_flats: Sequence[int] = (),
    exclude_darks: Sequence[int] = (),
    out: NDArray[np.float32] | None = None,
) -> tuple[NDArray[np.float32], NormalizeReport]:
    """Counts to transmission ``(projection - dark) / (flat - dark)``, or to attenuation, its negative
    logarithm.

    Pixels whose flat is not above the dark count as dead. They, and values that are not finite, take the
    straight line between their nearest good neighbours in the detector row. With `minus_log`, transmissions
    that are not positive take the smallest positive one of their detector row (they are at least as opaque as
    the most opaque pixel measured). No rule looks at another row, so a bad pixel changes no other slice.

    Peak memory: the float32 result, plus one frame of flat and dark and a few megabytes; on a device also a copy of
    projections that are not contiguous, or of a type other than integers of 8 to 32 bits and float32.

    Parameters
    ----------
    projections
        (angle, row, column), any real dtype, any byte order; not changed (unless given as `out` too).
    flats, darks
        (frame, row, column) or (row, column); None: flat 1, dark 0. All frames are averaged alike, wherever
        in the scan they were taken.
    minus_log
        Return attenuation instead of transmission.
    average
        "mean" or "median" over the frames of flats and of darks.
    bad_pixels
        (row, column), True for pixels to treat as dead too (see `find_bad_pixels`).
    air_columns
        Number of columns at the left and right edge that see no object. Each line is divided by the straight
        line through their means, so that air has transmission 1 whatever the beam did. A zero leaves a side
        out.
    exclude_flats, exclude_darks
        Numbers of frames to leave out of the averages.
    out
        Contiguous float32 array of the projections' shape to write to; may be `projections` itself.

    Returns
    -------
    tuple
        (angle, row, column) float32, and what was repaired.

    Raises
    ------
    UserError
        Shapes that do not fit, or values that are not real numbers.
    TypeError
        Some of the arrays on the host and some on a device.
    """
    projections = _projections(projections)
    xp = array_module(projections, flats, darks, bad_pixels, out)
    _, rows, columns = projections.shape
    dark = average_frames(darks, (rows, columns), average=average, exclude=exclude_darks, what="darks", xp=xp)
    flat = average_frames(flats, (rows, columns), average=average, exclude=exclude_flats, what="flats", xp=xp)
    signal = flat - dark
    dead = ~(np.isfinite(signal) & (signal > 0))
    if bad_pixels is not None:
        if np.shape(bad_pixels) != (rows, columns):
            raise UserError(
                f"the bad pixels have the shape {np.shape(bad_pixels)}, but the projections have {rows} rows "
                f"and {columns} columns"
            )
        dead |= xp.asarray(bad_pixels, bool)
    signal[dead] = np.nan
    left, right = _air_columns(air_columns, columns)
    result = _output(out, projections.shape, xp)
    lines = _device_lines if on_device(projections) else _host_lines
    found = _numbers(lines(projections, dark, signal, dead, left, right, minus_log, result))
    report = NormalizeReport(
        pixels=rows * columns,
        dead_pixels=found[4],
        values=projections.size,
        not_finite=found[0],
        not_positive=found[1],
        empty_lines=found[2],
        lines_without_air=found[3],
        warnings=check_frames(flats, darks, exclude_darks),
    )
    return result, report


def _host_lines(
    projections: Any, dark: Any, signal: Any, dead: Any, left: int, right: int, minus_log: bool, result: Any
) -> NDArray[np.int64]:
    """Numbers of values not finite and not positive, lines without a value and without air, dead pixels."""
    angles, rows, columns = projections.shape

    def block(start: int, stop: int) -> NDArray[np.int64]:
        found = np.zeros(5, np.int64)
        line_kernels.normalize_lines(
            _native(projections[start:stop]), dark, signal, left, right, minus_log, result[start:stop], found
        )
        return found

    found = np.sum(run_blocks(block, angles, max(_BLOCK_VALUES // (rows * columns), 1)), axis=0)
    found[4] = dead.sum()
    return np.asarray(found)


def _device_lines(
    projections: Any, dark: Any, signal: Any, dead: Any, left: int, right: int, minus_log: bool, result: Any
) -> Any:
    """As `_host_lines`, on a device, and there the numbers stay."""
    from dtomo.kernels.cuda import lines

    dark, signal = _native(dark), _native(signal)  # CuPy's may have another order in memory
    found = lines.normalize_lines(_native(projections), dark, signal, left, right, minus_log, result)
    dead_pixels = dead.sum().reshape(1)
    found[0] -= dead_pixels[0] * len(projections)  # they are not finite in any frame
    return np.concatenate([found, dead_pixels])


def minus_log(
    transmission: NDArray[Any], *, out: NDArray[np.float32] | None = None
) -> tuple[NDArray[np.float32], NormalizeReport]:
    """Attenuation, -ln of the transmission, with the repairs of `normalize`.

    Parameters
    ----------
    transmission
        (angle, row, column), any real dtype.
    out
        Contiguous float32 array to write to; may be `transmission` itself.

    Returns
    -------
    tuple
        (angle, row, column) float32, and what was repaired.
    """
    return normalize(transmission, minus_log=True, out=out)


def _air_columns(air_columns: tuple[int, int], columns: int) -> tuple[int, int]:
    left, right = (int(count) for count in air_columns)
    if left < 0 or right < 0 or left + right > columns:
        raise UserError(f"air columns {left} and {right} do not fit a detector of {columns} columns")
    return left, right


def _output(out: NDArray[np.float32] | None, shape: tuple[int, ...], xp: Any = np) -> NDArray[np.float32]:
    if out is None:
        return empty_aligned(shape, xp=xp)
    if out.shape != shape or out.dtype != np.float32 or not out.flags.c_contiguous:
        raise UserError(f"the output must be a contiguous float32 array of shape {shape}, not {out.dtype} {out.shape}")
    return out


def find_bad_pixels(
    flats: NDArray[Any] | None,
    darks: NDArray[Any] | None = None,
    *,
    tolerance: float = 0.5,
    window: int = 21,
) -> NDArray[np.bool_]:
    """Dead and hot pixels, seen from flats and darks alone.

    Each pixel's response (flat - dark) is compared with the median response of its neighbours in the detector
    row, and its dark likewise. Dead: response not finite, not positive, or further than `tolerance` from the
    median, relative to it. Hot: dark above the neighbours' by more than `tolerance` of their response.

    Parameters
    ----------
    flats, darks
        (frame, row, column) or (row, column); at least one of them.
    tolerance
        Relative deviation, 0 to 1.
    window
        Neighbours taken, in columns.

    Returns
    -------
    array
        (row, column), True where bad; to be passed to `normalize`.
    """
    given = flats if flats is not None else darks
    if given is None:
        raise UserError("bad pixels are found from flats or darks, but neither is given")
    if not 0 < tolerance <= 1 or window < 3:
        raise UserError(f"bad pixels need a tolerance in 0 to 1 and a window of at least 3, not {tolerance}, {window}")
    shape = (int(np.shape(given)[-2]), int(np.shape(given)[-1])) if np.ndim(given) >= 2 else (0, 0)
    xp = array_module(flats, darks)
    dark = average_frames(darks, shape, what="darks", xp=xp)
    if flats is None:
        level = _row_median(dark, window)
        spread = _row_median(np.abs(dark - level), window)
        return ~np.isfinite(dark) | (np.abs(dark - level) > 10 * np.maximum(spread, 1) + tolerance * np.abs(level))
    response = average_frames(flats, shape, what="flats", xp=xp) - dark
    level = _row_median(response, window)
    bad = ~np.isfinite(response) | (response <= 0) | (np.abs(response - level) > tolerance * np.abs(level))
    return bad | (dark - _row_median(dark, window) > tolerance * np.abs(level))


def _row_median(frame: NDArray[np.float32], window: int) -> NDArray[np.float32]:
    """Running median along the rows of a frame (row, column); values that are not finite count as 0."""
    finite = np.where(np.isfinite(frame), frame, 0).astype(np.float32)
    if on_device(frame):
        from dtomo.kernels.cuda import stripes

        return stripes.running_median(finite[:, :, np.newaxis], window | 1)[:, :, 0]
    return np.asarray(stripe_kernels.running_median(np.ascontiguousarray(finite.T), window | 1).T)
