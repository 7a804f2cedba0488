"""Thin borders of neighbouring slabs: which slices a slab needs of which others, and a slab with them put on."""

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from dtomo.distributed.slabs import Slab
from dtomo.errors import UserError

Boundary = Literal["cut", "edge", "zero", "reflect"]
"""Beyond the first and last slice of the volume: nothing, that slice again, zeros, or the slices mirrored at it."""


@dataclasses.dataclass(frozen=True)
class Piece:
    """Slices ``start:stop``, counted from the first of the slab number `slab`."""

    slab: int
    start: int
    stop: int


@dataclasses.dataclass(frozen=True)
class HaloPlan:
    """What goes before and behind a slab.

    Attributes
    ----------
    pieces
        What is needed of other slabs (and, near the ends of the volume, of the slab itself).
    before, after
        The slices to put on, in order: (number of the piece, slice within it), or None for zeros.
    """

    pieces: tuple[Piece, ...]
    before: tuple[tuple[int, int] | None, ...]
    after: tuple[tuple[int, int] | None, ...]


def plan_halo(slabs: Sequence[Slab], depth: int, boundary: Boundary) -> list[HaloPlan]:
    """For each slab the slices that lie up to `depth` before and behind it, and where they are.

    Parameters
    ----------
    slabs
        All slabs of a volume in order; they may be thinner than `depth`.
    depth
        Slices on each side.
    boundary
        What lies beyond the ends. "edge" and "reflect" are those of `numpy.pad`, with which "reflect" goes on to
        and fro where the volume is thinner than `depth`; with "cut" the slabs at the ends get less.

    Raises
    ------
    UserError
        A depth below 0 or an unknown boundary.
    """
    if depth < 0 or boundary not in get_args(Boundary):
        raise UserError(
            f"a halo has a depth from 0 and one of the boundaries {', '.join(get_args(Boundary))}; "
            f"got {depth} and {boundary!r}"
        )
    first, total = slabs[0].start, slabs[-1].stop - slabs[0].start
    ends = np.array([slab.stop - first for slab in slabs])
    return [
        _plan_one(
            slabs,
            ends,
            _source_slices(range(slab.start - first - depth, slab.start - first), total, boundary),
            _source_slices(range(slab.stop - first, slab.stop - first + depth), total, boundary),
        )
        for slab in slabs
    ]


def _source_slices(wanted: range, total: int, boundary: Boundary) -> list[int | None]:
    """The slices of the volume that stand for `wanted`, which may lie beyond its ends."""
    found: list[int | None] = []
    for index in wanted:
        if 0 <= index < total:
            found.append(index)
        elif boundary == "zero":
            found.append(None)
        elif boundary == "edge":
            found.append(min(max(index, 0), total - 1))
        elif boundary == "reflect":
            period = max(1, 2 * (total - 1))
            folded = index % period
            found.append(min(folded, period - folded) if total > 1 else 0)
    return found


def _plan_one(slabs: Sequence[Slab], ends: NDArray[Any], before: list[int | None], after: list[int | None]) -> HaloPlan:
    needed: dict[int, set[int]] = {}
    owners = [[None if z is None else _owner(slabs, ends, z) for z in side] for side in (before, after)]
    for owner in (*owners[0], *owners[1]):
        if owner is not None:
            needed.setdefault(owner[0], set()).add(owner[1])
    pieces = [Piece(slab, start, stop) for slab in sorted(needed) for start, stop in _runs(needed[slab])]
    sides = [tuple(None if owner is None else _in_pieces(pieces, *owner) for owner in side) for side in owners]
    return HaloPlan(tuple(pieces), sides[0], sides[1])


def _owner(slabs: Sequence[Slab], ends: NDArray[Any], z: int) -> tuple[int, int]:
    """The slab that slice `z` (from the first slice of the volume) lies in, and its place there."""
    index = int(np.searchsorted(ends, z, side="right"))
    return index, z + slabs[0].start - slabs[index].start


def _runs(slices: set[int]) -> list[tuple[int, int]]:
    """Consecutive slices as (start, stop): of a volume mirrored at both ends a slab's two borders may be needed."""
    runs: list[tuple[int, int]] = []
    for z in sorted(slices):
        if runs and runs[-1][1] == z:
            runs[-1] = runs[-1][0], z + 1
        else:
            runs.append((z, z + 1))
    return runs


def _in_pieces(pieces: Sequence[Piece], slab: int, z: int) -> tuple[int, int]:
    for number, piece in enumerate(pieces):
        if piece.slab == slab and piece.start <= z < piece.stop:
            return number, z - piece.start
    raise AssertionError("every slice that is needed lies in a piece")


def cut_piece(part: NDArray[Any], piece: Piece, axis: int) -> NDArray[Any]:
    """The slices of a piece, copied: what travels is this, not the slab."""
    return part[_along(axis, slice(piece.start, piece.stop))].copy(order="K")


def put_on(part: NDArray[Any], plan: HaloPlan, borders: Sequence[NDArray[Any]], axis: int) -> NDArray[Any]:
    """A slab with its borders before and behind it, as a new array in the same memory layout.

    Parameters
    ----------
    part
        The slab.
    plan, borders
        Its plan, and an array for each of the plan's pieces.
    axis
        Along which the volume is cut.
    """
    before, inside = len(plan.before), part.shape[axis]
    shape = list(part.shape)
    shape[axis] = before + inside + len(plan.after)
    whole = np.empty_like(part, shape=tuple(shape))
    whole[_along(axis, slice(before, before + inside))] = part
    places = (*range(before), *range(before + inside, shape[axis]))
    for place, source in zip(places, (*plan.before, *plan.after), strict=True):
        at = _along(axis, slice(place, place + 1))
        if source is None:
            whole[at] = 0
        else:
            number, z = source
            whole[at] = borders[number][_along(axis, slice(z, z + 1))]
    return whole


def _along(axis: int, part: slice) -> tuple[slice, ...]:
    return (*(slice(None),) * axis, part)
