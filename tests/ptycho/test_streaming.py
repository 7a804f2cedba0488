"""Frames are read once where there is memory for them, and as often as they are needed where there is not."""

import threading
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from numpy.typing import NDArray

from dtomo.errors import UserError
from dtomo.io.sources import ArraySource, HDF5Source
from dtomo.ptycho.blocks import cut_frames
from dtomo.ptycho.driver import run
from dtomo.ptycho.frame_store import FrameStore
from dtomo.ptycho.frames import to_model_order
from tests.ptycho.solvers import SIZE, Descent, same, scan

BLOCKS = [np.arange(first, first + 3) for first in range(0, 18, 3)]
FRAMES = np.arange(18 * 4 * 6, dtype=np.uint16).reshape(18, 4, 6)
SIZE_OF_BLOCK = 3 * 4 * 6 * 2


class Counting(ArraySource):
    """Notes what is read, and by which thread."""

    def __init__(self, array: NDArray[Any]) -> None:
        super().__init__(array)
        object.__setattr__(self, "log", [])

    log: list[tuple[int, str]]

    def read(self, frames: Any = slice(None), rows: slice = slice(None), columns: slice = slice(None)) -> NDArray[Any]:
        self.log.append((int(frames[0]) // 3, threading.current_thread().name))
        return super().read(frames, rows, columns)


def _walk(store: FrameStore, numbers: Any = range(6), following: int | None = None) -> list[NDArray[Any]]:
    blocks = list(store.walk(numbers, following))
    for block, number in zip(blocks, numbers):
        assert np.array_equal(block.indices, BLOCKS[number])
        assert np.array_equal(block.intensities, to_model_order(FRAMES[BLOCKS[number]]))
    return [block.intensities for block in blocks]


def test_frames_are_read_once_and_keep_their_dtype() -> None:
    source = Counting(FRAMES)
    store = FrameStore(source, BLOCKS, 10**6)
    first, second = _walk(store), _walk(store)
    assert [number for number, _ in source.log] == list(range(6))
    assert all(a is b and a.dtype == np.uint16 for a, b in zip(first, second))
    assert store.held == frozenset(range(6))


def test_what_does_not_fit_is_read_in_each_epoch_and_the_rest_stays() -> None:
    source = Counting(FRAMES)
    store = FrameStore(source, BLOCKS, 2 * SIZE_OF_BLOCK + 10)
    for _ in range(3):
        _walk(store)
    read = [number for number, _ in source.log]
    assert [read.count(number) for number in range(6)] == [1, 1, 3, 3, 3, 3]
    assert store.held == {0, 1}


def test_the_next_block_is_read_by_a_thread_while_one_is_worked_on() -> None:
    source = Counting(FRAMES)
    store = FrameStore(source, BLOCKS, 0)
    walk = store.walk([4, 2, 5], following=1)
    next(walk)
    deadline = threading.Event()
    while len(source.log) < 2 and not deadline.wait(0.01):
        continue
    assert [number for number, _ in source.log] == [4, 2]
    list(walk)
    list(store.walk([1, 0]))
    assert [number for number, _ in source.log] == [4, 2, 5, 1, 0]
    assert [name.startswith("dtomo-frames") for _, name in source.log] == [False, True, True, True, True]


def test_what_was_read_ahead_in_vain_is_dropped() -> None:
    source = Counting(FRAMES)
    store = FrameStore(source, BLOCKS, 0)
    _walk(store, [0], following=3)
    _walk(store, [1, 2])
    assert [number for number, _ in source.log] == [0, 3, 1, 2]


def test_blocks_that_went_elsewhere_make_room() -> None:
    source = Counting(FRAMES)
    store = FrameStore(source, BLOCKS, 2 * SIZE_OF_BLOCK)
    _walk(store, [0, 1, 2])
    store.retain({1, 2})
    assert store.held == {1}
    _walk(store, [1, 2])
    assert store.held == {1, 2}


def test_what_cannot_be_read_raises_where_it_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "frames.h5"
    with h5py.File(path, "w") as file:
        file["frames"] = FRAMES
    source = HDF5Source(path, "/frames", FRAMES.shape, FRAMES.dtype)
    store = FrameStore(source, [*BLOCKS, np.array([18])], 0)
    walk = store.walk([0, 6])
    next(walk)
    with pytest.raises(UserError, match="no frame 18"):
        next(walk)


@pytest.mark.parametrize("memory", [0, 3 * 4 * SIZE * SIZE * 2, None])
def test_a_run_from_disk_has_the_bits_of_one_from_memory(tmp_path: Path, memory: int | None) -> None:
    source, parameters = scan(6)
    path = tmp_path / "frames.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("frames", data=source.array, chunks=(5, SIZE, SIZE), compression="gzip")
    streamed = HDF5Source(path, "/frames", source.shape, source.dtype)
    for engine in (Descent(), Descent(batch=9)):
        blocks = cut_frames(parameters["positions"], (SIZE, SIZE), engine.batch, block=4)
        expected = run(engine, source, parameters, 2, blocks=blocks)
        found = run(engine, streamed, parameters, 2, blocks=blocks, frame_memory=memory)
        assert same(found.parameters, expected.parameters)
        assert np.array_equal(found.history, expected.history)
