"""Copies between host and device, and what happens when the device is full."""

import threading

import numpy as np
import pytest

from dtomo import device
from dtomo.errors import StoppedError
from tests import stand_in


@pytest.fixture
def full(monkeypatch):
    """Let the next allocations of `size` bytes or more fail, so many times."""

    def refuse(size, times):
        left = [times]

        def hook(wanted):
            if wanted >= size and left[0]:
                left[0] -= 1
                raise stand_in.OutOfMemoryError(wanted, 0)

        monkeypatch.setattr(stand_in, "ON_ALLOCATION", [hook])
        return left

    return refuse


def _arrays():
    rng = np.random.default_rng(1)
    volume = rng.standard_normal((5, 6, 7)).astype(np.float32)
    yield volume
    yield np.moveaxis(volume, -1, 0)
    yield volume[::2, 1:, ::-1]
    yield np.swapaxes(volume, 0, 1)[1:, ::2]
    yield (volume + 1j).astype(np.complex64)
    yield rng.integers(0, 60000, (3, 4), dtype=np.uint16)
    yield rng.integers(0, 60000, (3, 4)).astype(">u2")
    yield np.array(2.5, np.float32)
    yield np.zeros((0, 3), np.float32)
    yield np.ones((1, 1, 9), bool)
    yield rng.standard_normal((4, 1, 3))


@pytest.mark.parametrize("host", list(_arrays()), ids=lambda array: f"{array.dtype}{array.shape}")
@pytest.mark.parametrize("stage", [4096, 16])
def test_arrays_survive_there_and_back(cupy, monkeypatch, host, stage):
    monkeypatch.setattr(device, "STAGE", stage)
    there = device.to_device(host)
    assert isinstance(there, cupy.ndarray)
    assert (there.shape, there.dtype) == (host.shape, host.dtype.newbyteorder("="))
    back = device.to_host(there)
    assert back.dtype == there.dtype
    np.testing.assert_array_equal(back, host)
    out = np.full(host.shape[::-1], 0, host.dtype).T
    assert device.to_host(there, out) is out
    np.testing.assert_array_equal(out, host)
    np.testing.assert_array_equal(device.begin_download(there, np.empty_like(host)).result(), host)


def test_the_order_of_memory_is_kept(cupy):
    host = np.moveaxis(np.zeros((5, 6, 7), np.float32), -1, 0)  # z innermost
    there = device.to_device(host)
    assert there.strides == host.strides
    assert device.to_host(there).strides == host.strides


def test_what_is_there_stays_there(cupy):
    host, there = np.ones(3), cupy.ones(3)
    assert device.to_device(there) is there
    assert device.to_host(host) is host
    assert device.to_device(None) is None
    out = np.empty(3)
    assert device.to_host(host, out) is out
    assert out.all()


def test_cut_parts_of_device_arrays_come_back(cupy):
    host = np.arange(60, dtype=np.float32).reshape(3, 4, 5)
    part = device.to_device(host)[:, 1:3, ::2]
    np.testing.assert_array_equal(device.to_host(part), host[:, 1:3, ::2])
    with pytest.raises(ValueError, match="does not go into"):
        device.to_host(part, np.empty((3, 2, 2), np.float32))


def test_pieces_are_small_enough_and_cover_all():
    for shape, most in (((5, 4, 3), 1), ((5, 4, 3), 2), ((5, 4, 3), 7), ((5, 4, 3), 24), ((7,), 3), ((2, 100), 1000)):
        count = np.zeros(shape, int)
        for cut in device._cuts(shape, most):
            piece = count[cut]
            assert np.size(piece) <= most
            count[cut] += 1
        assert (count == 1).all()


def test_pinned_buffers_are_used_again_and_bounded(cupy, monkeypatch):
    monkeypatch.setattr(device, "STAGE", 2**17)
    taken = []
    real = cupy.cuda.alloc_pinned_memory
    monkeypatch.setattr(cupy.cuda, "alloc_pinned_memory", lambda size: taken.append(size) or real(size))
    host = np.arange(2**18, dtype=np.float32)  # eight pieces
    for _ in range(3):
        np.testing.assert_array_equal(device.to_host(device.to_device(host)), host)
    assert taken == [2**17] * 4


