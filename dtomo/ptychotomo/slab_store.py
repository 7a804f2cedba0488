"""The arrays of a process's slabs: in memory as far as that goes, the others in files of its own, read when asked for.

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
from dtomo.errors import StoppedError


class SlabStore:
    """Arrays of slabs by number and name.

    Parameters
    ----------
    memory
        Bytes of slabs that stay in memory; None: all do.
    folder
        In which a folder of its own is made when the first slab goes to files.

    Attributes
    ----------
    in_files
        Numbers of the slabs that lie in files.
    """

    def __init__(self, memory: int | None, folder: Path | None = None) -> None:
        self._memory, self._parent = memory, folder
        self._folder: Path | None = None
        self._held: dict[int, dict[str, Any]] = {}
        self._used = 0
        self.in_files: set[int] = set()

    def put(self, slab: int, local: Mapping[str, Any]) -> None:
        """A slab's arrays (and numbers), new or anew."""
        size = sum(value.nbytes for value in local.values() if is_array(value))
        known = slab in self._held
        if slab not in self.in_files and (known or self._memory is None or self._used + size <= self._memory):
            self._used += 0 if known else size
            self._held[slab] = dict(local)
            return
        self.in_files.add(slab)
        filed = _Filed(self._path(), slab)
        filed.update(local)
        filed.write_back()
        self._held[slab] = filed

    def __contains__(self, slab: int) -> bool:
        return slab in self._held

    def open(self, slab: int) -> dict[str, Any]:
        """The slab's arrays; those in files are read as they are asked for."""
        return self._held[slab]

    def close(self, slab: int, changed: Iterable[str] | None = None) -> None:
        """Done with a slab for now: what is named (default: all that was asked for) goes back to its files."""
        held = self._held[slab]
        if isinstance(held, _Filed):
            held.write_back(changed)

    def clear(self) -> None:
        """Forget everything, and remove the files."""
        self._held, self._used, self.in_files = {}, 0, set()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def _path(self) -> Path:
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="slabs-", dir=self._parent))
        return self._folder


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
