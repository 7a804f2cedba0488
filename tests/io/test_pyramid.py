"""Levels of a multiscale volume."""

import numpy as np
import pytest

from dtomo.io import pyramid


@pytest.mark.parametrize("dtype", [np.float32, np.complex64, np.uint8, np.float16])
@pytest.mark.parametrize("inside_out", [False, True])
def test_halving_in_pieces_is_halving_at_once(dtype, inside_out, monkeypatch):
    block = (np.random.default_rng(0).random((7, 61, 40)) * 200).astype(dtype)
    if inside_out:
        block = np.moveaxis(np.ascontiguousarray(np.moveaxis(block, 0, -1)), -1, 0)
    at_once = pyramid.halved(block)
    monkeypatch.setattr(pyramid, "_PIECE", 1)
    in_pieces = pyramid.halved(block)
    assert in_pieces.dtype == dtype
    assert in_pieces.shape == (4, 31, 20)
    assert np.array_equal(in_pieces, at_once)
