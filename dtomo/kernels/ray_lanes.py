"""Vector code of rays whose heights are evenly apart: lines of voxels to a line of pixels, and the transpose of it.

What 16 neighbouring pixels read lies within 32 voxels, which are two vector registers: values are taken out of them by
a permutation, as in `voxel_lanes`. Backward, 16 neighbouring voxels ask for the pixels within one voxel of them.
"""

from typing import Any

from numba.core import types
from numba.extending import intrinsic

from dtomo.kernels.vectors import F32, I32, I64, VECTOR, Emitter, array_data, vector
from dtomo.kernels.voxel_lanes import FRACTION, chosen

CLOSEST = 0.56
"""Voxels from one pixel to the next, at least: the pixels that 16 voxels ask for lie within 32."""

FINER = 40
"""Bits behind the point of the place of a voxel among the pixels."""


@intrinsic
def read_lines(
    typingctx: Any, target: Any, target_at: Any, source: Any, apart: Any, places: Any, weights: Any, planes: Any,
    vectors: Any,
) -> Any:  # fmt: skip
    """Add what the rays of a column meet on some planes to their ``VECTOR * vectors`` pixels.

    On plane k the line is ``L[i] = weights[k, 0] * source[places[k, 0] + i] + weights[k, 1] * source[places[k, 0] +
    apart + i]``, and ray r reads it, linearly interpolated, at ``places[k, 1] + r * places[k, 2]``, both whole numbers
    of 2^-24 voxels, at most `STEEPEST` voxels from one ray to the next. Planes are added in their order.
    """
    sig = types.void(target, types.intp, source, types.intp, places, weights, types.intp, types.intp)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        e, b = Emitter(builder), builder
        to = e.at(array_data(context, b, sig, args, 0), args[1])
        source, places, weights = (array_data(context, b, sig, args, i) for i in (2, 4, 5))
        pairs = b.ashr(args[7], I64(1))
        _read(context, e, to, source, args[3], places, weights, args[6], I64(0), pairs, 2)
        odd = b.and_(args[7], I64(1))
        _read(context, e, to, source, args[3], places, weights, args[6], b.shl(pairs, I64(1)), odd, 1)
        return context.get_dummy_value()

    return sig, codegen


def _read(
    context: Any, e: Emitter, to: Any, source: Any, apart: Any, places: Any, weights: Any, planes: Any, before: Any,
    count: Any, together: int,
) -> None:  # fmt: skip
    """`read_lines` of `count` times so many vectors of pixels together, after `before` vectors."""
    b = e.builder
    mask, fraction = e.constant(I32, (1 << FRACTION) - 1), e.constant(F32, 2.0**-FRACTION)
    entry, outer = b.block, b.function.append_basic_block("pixels.loop")
    inner, done = b.function.append_basic_block("planes.loop"), b.function.append_basic_block("planes.end")
    end = b.function.append_basic_block("pixels.end")
    some = b.and_(b.icmp_signed(">", count, I64(0)), b.icmp_signed(">", planes, I64(0)))
    b.cbranch(some, outer, end)

    b.position_at_end(outer)
    number = b.phi(I64)
    number.add_incoming(I64(0), entry)
    first = b.mul(b.add(before, b.mul(number, I64(together))), I64(VECTOR))
    targets = [e.at(to, b.add(first, I64(n * VECTOR))) for n in range(together)]
    start = [e.load(target) for target in targets]
    b.branch(inner)

    b.position_at_end(inner)
    plane, sums = b.phi(I64), [b.phi(vector(F32)) for _ in targets]
    plane.add_incoming(I64(0), outer)
    line, place, step = (b.load(e.at(places, b.add(b.mul(plane, I64(3)), I64(n)))) for n in range(3))
    near, far = (e.broadcast(b.load(e.at(weights, b.add(b.mul(plane, I64(2)), I64(n))))) for n in range(2))
    lanes = b.mul(e.broadcast(b.trunc(step, I32)), e.counting(I32))
    back = b.mul(step, I64(VECTOR - 1))
    back = b.select(b.icmp_signed("<", back, I64(0)), back, I64(0))
    new = []
    for n, total in enumerate(sums):
        begin = b.add(place, b.mul(step, b.add(first, I64(n * VECTOR))))
        base = b.ashr(b.add(begin, back), I64(FRACTION))
        one = e.at(source, b.add(line, base))
        two = e.at(one, apart)
        halves = []
        for half in range(2):
            value = b.fmul(e.load(e.at(one, half * VECTOR)), near)
            halves.append(e.fma(e.load(e.at(two, half * VECTOR)), far, value))
        at = b.add(e.broadcast(b.trunc(b.sub(begin, b.shl(base, I64(FRACTION))), I32)), lanes)
        numbers = b.ashr(at, e.constant(I32, FRACTION))
        part = b.fmul(b.sitofp(b.and_(at, mask), vector(F32)), fraction)
        low = chosen(context, e, halves[0], halves[1], numbers)
        high = chosen(context, e, halves[0], halves[1], b.add(numbers, e.constant(I32, 1)))
        new.append(b.fadd(total, e.fma(part, b.fsub(high, low), low)))
    following = b.add(plane, I64(1))
    plane.add_incoming(following, b.block)
    for total, value, given in zip(sums, new, start):
        total.add_incoming(given, outer)
        total.add_incoming(value, b.block)
    b.cbranch(b.icmp_signed("<", following, planes), inner, done)

    b.position_at_end(done)
    for value, target in zip(new, targets):
        e.store(value, target)
    next_number = b.add(number, I64(1))
    number.add_incoming(next_number, b.block)
    b.cbranch(b.icmp_signed("<", next_number, count), outer, end)
    b.position_at_end(end)


