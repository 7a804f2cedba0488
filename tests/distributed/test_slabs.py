"""Slabs cover every row once, and the halo never leaves the scan."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dtomo.distributed.slabs import QUANTUM, SLAB, Slab, cut, slab_height
from dtomo.errors import UserError


@given(rows=st.integers(1, 5000), height=st.integers(1, 300))
def test_slabs_cover_each_row_once_in_order(rows: int, height: int) -> None:
    slabs = cut(rows, height)
    covered = [row for slab in slabs for row in range(slab.start, slab.stop)]
    assert covered == list(range(rows))
    assert [slab.index for slab in slabs] == list(range(len(slabs)))
    assert all(len(slab) == height for slab in slabs[:-1])


@given(rows=st.integers(1, 5000), workers=st.integers(1, 64))
def test_heights_are_64_or_multiples_of_16_for_small_scans(rows: int, workers: int) -> None:
    height = slab_height(rows, workers)
    assert height % QUANTUM == 0
    assert height <= SLAB
    if rows >= SLAB * workers:
        assert height == SLAB
    loads = [0] * workers
    for slab in cut(rows, height):
        loads[loads.index(min(loads))] += len(slab)
    assert max(loads) <= -(-rows // workers) + (SLAB if height == SLAB else QUANTUM)


@pytest.mark.parametrize(
    ("rows", "workers", "height"),
    [(1, 2, 64), (33, 2, 16), (49, 3, 16), (60, 2, 32), (120, 2, 64), (1024, 2, 64)],
)
def test_heights_balance_small_scans(rows: int, workers: int, height: int) -> None:
    assert slab_height(rows, workers) == height


def test_blocks_of_a_slab_cover_it() -> None:
    blocks = Slab(3, 128, 192).blocks(24)
    assert [(block.start, block.stop) for block in blocks] == [(128, 152), (152, 176), (176, 192)]


@pytest.mark.parametrize(("rows", "height"), [(0, 64), (10, 0), (-3, 4), (10, -1)])
def test_nothing_to_cut_is_refused(rows: int, height: int) -> None:
    with pytest.raises(UserError, match="rows"):
        cut(rows, height)
