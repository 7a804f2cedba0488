"""Differences and total variation against dense matrices and closed forms; adjoint; slabs and layouts bit for bit."""

import numpy as np
import pytest

from dtomo.kernels.differences import differences, negative_divergence, total_variation, total_variation_gradient
from tests import laws

SHAPES = [(1, 1, 1), (1, 4, 5), (3, 1, 4), (4, 5, 1), (2, 3, 4), (5, 40, 7), (3, 65, 2)]
SPACINGS = [(2.0, 0.5, 1.25), (0.5, 1.25)]
DTYPES = [np.float32, np.complex64]


def chain(count, step):
    """The matrix of forward differences along one axis."""
    matrix = (np.eye(count, k=1) - np.eye(count)) / step
    matrix[-1] = 0
    return matrix


def dense(volume, spacing):
    """Differences in double precision, axis by axis."""
    parts = []
    for axis, step in zip(range(3 - len(spacing), 3), spacing):
        moved = np.moveaxis(laws.wide(volume).reshape(volume.shape), axis, -1)
        parts.append(np.moveaxis(moved @ chain(volume.shape[axis], step).T, -1, axis))
    return np.array(parts)


def layouts(array):
    """x innermost, z innermost, and neither."""
    yield array
    yield np.moveaxis(np.ascontiguousarray(np.moveaxis(array, -3, -1)), -1, -3)
    yield np.repeat(array, 2, -1)[..., ::2]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("spacing", SPACINGS)
@pytest.mark.parametrize("shape", SHAPES)
def test_differences_are_those_of_the_matrix(shape, spacing, dtype):
    volume = laws.draw(shape, dtype)
    found = differences(volume, spacing)
    assert found.dtype == dtype
    assert found.shape == (len(spacing), *shape)
    np.testing.assert_allclose(found, dense(volume, spacing), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("spacing", SPACINGS)
@pytest.mark.parametrize("shape", SHAPES)
def test_divergence_is_the_adjoint(shape, spacing, dtype):
    volume, field = laws.draw(shape, dtype), laws.draw((len(spacing), *shape), dtype, 1)
    image, back = differences(volume, spacing), negative_divergence(field, spacing)
    assert back.dtype == dtype
    assert back.shape == shape
    error = abs(np.vdot(laws.wide(field), laws.wide(image)) - np.vdot(laws.wide(back), laws.wide(volume)))
    assert error <= 1e-6 * laws.norm(field) * max(laws.norm(image), laws.norm(volume))


@pytest.mark.parametrize("spacing", SPACINGS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_variation(spacing, dtype):
    volume = laws.draw((3, 65, 6), dtype)
    for smoothing in (0.0, 0.3):
        magnitude = np.sqrt((np.abs(dense(volume, spacing)) ** 2).sum(0) + smoothing**2)
        found = total_variation(volume, spacing, smoothing)
        assert found.dtype == np.float64
        np.testing.assert_allclose(found, magnitude.sum((1, 2)), rtol=1e-6)


def test_variation_of_a_step_is_its_height_times_its_area():
    volume = np.zeros((4, 6, 8), np.float32)
    volume[:, :, 3:] = 2.5
    assert total_variation(volume, (1, 1, 1)).sum() == 4 * 6 * 2.5
    assert total_variation(np.moveaxis(volume, 2, 0), (1, 1, 1)).sum() == 4 * 6 * 2.5
    assert not total_variation(np.full((2, 3, 4), 7, np.float32), (1, 1, 1)).any()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("spacing", SPACINGS)
@pytest.mark.parametrize("shape", SHAPES)
def test_gradient_of_variation(shape, spacing, dtype):
    """Against the formula in double precision, with dense matrices."""
    volume, smoothing = laws.draw(shape, dtype), 0.2
    slopes = dense(volume, spacing)
    field = slopes / np.sqrt((np.abs(slopes) ** 2).sum(0) + smoothing**2)
    expected = np.zeros(shape, field.dtype)
    for part, axis, step in zip(field, range(3 - len(spacing), 3), spacing):
        expected += np.moveaxis(np.moveaxis(part, axis, -1) @ chain(shape[axis], step), -1, axis)
    found = total_variation_gradient(volume, spacing, smoothing)
    assert found.dtype == dtype
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("dtype", DTYPES)
def test_gradient_predicts_the_change_of_the_variation(dtype):
    volume, change, spacing = laws.draw((4, 6, 5), dtype), laws.draw((4, 6, 5), dtype, 1), (2.0, 1.0, 0.7)
    predicted = np.vdot(laws.wide(total_variation_gradient(volume, spacing, 0.5)), laws.wide(change)).real
    step = np.float32(2**-8)
    ahead, behind = (total_variation(volume + s * change, spacing, 0.5).sum() for s in (step, -step))
    assert (ahead - behind) / (2 * step) == pytest.approx(predicted, rel=1e-3)


def outer(volume, start, stop):
    """The planes beside a slab."""
    return {
        "before": volume[start - 1] if start > 0 else None,
        "after": volume[stop] if stop < len(volume) else None,
    }


@pytest.mark.parametrize("spacing", SPACINGS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_slabs_have_the_bits_of_the_volume_in_any_layout(dtype, spacing):
    volume, field = laws.draw((7, 35, 6), dtype), laws.draw((len(spacing), 7, 35, 6), dtype, 1)
    expected = (
        differences(volume, spacing), negative_divergence(field, spacing),
        total_variation(volume, spacing, 0.1), total_variation_gradient(volume, spacing, 0.1),
    )  # fmt: skip
    for start, stop in ((0, 7), (0, 3), (3, 4), (4, 7)):
        beside = outer(volume, start, stop)
        for slab, part in zip(layouts(volume[start:stop]), layouts(field[:, start:stop])):
            below = field[0, start - 1] if start > 0 else None
            found = (
                differences(slab, spacing, after=beside["after"]),
                negative_divergence(part, spacing, before=below, ends=stop == 7),
                total_variation(slab, spacing, 0.1, after=beside["after"]),
                total_variation_gradient(slab, spacing, 0.1, **beside),
            )
            assert np.array_equal(found[0], expected[0][:, start:stop])
            assert np.array_equal(found[1], expected[1][start:stop])
            assert np.allclose(found[2], expected[2][start:stop], rtol=1e-12)
            assert np.array_equal(found[3], expected[3][start:stop])


def test_results_have_the_layout_of_the_volume():
    volume = np.moveaxis(laws.draw((4, 5, 3)), -1, 0)
    spacing = (1.0, 1.0, 1.0)
    field = differences(volume, spacing)
    for array in (field[0], total_variation_gradient(volume, spacing, 1.0), negative_divergence(field, spacing)):
        assert array.strides == volume.strides


@pytest.mark.parametrize("count", [1, 2, 3])
def test_bits_do_not_depend_on_threads_and_inputs_stay(count):
    volume, spacing = laws.draw((3, 70, 9)), (1.0, 2.0, 3.0)
    before = volume.copy()
    volume.flags.writeable = False
    found = []
    for threads in (1, count):
        with laws.thread_count(threads):
            found.append([differences(volume, spacing), total_variation(volume, spacing)])
            found[-1].append(total_variation_gradient(volume, spacing, 1))
    assert all(np.array_equal(a, b) for a, b in zip(*found))
    assert np.array_equal(volume, before)
