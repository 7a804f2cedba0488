"""Vectors across columns or voxels of one slice: what replaces vectors across slices where there are few.

Sixteen neighbours read from at most 32 samples in a row, so that two loads and two permutations take the place of a
gather. Positions, weights and the order of summation are those of `weights` and `lanes`, to the last bit.
"""

from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir
from numba.core import config, types
from numba.extending import intrinsic

from dtomo.kernels.vectors import F32, I32, I64, VECTOR, Emitter, array_data, vector
from dtomo.kernels.weights import FRACTION, ONE


def _has_permutation() -> bool:
    """Whether the processor that Numba compiles for has it: this one, unless the user names another."""
    if config.CPU_NAME or config.CPU_FEATURES is not None:
        return "+avx512f" in (config.CPU_FEATURES or "")
    return bool(llvm.get_host_cpu_features().get("avx512f", False))


AVAILABLE = _has_permutation()

REACH = 2 * VECTOR
"""Samples that one vector of neighbours may touch."""

TARGETS = 4
"""Vectors of voxels that share what an angle needs, back projection."""


def _sum_pairs(e: Emitter, count: Any, targets: list[Any], entry: Any) -> None:
    """Add `count` rows or angles to vectors of targets, with the four partial sums of `lanes.accumulate_pairs`.

    ``entry(index)`` emits one row or angle: for each target (first sample, second sample, first weight, second weight).
    """
    b, zero = e.builder, e.constant(F32, 0.0)
    keys = [(k, parity, which) for k in range(len(targets)) for parity in range(2) for which in range(2)]
    start = {key: e.load(targets[key[0]]) if key[1:] == (0, 0) else zero for key in keys}
    before, loop = b.block, b.function.append_basic_block("gather.loop")
    end = b.function.append_basic_block("gather.end")
    b.branch(loop)
    b.position_at_end(loop)
    index = b.phi(I64)
    index.add_incoming(I64(0), before)
    held = {key: b.phi(vector(F32)) for key in keys}
    new = {}
    for parity in range(2):
        number = b.add(index, I64(parity))
        present = b.icmp_signed("<", number, count)
        number, exists = b.select(present, number, index), e.broadcast(present)
        for k, (one, two, near, far) in enumerate(entry(number)):
            for which, (sample, weight) in enumerate(((one, near), (two, far))):
                weight = b.select(exists, weight, zero) if parity else weight
                new[k, parity, which] = e.fma(sample, weight, held[k, parity, which])
    following = b.add(index, I64(2))
    index.add_incoming(following, b.block)
    for key in keys:
        held[key].add_incoming(start[key], before)
        held[key].add_incoming(new[key], b.block)
    b.cbranch(b.icmp_signed("<", following, count), loop, end)
    b.position_at_end(end)
    for k, target in enumerate(targets):
        total = b.fadd(b.fadd(new[k, 0, 0], new[k, 1, 0]), b.fadd(new[k, 0, 1], new[k, 1, 1]))
        e.store(total, target)


def _samples(e: Emitter, source: Any, place: Any, rising: Any) -> tuple[Any, Any]:
    """Vectors of samples at `place` and `place + 1`, which rise or fall by at most `REACH - 2` over the vector."""
    b = e.builder
    least = b.sub(b.extract_element(place, I32(0)), b.select(rising, I32(0), I32(REACH - 2)))
    start = e.at(source, b.sext(least, I64))
    low, high = e.load(start), e.load(e.at(start, VECTOR))
    relative = b.sub(place, e.broadcast(least))

    def permuted(index: Any) -> Any:
        return e.call("llvm.x86.avx512.vpermi2var.ps.512", low.type, low, index, high)

    return permuted(relative), permuted(b.add(relative, e.constant(I32, 1)))


