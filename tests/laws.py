"""Laws of linear operators: every operator is run through all of them (`check_operator`)."""

import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from dtomo import threads
from dtomo.errors import UserError
from dtomo.operators import LinearOperator

Array = np.ndarray[Any, Any]
Slices = Callable[[int], LinearOperator]
"""The same operator for another number of slices."""


def draw(shape: tuple[int, ...], dtype: Any = np.float32, seed: int = 0) -> Array:
    """Signed random numbers, in C order."""
    rng = np.random.default_rng(seed)
    values = rng.standard_normal(shape)
    if np.dtype(dtype).kind == "c":
        values = values + 1j * rng.standard_normal(shape)
    return values.astype(dtype)


def norm(array: Array) -> float:
    """Euclidean norm in float64."""
    return float(np.linalg.norm(wide(array)))


def wide(array: Array) -> Array:
    """Double precision, in one line."""
    return np.asarray(array).astype(np.complex128 if np.iscomplexobj(array) else np.float64).ravel()


def adjoint_error(operator: LinearOperator, seed: int = 0) -> float:
    """``|<A x, y> - <x, Aᴴ y>| / (|A x| |y|)``, sums in float64."""
    x, y = draw(operator.shape_in, operator.dtype, seed), draw(operator.shape_out, operator.dtype, seed + 1)
    image, back = operator.forward(x), operator.adjoint(y)
    difference = np.vdot(wide(y), wide(image)) - np.vdot(wide(back), wide(x))
    return float(abs(difference) / max(norm(image) * norm(y), 1e-30))


@contextmanager
def thread_count(count: int) -> Iterator[None]:
    """So many kernel threads, for a while."""
    before = threads.get_threads()
    threads.set_threads(count)
    try:
        yield
    finally:
        threads.set_threads(before)


def layouts(array: Array) -> Iterator[tuple[str, Array]]:
    """The same values in other places of memory."""
    yield "C order", np.ascontiguousarray(array)
    yield "Fortran order", np.asfortranarray(array)
    for axis in range(array.ndim):
        yield f"axis {axis} innermost", np.moveaxis(np.ascontiguousarray(np.moveaxis(array, axis, -1)), -1, axis)
        doubled = np.repeat(array, 2, axis)
        yield f"every second along axis {axis}", doubled[(slice(None),) * axis + (slice(None, None, 2),)]
        yield f"axis {axis} backwards", np.flip(np.flip(array, axis).copy(), axis)
    yield "unaligned", _unaligned(array)
    yield "other byte order", array.astype(array.dtype.newbyteorder())


def _unaligned(array: Array) -> Array:
    raw = np.zeros(array.nbytes + 1, np.uint8)[1:]
    moved = np.ndarray(array.shape, array.dtype, raw.data)
    moved[...] = array
    return moved


def both_ways(operator: LinearOperator) -> list[tuple[str, Callable[[Array], Array], tuple[int, ...], tuple[int, ...]]]:
    """(name, function, shape in, shape out) of forward and adjoint."""
    return [
        ("forward", operator.forward, operator.shape_in, operator.shape_out),
        ("adjoint", operator.adjoint, operator.shape_out, operator.shape_in),
    ]


def check_linear(operator: LinearOperator) -> None:
    for name, apply, shape, _ in both_ways(operator):
        x, y = draw(shape, operator.dtype, 3), draw(shape, operator.dtype, 4)
        factor = operator.dtype.type(1.5 - 0.5j if operator.dtype.kind == "c" else -1.75)
        mixed, parts = apply(x + factor * y), wide(apply(x)) + factor * wide(apply(y))
        assert norm(wide(mixed) - parts) <= 1e-6 * (norm(parts) + 1e-30), name
        assert not apply(np.zeros(shape, operator.dtype)).any(), name


def check_adjoint(operator: LinearOperator, tolerance: float = 1e-6) -> None:
    assert adjoint_error(operator) <= tolerance


def check_dtype_and_shape(operator: LinearOperator) -> None:
    for name, apply, shape, out in both_ways(operator):
        for dtype in (np.float32, np.float64, np.int16):
            result = apply(draw(shape, dtype))
            assert result.dtype == operator.dtype, name
            assert result.shape == out, name


def check_refusals(operator: LinearOperator) -> None:
    """Wrong shapes, and complex data for a real operator, are named in one sentence with the operator and its side."""
    for name, apply, shape, _ in both_ways(operator):
        wrong = [(*shape[:-1], shape[-1] + 1), (*shape, 1), shape[:-1], (0, *shape[1:]), ()]
        for other in wrong:
            with pytest.raises(UserError, match=f"{type(operator).__name__}.{name}"):
                apply(np.zeros(other, operator.dtype))
        if operator.dtype.kind != "c":
            with pytest.raises(UserError, match=f"{type(operator).__name__}.{name}.*complex"):
                apply(np.zeros(shape, np.complex64))