class _Ordered:
    """A stream that notes what it is asked to do."""

    def __init__(self, log, name):
        self.log, self.name, self.ptr = log, name, 0

    def record(self, event=None):
        self.log.append((self.name, "record"))
        return _Noted(self.log, self.name)

    def wait_event(self, event):
        self.log.append((self.name, "waits for", event.name))

    def synchronize(self):
        self.log.append((self.name, "synchronized"))


class _Noted:
    def __init__(self, log, name):
        self.log, self.name = log, name

    def synchronize(self):
        self.log.append(("host", "waits for", self.name))


@pytest.fixture
def streams(cupy, monkeypatch):
    """What happens on the compute stream and on the copy streams."""
    log = []
    compute = _Ordered(log, "compute")
    monkeypatch.setattr(cupy.cuda, "get_current_stream", lambda: compute)
    monkeypatch.setattr(cupy.cuda, "Stream", lambda non_blocking: _Ordered(log, f"copy {non_blocking}"))
    monkeypatch.setattr(device, "STAGE", 64)
    return log


def test_copies_and_work_wait_for_each_other(cupy, streams):
    there = device.to_device(np.zeros(64, np.float32))  # four pieces, two buffers
    assert streams[:2] == [("compute", "record"), ("copy True", "waits for", "compute")]
    assert streams[-1] == ("compute", "waits for", "copy True")
    assert streams.count(("host", "waits for", "copy True")) == 2  # pieces 3 and 4, for their buffers
    streams.clear()
    device.to_host(there)
    assert streams[:2] == [("compute", "record"), ("copy True", "waits for", "compute")]
    assert streams.count(("host", "waits for", "copy True")) == 4  # every piece before it is taken out
    assert ("compute", "waits for", "copy True") not in streams


def test_an_upload_waits_for_nothing_that_is_sent_later(cupy, streams):
    go = threading.Event()

    def make():
        go.wait(5)
        return np.arange(6, dtype=np.float32)

    coming = device.Upload((6,), np.float32, make)
    assert streams == [("compute", "record")]
    streams.append("later work")
    go.set()
    np.testing.assert_array_equal(coming.result().get(), np.arange(6))
    assert streams[2] == ("copy True", "waits for", "compute")
    assert streams[-1] == ("host", "waits for", "copy True")  # it has ended, whatever becomes of the array


def test_threads_copy_on_the_device_of_their_caller(cupy, monkeypatch):
    entered = []
    monkeypatch.setattr(stand_in._Device, "id", 3)
    monkeypatch.setattr(stand_in._Device, "__init__", lambda self, device=0: None)
    note = lambda self: entered.append((self.id, threading.current_thread().name)) or self  # noqa: E731
    monkeypatch.setattr(stand_in._Device, "__enter__", note)
    there = device.Upload((2,), np.float32, lambda: np.ones(2, np.float32)).result()
    device.begin_download(there, np.empty(2, np.float32)).result()
    assert [(number, name.rsplit("_", 1)[0]) for number, name in entered] == [(3, "dtomo-up"), (3, "dtomo-down")]


def test_an_upload_that_fails_says_so(cupy):
    def fail():
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"):
        device.Upload((6,), np.float32, fail).result()
    with pytest.raises(ValueError, match="announced"):
        device.Upload((6,), np.float32, lambda: np.zeros(5, np.float32)).result()


def in_blocks(work, count, size):
    """Results of consecutive blocks of ``range(count)``, smaller ones once the device is full."""
    height, results, first = device.BlockSize(size), [], 0
    while first < count:
        last = min(first + height.value, count)
        found = height.tried(lambda first=first, last=last: work(first, last))
        if found is not None:
            results.append(found)
            first = last
    return results