@intrinsic
def gather_rows(
    typingctx: Any, target: Any, target_at: Any, source: Any, position: Any, column: Any, slope: Any, scale: Any,
    places: Any, count: Any,
) -> Any:  # fmt: skip
    """Add `count` rows of a packed strip to 16 neighbouring rays of one angle (see `weights.ray_pairs`).

    `position` is where the first ray crosses the first row, `column` what each further ray adds, `slope` each row.
    """
    sig = types.void(
        target, types.intp, source, types.int32, types.int32, types.int32, types.float32, places, types.intp
    )

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        e, b = Emitter(builder), builder
        target, source, places = (array_data(context, builder, sig, args, i) for i in (0, 2, 7))
        destination = e.at(target, args[1])
        rising = b.icmp_signed(">", args[4], I32(0))
        first = b.add(e.broadcast(args[3]), b.mul(e.broadcast(args[4]), e.counting(I32)))
        slope, scale = e.broadcast(args[5]), e.broadcast(args[6])

        def entry(row: Any) -> list[Any]:
            p = b.add(first, b.mul(slope, e.broadcast(b.trunc(row, I32))))
            fraction = b.and_(p, e.constant(I32, ONE - 1))
            place = b.add(e.broadcast(b.load(e.at(places, row))), b.lshr(p, e.constant(I32, FRACTION)))
            near = b.fmul(b.sitofp(b.sub(e.constant(I32, ONE), fraction), vector(F32)), scale)
            far = b.fmul(b.sitofp(fraction, vector(F32)), scale)
            return [(*_samples(e, source, place, rising), near, far)]

        _sum_pairs(e, args[8], [destination], entry)
        return context.get_dummy_value()

    return sig, codegen


@intrinsic
def gather_angles(
    typingctx: Any, target: Any, target_at: Any, source: Any, source_at: Any, row: Any, count: Any, tables: Any
) -> Any:
    """Add `count` packed angles to `TARGETS` vectors of voxels of one row of a tile (see `weights.column_pairs`)."""
    sig = types.void(target, types.intp, source, types.intp, types.int32, types.intp, tables)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        e, b = Emitter(builder), builder
        destination = e.at(array_data(context, builder, sig, args, 0), args[1])
        targets = [e.at(destination, k * VECTOR) for k in range(TARGETS)]
        source = e.at(array_data(context, builder, sig, args, 2), args[3])
        pointers = [
            context.make_array(kind)(context, builder, builder.extract_value(args[6], i)).data
            for i, kind in enumerate(sig.args[6])
        ]
        row = e.broadcast(args[4])
        samples = [b.add(e.counting(I32), e.constant(I32, k * VECTOR)) for k in range(TARGETS)]

        def entry(number: Any) -> list[Any]:
            values = [b.load(e.at(pointer, number)) for pointer in pointers]
            rising = b.fcmp_ordered(">", values[2], ir.Constant(F32, 0.0))
            column, column_row, column_sample, gap, gap_row, gap_sample, gap_column, place, scale = (
                e.broadcast(value) for value in values
            )
            line = e.fma(column_row, b.sitofp(row, vector(F32)), column)
            gap = b.add(b.add(gap, b.mul(gap_row, row)), b.mul(gap_sample, samples[0]))
            gap_vector = b.mul(gap_sample, e.constant(I32, VECTOR))

            def hat(gap: Any) -> Any:
                rest = b.sub(e.constant(I32, ONE), e.magnitude(gap))
                return b.fmul(b.sitofp(e.not_negative(rest), vector(F32)), scale)

            found = []
            for sample in samples:
                nearest = e.floor(e.fma(column_sample, b.sitofp(sample, vector(F32)), line))
                index = b.fptosi(nearest, vector(I32))
                here = b.add(gap, b.mul(gap_column, index))
                gap = b.add(gap, gap_vector)
                pair = _samples(e, source, b.add(place, index), rising)
                found.append((*pair, hat(here), hat(b.add(here, gap_column))))
            return found

        _sum_pairs(e, args[5], targets, entry)
        return context.get_dummy_value()

    return sig, codegen