def check_pickles(operator: LinearOperator) -> None:
    copy = pickle.loads(pickle.dumps(operator))
    for (name, apply, shape, _), (_, again, _, _) in zip(both_ways(operator), both_ways(copy)):
        x = draw(shape, operator.dtype, 5)
        assert np.array_equal(apply(x), again(x)), name
    assert len(pickle.dumps(operator)) < 10_000, "no tables travel with an operator"


def check_keeps_input(operator: LinearOperator) -> None:
    for name, apply, shape, _ in both_ways(operator):
        for where, x in layouts(draw(shape, operator.dtype, 6)):
            before = x.copy()
            result = apply(x)
            assert np.array_equal(x, before), f"{name}: {where}"
            assert not np.shares_memory(result, x), f"{name}: {where}"


def check_layouts(operator: LinearOperator) -> None:
    """The same bits wherever the input lies in memory."""
    for name, apply, shape, _ in both_ways(operator):
        x = draw(shape, operator.dtype, 7)
        expected = apply(x)
        for where, same in layouts(x):
            assert np.array_equal(apply(same), expected), f"{name}: {where}"


def check_threads(operator: LinearOperator) -> None:
    """The same bits on any number of threads, every time."""
    for name, apply, shape, _ in both_ways(operator):
        x = draw(shape, operator.dtype, 8)
        expected = apply(x)
        for count in (1, 2, 3):
            with thread_count(count):
                assert np.array_equal(apply(x), expected), f"{name}, {count} threads"


def check_slices(make: Slices, slices: int, pieces: tuple[int, ...] = (1, 2, 3)) -> None:
    """The bits of a slice do not depend on how many are computed with it, nor on its place among them.

    Volumes have slices first, projections second.
    """
    whole = make(slices)
    for side, (name, apply, shape, _) in enumerate(both_ways(whole)):
        x = draw(shape, whole.dtype, 9)
        expected = apply(x)
        for size in pieces:
            start = (slices - size) * 2 // 3
            if start < 0:
                continue
            cut: tuple[Any, ...] = (slice(start, start + size),)
            inside, outside = (cut, (slice(None), *cut)) if side == 0 else ((slice(None), *cut), cut)
            part = both_ways(make(size))[side][1](x[inside])
            assert np.array_equal(part, expected[outside]), f"{name}: {size} of {slices} slices"


def check_norm(operator: LinearOperator, tolerance: float = 1e-3) -> None:
    """The norm is the largest singular value of the dense matrix, and never above it."""
    columns = dense(operator)
    largest = float(np.linalg.svd(columns, compute_uv=False)[0])
    assert operator.norm() <= largest * (1 + 1e-6)
    assert operator.norm(iterations=100) == pytest.approx(largest, rel=tolerance)


def check_sums(operator: LinearOperator) -> None:
    for sums, apply, shape, out in (
        (operator.row_sums(), operator.forward, operator.shape_in, operator.shape_out),
        (operator.column_sums(), operator.adjoint, operator.shape_out, operator.shape_in),
    ):
        assert not np.iscomplexobj(sums)
        assert np.array_equal(np.broadcast_to(sums, out), apply(np.ones(shape, operator.dtype)).real)
    weights = np.abs(draw(operator.shape_out, np.float32, 10))
    assert np.array_equal(
        np.broadcast_to(operator.column_sums(weights), operator.shape_in), operator.adjoint(weights).real
    )


def check_zeros_and_arrange(operator: LinearOperator) -> None:
    """What `zeros` and `arrange` return has the layout of the operator's own results, which passes without a copy."""
    zeros, back = operator.zeros(), operator.adjoint(draw(operator.shape_out, operator.dtype))
    assert not zeros.any()
    _same_layout(zeros, back)
    data, image = draw(operator.shape_out, operator.dtype), operator.forward(zeros)
    for where, same in layouts(data):
        arranged = operator.arrange(same)
        assert np.array_equal(arranged, data), where
        _same_layout(arranged, image)
    assert np.shares_memory(operator.arrange(image), image)


def _same_layout(one: Array, two: Array) -> None:
    assert one.dtype == two.dtype
    assert one.shape == two.shape
    steps = [tuple(s for s, n in zip(a.strides, a.shape) if n > 1) for a in (one, two)]
    assert steps[0] == steps[1]


def dense(operator: LinearOperator) -> Array:
    """The matrix, column by column, in double precision: (elements out, elements in)."""
    size = int(np.prod(operator.shape_in))
    columns = []
    for i in range(size):
        unit = np.zeros(size, operator.dtype)
        unit[i] = 1
        columns.append(wide(operator.forward(unit.reshape(operator.shape_in))))
    return np.array(columns).T


def check_operator(operator: LinearOperator) -> None:
    """All laws that need nothing but the operator (and no dense matrix)."""
    check_linear(operator)
    check_adjoint(operator)
    check_dtype_and_shape(operator)
    check_refusals(operator)
    check_pickles(operator)
    check_keeps_input(operator)
    check_layouts(operator)
    check_threads(operator)
    check_sums(operator)
    check_zeros_and_arrange(operator)
