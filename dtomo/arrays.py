"""What every layer needs to know of arrays: where they lie, aligned buffers, dtype rules, layouts."""

import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtomo.memory import empty_bytes


def on_device(array: Any) -> bool:
    """Whether an array lies on a GPU (is a CuPy array). Never imports CuPy."""
    cupy = sys.modules.get("cupy")
    return cupy is not None and isinstance(array, cupy.ndarray)


def is_array(value: Any) -> bool:
    """Whether a value is an array of NumPy's or CuPy's (not a number, and nothing that could be made an array)."""
    return isinstance(value, np.ndarray) or on_device(value)


def array_module(*arrays: Any) -> Any:
    """NumPy, or CuPy where the arrays lie on a device; None and numbers lie anywhere.

    Raises
    ------
    TypeError
        Arrays on the host and on a device in one operation.
    """
    found = {on_device(array) for array in arrays if hasattr(array, "shape") and array.shape != ()}
    if len(found) == 2:
        raise TypeError("some of these arrays lie on the host and some on a device; move them first")
    return sys.modules["cupy"] if True in found else np


def empty_aligned(shape: tuple[int, ...], dtype: Any = np.float32, xp: Any = np) -> NDArray[Any]:
    """Uninitialised C-contiguous array of a module whose first element lies on a 64-byte border."""
    if xp is not np:
        return xp.empty(shape, dtype)  # CuPy's memory begins on 512-byte borders
    dtype = np.dtype(dtype)
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    return empty_bytes(size).view(dtype).reshape(shape)


def single_precision(array: NDArray[Any]) -> NDArray[Any]:
    """The array as float32 or complex64 (no copy where it is one already): the dtypes kernels work in."""
    return array.astype(np.complex64 if np.iscomplexobj(array) else np.float32, copy=False)


def writeable_view(array: NDArray[Any]) -> NDArray[Any]:
    """The same memory as an array that may be written to: kernels are compiled for such, and compiled once.

    For arguments that a kernel only reads. Arrays from the network or from files are often read-only; those on devices
    never are.
    """
    if on_device(array) or array.flags.writeable:
        return array
    interface = dict(array.__array_interface__)
    interface["data"] = (interface["data"][0], False)
    return np.asarray(_Memory(interface, array))


class _Memory:
    """Hands out an array interface, and keeps the memory's owner alive."""

    def __init__(self, interface: dict[str, Any], owner: NDArray[Any]) -> None:
        self.__array_interface__, self.owner = interface, owner
