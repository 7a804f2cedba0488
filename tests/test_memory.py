"""Blocks of memory that are used again."""

import gc
import os
import subprocess
import sys
import threading

import numpy as np
import pytest

from dtomo.arrays import empty_aligned
from dtomo.memory import ALIGNMENT, SMALLEST, BlockStore, keep_memory

MB = 2**20


@pytest.fixture
def store():
    store = BlockStore()
    store.keeping = True
    return store


def test_a_block_is_used_again_when_its_last_view_is_gone(store):
    first = store.empty(8 * MB)
    place = first.ctypes.data
    view = first.view(np.float32)[100:200].reshape(10, 10)
    del first
    other = store.empty(8 * MB)
    assert other.ctypes.data != place  # a view still needs the first
    del view
    assert store.empty(8 * MB).ctypes.data == place


def test_contents_of_living_arrays_are_never_touched(store):
    rng = np.random.default_rng(1)
    living: list[tuple[np.ndarray, int]] = []
    for number in range(300):
        array = store.empty(int(rng.integers(1, 4 * MB)))
        array[:] = number % 251
        living.append((array, number % 251))
        if len(living) > 5:
            array, value = living.pop(int(rng.integers(6)))
            assert (array == value).all()
    assert all((array == value).all() for array, value in living)


def test_kept_and_used_stay_below_the_worst_moment(store):
    a, b = store.empty(10 * MB), store.empty(20 * MB)
    del a, b
    assert store.kept == 30 * MB
    c = store.empty(25 * MB)  # fits none: makes room
    assert store.kept + c.nbytes <= 30 * MB
    del c


def test_a_much_larger_block_is_not_wasted_on_a_small_request(store):
    large = store.empty(30 * MB)
    del large
    small = store.empty(10 * MB)
    assert store.kept == 0 or small.base is not None
    assert store.kept <= 20 * MB


def test_release_gives_everything_back(store):
    array = store.empty(5 * MB)
    del array
    store.release()
    assert store.kept == 0


def test_threads_get_blocks_of_their_own(store):
    faults = []

    def work(value):
        for _ in range(200):
            array = store.empty(2 * MB)
            array[::4096] = value
            if not (array[::4096] == value).all():
                faults.append(value)

    threads = [threading.Thread(target=work, args=(value,)) for value in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults


def test_arrays_are_aligned_and_reused_only_where_asked_for():
    keep_memory()
    try:
        array = empty_aligned((SMALLEST // 4, 3))
        place = array.ctypes.data
        assert place % ALIGNMENT == 0
        assert array.flags.c_contiguous
        assert array.flags.writeable
        del array
        gc.collect()
        assert empty_aligned((SMALLEST // 4, 3)).ctypes.data == place
    finally:
        keep_memory(False)


def test_memory_in_use_when_keeping_ends_goes_back():
    program = """
import numpy as np, psutil
from dtomo.arrays import empty_aligned
from dtomo.memory import keep_memory
def resident():
    return psutil.Process().memory_info().rss
keep_memory()
array = empty_aligned((200_000_000,), np.uint8)
array[:] = 1
keep_memory(False)
before = resident()
del array
print(before - resident() > 150_000_000)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=os.environ, check=True)
    assert done.stdout.strip() == "True"


def test_repeated_work_takes_no_new_memory():
    resource = pytest.importorskip("resource")
    keep_memory()
    try:

        def slab():
            raw = empty_aligned((64, 512, 128), np.uint16)
            raw[:] = 3
            values = empty_aligned((64, 512, 128))
            values[:] = raw
            del raw
            turned = empty_aligned((64, 128, 512))
            turned[:] = np.swapaxes(values, 1, 2)
            del values
            volume = empty_aligned((64, 96, 512))
            volume[:] = turned[:, :96]

        for _ in range(3):
            slab()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for _ in range(5):
            slab()
        pages = 5 * 64 * 512 * 128 * 4 // 4096
        assert resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before < pages / 2
    finally:
        keep_memory(False)
