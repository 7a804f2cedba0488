"""Interpolation weights in whole numbers, shared by every projector kernel.

A ray of column d at one angle crosses row m (along its main axis) at ``p = a d + b m + c`` on the other axis, and
takes from the two samples around p what linear interpolation gives, times the length of its path between rows
(P. M. Joseph, IEEE Trans. Med. Imaging 1, 192-196, 1982). The coefficients are rounded once to multiples of 2^-24
(an error of at most 3e-5 sample on a slice of 1024); from there on positions are exact integers. So projector and
back-projector use the same numbers to the last bit, and a slice does not depend on how it is computed.

A *pair* is one interpolation: the place of its first sample and two weights. Pairs are made 16 at a time.
"""

from typing import Any, NamedTuple

import numpy as np
from numba.core import types
from numba.extending import intrinsic
from numpy.typing import NDArray

from dtomo.kernels.vectors import F32, I32, VECTOR, Emitter, array_data, vector

FRACTION = 24
"""Bits behind the point."""

ONE = 1 << FRACTION

BLOCK = 4 * VECTOR
"""Angles in one block at most: neighbours that share a main axis."""

SPREAD = 96
"""Samples by which the rays of one block may drift apart at the border of a slice."""


class Rays(NamedTuple):
    """Where rays cross: ``a (d - columns // 2) + b (m - rows // 2) + c + t (sample - samples // 2) = 0``.

    One entry for each angle, sorted by main axis (0: rows are y, samples x; 1: the other way round), then by
    direction and slope; then one vector of padding. `a`, `b`, `c`, `t` in units of 2^-24 samples (Joseph) or columns
    (interpolation).
    """

    number: NDArray[np.int64]  # which angle of the caller's
    axis: NDArray[np.int64]
    a: NDArray[np.int64]
    b: NDArray[np.int64]
    c: NDArray[np.int64]
    t: NDArray[np.int64]
    scale: NDArray[np.float32]  # weight of a sample met exactly, times 2^-24
    blocks: NDArray[np.int64]  # borders of blocks of neighbouring rays with one main axis
    vectors: NDArray[np.int64]  # the same with at most `VECTOR` rays
    pairs: int  # pairs of columns that can touch one voxel at one angle
    pitch: float


def rays(radians: NDArray[np.float64], center: float, columns: int, width: int, height: int, pitch: float) -> Rays:
    """Joseph's projector for these angles (see `ParallelBeam` for the convention)."""
    cosine, sine = np.cos(radians), np.sin(radians)
    axis = (np.abs(cosine) < np.abs(sine)).astype(np.int64)
    main, other = np.where(axis == 0, cosine, sine), np.where(axis == 0, sine, cosine)
    across, along = np.where(axis == 0, width, height), np.where(axis == 0, height, width)
    slope = other / main
    a, b = pitch / main, -slope
    c = (across - 1) / 2 - across // 2 - slope * (along // 2 - (along - 1) / 2) + (columns // 2 - center) * a
    order, lever = np.lexsort((b, main < 0, axis)), max(abs(center), abs(columns - center))

    def borders(limit: int) -> NDArray[np.int64]:
        found = [0]
        for i in range(1, len(order)):
            one, two = order[found[-1]], order[i]
            drift = abs(b[two] - b[one]) * along[one] / 2 + abs(a[two] - a[one]) * lever
            if axis[two] != axis[one] or i - found[-1] >= limit or drift > SPREAD:
                found.append(i)
        return np.array([*found, len(order)], np.int64)

    return Rays(
        number=_table(order, np.int64),
        axis=_table(axis[order], np.int64),
        a=_table(np.rint(a[order] * ONE), np.int64),
        b=_table(np.rint(b[order] * ONE), np.int64),
        c=_table(np.rint(c[order] * ONE), np.int64),
        t=_table(np.full(len(order), -ONE), np.int64),
        scale=_table(np.abs(1 / main[order]) / ONE, np.float32),
        blocks=borders(BLOCK),
        vectors=borders(VECTOR),
        pairs=max(1, int(np.ceil(1 / pitch - 1e-9))),
        pitch=pitch,
    )


def interpolation(joseph: Rays) -> Rays:
    """The same rays for a back projection that interpolates linearly between columns (not the adjoint of Joseph's)."""
    a = joseph.a.astype(np.float64)
    whole = [np.rint(values / a * ONE).astype(np.int64) for values in (joseph.a, joseph.b, joseph.c, joseph.t)]
    return joseph._replace(
        a=whole[0], b=whole[1], c=whole[2], t=whole[3], scale=np.full_like(joseph.scale, 1 / ONE), pairs=1
    )


def _table(values: NDArray[Any], dtype: Any) -> NDArray[Any]:
    """With one vector of padding, so that a vector may be read anywhere."""
    return np.concatenate([values.astype(dtype), np.ones(VECTOR, dtype)])


