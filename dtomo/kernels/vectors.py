"""Short words for emitting vector instructions (LLVM IR): what Numba's own language cannot express.

Used by `lanes`, `weights` and `turning` only. Every operation is rounded as written (no fast-math), so that a value has
the same bits whichever kernel computes it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from llvmlite import ir
from numba.core import cgutils

VECTOR = 16
"""Elements of a vector: one AVX-512 register of float32; on other processors the compiler splits it."""

I32, I64, F32 = ir.IntType(32), ir.IntType(64), ir.FloatType()


def vector(element: Any) -> Any:
    """The vector type of an element type."""
    return ir.VectorType(element, VECTOR)


class Emitter:
    """Emits operations on vectors of `VECTOR` elements at the builder's place."""

    def __init__(self, builder: Any) -> None:
        self.builder = builder

    def constant(self, element: Any, value: float) -> Any:
        return ir.Constant(vector(element), [value] * VECTOR)

    def counting(self, element: Any) -> Any:
        """0, 1, 2 …"""
        return ir.Constant(vector(element), list(range(VECTOR)))

    def broadcast(self, value: Any) -> Any:
        undefined = ir.Constant(vector(value.type), ir.Undefined)
        first = self.builder.insert_element(undefined, value, ir.Constant(I32, 0))
        return self.builder.shuffle_vector(first, undefined, self.constant(I32, 0))

    def at(self, pointer: Any, index: Any) -> Any:
        """Pointer to element `index` (an int or an i64 value)."""
        return self.builder.gep(pointer, [ir.Constant(I64, index) if isinstance(index, int) else index])

    def load(self, pointer: Any) -> Any:
        """An unaligned vector from a pointer to its first element."""
        return self.builder.load(self.builder.bitcast(pointer, vector(pointer.type.pointee).as_pointer()), align=4)

    def store(self, value: Any, pointer: Any) -> None:
        self.builder.store(value, self.builder.bitcast(pointer, value.type.as_pointer()), align=4)

    def call(self, name: str, result: Any, *args: Any) -> Any:
        """An LLVM intrinsic by its full name."""
        kind = ir.FunctionType(result, [a.type for a in args])
        return self.builder.call(cgutils.get_or_insert_function(self.builder.module, kind, name), args)

    def fma(self, x: Any, y: Any, z: Any) -> Any:
        """x * y + z, rounded once."""
        return self.call(f"llvm.fma.v{VECTOR}f32", x.type, x, y, z)

    def floor(self, x: Any) -> Any:
        return self.call(f"llvm.floor.v{VECTOR}f32", x.type, x)

    def magnitude(self, x: Any) -> Any:
        """Of integers."""
        return self.call(f"llvm.abs.v{VECTOR}i32", x.type, x, ir.IntType(1)(0))

    def not_negative(self, x: Any) -> Any:
        """Integers below 0 become 0."""
        return self.call(f"llvm.smax.v{VECTOR}i32", x.type, x, self.constant(I32, 0))

    @contextmanager
    def vectors_of(self, count: Any) -> Iterator[Any]:
        """A loop over the vectors that hold `count` entries; yields the number of entries before a vector."""
        b = self.builder
        entry, loop = b.block, b.function.append_basic_block("vectors.loop")
        end = b.function.append_basic_block("vectors.end")
        b.cbranch(b.icmp_signed(">", count, count.type(0)), loop, end)
        b.position_at_end(loop)
        done = b.phi(I64)
        done.add_incoming(I64(0), entry)
        yield done
        following = b.add(done, I64(VECTOR))
        done.add_incoming(following, b.block)
        b.cbranch(b.icmp_signed("<", following, count), loop, end)
        b.position_at_end(end)


def array_data(context: Any, builder: Any, signature: Any, args: Any, i: int) -> Any:
    """Pointer to the first element of the i-th argument, an array."""
    return context.make_array(signature.args[i])(context, builder, args[i]).data
