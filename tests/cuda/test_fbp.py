"""Filtered back projection on devices, against the host: the filter, sums in Fourier space, both ends to end."""

import sys

import numpy as np
import pytest

from dtomo.algorithms import fbp
from dtomo.errors import UserError
from dtomo.geometry import ParallelBeam
from dtomo.kernels import nufft as host_nufft
from dtomo.kernels.cuda import filters, layout, nufft
from dtomo.kernels.filters import filter_lines, line_continuation, pad_lines, padded_length
from dtomo.operators import FILTERS, filter_projections, fourier_backproject
from dtomo.operators.filtering import filter_responses
from tests import laws
from tests.kernels.test_nufft import direct_sum

UNEVEN = [0.0, 13.0, 45.0, 90.0, 123.0, 180.0, 270.0, -30.0]
DTYPES = pytest.mark.parametrize("dtype", [np.float32, np.complex64])
PADDINGS = pytest.mark.parametrize("padding", ["edge", "zero"])


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Few threads for the simulator, and several batches of lines, the last one not full."""
    for kernel in (filters.continue_lines, filters.take_lines, layout.turn_words, layout.turn_double_words):
        monkeypatch.setattr(kernel, "threads", (4, 2))
    monkeypatch.setattr(filters.multiply_spectra, "threads", (8,))
    monkeypatch.setattr(filters, "WORKSPACE", 16 * 27 * 20)


def difference(found, expected):
    return laws.norm(found.get() - expected) / laws.norm(expected)


@pytest.mark.parametrize("extend", [True, False])
@pytest.mark.parametrize(("columns", "slices", "first", "count"), [(1, 1, 0, 2), (35, 3, 2, 40), (8, 40, 37, 9)])
def test_lines_are_continued_as_on_the_host(cupy, extend, columns, slices, first, count):
    lines, length = laws.draw((3, columns, slices + 2)), padded_length(columns) + 1
    padded = np.empty((3, length, slices), np.float32)
    left = pad_lines(lines[:, :, 1 : 1 + slices], padded, extend)
    expected = np.zeros((count, length), np.float32)
    there = np.moveaxis(padded, 2, 1).reshape(-1, length)[first : first + count]
    expected[: len(there)] = there
    found = cupy.empty((count, length), np.float32)
    factors = cupy.asarray(line_continuation(columns, length, extend))
    filters.continue_lines.launch(2, cupy.asarray(lines), first, 1, slices, factors, left, found)
    assert np.array_equal(found.get(), expected)


@DTYPES
@PADDINGS
@pytest.mark.parametrize("name", FILTERS)
def test_filter(cupy, record_error, name, padding, dtype):
    geometry = ParallelBeam(UNEVEN, 13, pitch=1.5)
    lines = laws.draw((8, 2, 13), dtype)
    device = cupy.asarray(lines)
    found = filter_projections(device, geometry, name, padding=padding, cutoff=0.8)
    assert found.dtype == dtype
    assert found.shape == lines.shape
    assert np.swapaxes(found, 1, 2).flags.c_contiguous
    expected = filter_projections(lines, geometry, name, padding=padding, cutoff=0.8)
    record_error(found, expected)
    assert difference(found, expected) <= 1e-5
    assert np.array_equal(device.get(), lines)


@DTYPES
@pytest.mark.parametrize(("angles", "slices", "columns"), [(1, 1, 1), (2, 1, 40), (5, 7, 2), (1, 34, 33)])
def test_filter_sizes(cupy, angles, slices, columns, dtype):
    geometry = ParallelBeam(np.arange(angles) * 180 / angles, columns)
    lines = laws.draw((angles, slices, columns), dtype)
    found = filter_projections(cupy.asarray(lines), geometry)
    assert difference(found, filter_projections(lines, geometry)) <= 1e-5


def test_filter_against_the_transform_written_out(cupy):
    columns, length = 9, padded_length(9)
    geometry = ParallelBeam(UNEVEN, columns)
    responses = filter_responses(geometry, "hann", 1.0, length)
    lines = laws.draw((8, columns, 4))
    found = filter_lines(cupy.asarray(lines), cupy.asarray(responses), length, False)
    frequency = 2 * np.pi * np.arange(length) / length
    full = np.concatenate([responses, responses[:, 1 : (length + 1) // 2][:, ::-1]], 1).astype(float)
    apart = np.arange(columns)[:, None] - np.arange(columns)
    kernel = np.tensordot(full, np.cos(frequency[:, None, None] * apart), 1) / length
    assert difference(found, np.einsum("aij,ajz->aiz", kernel, lines.astype(float))) <= 1e-5


@DTYPES
def test_overwriting(cupy, dtype):
    geometry = ParallelBeam(UNEVEN, 13)
    lines = laws.draw((8, 3, 13), dtype)
    expected = filter_projections(lines, geometry)
    inside = cupy.asarray(lines.swapaxes(1, 2).copy()).swapaxes(1, 2)
    kept = filter_projections(inside, geometry)
    assert not cupy.may_share_memory(kept, inside)
    assert np.array_equal(inside.get(), lines)
    spared = filter_projections(inside, geometry, overwrite=True)
    assert cupy.may_share_memory(spared, inside)
    assert np.array_equal(spared.get(), kept.get())
    assert difference(spared, expected) <= 1e-5
    outside = cupy.asarray(lines)
    filter_projections(outside, geometry, overwrite=True)
    assert np.array_equal(outside.get(), lines)


def test_a_slice_has_the_same_bits_in_any_slab(cupy):
    """As far as the transform treats the lines of a batch alike, which that of the stand-in does."""
    geometry = ParallelBeam(UNEVEN, 13)
    lines = laws.draw((8, 9, 13))
    whole = filter_projections(cupy.asarray(lines), geometry).get()
    for first, size in ((0, 1), (3, 2), (4, 5)):
        part = filter_projections(cupy.asarray(lines[:, first : first + size]), geometry)
        assert np.array_equal(part.get(), whole[:, first : first + size])
    broken = lines.copy()
    broken[3, 2, 5] = np.nan
    good = [0, 1, 3, 4, 5, 6, 7, 8]
    assert np.array_equal(filter_projections(cupy.asarray(broken), geometry).get()[:, good], whole[:, good])


def test_a_batch_depends_on_the_length_alone(monkeypatch):
    monkeypatch.undo()
    assert filters.lines_at_once(4096) == 4096
    assert filters.lines_at_once(2**40) == 1
    for length in (2, 1000, 65536):
        assert filters.lines_at_once(length) * 16 * length <= filters.WORKSPACE


CASES = pytest.mark.parametrize(
    ("columns", "center", "pitch", "size"),
    [
        (24, 11.5, 1.0, (24, 24)),
        (25, 9.3, 1.0, (17, 30)),
        (40, 22.0, 0.5, (21, 20)),
        (12, 5.1, 2.5, (30, 29)),
        (1, 0.0, 1.0, (3, 4)),
    ],
)


@CASES
@DTYPES
@PADDINGS
def test_sums_in_fourier_space(cupy, monkeypatch, columns, center, pitch, size, padding, dtype):
    geometry = ParallelBeam(UNEVEN, columns, center, width=size[1], height=size[0], pitch=pitch)
    monkeypatch.setattr(nufft, "slices_at_once", lambda slices, *_: min(slices, 2))
    lines = laws.draw((8, 3, columns), dtype)
    device = cupy.asarray(lines)
    found = fourier_backproject(device, geometry, padding=padding)
    assert found.dtype == dtype
    assert np.moveaxis(found, 0, -1).flags.c_contiguous
    assert difference(found, fourier_backproject(lines, geometry, padding=padding)) <= 2e-4
    assert np.array_equal(device.get(), lines)


@CASES
def test_sums_against_the_sum_written_out(cupy, columns, center, pitch, size):
    length, radians = padded_length(columns), np.deg2rad(UNEVEN)
    lines = laws.draw((8, columns, 2))
    responses = laws.draw((8, length // 2 + 1))
    arguments = (radians, center, pitch, size, length, True)
    found = host_nufft.fourier_backproject(cupy.asarray(lines), cupy.asarray(responses), *arguments)
    assert difference(found, direct_sum(lines, responses, *arguments)) <= 3e-4


def test_an_axis_that_no_voxel_is_seen_from(cupy):
    geometry = ParallelBeam(UNEVEN, 13, -70.0, width=5, height=4)
    found = fourier_backproject(cupy.ones((8, 2, 13), np.float32), geometry)
    assert isinstance(found, cupy.ndarray)
    assert found.shape == (2, 4, 5)
    assert not found.any()


def test_slices_of_a_call():
    for slices, samples, size in ((64, 3217 * 2049, (2048, 2048)), (5, 804 * 513, (512, 512)), (100, 10, (9, 9))):
        together = nufft.slices_at_once(slices, samples, size)
        calls = -(-slices // together)
        assert together * nufft.slice_bytes(samples, size) <= nufft.WORKSPACE
        assert calls * together < slices + calls  # next to nothing is summed for nothing
    assert nufft.slices_at_once(64, 10**9, (16384, 16384)) == 1


def test_the_plan_lies_on_the_present_device_and_stream(cupy, monkeypatch):
    made = []
    plan = sys.modules["cufinufft"].Plan

    def kept(*args, **options):
        made.append((args, options))
        return plan(*args, **options)

    monkeypatch.setattr(sys.modules["cufinufft"], "Plan", kept)
    cupy.cuda.get_current_stream().ptr = 77
    monkeypatch.setattr(cupy.cuda, "Device", lambda: type("Device", (), {"id": 3}))
    fourier_backproject(cupy.asarray(laws.draw((8, 5, 13))), ParallelBeam(UNEVEN, 13))
    ((args, options),) = made
    assert args == (1, (13, 13))
    assert options["n_trans"] == options["gpu_maxbatchsize"] == 5
    assert (options["gpu_device_id"], options["gpu_stream"], options["isign"]) == (3, 77, 1)
    assert "upsampfac" not in options


class Failing:
    """A plan that cannot be made so many times."""

    def __init__(self, plan, times):
        self.plan, self.times = plan, times

    def __call__(self, *args, **options):
        self.times -= 1
        if self.times >= 0:
            raise RuntimeError("Error creating plan.")
        return self.plan(*args, **options)


def test_memory_that_the_pool_keeps_is_given_back(cupy, monkeypatch):
    lines, geometry = laws.draw((8, 2, 13)), ParallelBeam(UNEVEN, 13)
    freed = []
    monkeypatch.setattr(nufft, "free_memory", lambda: freed.append(1))
    failing = Failing(sys.modules["cufinufft"].Plan, 1)
    monkeypatch.setattr(sys.modules["cufinufft"], "Plan", failing)
    assert difference(fourier_backproject(cupy.asarray(lines), geometry), fourier_backproject(lines, geometry)) <= 2e-4
    assert freed == [1]
    failing.times = 2
    with pytest.raises(RuntimeError, match="creating plan"):  # with 8 GB free it is something else
        fourier_backproject(cupy.asarray(lines), geometry)
    failing.times = 2
    device = type("Device", (), {"id": 0, "mem_info": (1000, 2000)})
    monkeypatch.setattr(cupy.cuda, "Device", lambda *_: device)
    with pytest.raises(cupy.cuda.memory.OutOfMemoryError):
        fourier_backproject(cupy.asarray(lines), geometry)


def test_without_cufinufft(cupy, monkeypatch):
    from dtomo.algorithms import fbp as there

    module = sys.modules[there.__module__]
    monkeypatch.setitem(sys.modules, "cufinufft", None)
    monkeypatch.setattr(module, "sums_spectra", lambda geometry, method: True)
    lines, geometry = cupy.asarray(laws.draw((8, 1, 13))), ParallelBeam(UNEVEN, 13)
    with pytest.raises(UserError, match="cufinufft"):
        fbp(lines, geometry, method="nufft")
    back = []
    monkeypatch.setattr(module, "backproject", lambda filtered, _: back.append(filtered) or filtered)
    fbp(lines, geometry)
    assert len(back) == 1
    # on the host it is always there
    assert host_nufft.spectra_can_be_summed(laws.draw((8, 1, 13)))


@DTYPES
@pytest.mark.parametrize("method", ["backprojection", "nufft"])
def test_end_to_end(cupy, method, dtype):
    geometry = ParallelBeam(UNEVEN, 11, 4.7, width=9, height=8)
    lines = laws.draw((8, 2, 11), dtype)
    found = fbp(cupy.asarray(lines), geometry, method=method)
    assert isinstance(found, cupy.ndarray)
    assert found.dtype == dtype
    assert difference(found, fbp(lines, geometry, method=method)) <= (2e-4 if method == "nufft" else 1e-5)


@pytest.mark.without_simulator
def test_the_real_plan_takes_what_the_stand_in_takes():
    import inspect

    from tests.stand_in import CUFINUFFT_OPTIONS, CufinufftPlan

    real = nufft.library()
    if real is None:
        pytest.skip("cufinufft is not installed here")
    for name in ("__init__", "setpts", "execute"):
        ours, theirs = (inspect.signature(getattr(plan, name)).parameters for plan in (CufinufftPlan, real.Plan))
        assert [(p.name, p.default, p.kind) for p in ours.values()] == [
            (p.name, p.default, p.kind) for p in theirs.values()
        ]
    fields = [name for name, *_ in real.Plan._default_opts()._fields_]
    assert set(fields) >= {"gpu_maxbatchsize", "gpu_device_id", "gpu_stream"}
    assert set(fields) <= CUFINUFFT_OPTIONS
