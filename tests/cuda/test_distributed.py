"""Slabs on devices: sums, borders, tasks and checkpoints act on them where they are, as they do on the host."""

import json

import numpy as np
import pytest

from dtomo.algorithms import State
from dtomo.device import to_device
from dtomo.distributed import checkpoints, slab_array
from dtomo.distributed.halo import plan_halo
from dtomo.distributed.slabs import cut
from dtomo.distributed.sums import add_up, divide, plan_sum, tree_sum
from dtomo.errors import UserError
from dtomo.io import Checkpoints

RNG = np.random.default_rng(7)


def _there(value):
    """The same value, its arrays on the device."""
    if isinstance(value, dict):
        return {name: _there(item) for name, item in value.items()}
    if isinstance(value, tuple):
        return tuple(_there(item) for item in value)
    return to_device(value) if isinstance(value, np.ndarray) else value


def _same(cupy, there, here):
    """Device arrays, of these bits."""
    if isinstance(here, dict | tuple):
        for name in here if isinstance(here, dict) else range(len(here)):
            _same(cupy, there[name], here[name])
        return
    if isinstance(here, np.ndarray):
        assert isinstance(there, cupy.ndarray)
        assert there.dtype == here.dtype
        there = there.get()
    np.testing.assert_array_equal(there, here)


def _blocks(dtype, count):
    values = RNG.standard_normal((count, 3, 5)) * 10.0 ** RNG.integers(-3, 4, (count, 1, 1))
    return list((values + (1j * values[::-1] if np.dtype(dtype).kind == "c" else 0)).astype(dtype))


