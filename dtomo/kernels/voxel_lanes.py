"""Vector code of the voxel-driven back projection: a line of pixels, interpolated at places evenly apart.

The places of 16 neighbouring voxels lie within 32 pixels, which are two vector registers: values are taken out of them
by a permutation (where the processor has AVX-512), not by 32 loads.
"""

from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from dtomo.kernels.vectors import F32, I32, I64, VECTOR, Emitter, array_data, vector

FRACTION = 24
"""Bits of a place behind the point."""

WINDOW = 2 * VECTOR
"""Pixels that the places of `VECTOR` voxels lie within, with the pixel behind the last."""

STEEPEST = (WINDOW - 2) / (VECTOR - 1) - 0.01
"""Most pixels from one voxel to the next."""


def chosen(context: Any, e: Emitter, low: Any, high: Any, numbers: Any) -> Any:
    """Element ``numbers[lane]`` of the 32 in `low` and `high`."""
    if "+avx512f" in context.codegen().magic_tuple()[2]:
        return e.call(f"llvm.x86.avx512.vpermi2var.ps.{32 * VECTOR}", low.type, low, numbers, high)
    return _chosen_one_by_one(context, e, low, high, numbers)


def _chosen_one_by_one(context: Any, e: Emitter, low: Any, high: Any, numbers: Any) -> Any:
    """The same, without a permutation."""
    b = e.builder
    place = cgutils.alloca_once(b, ir.ArrayType(F32, WINDOW))
    first = b.bitcast(place, F32.as_pointer())
    e.store(low, first)
    e.store(high, e.at(first, VECTOR))
    found = ir.Constant(vector(F32), ir.Undefined)
    for lane in range(VECTOR):
        number = b.zext(b.extract_element(numbers, I32(lane)), I64)
        found = b.insert_element(found, b.load(e.at(first, number)), I32(lane))
    return found


@intrinsic
def add_line(
    typingctx: Any, target: Any, target_at: Any, source: Any, near_at: Any, far_at: Any, near: Any, far: Any,
    place: Any, step: Any, vectors: Any,
) -> Any:  # fmt: skip
    """Add a line of pixels, at places that are evenly apart, to neighbouring voxels.

    The line is ``L[i] = near * source[near_at + i] + far * source[far_at + i]``; voxel z of ``VECTOR * vectors`` gets
    ``target[target_at + z] += L[i] + f * (L[i + 1] - L[i])`` with i + f = ``place + z * step``, both whole numbers of
    2^-24 pixels, at most `STEEPEST` pixels from one to the next. Pixels up to 32 beyond the first and last place are
    read.
    """
    sig = types.void(
        target, types.intp, source, types.intp, types.intp, types.float32, types.float32, types.int64, types.int64,
        types.intp,
    )  # fmt: skip

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        e, b = Emitter(builder), builder
        to = e.at(array_data(context, b, sig, args, 0), args[1])
        data = array_data(context, b, sig, args, 2)
        lines = [(e.at(data, args[at]), e.broadcast(args[weight])) for at, weight in ((3, 5), (4, 6))]
        place, step = args[7], args[8]
        lanes = b.mul(e.broadcast(b.trunc(step, I32)), e.counting(I32))
        back = b.mul(step, I64(VECTOR - 1))
        back = b.select(b.icmp_signed("<", back, I64(0)), back, I64(0))
        ahead = b.mul(step, I64(VECTOR))
        mask, fraction = e.constant(I32, (1 << FRACTION) - 1), e.constant(F32, 2.0**-FRACTION)
        first = b.add(place, back)
        entry, loop = b.block, b.function.append_basic_block("line.loop")
        end = b.function.append_basic_block("line.end")
        b.cbranch(b.icmp_signed(">", args[9], I64(0)), loop, end)

        b.position_at_end(loop)
        done, least = b.phi(I64), b.phi(I64)
        done.add_incoming(I64(0), entry)
        least.add_incoming(first, entry)
        base = b.ashr(least, I64(FRACTION))
        halves = []
        for k in range(2):
            (one, weight_one), (two, weight_two) = lines
            place_of = b.add(base, I64(k * VECTOR))
            value = b.fmul(e.load(e.at(one, place_of)), weight_one)
            halves.append(e.fma(e.load(e.at(two, place_of)), weight_two, value))
        begin = b.trunc(b.sub(b.sub(least, back), b.shl(base, I64(FRACTION))), I32)
        places = b.add(e.broadcast(begin), lanes)
        numbers = b.ashr(places, e.constant(I32, FRACTION))
        part = b.fmul(b.sitofp(b.and_(places, mask), vector(F32)), fraction)
        low = chosen(context, e, halves[0], halves[1], numbers)
        high = chosen(context, e, halves[0], halves[1], b.add(numbers, e.constant(I32, 1)))
        destination = e.at(to, b.mul(done, I64(VECTOR)))
        total = b.fadd(e.load(destination), low)
        e.store(e.fma(part, b.fsub(high, low), total), destination)
        following = b.add(done, I64(1))
        done.add_incoming(following, b.block)
        least.add_incoming(b.add(least, ahead), b.block)
        b.cbranch(b.icmp_signed("<", following, args[9]), loop, end)

        b.position_at_end(end)
        return context.get_dummy_value()

    return sig, codegen
