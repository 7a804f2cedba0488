"""Pixels that hold no counts, found from the frames: gaps, NaN, constant ones; and saturation.

What lies under the mask of the file is never looked at. Up to `MOST_BYTES` of frames are read, of larger scans evenly
spaced ones; `ArrangedFrames` refuses what the rest of them may hold.
"""

import dataclasses
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtomo.errors import UserError
from dtomo.io.ptycho.arranged import GAP
from dtomo.io.sources import Source

MOST_BYTES = 2**28
"""Of frames looked at."""
TOGETHER = 2**24
"""Bytes read at once."""
FEW = 8
"""With fewer frames, that a pixel never changes says nothing."""
CONSTANT = 100
"""Counts from which on a pixel that never changes must be stuck: noise would change it."""
SATURATED = 255
"""Counts from which on there can be saturation."""
PILED = 10
"""Pixels at the largest count from which on it is saturation, if fewer than a third as many are just below."""


@dataclasses.dataclass(frozen=True, eq=False)
class Look:
    """What was seen in some frames, as stored.

    Attributes
    ----------
    bad
        Pixels ``(row, column)`` that hold no counts.
    saturation
        Counts at which the detector stopped counting; None: it was not seen.
    mean
        Mean of the frames looked at, 0 where they are bad or masked.
    notes
        Sentences for the user.
    """

    bad: NDArray[np.bool_]
    saturation: float | None
    mean: NDArray[np.float64]
    notes: tuple[str, ...] = ()

    @staticmethod
    def nothing(shape: tuple[int, ...]) -> "Look":
        """As if no frame of this shape had been looked at; takes no memory."""
        return Look(np.broadcast_to(np.zeros((), bool), shape[1:]), None, np.broadcast_to(np.zeros(()), shape[1:]))


@dataclasses.dataclass
class _Seen:
    """What is kept of the frames while they pass."""

    bad: NDArray[np.bool_]
    constant: NDArray[np.bool_]
    first: NDArray[Any]
    total: NDArray[np.float64]
    below_zero: int = 0
    frames: int = 0


