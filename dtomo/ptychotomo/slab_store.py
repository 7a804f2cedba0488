"""The arrays of a process's slabs: in memory as far as that goes, the others in files of its own, read when asked for.

Where slabs are computed on a device, they stay there as far as its memory goes; the others lie on the host, and each of
their arrays goes to the device when it is asked for, and back when the slab is closed.

A pass needs the slabs one after another, each of them twice or three times; which ones stay in memory is decided once,
in their order, so that nothing is dropped just before it is needed.
"""

import shutil
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtomo.arrays import empty_aligned, is_array
from dtomo.device import to_device, to_host
from dtomo.errors import StoppedError
from dtomo.ptycho.nested import mapped


class SlabStore:
    """Arrays of slabs by number and name.

    Parameters
    ----------
    memory
        Bytes of slabs that stay in memory; None: all do.
    folder
        In which a folder of its own is made when the first slab goes to files.
    on_device
        Whether `open` gives arrays on the present device.
    device_memory
        Bytes of slabs that stay there; None: all do. Those that stay do not count for `memory`.

    Attributes
    ----------
    in_files
        Numbers of the slabs that lie in files.
    stay_on_device
        Numbers of the slabs that stay on the device.
    """

    def __init__(
        self,
        memory: int | None,
        folder: Path | None = None,
        *,
        on_device: bool = False,
        device_memory: int | None = None,
    ) -> None:
        self._memory, self._parent = memory, folder
        self._on_device, self._device_memory = on_device, device_memory
        self._folder: Path | None = None
        self._held: dict[int, dict[str, Any]] = {}
        self._used, self._used_on_device = 0, 0
        self.in_files: set[int] = set()
        self.stay_on_device: set[int] = set()

    def put(self, slab: int, local: Mapping[str, Any]) -> None:
        """A slab's arrays (and numbers), new or anew; they may lie anywhere."""
        if slab not in self._held:
            self._decide(slab, sum(value.nbytes for value in local.values() if is_array(value)))
        if slab in self.stay_on_device:
            self._held[slab] = mapped(dict(local), to_device)
            return
        held = mapped(dict(local), to_host)
        if slab in self.in_files:
            filed = _Filed(self._path(), slab)
            filed.update(held)
            filed.write_back()
            held = filed
        self._held[slab] = _Lent(held) if self._on_device else held

    def _decide(self, slab: int, size: int) -> None:
        """Where a new slab stays."""
        if self._on_device and _fits(self._used_on_device + size, self._device_memory):
            self._used_on_device += size
            self.stay_on_device.add(slab)
        elif _fits(self._used + size, self._memory):
            self._used += size
        else:
            self.in_files.add(slab)

    def __contains__(self, slab: int) -> bool:
        return slab in self._held

    def open(self, slab: int) -> dict[str, Any]:
        """The slab's arrays; those in files are read as they are asked for."""
        return self._held[slab]

    def close(self, slab: int, changed: Iterable[str] | None = None) -> None:
        """Done with a slab for now: what is named (default: all that was asked for) goes back to where it stays."""
        held = self._held[slab]
        if isinstance(held, _Filed | _Lent):
            held.write_back(changed)

    def whole(self, slab: int) -> dict[str, Any]:
        """All that was put, on the host, for a slab that was closed; close it again after use, with no name."""
        held = self._held[slab]
        kept = held.host if isinstance(held, _Lent) else held
        names = kept.names() if isinstance(kept, _Filed) else list(kept)
        return {name: mapped(kept[name], to_host) for name in names}

    def clear(self) -> None:
        """Forget everything, and remove the files."""
        self._held, self._used, self._used_on_device = {}, 0, 0
        self.in_files, self.stay_on_device = set(), set()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def _path(self) -> Path:
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="slabs-", dir=self._parent))
        return self._folder


def _fits(size: int, limit: int | None) -> bool:
    return limit is None or size <= limit


class _Lent(dict[str, Any]):
    """Arrays that are on the device while they are needed.

    Attributes
    ----------
    host
        Where they are otherwise: in memory, or in files.
    """

    def __init__(self, host: dict[str, Any]) -> None:
        super().__init__()
        self.host = host

    def __missing__(self, name: str) -> Any:
        found = mapped(self.host[name], to_device)
        super().__setitem__(name, found)
        return found

    def write_back(self, changed: Iterable[str] | None = None) -> None:
        """Take home what is named, and let go of all."""
        wanted = set(self if changed is None else changed)
        for name in list(self):
            value = self.pop(name)
            if name in wanted:
                self.host[name] = to_host(value, self.host[name]) if is_array(value) else value
        if isinstance(self.host, _Filed):
            self.host.write_back(changed)


class _Filed(dict[str, Any]):
    """Arrays that are read from files when they are first asked for; numbers stay here."""

    def __init__(self, folder: Path, slab: int) -> None:
        super().__init__()
        self._paths = folder, slab
        self._kinds: dict[str, tuple[tuple[int, ...], tuple[int, ...], np.dtype[Any]]] = {}

    def __missing__(self, name: str) -> Any:
        if name not in self._kinds:
            raise KeyError(name)
        shape, axes, dtype = self._kinds[name]
        inside = empty_aligned(tuple(shape[axis] for axis in axes), dtype)
        with self._path(name).open("rb", buffering=0) as file:
            _read_all(file, inside)
        array = inside.transpose(np.argsort(axes))
        super().__setitem__(name, array)
        return array

    def names(self) -> list[str]:
        """Of all, those in files too."""
        return [*self._kinds, *(name for name in self if name not in self._kinds)]

    def write_back(self, changed: Iterable[str] | None = None) -> None:
        """Write arrays that are here and named, and let go of all."""
        loaded = [name for name, value in self.items() if is_array(value)]
        wanted = set(loaded if changed is None else changed)
        try:
            for name in loaded:
                array = self[name]
                if name in wanted or name not in self._kinds:
                    axes = tuple(int(axis) for axis in np.argsort([-stride for stride in array.strides], kind="stable"))
                    self._kinds[name] = array.shape, axes, array.dtype
                    np.ascontiguousarray(array.transpose(axes)).tofile(self._path(name))
                del self[name]
        except OSError as error:
            raise StoppedError(
                f"slabs could not be written to {self._paths[0]} ({error.strerror}); give workers more memory, or a "
                "scratch folder with more room"
            ) from error

    def _path(self, name: str) -> Path:
        folder, slab = self._paths
        return folder / f"slab-{slab:05d}-{name}"


def _read_all(file: Any, target: NDArray[Any]) -> None:
    view = target.reshape(-1).view(np.uint8).data
    done = 0
    while done < len(view):
        count = file.readinto(view[done : done + 2**28])
        if not count:
            raise OSError(5, "a file of a slab is shorter than it was")
        done += count
