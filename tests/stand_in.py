"""A stand-in for CuPy that needs no GPU: its arrays live in host memory, but behave as if they did not.

They refuse to become NumPy arrays, to meet NumPy arrays in one operation, and to be indexed with them, as CuPy's do
(or would do with a hidden copy); full reductions and single elements stay 0-d arrays. Functions exist only where the
installed CuPy has them (where none is installed, every name of NumPy's and SciPy's passes). `install` puts it in the
place of ``cupy``, ``cupyx.scipy`` and ``cufinufft``; kernels run in the simulator of Numba-CUDA on the same memory.
"""

import importlib
import importlib.util
import sys
import types
from typing import Any

import finufft
import numpy as np
import scipy.fft
import scipy.ndimage
import scipy.signal

_NAMES = (
    "all any argmax argmin argsort astype choose clip conj conjugate copy cumprod cumsum diagonal dot fill flatten max"
    " mean min nonzero partition prod put ravel repeat reshape round searchsorted sort squeeze std sum swapaxes take"
    " trace transpose var view"
)
_METHODS = frozenset(_NAMES.split())
_ATTRIBUTES = frozenset(["dtype", "itemsize", "nbytes", "ndim", "shape", "size", "strides"])


def _host(value: Any) -> Any:
    """What a device function is handed, as NumPy; host arrays are refused."""
    if isinstance(value, ndarray):
        return value.host
    if isinstance(value, np.ndarray):
        raise TypeError("Unsupported type <class 'numpy.ndarray'>: a host array among device arrays")
    if isinstance(value, list | tuple):
        found = [_host(item) for item in value]
        return type(value)(*found) if hasattr(value, "_fields") else type(value)(found)
    if isinstance(value, dict):
        return {key: _host(item) for key, item in value.items()}
    return value


def _device(value: Any) -> Any:
    """What a device function returns; also numbers, which are 0-d arrays there."""
    if isinstance(value, np.ndarray | np.generic):
        return ndarray(np.asarray(value))
    if isinstance(value, list | tuple):
        found = [_device(item) for item in value]
        return type(value)(*found) if hasattr(value, "_fields") else type(value)(found)
    return value


