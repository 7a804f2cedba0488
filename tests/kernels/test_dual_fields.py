"""Steps of dual fields: the kernel against array operations, in all layouts and on any number of threads."""

import numpy as np
import pytest

from dtomo.kernels import dual_fields
from dtomo.kernels.differences import differences, negative_divergence
from tests import laws

SHAPE = (5, 35, 6)


def direct(field, ahead, volume, spacing, step, limit, momentum, isotropic):
    """In double precision."""
    wide = np.complex128 if np.iscomplexobj(volume) else np.float64
    new = ahead.astype(wide) + step.reshape(-1, 1, 1) * differences(volume, spacing).astype(wide)
    length = abs(new)
    if isotropic:
        length = np.sqrt((length**2).sum(0, keepdims=True))
    new *= np.divide(limit, np.maximum(length, limit), out=np.zeros_like(length), where=length > 0)
    return new, new + momentum * (new - field)


@pytest.mark.parametrize("dtype", [np.float32, np.complex64])
@pytest.mark.parametrize("spacing", [(1.0, 2.0, 0.5), (0.7, 1.0)])
@pytest.mark.parametrize(("limit", "isotropic"), [(1.0, True), (0.4, False), (0.0, True)])
def test_as_written(dtype, spacing, limit, isotropic):
    volume = laws.draw(SHAPE, dtype)
    field, ahead = (laws.draw((len(spacing), *SHAPE), dtype, seed) for seed in (1, 2))
    step = np.linspace(0, 1, 5, dtype=np.float32)
    options = {"step": step, "limit": limit, "momentum": 0.6, "isotropic": isotropic}
    expected = direct(field, ahead, volume, spacing, *options.values())
    first = None
    for where, moved in [("x", volume), ("z", np.moveaxis(np.ascontiguousarray(np.moveaxis(volume, 0, -1)), -1, 0))]:
        for count in (1, 3):
            with laws.thread_count(count):
                found = dual_fields.ascend(field.copy(), ahead.copy(), moved, spacing, **options)
            first = first or found
            for one, two, same in zip(found, expected, first):
                np.testing.assert_allclose(one, two, atol=2e-6)
                assert np.array_equal(one, same), where
    on_device = dual_fields._on_device(field.copy(), ahead.copy(), volume, spacing, *options.values())
    for one, two in zip(on_device, expected):
        np.testing.assert_allclose(one, two, atol=2e-6)


def test_fields_are_written_over_where_they_lie():
    volume = np.moveaxis(laws.draw((35, 6, 5)), -1, 0)
    field = np.moveaxis(laws.draw((3, 35, 6, 5), seed=1), -1, 1)
    before = field.copy()
    options = {"step": np.ones(5, np.float32), "limit": 1.0, "momentum": 0.0, "isotropic": True}
    one, two = dual_fields.ascend(field, field, volume, (1.0, 1.0, 1.0), **options)
    assert np.shares_memory(one, field)
    assert np.shares_memory(two, field)
    expected, _ = direct(before, before, volume, (1.0, 1.0, 1.0), *options.values())
    np.testing.assert_allclose(field, expected, atol=2e-6)


@pytest.mark.parametrize("dtype", [np.float32, np.complex64])
@pytest.mark.parametrize("components", [2, 3])
@pytest.mark.parametrize(
    "shape", [(5, 35, 6), (1, 40, 33), (3, 1, 700), (40, 3, 1), (1, 1, 1), (70, 31, 2), (2, 2, 1500)]
)
def test_the_adjoint_has_the_bits_of_the_other_kernel(dtype, components, shape):
    spacing = (1.0, 2.0, 0.3)[3 - components :]
    field = laws.draw((components, *shape), dtype)
    for moved in (field, np.moveaxis(np.ascontiguousarray(np.moveaxis(field, 1, -1)), -1, 1)):
        expected = negative_divergence(moved, spacing)
        for count in (1, 3):
            with laws.thread_count(count):
                assert np.array_equal(dual_fields.descend(moved, spacing), expected)


@pytest.mark.parametrize("shape", [(1, 40, 33), (3, 1, 700), (40, 3, 1), (1, 1, 1), (70, 31, 2), (2, 2, 1500)])
def test_any_shape(shape):
    volume, field = laws.draw(shape), laws.draw((3, *shape), seed=1)
    options = {"step": np.full(shape[0], 0.3, np.float32), "limit": 0.5, "momentum": 0.0, "isotropic": True}
    expected, _ = direct(field, field, volume, (1.0, 2.0, 0.5), *options.values())
    for inside in (False, True):
        one, two = volume, field.copy()
        if inside:
            one = np.moveaxis(np.ascontiguousarray(np.moveaxis(volume, 0, -1)), -1, 0)
            two = np.moveaxis(np.ascontiguousarray(np.moveaxis(field, 1, -1)), -1, 1)
        found, _ = dual_fields.ascend(two, two, one, (1.0, 2.0, 0.5), **options)
        np.testing.assert_allclose(found, expected, atol=2e-6)


@pytest.mark.parametrize("dtype", [np.float32, np.complex64])
@pytest.mark.parametrize("spacing", [(1.0, 2.0, 0.5), (0.7, 1.0)])
@pytest.mark.parametrize("shape", [(5, 35, 6), (1, 40, 33), (3, 1, 700), (70, 31, 2)])
def test_relaxed_is_the_adjoint_and_what_follows(dtype, spacing, shape):
    volume, field = laws.draw(shape, dtype), laws.draw((len(spacing), *shape), dtype, 1)
    factors = np.linspace(0.1, 1, shape[0], dtype=np.float32).reshape(-1, 1, 1)
    real = dtype == np.float32
    for factor in (np.float32(0.3), factors):
        for bounds in ((None, None), (-0.2, None), (-0.1, 0.3)) if real else ((None, None),):
            expected = volume - factor * dual_fields.descend(field, spacing)
            expected = np.clip(expected, *bounds) if bounds != (None, None) else expected
            for move in (np.array, lambda a: np.moveaxis(np.ascontiguousarray(np.moveaxis(a, -3, -1)), -1, -3)):
                for count in (1, 3):
                    with laws.thread_count(count):
                        found = dual_fields.relaxed(move(volume), move(field), spacing, factor, bounds)
                    np.testing.assert_allclose(found, expected, atol=2e-6)