def test_blocks_are_halved_once(cupy, full):
    full(8 * 4, 1)
    made = []

    def work(first, last):
        made.append((first, last))
        return cupy.zeros(last - first, np.float32) + np.float32(first)

    found = in_blocks(work, 20, 8)
    assert made == [(0, 8), (0, 4), (4, 8), (8, 12), (12, 16), (16, 20)]
    assert [float(block[0]) for block in found] == [0, 4, 8, 12, 16]


def test_without_memory_for_half_a_block_it_ends(cupy, full, monkeypatch):
    left = full(4, 100)
    monkeypatch.setattr(cupy.cuda.Device, "mem_info", property(lambda self: (3 * 10**9, 8 * 10**9)), raising=False)
    monkeypatch.setattr(stand_in._Device, "__init__", lambda self, device=0: None)
    with pytest.raises(
        device.DeviceFull, match=r"a block of 4: it needs 1.6e-08 GB more and has 3 of 8 GB free"
    ) as end:
        in_blocks(lambda first, last: cupy.zeros(last - first, np.float32), 20, 8)
    assert left == [98]
    assert isinstance(end.value, StoppedError)
    assert end.value.exit_code == 3


def test_memory_is_given_back_before_the_second_try(cupy, full, monkeypatch):
    full(8 * 4, 1)
    freed = []
    pool = cupy.get_default_memory_pool()
    monkeypatch.setattr(pool, "free_all_blocks", lambda: freed.append("blocks"))
    size = device.BlockSize(8)
    assert size.tried(lambda: cupy.zeros(8, np.float32)) is None
    assert size.value == 4
    assert freed == ["blocks"]
    assert cupy.fft.config.get_plan_cache().cleared == 1


def test_other_errors_pass(cupy):
    size = device.BlockSize(8)
    with pytest.raises(ZeroDivisionError):
        size.tried(lambda: 1 // 0)
    with pytest.raises(MemoryError):
        size.tried(_host_is_full)
    assert size.value == 8


def _host_is_full():
    raise MemoryError("Unable to allocate 9.9 TiB")


@pytest.mark.parametrize(
    "error",
    [
        MemoryError("std::bad_alloc: out_of_memory: CUDA error at: cuda_memory_resource.hpp"),
        RuntimeError("CUFFT_ALLOC_FAILED"),
        RuntimeError("cudaErrorMemoryAllocation: out of memory"),
    ],
)
def test_every_library_that_finds_no_memory_is_heard(cupy, error):
    assert device.is_full(error)


def test_the_pool_is_limited(cupy, monkeypatch):
    pool = cupy.get_default_memory_pool()
    assert device.limit_memory(10**9) == pool.get_limit() == 10**9
    assert device.limit_memory() == 10**9  # one that is there stays
    pool.set_limit(0)
    assert device.limit_memory() == int(0.9 * (8 << 30))
    device.bound_plan_cache()
    assert cupy.fft.config.get_plan_cache().get_size() == device.PLANS


def test_what_is_left_is_within_the_limit(cupy, monkeypatch):
    pool = cupy.get_default_memory_pool()
    monkeypatch.setattr(pool, "used_bytes", lambda: 4 * 10**8)
    monkeypatch.setattr(pool, "free_bytes", lambda: 10**8)
    assert device.memory_left() == ((8 << 30) + 10**8, 8 << 30)  # what the pool keeps may be used again
    pool.set_limit(10**9)
    assert device.memory_left() == (6 * 10**8, 10**9)
    pool.set_limit(10**11)
    assert device.memory_left() == ((8 << 30) + 10**8, 8 << 30)


def test_whether_there_is_a_device(cupy, monkeypatch):
    assert device.available()
    monkeypatch.setattr(cupy.cuda.runtime, "getDeviceCount", lambda: 0)
    assert not device.available()

    def no_driver():
        raise RuntimeError("cudaErrorNoDevice")

    monkeypatch.setattr(cupy.cuda.runtime, "getDeviceCount", no_driver)
    assert not device.available()
