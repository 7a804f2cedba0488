"""Borders put on slabs are those of the whole array, however thin the slabs are."""

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dtomo.distributed import graph
from dtomo.distributed.clusters import Resources, connect
from dtomo.distributed.halo import Boundary, cut_piece, plan_halo, put_on
from dtomo.distributed.slab_array import Halo, SlabArray
from dtomo.distributed.slabs import Slab, cut
from dtomo.errors import UserError

MODES: tuple[Boundary, ...] = ("cut", "edge", "zero", "reflect")
_NUMPY = {"edge": "edge", "zero": "constant", "reflect": "reflect"}


def _expected(whole: NDArray[Any], slab: Slab, depth: int, boundary: str, axis: int) -> NDArray[Any]:
    inside = np.moveaxis(whole, axis, 0)
    if boundary == "cut":
        part = inside[max(0, slab.start - depth) : slab.stop + depth]
    else:
        padded = np.pad(inside, [(depth, depth)] + [(0, 0)] * (whole.ndim - 1), mode=_NUMPY[boundary])  # type: ignore[call-overload]
        part = padded[slab.start : slab.stop + 2 * depth]
    return np.moveaxis(part, 0, axis)


@pytest.mark.parametrize("boundary", MODES)
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_every_height_and_depth_is_that_of_the_whole_array(boundary: Boundary, axis: int) -> None:
    for total, height, depth in itertools.product((1, 2, 3, 7, 10), (1, 2, 3, 4, 10), (0, 1, 2, 5, 12)):
        shape = [2, 3, 2]
        shape[axis] = total
        whole = np.random.default_rng(total).standard_normal(shape)
        slabs = cut(total, height)
        parts = [np.asfortranarray(whole[(slice(None),) * axis + (slab.rows,)]) for slab in slabs]
        for slab, part, plan in zip(slabs, parts, plan_halo(slabs, depth, boundary)):
            borders = [cut_piece(parts[piece.slab], piece, axis) for piece in plan.pieces]
            found = put_on(part, plan, borders, axis)
            wanted = _expected(whole, slab, depth, boundary, axis)
            assert found.shape == wanted.shape
            assert np.array_equal(found, wanted), (total, height, depth, slab)
            assert np.argmin(found.strides) == 0 or min(found.shape) == 1


def test_slabs_that_do_not_begin_at_zero() -> None:
    slabs = [Slab(0, 64, 66), Slab(1, 66, 69)]
    whole = np.arange(5.0)[:, None]
    parts = [whole[0:2], whole[2:5]]
    plan = plan_halo(slabs, 2, "edge")[1]
    borders = [cut_piece(parts[piece.slab], piece, 0) for piece in plan.pieces]
    assert put_on(parts[1], plan, borders, 0)[:, 0].tolist() == [0, 1, 2, 3, 4, 4, 4]


@pytest.mark.parametrize(("depth", "boundary"), [(-1, "cut"), (1, "wrap")])
def test_bad_requests_are_refused(depth: int, boundary: Any) -> None:
    with pytest.raises(UserError, match="a halo has a depth"):
        plan_halo(cut(4, 2), depth, boundary)


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    with connect(Resources(2, 1, 2_000_000_000, dashboard=None)) as found:
        yield found


def _make(seed: int, slab: Slab) -> dict[str, NDArray[np.float32]]:
    rows = [
        np.random.default_rng((seed, z)).standard_normal((64, 64), np.float32) for z in range(slab.start, slab.stop)
    ]
    return {"solution": np.stack(rows), "other": np.zeros(3, np.float32)}


def _padded(shared: None, slab: Slab, part: Any, padded: NDArray[Any]) -> NDArray[Any]:
    return padded


@pytest.mark.parametrize("height", [1, 4, 5])
def test_on_workers_the_halo_is_the_same_and_only_borders_move(client: Any, height: int) -> None:
    slabs = cut(20, height)
    whole = np.concatenate([_make(3, slab)["solution"] for slab in slabs])
    array = SlabArray.create(client, _make, 3, slabs).wait()
    before = graph.bytes_sent(client)
    padded = array.update(_padded, None, Halo(array, 3, "reflect", key="solution")).wait()
    sent = graph.bytes_sent(client) - before
    for slab, part in zip(slabs, client.gather(list(padded.parts))):
        assert np.array_equal(part, _expected(whole, slab, 3, "reflect", 0))
    slice_bytes, receivers = 64 * 64 * 4, -(-3 // height)
    # each border of a slab that has a neighbour elsewhere, and some bytes around each array
    assert 2 * 3 * slice_bytes <= sent <= 2 * receivers * 3 * slice_bytes + 20_000


def test_a_halo_of_other_slabs_is_refused(client: Any) -> None:
    array = SlabArray.create(client, _make, 3, cut(8, 4))
    other = SlabArray.create(client, _make, 3, cut(8, 2))
    with pytest.raises(UserError, match="the same slabs"):
        array.update(_padded, None, Halo(other, 1))
    array.wait()