class ndarray(np.lib.mixins.NDArrayOperatorsMixin):  # its name is CuPy's
    """An array on the stand-in's device; `host` is its memory."""

    __array_priority__ = 100

    def __init__(self, host: np.ndarray[Any, Any]) -> None:
        if host.base is None:
            for hook in ON_ALLOCATION:
                hook(host.nbytes)
        self.host = host

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise TypeError("Implicit conversion to a NumPy array is not allowed. Please use `.get()`.")

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, out: Any = None, **kwargs: Any) -> Any:
        if method != "__call__":
            raise TypeError(f"{ufunc.__name__}.{method} is not there on the device")
        _known("", ufunc.__name__)
        if kwargs.keys() - {"dtype", "casting"}:
            raise TypeError(f"Wrong arguments {sorted(kwargs)}")
        kwargs = _host(kwargs)
        if out is not None:
            kwargs["out"] = _host(tuple(out))
        result = ufunc(*(_host(item) for item in inputs), **kwargs)
        return out[0] if out is not None and len(out) == 1 else _device(result)

    def __array_function__(self, function: Any, _: Any, args: Any, kwargs: Any) -> Any:
        place = function.__module__.removeprefix("numpy").lstrip(".")
        space = getattr(sys.modules["cupy"], place) if place else sys.modules["cupy"]
        return getattr(space, function.__name__)(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name in _ATTRIBUTES:
            return getattr(self.host, name)
        if name in _METHODS:
            method = getattr(self.host, name)
            return lambda *args, **kwargs: _device(method(*_host(args), **_host(kwargs)))
        raise AttributeError(f"a device array has no {name!r}")

    @property
    def T(self) -> "ndarray":
        return ndarray(self.host.T)

    @property
    def real(self) -> "ndarray":
        return ndarray(self.host.real)

    @real.setter
    def real(self, value: Any) -> None:
        self.host.real = _host(value)

    @property
    def imag(self) -> "ndarray":
        return ndarray(self.host.imag)

    @imag.setter
    def imag(self, value: Any) -> None:
        self.host.imag = _host(value)

    @property
    def flags(self) -> Any:
        """Those that CuPy has; it knows no read-only arrays."""
        names = ("c_contiguous", "f_contiguous", "forc", "fnc", "owndata")
        return types.SimpleNamespace(**{name: getattr(self.host.flags, name) for name in names})

    @property
    def base(self) -> Any:
        return None if self.host.base is None else _device(self.host.base)

    @property
    def data(self) -> Any:
        return types.SimpleNamespace(ptr=self.host.ctypes.data, mem=None, device_id=0)

    @property
    def device(self) -> Any:
        return sys.modules["cupy"].cuda.Device(0)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {**self.host.__array_interface__, "version": 3, "stream": 1}

    def get(self, stream: Any = None, order: str = "C", out: Any = None, blocking: bool = True) -> Any:
        """A copy on the host."""
        if out is None:
            return self.host.copy(order=order)
        out[...] = self.host
        return out

    def set(self, array: Any, stream: Any = None) -> None:
        """Take the values of a host array of this shape and dtype."""
        if not isinstance(array, np.ndarray) or array.dtype != self.dtype or array.shape != self.shape:
            raise ValueError("the host array has another shape or dtype")
        self.host[...] = array

    def item(self) -> Any:
        """The only element, on the host."""
        return self.host.item()

    def tolist(self) -> Any:
        """Nested lists on the host."""
        return self.host.tolist()

    def __getitem__(self, key: Any) -> Any:
        return _device(self.host[_host(key)])

    def __setitem__(self, key: Any, value: Any) -> None:
        self.host[_host(key)] = _host(value)

    def __len__(self) -> int:
        return len(self.host)

    def __iter__(self) -> Any:
        return (self[k] for k in range(len(self)))

    def __bool__(self) -> bool:
        return bool(self.host)

    def __int__(self) -> int:
        return int(self.host)

    def __float__(self) -> float:
        return float(self.host)

    def __complex__(self) -> complex:
        return complex(self.host)

    def __index__(self) -> int:
        return self.host.__index__()

    def __repr__(self) -> str:
        return f"device {self.host!r}"


def _real_names() -> dict[str, Any]:
    """The installed CuPy, by module name; empty where there is none."""
    if importlib.util.find_spec("cupy") is None:
        return {}
    names = (
        "cupy",
        "cupy.fft",
        "cupy.linalg",
        "cupy.random",
        "cupyx.scipy.ndimage",
        "cupyx.scipy.fft",
        "cupyx.scipy.signal",
    )
    return {name: importlib.import_module(name) for name in names}


_REAL = _real_names()


def _known(space: str, name: str) -> None:
    module = f"cupy.{space}".rstrip(".") if not space.startswith("cupyx") else space
    if module in _REAL and not hasattr(_REAL[module], name):
        raise AttributeError(f"module {module!r} has no attribute {name!r}")


class _Space(types.ModuleType):
    """A module whose functions are those of a module for the host, on device arrays."""

    def __init__(self, name: str, source: Any, space: str) -> None:
        super().__init__(name)
        self._source, self._space = source, space

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        _known(self._space, name)
        found = getattr(self._source, name)
        if isinstance(found, types.ModuleType) or not callable(found) or isinstance(found, type):
            return found
        return lambda *args, **kwargs: _device(found(*_host(args), **_host(kwargs)))


def _asarray(a: Any, dtype: Any = None, order: Any = None, *, blocking: bool = False) -> ndarray:
    if isinstance(a, ndarray):
        return ndarray(np.asarray(a.host, dtype, order))
    return ndarray(np.array(_scalars(a), dtype, order=order or "K", copy=True))


def _array(obj: Any, dtype: Any = None, copy: bool = True, order: str = "K", **_: Any) -> ndarray:
    return ndarray(np.array(obj.host if isinstance(obj, ndarray) else _scalars(obj), dtype, copy=True, order=order))


def _scalars(value: Any) -> Any:
    """Lists may hold 0-d device arrays."""
    return [_host(item) for item in value] if isinstance(value, list | tuple) else value


def _asnumpy(a: Any, stream: Any = None, order: str = "C", out: Any = None, *, blocking: bool = True) -> Any:
    if isinstance(a, ndarray):
        return a.get(stream, order, out)
    return np.asarray(a, order=order)


class _Stream:
    """Work is done at once, in order."""

    ptr = 0
    null: "_Stream"

    def __init__(self, null: bool = False, non_blocking: bool = False, ptds: bool = False) -> None:
        pass

    def __enter__(self) -> "_Stream":
        return self

    def __exit__(self, *_: Any) -> None:
        pass

    def synchronize(self) -> None:
        pass

    def use(self) -> "_Stream":
        return self

    def record(self, event: Any = None) -> Any:
        return event or _Event()

    def wait_event(self, event: Any) -> None:
        pass


class _Event:
    def __init__(self, block: bool = False, disable_timing: bool = False, interprocess: bool = False) -> None:
        self.done = True

    def record(self, stream: Any = None) -> None:
        pass

    def synchronize(self) -> None:
        pass


class OutOfMemoryError(MemoryError):
    """As `cupy.cuda.memory.OutOfMemoryError`."""

    def __init__(self, size: int, total: int, limit: int = 0) -> None:
        super().__init__(f"Out of memory allocating {size:,} bytes (allocated so far: {total:,} bytes).")
        self._size = size


ON_ALLOCATION: list[Any] = []
"""Called with the bytes of every new device array; a test may put there what raises `OutOfMemoryError`."""


class _Pool:
    """Counts nothing and frees nothing; a test may set `limit` and let allocations fail."""

    def __init__(self) -> None:
        self.limit = 0

    def set_limit(self, size: Any = None, fraction: Any = None) -> None:
        self.limit = int(size or 0)

    def get_limit(self) -> int:
        return self.limit

    def free_all_blocks(self, stream: Any = None) -> None:
        pass

    def used_bytes(self) -> int:
        return 0

    def total_bytes(self) -> int:
        return 0

    def free_bytes(self) -> int:
        return 0


_CARD = {
    "name": b"stand-in", "major": 9, "minor": 0, "totalGlobalMem": 8 << 30, "multiProcessorCount": 1,
    "l2CacheSize": 1 << 20, "memoryBusWidth": 64,
}  # fmt: skip
"""What `cupy.cuda.runtime.getDeviceProperties` says, as far as it is asked."""


class _PlanCache:
    """As `cupy.fft.config.get_plan_cache()`; holds nothing."""

    def __init__(self) -> None:
        self.size, self.cleared = 16, 0

    def set_size(self, size: int) -> None:
        self.size = size

    def get_size(self) -> int:
        return self.size

    def clear(self) -> None:
        self.cleared += 1


class _Device:
    id = 0
    compute_capability = "90"

    def __init__(self, device: int = 0) -> None:
        self.id = device
        self.mem_info = (8 << 30, 8 << 30)

    def __enter__(self) -> "_Device":
        return self

    def __exit__(self, *_: Any) -> None:
        pass

    def use(self) -> None:
        pass

    def synchronize(self) -> None:
        pass


def _cuda() -> types.ModuleType:
    """``cupy.cuda``, as far as it is used."""
    module = types.ModuleType("cupy.cuda")
    pool, pinned, null = _Pool(), _Pool(), _Stream()
    _Stream.null = null
    module.__dict__.update(
        Stream=_Stream, Event=_Event, Device=_Device, get_current_stream=lambda: null,
        memory=types.SimpleNamespace(OutOfMemoryError=OutOfMemoryError),
        runtime=types.SimpleNamespace(
            memGetInfo=lambda: (8 << 30, 8 << 30), getDeviceCount=lambda: 1, deviceSynchronize=lambda: None,
            driverGetVersion=lambda: 12090, runtimeGetVersion=lambda: 12090, getDeviceProperties=lambda _: _CARD,
        ),
        alloc_pinned_memory=lambda size: memoryview(bytearray(size)),
        is_available=lambda: True,
    )  # fmt: skip
    module.pools = (pool, pinned)  # type: ignore[attr-defined]
    return module


_OPTIONS = (
    "upsampfac gpu_method gpu_sort gpu_binsizex gpu_binsizey gpu_binsizez gpu_obinsizex gpu_obinsizey gpu_obinsizez"
    " gpu_maxsubprobsize gpu_kerevalmeth gpu_spreadinterponly gpu_maxbatchsize gpu_device_id gpu_stream modeord gpu_np"
    " debug"
)
CUFINUFFT_OPTIONS = frozenset(_OPTIONS.split())
"""Fields of cuFINUFFT's structure of options, which its plan takes as keywords."""


class CufinufftPlan:
    """As `cufinufft.Plan`, by FINUFFT; takes C-contiguous device arrays of exactly the right dtype and size."""

    def __init__(
        self,
        nufft_type: int,
        n_modes: Any,
        n_trans: int = 1,
        eps: float = 1e-6,
        isign: int | None = None,
        dtype: str = "complex64",
        **kwargs: Any,
    ) -> None:
        for name in kwargs:
            if name not in CUFINUFFT_OPTIONS:
                raise TypeError(f"Invalid option '{name}'")
        sign = isign if isign is not None else -1 if nufft_type == 2 else 1
        self._plan = finufft.Plan(nufft_type, n_modes, n_trans, eps, sign, dtype, nthreads=1)
        self._dtype, self._kwargs, self._n_modes, self._n_trans = np.dtype(dtype), kwargs, tuple(n_modes), n_trans

    def setpts(self, x: Any, y: Any = None, z: Any = None, s: Any = None, t: Any = None, u: Any = None) -> None:
        real = np.dtype(np.float32 if self._dtype == np.complex64 else np.float64)
        points = [self._checked(a, real, x.shape) for a in (x, y, z) if a is not None]
        if x.ndim != 1 or len(points) != len(self._n_modes):
            raise TypeError("Argument `x` must be a vector")
        self._count = x.size
        self._plan.setpts(*points)

    def execute(self, data: Any, out: Any = None) -> Any:
        batch = data.shape[:-1]
        found = self._plan.execute(self._checked(data, self._dtype, (*batch, self._count)))
        if out is None:
            return _device(found)
        self._checked(out, self._dtype, batch + self._n_modes)[...] = found.reshape(out.shape)
        return out

    @staticmethod
    def _checked(array: Any, dtype: Any, shape: tuple[int, ...]) -> Any:
        if not isinstance(array, ndarray) or array.dtype != dtype or array.shape != shape:
            raise TypeError(f"not a device array of {dtype} and shape {shape}")
        if not array.flags.c_contiguous:
            raise TypeError("does not satisfy the following requirement: C")
        return array.host


def _cufinufft() -> types.ModuleType:
    module = types.ModuleType("cufinufft")
    module.Plan = CufinufftPlan  # type: ignore[attr-defined]
    return module


def _check_launch(kernel: Any, arguments: Any) -> None:
    """Raise a TypeError where no signature takes the arrays: their dtypes, axes and layouts; as numba-cuda does."""
    from numba.core import sigutils, types
    from numba.np.numpy_support import from_dtype

    def fits(value: Any, wanted: Any) -> bool:
        if not isinstance(value, ndarray):
            return not isinstance(wanted, types.Array)
        if not isinstance(wanted, types.Array) or value.ndim != wanted.ndim or from_dtype(value.dtype) != wanted.dtype:
            return False
        return wanted.layout == "A" or bool(value.flags.c_contiguous if wanted.layout == "C" else value.flags.forc)

    for signature in kernel.signatures:
        wanted, _ = sigutils.normalize_signature(signature)
        if len(wanted) == len(arguments) and all(map(fits, arguments, wanted)):
            return
    given = [f"{a.dtype}{list(a.strides)}" if isinstance(a, ndarray) else type(a).__name__ for a in arguments]
    raise TypeError(f"No matching definition of {kernel.name} for argument type(s) {', '.join(given)}")


def _kernel_argument(value: Any) -> Any:
    """Device arrays as the simulator knows them: no copies, any strides."""
    from numba.cuda.simulator.cudadrv.devicearray import FakeCUDAArray

    return FakeCUDAArray(value.host) if isinstance(value, ndarray) else value


def install(monkeypatch: Any) -> types.ModuleType:
    """Put the stand-in in CuPy's place until the test ends; returns it."""
    cupy = _Space("cupy", np, "")
    cupyx, cupyx_scipy = types.ModuleType("cupyx"), types.ModuleType("cupyx.scipy")
    cuda = _cuda()
    own = {
        "ndarray": ndarray, "asarray": _asarray, "array": _array, "asnumpy": _asnumpy, "cuda": cuda,
        "ascontiguousarray": lambda a, dtype=None: ndarray(np.ascontiguousarray(_asarray(a, dtype).host)),
        "get_array_module": lambda *arrays: cupy if any(isinstance(a, ndarray) for a in arrays) else np,
        "get_default_memory_pool": lambda: cuda.pools[0],
        "get_default_pinned_memory_pool": lambda: cuda.pools[1],
        "may_share_memory": lambda a, b: np.may_share_memory(a.host, b.host),
        "fft": _Space("cupy.fft", np.fft, "fft"), "linalg": _Space("cupy.linalg", np.linalg, "linalg"),
        "random": _Space("cupy.random", np.random, "random"),
    }  # fmt: skip
    cupy.__dict__.update(own)
    plans = _PlanCache()
    own["fft"].config = types.ModuleType("cupy.fft.config")
    own["fft"].config.get_plan_cache = lambda: plans
    scipy_spaces = {
        "ndimage": _Space("cupyx.scipy.ndimage", scipy.ndimage, "cupyx.scipy.ndimage"),
        "fft": _Space("cupyx.scipy.fft", scipy.fft, "cupyx.scipy.fft"),
        "signal": _Space("cupyx.scipy.signal", scipy.signal, "cupyx.scipy.signal"),
    }
    cupyx_scipy.__dict__.update(scipy_spaces)
    cupyx.__dict__.update(scipy=cupyx_scipy)
    modules = {
        "cupy": cupy,
        "cupy.fft.config": own["fft"].config,
        "cupy.cuda": cuda,
        "cupyx": cupyx,
        "cupyx.scipy": cupyx_scipy,
    }
    modules |= {f"cupy.{name}": own[name] for name in ("fft", "linalg", "random")}
    modules |= {f"cupyx.scipy.{name}": space for name, space in scipy_spaces.items()}
    modules["cufinufft"] = _cufinufft()
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    from dtomo.kernels.cuda import compiling

    monkeypatch.setattr(compiling, "memory_of", _kernel_argument)
    launch = compiling.CudaKernel.launch

    def checked(kernel: Any, blocks: Any, *arguments: Any, **options: Any) -> None:
        _check_launch(kernel, arguments)
        launch(kernel, blocks, *arguments, **options)

    monkeypatch.setattr(compiling.CudaKernel, "launch", checked)
    return cupy
