"""Every name and keyword of CuPy, cufinufft and dask-cuda in our source is in the installed ones. No GPU is needed."""

import ast
import importlib
import importlib.util
import os
from pathlib import Path

import pytest

from tests import cupy_source, stand_in

ROOT = Path(__file__).parents[2]
INSTALLED = importlib.util.find_spec("cupy") is not None
SIMULATED = os.environ.get("NUMBA_ENABLE_CUDASIM") == "1"
pytestmark = [
    pytest.mark.without_simulator,
    pytest.mark.skipif(not INSTALLED or SIMULATED, reason="reads the installed CuPy; it comes with dtomo[cuda12]"),
]

HOST = (
    "dtomo/cli/", "dtomo/dashboard/", "dtomo/io/", "dtomo/report/", "dtomo/simulate/", "dtomo/geometry/",
    "dtomo/kernels/parallel_cpu.py", "dtomo/kernels/parallel_few.py", "dtomo/kernels/weights.py",
)  # fmt: skip
"""Never handed a device array: what of NumPy's is used here need not be CuPy's."""

OURS = frozenset(["pools"])
"""What the stand-in has besides, for its tests."""

HOST_CALLS = {
    ("dtomo/algorithms/krylov.py", "np.divide"),  # ratios of inner products
    ("dtomo/algorithms/resolution.py", "np.divide"),  # sums over rings
    ("dtomo/ptycho/driver.py", "np.divide"),  # losses of epochs
    ("dtomo/ptychotomo/engines/admm.py", "np.divide"),  # ratios of inner products
    ("dtomo/subtomo/comparison.py", "np.divide"),  # correlations of shells
    ("dtomo/subtomo/filters.py", "np.divide"),  # gains of shells
}
"""(file, function of NumPy) elsewhere that only host arrays reach."""


@pytest.fixture(autouse=True, scope="module")
def cufinufft_loads():
    """cufinufft finds cuFFT among the libraries that are loaded, not among the wheels."""
    from cuda.pathfinder import load_nvidia_dynamic_lib

    for library in ("cudart", "cufft"):
        load_nvidia_dynamic_lib(library)


def found_in(trees, numpy=lambda name: True):
    """Problems of files {name: tree}, as sentences."""
    functions = cupy_source.module_functions(list(trees.values()))
    found = {}
    for name, tree in trees.items():
        for use in cupy_source.uses(tree, functions, numpy(name)):
            if (name, use.path.replace("numpy.", "np.")) not in HOST_CALLS:
                found |= dict.fromkeys(f"{name}, {problem}" for problem in cupy_source.problems(use))
    return list(found)


def test_source():
    paths = sorted([*ROOT.glob("dtomo/**/*.py"), *ROOT.glob("benchmarks/gpu*.py")])
    trees = {str(path.relative_to(ROOT)): cupy_source.read(path) for path in paths}
    assert len(trees) > 100
    found = found_in(trees, lambda name: not name.startswith(HOST))
    assert not found, "\n".join(found)
    functions = cupy_source.module_functions(list(trees.values()))
    seen = {use.path for name, tree in trees.items() for use in cupy_source.uses(tree, functions)}
    assert {"cupy.empty", "cupy.cuda.get_current_stream", "cupyx.scipy.fft.rfft", "dask_cuda.LocalCUDACluster"} <= seen


