"""The script for the first GPU, on the stand-in: its checks on tiny arrays, its measurements, and that it can fail."""

import functools
import json

import numpy as np
import pytest

from benchmarks import gpu, gpu_checks, gpu_checks_data, gpu_joint, gpu_peaks, gpu_place, gpu_runs, gpu_speed
from dtomo.device import STAGE
from dtomo.distributed import clusters
from dtomo.kernels.cuda import filters, nufft, parallel, parallel_adjoint, parallel_forward
from dtomo.kernels.cuda.compiling import CudaKernel
from dtomo.recon import cost
from tests import stand_in

TINY = gpu_checks.Extent(7, 4, (14, 2), 2)


@pytest.fixture
def place(cupy, monkeypatch):
    """The stand-in, with blocks of few threads, one geometry, and batches of few lines."""
    for module in (parallel, parallel_forward, parallel_adjoint):
        for name, value in {"LANES": 4, "FEW": 1, "STRIP": 4, "ROWS": 8, "ANGLES": 5}.items():
            if hasattr(module, name):
                monkeypatch.setattr(module, name, value)
    for name in ("forward", "adjoint"):
        few = functools.partial(getattr(parallel, name), grid=parallel.Grid(warps=4, most=2))
        monkeypatch.setattr(parallel, name, few)
    launch = CudaKernel.launch

    def small(kernel, blocks, *arguments, threads=None):
        if not kernel.name.startswith("parallel_"):
            blocks = tuple(min(n, 2) for n in (blocks if isinstance(blocks, tuple) else (blocks,)))
            threads = tuple(min(n, most) for n, most in zip(threads or kernel.threads, (4, 2, 1)))
        launch(kernel, blocks, *arguments, threads=threads)

    monkeypatch.setattr(CudaKernel, "launch", small)
    monkeypatch.setattr(gpu_joint, "ENGINES", ("adam",))  # tests/cuda/test_joint.py has all of them
    monkeypatch.setattr(filters, "WORKSPACE", 16 * 27 * 20)
    monkeypatch.setattr(nufft, "slices_at_once", lambda slices, *_: min(slices, 2))
    one = gpu_checks.geometries(TINY)["axis off, full turn"]
    monkeypatch.setattr(gpu_checks, "geometries", lambda _: dict.fromkeys(("axis off, full turn", "half turn"), one))
    return gpu_place.Place(cupy, True)


@pytest.fixture
def main(place, monkeypatch, tmp_path):
    """The script on the stand-in; returns its status and what it wrote."""
    monkeypatch.setattr(gpu_place, "device", lambda: place)
    monkeypatch.setattr(gpu_checks, "QUICK", TINY)
    monkeypatch.setattr(gpu, "extents", lambda _: [gpu_speed.Extent(6, 2, 3)])

    def run(*arguments):
        path = tmp_path / "found.json"
        status = gpu.main(["--quick", "--json", str(path), *arguments])
        return status, json.loads(path.read_text())

    return run


def limited(monkeypatch, cupy):
    """Let allocations respect the limit of the pool."""
    pool = cupy.get_default_memory_pool()

    def hook(size):
        if pool.limit and size > pool.limit:
            raise stand_in.OutOfMemoryError(size, 0)

    monkeypatch.setattr(stand_in, "ON_ALLOCATION", [hook])


@pytest.mark.timeout(900)
def test_all_checks_pass_and_every_kernel_is_met(main, cupy, monkeypatch, capsys):
    limited(monkeypatch, cupy)
    status, found = main("--parts", "card", "checks")
    assert status == 0, found["wrong"]
    assert found["finished"]
    assert found["card"]["cards"][0]["name"] == "stand-in"
    assert len(found["checks"]) > 100
    assert all(row["error"] <= row["allowed"] for row in found["checks"])
    assert "what a full device says" in {row["check"] for row in found["checks"]}
    assert {"parallel_forward.forward_planes", "filters.take_lines", "sums.dot_blocks"} <= set(found["kernels"])
    assert "every kernel is met by a check: right" in capsys.readouterr().out


