"""Patches on a device against the CPU, which `tests/kernels` holds against slicing."""

import numpy as np
import pytest

from dtomo.kernels import patches as module
from dtomo.kernels.cuda import patches as device_module
from dtomo.kernels.cuda.compiling import CudaKernel
from dtomo.kernels.patches import add, cover, extract
from tests import laws


@pytest.fixture(params=[((1, 1, 1), (3, 2)), ((2, 1, 2), (2, 1, 1))], ids=str)
def grid(request, monkeypatch):
    """Small blocks of threads, and grids that do not cover the object; tiles of 4 pixels."""
    launch = CudaKernel.launch
    blocks, threads = request.param
    monkeypatch.setattr(CudaKernel, "launch", lambda kernel, _, *a: launch(kernel, blocks, *a, threads=threads))
    monkeypatch.setattr(module, "TILE", 4)
    monkeypatch.setattr(device_module, "TILE", 4)


@pytest.fixture(autouse=True)
def spoiled(cupy, monkeypatch):
    """New memory holds NaN."""
    monkeypatch.setattr(cupy, "empty", lambda shape, dtype: cupy.full(shape, np.nan, dtype))


@pytest.mark.parametrize("dtype", [np.float32, np.complex64])
@pytest.mark.parametrize("modes", [(), (2,)])
@pytest.mark.parametrize(("patch", "shape", "frames"), [((1, 1), (1, 1), 1), ((3, 5), (9, 6), 7), ((4, 4), (5, 9), 3)])
def test_the_same_bits_as_on_the_cpu(cupy, grid, record_error, patch, shape, frames, modes, dtype):
    positions = np.random.default_rng(1).integers(0, np.subtract(shape, patch) + 1, (frames, 2))
    image, parts = laws.draw((*modes, *shape), dtype), laws.draw((frames, *modes, *patch), dtype, 1)
    windows = cover(positions, patch, shape, cupy)
    found = extract(cupy.asarray(image), windows)
    expected, total = np.empty_like(parts), np.zeros_like(image)
    for k, (row, column) in enumerate(positions):
        cut = (..., slice(row, row + patch[0]), slice(column, column + patch[1]))
        expected[k] = image[cut]
        total[cut] += parts[k]
    record_error(found, expected)
    assert found.dtype == dtype
    assert np.array_equal(found.get(), expected)
    found = add(cupy.asarray(parts), windows)
    record_error(found, total)
    assert found.dtype == dtype
    assert np.array_equal(found.get(), total)


def test_tables_on_the_other_side_are_refused(cupy):
    windows = cover([(0, 0)], (2, 2), (4, 4))
    with pytest.raises(TypeError, match="host"):
        extract(cupy.asarray(laws.draw((4, 4))), windows)
