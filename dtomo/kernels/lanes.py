"""Vector code that Numba cannot express: sparse rows applied to many slices held in registers.

A *pair* is one interpolation: two neighbouring source samples (``step`` apart) with one weight each. A run of pairs
is what a ray meets in a strip of rows (forward projection) or a voxel in a block of angles (back projection).

The order of summation is part of the contract, since results must not depend on how many slices are computed at
once: four partial sums per slice (first and second weight, even and odd pairs), joined as
``(even first + odd first) + (even second + odd second)``, the first of them starting from the destination.
"""

from typing import Any

from numba.core import types
from numba.extending import intrinsic

from dtomo.kernels.vectors import F32, I64, VECTOR, Emitter, array_data, vector


@intrinsic
def accumulate_pairs(
    typingctx: Any, group: Any, target: Any, target_at: Any, source: Any, source_at: Any,
    offsets: Any, first: Any, second: Any, pairs_at: Any, count: Any,
) -> Any:  # fmt: skip
    """Add `count` (even) pairs, from number `pairs_at` of the scratch on, to one target, for all slices of a group.

    ``target[target_at + z] += sum over pairs: first * source[at + z] + second * source[at + lanes + z]``, with
    ``at = source_at + offset * lanes``; both are packed, with all lanes (slices) of a group side by side.

    group
        A tuple; its length is the number of vectors of `VECTOR` lanes in the group.
    """
    vectors = len(group)
    sig = types.void(group, target, types.intp, source, types.intp, offsets, first, second, types.intp, types.intp)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        e = Emitter(builder)
        target_data, source_data, offset_data, first_data, second_data = (
            array_data(context, builder, sig, args, i) for i in (1, 3, 5, 6, 7)
        )
        offset_data, first_data, second_data = (e.at(p, args[8]) for p in (offset_data, first_data, second_data))
        destination = e.at(target_data, args[2])
        origin = e.at(source_data, args[4])
        zero = e.constant(F32, 0.0)
        sums = [(parity, which) for parity in range(2) for which in range(2)]

        start = {key: [zero] * vectors for key in sums}
        start[0, 0] = [e.load(e.at(destination, k * VECTOR)) for k in range(vectors)]
        entry = builder.block
        loop = builder.function.append_basic_block("pairs.loop")
        end = builder.function.append_basic_block("pairs.end")
        builder.cbranch(builder.icmp_signed(">", args[9], I64(0)), loop, end)

        builder.position_at_end(loop)
        index = builder.phi(I64)
        index.add_incoming(I64(0), entry)
        held = {key: [builder.phi(vector(F32)) for _ in range(vectors)] for key in sums}
        new: dict[tuple[int, int], list[Any]] = {key: [] for key in sums}
        for parity in range(2):
            q = builder.add(index, I64(parity))
            offset = builder.zext(builder.load(e.at(offset_data, q)), I64)
            place = e.at(origin, builder.mul(offset, I64(vectors * VECTOR)))
            for which, weights in enumerate((first_data, second_data)):
                weight = e.broadcast(builder.load(e.at(weights, q)))
                for k in range(vectors):
                    sample = e.load(e.at(place, (which * vectors + k) * VECTOR))
                    new[parity, which].append(e.fma(sample, weight, held[parity, which][k]))
        following = builder.add(index, I64(2))
        index.add_incoming(following, builder.block)
        for key in sums:
            for k in range(vectors):
                held[key][k].add_incoming(start[key][k], entry)
                held[key][k].add_incoming(new[key][k], builder.block)
        builder.cbranch(builder.icmp_signed("<", following, args[9]), loop, end)

        builder.position_at_end(end)
        final: dict[tuple[int, int], list[Any]] = {key: [] for key in sums}
        for key in sums:
            for k in range(vectors):
                joined = builder.phi(vector(F32))
                joined.add_incoming(start[key][k], entry)
                joined.add_incoming(new[key][k], loop)
                final[key].append(joined)
        for k in range(vectors):
            one = builder.fadd(final[0, 0][k], final[1, 0][k])
            two = builder.fadd(final[0, 1][k], final[1, 1][k])
            e.store(builder.fadd(one, two), e.at(destination, k * VECTOR))
        return context.get_dummy_value()

    return sig, codegen


@intrinsic
def copy_group(typingctx: Any, group: Any, target: Any, target_at: Any, source: Any, source_at: Any) -> Any:
    """``target[target_at + z] = source[source_at + z]`` for all lanes of a group (see `accumulate_pairs`)."""
    sig = types.void(group, target, types.intp, source, types.intp)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        e = Emitter(builder)
        to = e.at(array_data(context, builder, sig, args, 1), args[2])
        start = e.at(array_data(context, builder, sig, args, 3), args[4])
        for k in range(len(group)):
            e.store(e.load(e.at(start, k * VECTOR)), e.at(to, k * VECTOR))
        return context.get_dummy_value()

    return sig, codegen