BAD = {
    "name": ("import cupy\ncupy.no_such(3)", "cupy.no_such"),
    "attribute": ("import cupy\nx = cupy.cuda.runtime.memNoInfo", "memNoInfo"),
    "module": ("import cupyx.scipy.nothing", "cupyx.scipy.nothing"),
    "from": ("from cupyx.scipy.ndimage import shifts", "shifts"),
    "alias": ("def f(a):\n    import cupyx.scipy.fft as fft\n    return fft.rfft(a, axes=0)", "no 'axes'"),
    "xp": ("xp = array_module(a)\nxp.pad(a, 3, mode='edge')\nxp.nanquartile(a)", "nanquartile"),
    "parameter": ("def f(a, xp):\n    return xp.empty(a.shape, kind='f4')", "no 'kind'"),
    "own function": (
        "def transforms(a):\n    import cupyx.scipy.fft\n    return cupyx.scipy.fft if a else scipy.fft\n"
        "def g(a):\n    return transforms(a).rfft(a, n=3, workers=2)",
        "no 'workers'",
    ),
    "keyword of a ufunc": ("import cupy\ncupy.add(a, b, where=a)", "no 'where'"),
    "keyword of compiled code": ("import cupy\ncupy.cuda.alloc_pinned_memory(bytes=3)", "no 'bytes'"),
    "too many": ("import cupy\ncupy.cuda.runtime.memGetInfo(0, 1)", "too many"),
    "method": ("import cupy\na = cupy.empty(3)\na.get(async_=True)", "no 'async_'"),
    "object": ("import cupy\nwith cupy.cuda.Stream(non_blocking=True) as s:\n    s.wait()", "wait"),
    "pool": ("import cupy\ncupy.get_default_memory_pool().set_limit(bytes=1)", "no 'bytes'"),
    "number of arguments": ("import cupy\ncupy.clip(a)", "missing"),
    "dispatch of a ufunc": ("import numpy as np\nnp.multiply(a, b, out=a, where=m)", "no 'where'"),
    "dispatch": ("import numpy as np\nnp.median(a, axis=0, keepdims=True)\nnp.busday_count(a, b)", "busday_count"),
    "cufinufft": ("import cufinufft\ncufinufft.Plans(1)", "Plans"),
    "dask-cuda": ("from dask_cuda import LocalCUDACluster as C\nC(2, 3, 4, 5).no_such", "no_such"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_source_is_found(name):
    source, said = BAD[name]
    found = found_in({"bad.py": ast.parse(source)})
    assert any(said in problem for problem in found), found


def test_good_source_passes():
    source = """
import cupy, cupyx.scipy.ndimage as nd
from cupyx.scipy import fft
import numpy as np
def f(a, stream, xp):
    with cupy.cuda.Device(0), cupy.cuda.Stream(non_blocking=True) as s:
        b = cupy.asarray(a, np.float32, order="C", blocking=False)
        s.wait_event(stream.record())
    b.get(stream=s, out=a, blocking=False)
    pointer = s.ptr
    np.add(b, 1, out=b, casting="same_kind")
    np.sum(b, axis=(0, 1), dtype=np.float64)
    np.errstate(divide="ignore")
    fft.rfft(b, n=8, axis=-1, overwrite_x=True)
    nd.shift(b, 0.5, order=1, mode="constant")
    return xp.linalg.norm(b), np.fft.fftfreq(8, d=1.0)
"""
    assert found_in({"good.py": ast.parse(source)}) == []


def names_of(thing):
    return {name for name in vars(thing) if name[0] != "_"}


def test_the_stand_in_has_only_what_cupy_has(monkeypatch):
    import cupy

    real = {place: importlib.import_module(f"cupy{place}") for place in ("", ".cuda")}
    arrays = stand_in._METHODS | stand_in._ATTRIBUTES | names_of(stand_in.ndarray)
    assert arrays - {"host"} <= set(dir(cupy.ndarray))
    with monkeypatch.context() as patch:
        fake = stand_in.install(patch)
        for place, module in (("", fake), (".cuda", fake.cuda)):
            assert names_of(module) - OURS <= set(dir(real[place])), place
    for ours, theirs in ((stand_in._Stream, cupy.cuda.Stream), (stand_in._Event, cupy.cuda.Event)):
        for name in names_of(ours):
            path = f"cupy.cuda.{theirs.__name__}.{name}"
            assert list(cupy_source.problems(cupy_source.Use(0, path))) == []