def _spreading(pixels: int) -> Any:
    """`spread_line` where so many pixels may fall within one voxel of a voxel, on either side."""

    @intrinsic
    def spread(
        typingctx: Any, target: Any, near_at: Any, far_at: Any, source: Any, source_at: Any, near: Any, far: Any,
        place: Any, step: Any, back: Any, back_step: Any, vectors: Any,
    ) -> Any:  # fmt: skip
        sig = types.void(
            target, types.intp, types.intp, source, types.intp, types.float32, types.float32, types.int64, types.int64,
            types.int64, types.int64, types.intp,
        )  # fmt: skip

        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            e, b = Emitter(builder), builder
            data = array_data(context, b, sig, args, 0)
            lines = [(e.at(data, args[at]), e.broadcast(args[weight])) for at, weight in ((1, 5), (2, 6))]
            source = e.at(array_data(context, b, sig, args, 3), args[4])
            place, step, back, back_step = args[7:11]
            one = e.constant(I32, 1 << FRACTION)
            steps = e.broadcast(b.trunc(step, I32))
            lanes = b.mul(e.counting(I32), one)
            back_lanes = b.mul(e.broadcast(b.trunc(b.ashr(back_step, I64(FINER - FRACTION)), I32)), e.counting(I32))
            entry, loop = b.block, b.function.append_basic_block("spread.loop")
            end = b.function.append_basic_block("spread.end")
            b.cbranch(b.icmp_signed(">", args[11], I64(0)), loop, end)

            b.position_at_end(loop)
            done, where = b.phi(I64), b.phi(I64)
            done.add_incoming(I64(0), entry)
            where.add_incoming(back, entry)
            whole = b.ashr(where, I64(FINER))
            part = b.trunc(b.sub(b.ashr(where, I64(FINER - FRACTION)), b.shl(whole, I64(FRACTION))), I32)
            numbers = b.ashr(b.add(e.broadcast(part), back_lanes), e.constant(I32, FRACTION))
            first = b.add(whole, I64(1))
            low, high = e.load(e.at(source, first)), e.load(e.at(source, b.add(first, I64(VECTOR))))
            voxels = b.mul(done, I64(VECTOR))
            gap = b.sub(b.add(place, b.mul(step, first)), b.shl(voxels, I64(FRACTION)))
            gaps = b.add(b.sub(e.broadcast(b.trunc(gap, I32)), lanes), b.mul(steps, numbers))
            total = None
            for k in range(pixels):
                weight = b.sitofp(e.not_negative(b.sub(one, e.magnitude(gaps))), vector(F32))
                value = chosen(context, e, low, high, numbers)
                total = b.fmul(value, weight) if total is None else e.fma(value, weight, total)
                if k + 1 < pixels:
                    gaps, numbers = b.add(gaps, steps), b.add(numbers, e.constant(I32, 1))
            for line, weight in lines:
                destination = e.at(line, voxels)
                e.store(e.fma(total, weight, e.load(destination)), destination)
            following = b.add(done, I64(1))
            done.add_incoming(following, b.block)
            where.add_incoming(b.add(where, b.mul(back_step, I64(VECTOR))), b.block)
            b.cbranch(b.icmp_signed("<", following, args[11]), loop, end)

            b.position_at_end(end)
            return context.get_dummy_value()

        return sig, codegen

    return spread


SPREAD = {pixels: _spreading(pixels) for pixels in (1, 2, 3, 4)}
"""``spread(target, near_at, far_at, source, source_at, near, far, place, step, back, back_step, vectors)``.

Pixel i is at ``place + i * step``, both whole numbers of 2^-24 voxels, step positive; voxel z of ``VECTOR * vectors``
takes ``S[z] = sum of source[source_at + i] * (1 - |z - place of i|)`` over the pixels within one voxel of it, and
``target[near_at + z] += near * S[z]``, ``target[far_at + z] += far * S[z]``; near and far are to be divided by 2^24.
The place of voxel z - 1 among the pixels is ``back + z * back_step``, whole numbers of 2^-40 pixels: what it misses by
less than 2^-20 of a pixel weighs as little.
"""