@pytest.mark.parametrize("dtype", [np.float32, np.complex64, np.float64])
@pytest.mark.parametrize("count", [1, 2, 5, 8])
def test_sums_have_the_bits_of_the_host(cupy, dtype, count):
    blocks = _blocks(dtype, count)
    kept = [block.copy() for block in blocks]
    there = [to_device(block) for block in blocks]
    _same(cupy, tree_sum(there), tree_sum(blocks))
    tasks = plan_sum(["a"] * (count - count // 2) + ["b"] * (count // 2))
    found = {(0, i): block for i, block in enumerate(there)}
    for task in tasks:
        found[task.node] = add_up(task.node, count, task.leaves, [found[leaf] for leaf in task.leaves])
    _same(cupy, found[tasks[-1].node], tree_sum(blocks))
    for block, before in zip(there, kept):
        _same(cupy, block, before)


def test_sums_of_dicts_with_numbers(cupy):
    blocks = [{"update": block, "norm": (float(block[0, 0].real), 1)} for block in _blocks(np.complex64, 5)]
    _same(cupy, tree_sum([_there(block) for block in blocks]), tree_sum(blocks))
    scalars = [to_device(np.array(value)) for value in (1.5, 2.25, 4.0)]
    assert tree_sum(scalars).get() == 7.75


def test_sums_never_mix_host_and_device(cupy):
    block = _blocks(np.float32, 1)[0]
    with pytest.raises(UserError, match=r"must be alike; got float32\[3, 5\] on a device and float32\[3, 5\]"):
        tree_sum([to_device(block), block])
    with pytest.raises(UserError, match="must be alike"):
        tree_sum([to_device(block), to_device(block[:2])])


@pytest.mark.parametrize("dtype", [np.float32, np.complex64])
def test_means_are_divided_on_the_device(cupy, dtype):
    values = _blocks(dtype, 1)[0]
    weights = np.array([0, 1, 2, 3, 0.5], np.float32)
    for weight in (weights, 4.0, 3):
        _same(cupy, divide((to_device(values), _there(weight))), divide((values, weight)))
    _same(cupy, divide(({"a": to_device(values)}, 4)), divide(({"a": values}, 4)))
    with pytest.raises(UserError, match="sum of the weights is 0"):
        divide((to_device(values), to_device(np.array(0.0))))


@pytest.mark.parametrize("boundary", ["cut", "edge", "zero", "reflect"])
@pytest.mark.parametrize("axis", [0, 1])
def test_borders_are_put_on_where_the_slab_is(cupy, boundary, axis):
    slabs = cut(5, 2)
    whole = np.moveaxis(RNG.standard_normal((5, 3, 4)).astype(np.float32), 0, axis)
    if axis == 0:
        whole = np.moveaxis(np.ascontiguousarray(np.moveaxis(whole, 0, -1)), -1, 0)  # z innermost
    parts = [whole[(slice(None),) * axis + (slab.rows,)] for slab in slabs]
    there = [to_device(part) for part in parts]
    for index, plan in enumerate(plan_halo(slabs, 3, boundary)):
        here_borders = [slab_array._cut(parts[piece.slab], piece, axis, None) for piece in plan.pieces]
        borders = [slab_array._cut({"x": there[piece.slab]}, piece, axis, "x") for piece in plan.pieces]
        found = slab_array._put_on({"x": there[index]}, plan, borders, axis, "x")
        expected = slab_array._put_on(parts[index], plan, here_borders, axis, None)
        _same(cupy, found, expected)
        if parts[index].shape[axis] > 1:  # else there are two names for one order of memory
            assert np.argsort(found.strides).tolist() == np.argsort(expected.strides).tolist()
        for piece, border in zip(plan.pieces, borders):
            assert not cupy.may_share_memory(border, there[piece.slab])


def test_slabs_are_written_from_the_device(cupy):
    class Writer:
        def write_slab(self, start, data):
            assert isinstance(data, np.ndarray)
            written[start] = data

    whole, written = RNG.standard_normal((4, 6, 3)).astype(np.complex64), {}
    slab = cut(4, 2)[1]
    doubled = slab_array._apply(lambda factor, slab, x: {"x": factor * x}, 2, slab, to_device(whole[2:4]))
    slab_array._write_part((Writer(), "x"), slab, doubled)
    np.testing.assert_array_equal(written[2], 2 * whole[2:4])


def test_checkpoints_of_slabs_come_back_to_the_device(cupy, tmp_path):
    slab = cut(4, 2)[1]
    array = np.moveaxis(RNG.standard_normal((4, 5, 2)).astype(np.complex64), -1, 0)
    state = {"x": array, "moment": np.ones((2, 2), np.float32), "step": 3, "seen": np.arange(3)}
    device_state = {name: to_device(value) if name in ("x", "moment") else value for name, value in state.items()}
    checkpoints._save_part(tmp_path / "a", slab, device_state)
    found = checkpoints._load_part(tmp_path / "a", slab)
    for name in ("x", "moment"):
        _same(cupy, found[name], state[name])
    assert found["x"].strides == device_state["x"].strides
    assert found["step"] == 3
    assert isinstance(found["seen"], np.ndarray)
    checkpoints._save_part(tmp_path / "b", slab, to_device(array))
    _same(cupy, checkpoints._load_part(tmp_path / "b", slab), array)


def test_a_checkpoint_of_a_device_is_read_where_there_is_none(cupy, tmp_path, monkeypatch):
    array = RNG.standard_normal((3, 4)).astype(np.float32)
    Checkpoints(tmp_path / "a").save({"x": to_device(array), "zero": to_device(np.array(2.0))})
    assert isinstance(Checkpoints(tmp_path / "a").load().state["x"], cupy.ndarray)
    np.testing.assert_array_equal(Checkpoints(tmp_path / "a", devices=False).load().state["x"], array)
    monkeypatch.setattr(cupy.cuda.runtime, "getDeviceCount", lambda: 0)
    state = Checkpoints(tmp_path / "a").load().state
    np.testing.assert_array_equal(state["x"], array)
    assert state["zero"] == 2


def test_an_algorithm_goes_on_on_the_device(cupy, tmp_path):
    array = np.moveaxis(RNG.standard_normal((4, 5, 2)).astype(np.float32), -1, 0)
    kept = Checkpoints(tmp_path / "a")
    kept.keep(State({"solution": to_device(array), "step": 2.5}, np.ones((3, 2))))
    found = Checkpoints(tmp_path / "a").restore()
    _same(cupy, found.parts["solution"], array)
    assert isinstance(found.residuals, np.ndarray)
    assert found.iteration == 3
    assert found.parts["step"] == 2.5


def test_checkpoints_from_before_are_read(tmp_path):
    """Without a word of devices."""
    from dtomo.io.checkpoints import _MANIFEST, _read_manifest, _write_manifest

    path = Checkpoints(tmp_path / "a").save({"x": np.arange(3.0)})
    content = json.loads(json.dumps(_read_manifest(path / _MANIFEST)))
    del content["arrays"]["x"]["device"]
    _write_manifest(path / _MANIFEST, content)
    np.testing.assert_array_equal(Checkpoints(tmp_path / "a").load().state["x"], np.arange(3.0))


def test_distributed_knows_how_to_send_device_arrays():
    """Between devices where the transport can, else by way of the host; registered when the first one is met."""
    from distributed.protocol.cuda import cuda_deserialize, cuda_serialize
    from distributed.protocol.serialize import dask_deserialize, dask_serialize

    for family in (cuda_serialize, cuda_deserialize, dask_serialize, dask_deserialize):
        registered = any(kind.__module__.startswith("cupy") for kind in family._lookup)
        assert "cupy" in family._lazy or registered