def frames_to_look_at(frames: Source) -> NDArray[np.int64]:
    """Numbers of evenly spaced frames, all of them where they are few."""
    count, rows, columns = frames.shape
    most = max(1, min(count, MOST_BYTES // (rows * columns * frames.dtype.itemsize)))
    return np.linspace(0, count - 1, most).round().astype(np.int64)


def look_at(frames: Source, mask: NDArray[np.bool_] | None = None) -> Look:
    """Find pixels that hold no counts.

    Parameters
    ----------
    frames
        As stored ``(frame, row, column)``.
    mask
        Good pixels as the file says ``(row, column)``; the others are not looked at.
    """
    good = np.ones(frames.shape[1:], bool) if mask is None else mask
    numbers = frames_to_look_at(frames)
    together = max(1, TOGETHER // (good.size * frames.dtype.itemsize))
    seen: _Seen | None = None
    tops: list[tuple[float, int, int]] = []
    for start in range(0, len(numbers), together):
        block = frames.read(numbers[start : start + together])
        if seen is None:
            nothing = np.zeros(good.shape)
            seen = _Seen(np.zeros(good.shape, bool), good.copy(), block[0].copy(), nothing)
        tops.append(_pass(seen, block, good))
    assert seen is not None
    stuck = _stuck(seen, good)
    bad = seen.bad | stuck
    usable = good & ~bad
    if stuck.any():  # they may have hidden what is the most of the others
        tops = []
        for start in range(0, len(numbers), together):
            block = frames.read(numbers[start : start + together])
            tops.append(_top(block, block.max(0), usable))
    saturation = _saturation(tops)
    mean = np.where(usable, seen.total / seen.frames, 0)
    return Look(bad, saturation, mean, _notes(frames, seen, stuck, saturation, len(numbers)))


def without_bad(frames: Source, mask: NDArray[np.bool_] | None, look: Look) -> NDArray[np.bool_] | None:
    """Good pixels ``(row, column)`` without those that were seen to hold no counts; None: all are good.

    Parameters
    ----------
    frames, mask
        As of `look_at`.
    look
        What it found.

    Raises
    ------
    UserError
        None is left, because a frame, or all of them, hold no counts.
    """
    if not look.bad.any():
        return mask
    good = ~look.bad if mask is None else mask & ~look.bad
    if good.any() or (mask is not None and not mask.any()):
        return good
    for number in frames_to_look_at(frames):
        image = frames.read(slice(number, number + 1))[0][slice(None) if mask is None else mask]
        if not ((image < GAP[image.dtype.kind]) & (image >= 0)).any():
            raise UserError(
                f"{frames.location}: frame {number} (from 0) holds no counts (NaN, infinity, below 0 or the mark of a "
                "gap); leave it out, or write it anew"
            )
    raise UserError(f"{frames.location}: no pixel holds counts in all frames (NaN, infinity, below 0 or marks of gaps)")


def _pass(seen: _Seen, block: NDArray[Any], good: NDArray[np.bool_]) -> tuple[float, int, int]:
    """Add what a block of frames shows; what `_top` says of it."""
    least, most = block.min(0), block.max(0)  # NaN goes through
    gaps = ~(most < GAP[block.dtype.kind])
    if block.dtype.kind == "f":
        gaps |= np.isneginf(least)
    seen.bad |= gaps & good
    seen.constant &= (least == most) & (most == seen.first)
    seen.frames += len(block)
    below = (least < 0) & good & ~gaps
    if below.any():
        negative = block[:, below] < 0
        seen.below_zero += int(negative[:, ~seen.constant[below]].sum())
        seen.total[below] += np.where(negative, 0, block[:, below]).sum(0, dtype=np.float64)
    with np.errstate(invalid="ignore"):
        total = block.sum(0, dtype=np.float64)
    seen.total += np.where(good & ~gaps & ~below, total, 0)
    return _top(block, most, good & ~seen.bad)


def _stuck(seen: _Seen, good: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Pixels that never change and cannot be meant: below zero, at the end of the numbers, or bright without noise."""
    with np.errstate(invalid="ignore"):
        out = seen.constant & (seen.first < 0)
        above = seen.constant & (seen.first >= CONSTANT)
    if seen.first.dtype.kind != "f":
        out |= seen.constant & (seen.first == np.iinfo(seen.first.dtype).max)
    if seen.frames < FEW or above.sum() > 0.05 * good.sum():  # as in frames without noise and without an object
        above[:] = False
    return (out | above) & good & ~seen.bad


def _top(block: NDArray[Any], most: NDArray[Any], usable: NDArray[np.bool_]) -> tuple[float, int, int]:
    """The largest count, how many pixels have it, and how many have at least 0.9 of it but less."""
    if not usable.any():
        return 0.0, 0, 0
    largest = float(most[usable].max())
    values = block[:, usable & (most >= 0.9 * largest)]
    at = int((values == largest).sum())
    return largest, at, int((values >= 0.9 * largest).sum()) - at


def _saturation(tops: list[tuple[float, int, int]]) -> float | None:
    most = max(top for top, _, _ in tops)
    at = sum(number for top, number, _ in tops if top == most)
    below = sum(number for top, _, number in tops if top == most)
    whole = most >= SATURATED and most == round(most)
    return most if whole and at >= PILED and at > 3 * below else None


def _notes(
    frames: Source, seen: _Seen, stuck: NDArray[np.bool_], saturation: float | None, looked: int
) -> tuple[str, ...]:
    of = "" if looked == frames.shape[0] else f" of {looked} frames looked at"
    notes = []
    if seen.bad.any():
        notes.append(
            f"{int(seen.bad.sum())} pixels of {frames.location} hold no counts (NaN, infinity or the mark of a "
            f"gap){of}: they are masked"
        )
    if stuck.any():
        notes.append(
            f"{int(stuck.sum())} pixels of {frames.location} never change{of} and are below 0 or bright: they are "
            "masked"
        )
    if seen.below_zero:
        notes.append(f"{seen.below_zero} counts of {frames.location} are below 0{of}: they are taken as 0")
    if saturation is not None:
        notes.append(
            f"many pixels of {frames.location} have exactly {saturation:g} counts{of}, the most of all: taken as "
            "saturated there; say otherwise with saturation=... (--saturation)"
        )
    return tuple(notes)