@intrinsic
def ray_pairs(
    typingctx: Any, position: Any, slope: Any, scale: Any, places: Any, row: Any, count: Any, at: Any, offsets: Any,
    near: Any, far: Any,
) -> Any:  # fmt: skip
    """Scratch from entry `at` on for one ray in `count` rows of a packed strip, from its row number `row` on.

    `position` is where the ray crosses the first of these rows, `slope` what each further row adds (both modulo 256
    samples). ``offset = places[row] + whole part``; first weight ``scale (1 - fraction)``, second ``scale fraction``.
    Writes whole vectors: all arrays must be longer than the strip by one vector.
    """
    sig = types.void(
        types.int32, types.int32, types.float32, places, types.intp, types.intp, types.intp, offsets, near, far
    )  # fmt: skip

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        e, b = Emitter(builder), builder
        places, *scratch = (array_data(context, builder, sig, args, i) for i in (3, 7, 8, 9))
        scratch = [e.at(pointer, args[6]) for pointer in scratch]
        slope, scale = e.broadcast(args[1]), e.broadcast(args[2])
        first = b.add(e.broadcast(args[0]), b.mul(slope, e.counting(I32)))
        with e.vectors_of(args[5]) as done:
            p = b.add(first, b.mul(slope, e.broadcast(b.trunc(done, I32))))
            fraction = b.and_(p, e.constant(I32, ONE - 1))
            place = b.add(e.load(e.at(places, b.add(args[4], done))), b.lshr(p, e.constant(I32, FRACTION)))
            rest = b.sub(e.constant(I32, ONE), fraction)
            e.store(place, e.at(scratch[0], done))
            e.store(b.fmul(b.sitofp(rest, vector(F32)), scale), e.at(scratch[1], done))
            e.store(b.fmul(b.sitofp(fraction, vector(F32)), scale), e.at(scratch[2], done))
        return context.get_dummy_value()

    return sig, codegen


class ColumnTables(NamedTuple):
    """What `column_pairs` reads of each angle of a vector, for one tile of voxels."""

    column: NDArray[np.float32]  # the tile's first voxel in packed columns, and what a row and a sample add
    column_row: NDArray[np.float32]
    column_sample: NDArray[np.float32]
    gap: NDArray[np.int32]  # from the tile's first voxel to the ray of packed column 0; what row, sample, column add
    gap_row: NDArray[np.int32]
    gap_sample: NDArray[np.int32]
    gap_column: NDArray[np.int32]
    place: NDArray[np.int32]  # of packed column 0
    scale: NDArray[np.float32]

    @classmethod
    def empty(cls) -> "ColumnTables":
        """Room for one vector."""
        floats, wholes = np.zeros((4, VECTOR), np.float32), np.zeros((5, VECTOR), np.int32)
        return cls(*floats[:3], *wholes, floats[3])  # type: ignore[call-arg]


@intrinsic
def column_pairs(
    typingctx: Any, row: Any, sample: Any, shift: Any, tables: Any, at: Any, offsets: Any, near: Any, far: Any
) -> Any:
    """Scratch from entry `at` on for one voxel of a tile at one vector of angles.

    The nearest column before the voxel, plus `shift`, and the next one: ``offset = place + column``, weights
    ``scale max(0, 1 - |gap|)``. Writes a whole vector.
    """
    sig = types.void(types.int32, types.int32, types.int32, tables, types.intp, offsets, near, far)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        e, b = Emitter(builder), builder
        column, column_row, column_sample, gap, gap_row, gap_sample, gap_column, place, scale = (
            e.load(context.make_array(kind)(context, builder, builder.extract_value(args[3], i)).data)
            for i, kind in enumerate(sig.args[3])
        )
        scratch = [e.at(array_data(context, builder, sig, args, i), args[4]) for i in (5, 6, 7)]
        row, sample, shift = (e.broadcast(args[i]) for i in (0, 1, 2))
        line = e.fma(column_row, b.sitofp(row, vector(F32)), column)
        nearest = e.floor(e.fma(column_sample, b.sitofp(sample, vector(F32)), line))
        index = b.add(b.fptosi(nearest, vector(I32)), shift)
        gap = b.add(b.add(gap, b.mul(gap_row, row)), b.add(b.mul(gap_sample, sample), b.mul(gap_column, index)))

        def hat(gap: Any) -> Any:
            rest = b.sub(e.constant(I32, ONE), e.magnitude(gap))
            return b.fmul(b.sitofp(e.not_negative(rest), vector(F32)), scale)

        e.store(b.add(place, index), scratch[0])
        e.store(hat(gap), scratch[1])
        e.store(hat(b.add(gap, gap_column)), scratch[2])
        return context.get_dummy_value()

    return sig, codegen