def test_everything_is_measured(main, monkeypatch):
    monkeypatch.setattr(gpu_peaks, "UNROLLED", 1)
    for kernel in (gpu_peaks.multiply_add, gpu_peaks.read_shared):
        monkeypatch.setattr(kernel, "threads", (2,))
    monkeypatch.setattr(gpu_peaks, "BLOCKS", 1)
    status, found = main("--parts", "peaks", "speed", "full")
    assert status == 0, found["tracebacks"]
    assert found["peaks"].keys() >= {"fma", "shared", "within", "up_pinned", "down_staged"}
    measured = {row["task"]: row for row in found["speed"] if "seconds" in row}
    assert {"forward", "back", "FBP by back projection", "FBP by NUFFT", "SIRT, one iteration"} < measured.keys()
    assert all(row["seconds"] > 0 and row["gups"] > 0 for row in measured.values())
    assert {"of_fma", "of_shared", "of_within", "pool_bytes"} <= measured["forward"].keys()
    assert sum(task.startswith("FBP of 8 slabs") for task in measured) == 1


def test_it_stops_at_the_first_wrong_result(main, monkeypatch, capsys):
    launch = CudaKernel.launch

    def wrong(kernel, blocks, *arguments, **keywords):
        launch(kernel, blocks, *arguments, **keywords)
        if kernel.name.startswith("sums.add_blocks"):
            arguments[1].host[0] += 1

    monkeypatch.setattr(CudaKernel, "launch", wrong)
    status, found = main("--parts", "checks", "peaks")
    assert status == 1
    assert not found["finished"]
    assert "peaks" not in found
    (line,) = found["wrong"]
    assert line.startswith("sums: dot_in, float32: got ")
    assert "expected" in line
    assert "WRONG RESULTS" in capsys.readouterr().out


def test_places_past_so_many_values(place, monkeypatch):
    checker = gpu_checks.Checker(place, TINY)
    assert gpu_checks.check_places(checker, 500) == []
    assert [row["check"] for row in checker.rows] == [
        "forward of the last of 7 slices",
        "adjoint of the last of 7 slices",
    ]
    monkeypatch.setattr(gpu_place.Place, "room", lambda _: 5600)
    assert gpu_checks.check_places(checker, 500) == ["places past 500 values: not enough memory"]
    assert gpu_checks.check_places(gpu_checks.Checker(gpu_place.host(), TINY), 500)


def test_kernels_that_no_check_launches_are_named():
    missing = gpu_checks_data.uncovered(gpu_checks_data.Launches())
    assert "parallel_forward.forward_planes" in missing
    assert not [name for name in missing if name.startswith("gpu_peaks")]


def test_what_there_is_no_time_for_is_left_out(main):
    status, found = main("--parts", "checks", "full", "--seconds", "1")
    assert status == 0
    assert found["left_out"] == ["checks: no time left", "full: no time left"]


def test_workers_have_room_for_cuda_and_what_is_spilled(place, monkeypatch):
    monkeypatch.setattr(clusters, "resources", lambda kind, **request: (kind, request))
    monkeypatch.setattr(clusters, "connect", lambda wanted: wanted)
    kind, request = gpu_runs._client(place, devices=["0"])
    assert (kind, request["devices"]) == ("cuda", ["0"])
    taken = cost.PROGRAMS + cost.CUDA_PROGRAMS + 4 * STAGE + 24 * gpu_runs._STATE
    assert clusters.parse_memory(request["memory"]) > 2 * taken
    assert gpu_runs._client(gpu_place.host())[0] == "local"


def test_without_a_device_it_ends_in_one_sentence(cupy, monkeypatch, capsys):
    monkeypatch.setattr(gpu_place.importlib.util, "find_spec", lambda _: None)
    assert gpu.main([]) == 2
    assert capsys.readouterr().err == "CuPy is not installed: pip install '.[cuda12]' (or .[cuda13]), or try --cpu\n"
    monkeypatch.setattr(gpu_place.importlib.util, "find_spec", lambda _: object())
    monkeypatch.setattr(cupy.cuda.runtime, "getDeviceCount", lambda: 0)
    assert gpu.main([]) == 2
    assert capsys.readouterr().err == "CuPy finds no GPU; try --cpu\n"


@pytest.mark.without_simulator
@pytest.mark.parametrize(
    ("got", "problem"), [([1, 2.1], "2.1 at"), ([1, np.nan], "nan at"), ([1, 2, 3], r"float32\(3,\)")]
)
def test_differences_are_found(got, problem):
    checker = gpu_checks.Checker(gpu_place.host(), TINY)
    expected = np.array([1, 2], np.float32)
    checker.close("equal", expected, expected, 0.0)
    for compare in (functools.partial(checker.close, allowed=1e-3), checker.same):
        with pytest.raises(gpu_checks.WrongResult, match=problem) as caught:
            compare("values", np.array(got, np.float32), expected)
        assert caught.value.check == "values"
    with pytest.raises(gpu_checks.WrongResult, match="complex64"):
        checker.close("dtypes", expected.astype(np.complex64), expected, 1.0)
