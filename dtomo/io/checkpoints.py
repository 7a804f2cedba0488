"""Checkpoints: the state of an iterative solver on disk, in two generations, whole or not at all.

Layout: a folder with ``state-0000000007`` and the one before it, each a Zarr group of one array per part of the state
and ``checkpoint.json`` (what else there is, with a checksum). Arrays are stored as they lie in memory, z innermost
where it is, in pieces that each carry a CRC-32C; complex stays complex. A generation is written beside its final name
and renamed when it is whole, so one that was cut off has no name; one that is damaged later is seen by its checksums
and passed over.
"""

import contextlib
import dataclasses
import json
import os
import re
import shutil
import socket
import time
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import zarr
from numpy.typing import NDArray
from zarr.codecs import Crc32cCodec

from dtomo.arrays import empty_aligned, on_device
from dtomo.device import available, to_device, to_host
from dtomo.errors import StoppedError, UserError, shown
from dtomo.io.damage import DAMAGE

if TYPE_CHECKING:
    from dtomo.algorithms import State

GENERATIONS = 2
"""Kept on disk; one more while it is being written."""

PIECE = 8 * 2**20
"""Bytes written and read at a time."""

_MANIFEST = "checkpoint.json"
_VERSION = 1
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_GENERATION = re.compile(r"state-(\d{10})")
_NUMBERS = (bool, int, float, complex)
_RESIDUALS = "history.residuals"  # no name of an attribute, so of no part


class Checkpoint(NamedTuple):
    """One generation, as it was saved.

    Attributes
    ----------
    state
        Arrays in the layout they had (in memory of their own, on a device if they lay on one and there is one),
        numbers of Python and NumPy, random generators.
    info
        JSON values.
    """

    state: dict[str, Any]
    info: dict[str, Any]


class Schedule:
    """When it is time to save: after so many minutes since the last time, or at every so manyth iteration.

    Parameters
    ----------
    minutes, iterations
        One of them; neither: never.
    clock
        Seconds that only go up.
    """

    def __init__(
        self,
        minutes: float | None = None,
        iterations: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if any(value is not None and not value > 0 for value in (minutes, iterations)):
            raise UserError(f"checkpoints are made every so many minutes or iterations, not {minutes or iterations}")
        self.minutes, self.iterations, self._clock = minutes, iterations, clock
        self._last = clock()

    def due(self, iteration: int = 0) -> bool:
        """Whether to save before iteration number `iteration`, or between two blocks of work (0)."""
        if self.iterations is not None:
            return iteration % self.iterations == 0
        return self.minutes is not None and self._clock() - self._last >= 60 * self.minutes

    def tried(self) -> None:
        """The state was saved just now, or could not be: the minutes count from here."""
        self._last = self._clock()


class Checkpoints:
    """The last two states of one solver, in a folder of their own.

    An algorithm takes it as it is: ``sirt(operator, data, checkpoints=Checkpoints("state", schedule=Schedule(10)))``
    goes on from the folder if it holds a state, and keeps one there every ten minutes. One process at a time.

    Parameters
    ----------
    folder
        Made when the first state is saved.
    made_with
        JSON values that decide the result (settings, the place in the volume); a state that was made with others is
        refused.
    schedule
        For the use by an algorithm; default: every 10 minutes.
    devices
        Whether arrays that lay on a device go back to one, where this process has one.

    Attributes
    ----------
    notes
        Sentences about what went wrong and was dealt with: generations passed over, states that could not be saved.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        made_with: Mapping[str, Any] | None = None,
        schedule: Schedule | None = None,
        devices: bool = True,
    ) -> None:
        self.devices = devices
        self.folder = Path(folder)
        self.made_with = _plain(dict(made_with or {}))
        self.schedule = schedule or Schedule(minutes=10)
        self.notes: list[str] = []

    def save(self, state: Mapping[str, Any], info: Mapping[str, Any] | None = None) -> Path:
        """Write a generation and drop all but the last two.

        Parameters
        ----------
        state
            By name: arrays of any shape, layout and numeric dtype, in host memory or on a device, numbers,
            `numpy.random.Generator`.
        info
            JSON values.

        Raises
        ------
        UserError
            A state that cannot be written down.
        StoppedError
            The disk is full or refuses; the generations there are as before.
        """
        arrays, others = _sorted_out(state)
        part = self.folder / f".part-{socket.gethostname()}-{os.getpid()}"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._remove(self.folder.glob(".part-*"))
            self._refuse_if_full(sum(array.nbytes for array in arrays.values()))
            content = {
                "version": _VERSION,
                "made_with": self.made_with,
                "info": _plain(dict(info or {})),
                "others": others,
                "arrays": _write_arrays(part, arrays),
            }
            _write_manifest(part / _MANIFEST, content)
            numbers = self._numbers()
            target = self.folder / f"state-{max(numbers, default=0) + 1:010d}"
            os.rename(part, target)
        except OSError as error:
            shutil.rmtree(part, ignore_errors=True)
            raise StoppedError(f"no checkpoint could be written to {self.folder} ({error.strerror})") from error
        self._remove(self.folder / f"state-{number:010d}" for number in numbers[: 1 - GENERATIONS])
        return target

    def load(self) -> Checkpoint | None:
        """The newest generation that is whole, or None; those passed over are in `notes`.

        Raises
        ------
        UserError
            It was made with other settings.
        """
        for number in reversed(self._numbers()):
            path = self.folder / f"state-{number:010d}"
            try:
                content = _read_manifest(path / _MANIFEST)
                self._refuse_other(path, content["made_with"])
                state = _read_arrays(path, content["arrays"], self.devices)
                state |= {name: _number_or_generator(*kept) for name, kept in content["others"].items()}
                return Checkpoint(state, content["info"])
            except (UserError, MemoryError):
                raise
            except DAMAGE as error:
                reason = str(error).strip().split("\n")[0] or type(error).__name__
                self.notes.append(f"the checkpoint {path} is damaged ({shown(reason, 100)}) and was passed over")
        return None

    def remove(self) -> None:
        """Forget all states: what they were kept for is done."""
        self._remove([self.folder])

    def restore(self) -> "State | None":
        """The last state that an algorithm offered; see `dtomo.algorithms.Checkpointer`."""
        from dtomo.algorithms import State

        found = self.load()
        if found is None:
            return None
        residuals = found.state.pop(_RESIDUALS, None)
        if residuals is None:
            raise UserError(f"{self.folder} holds no state of an iterative algorithm; remove it or give another folder")
        return State(found.state, residuals)

    def offer(self, state: "State") -> None:
        """Save the state of an algorithm if it is time to; a disk that is full is noted and stops nothing."""
        if self.schedule.due(state.iteration):
            self.keep(state)

    def keep(self, state: "State") -> None:
        """Save the state of an algorithm now, as `offer` does."""
        try:
            self.save({**state.parts, _RESIDUALS: state.residuals}, {"iteration": state.iteration})
        except StoppedError as error:
            self.notes.append(f"{error}; the run goes on without it")
        self.schedule.tried()

    def _numbers(self) -> list[int]:
        """Of the generations, oldest first."""
        found = (_GENERATION.fullmatch(item.name) for item in self.folder.iterdir()) if self.folder.is_dir() else ()
        return sorted(int(match[1]) for match in found if match)

    def _refuse_other(self, path: Path, before: dict[str, Any]) -> None:
        for name in sorted({*before, *self.made_with}):
            old, new = before.get(name), self.made_with.get(name)
            if old != new:
                raise UserError(
                    f"the checkpoint {path} was made with {name} {shown(old)} and not {shown(new)}: give the same "
                    "settings, or remove it to begin anew"
                )

    def _refuse_if_full(self, needed: int) -> None:
        free = shutil.disk_usage(self.folder).free
        if needed > free:
            raise OSError(28, f"it takes {needed / 1e9:.3g} GB and the disk has {free / 1e9:.3g} GB free")

    @staticmethod
    def _remove(paths: Any) -> None:
        for path in paths:
            with contextlib.suppress(OSError):  # gone already, or tried again after the next state
                shutil.rmtree(path)


@dataclasses.dataclass(frozen=True)
class _Entry:
    """How an array is stored: its shape on disk, which axes of the array these are, and whether it lay on a device."""

    shape: tuple[int, ...]
    dtype: str
    axes: tuple[int, ...]
    device: bool = False


def _plain(value: Any) -> Any:
    """A value as JSON would give it back.

    Raises
    ------
    UserError
        JSON does not know it.
    """
    try:
        return json.loads(json.dumps(value))
    except (TypeError, ValueError) as error:
        raise UserError(f"a checkpoint keeps numbers, texts, lists and dicts beside its arrays ({error})") from error


def _sorted_out(state: Mapping[str, Any]) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """Arrays (NumPy's numbers among them), and what JSON takes: kinds and values of numbers and random generators."""
    arrays: dict[str, NDArray[Any]] = {}
    others: dict[str, Any] = {}
    for name, value in state.items():
        if not _NAME.fullmatch(name) or name.endswith(".json"):
            raise UserError(f"a part of a state is named with letters, digits and underscores, not {shown(name)!r}")
        if isinstance(value, np.random.Generator):
            others[name] = ("generator", json.loads(json.dumps(value.bit_generator.state, default=_listed)))
            continue
        if type(value) in _NUMBERS:  # stay what they are: one of NumPy's would change the dtype of what it is put to
            others[name] = (type(value).__name__, repr(value))
            continue
        array = value if on_device(value) else np.asarray(value)
        if array.dtype.kind not in "biufc" or array.dtype.char in "gG":
            raise UserError(f"{name} is {array.dtype}, which a checkpoint cannot keep; it keeps arrays of numbers")
        arrays[name] = array
    return arrays, others


def _number_or_generator(what: str, kept: Any) -> Any:
    if what == "bool":
        return kept == "True"
    if what != "generator":
        return next(number for number in _NUMBERS if number.__name__ == what)(kept)
    kind = getattr(np.random, str(kept["bit_generator"]), None)
    if not (isinstance(kind, type) and issubclass(kind, np.random.BitGenerator)):
        raise ValueError(f"unknown random generator {kept['bit_generator']}")
    bits = kind()
    bits.state = _unlisted(kept)
    return np.random.Generator(bits)


def _listed(array: NDArray[Any]) -> dict[str, Any]:
    """An array in the state of a random generator, for JSON."""
    return {"dtype": array.dtype.name, "values": array.tolist()}


def _unlisted(value: Any) -> Any:
    """The state of a random generator, from JSON."""
    if not isinstance(value, dict):
        return value
    if set(value) == {"dtype", "values"}:
        return np.array(value["values"], value["dtype"])
    return {name: _unlisted(item) for name, item in value.items()}


def _write_arrays(folder: Path, arrays: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    group = zarr.open_group(folder, mode="w", zarr_format=3)
    entries = {}
    with zarr.config.set({"array.write_empty_chunks": True}):  # a piece of zeros is data, not absence
        for name, array in arrays.items():
            axes = tuple(int(axis) for axis in np.argsort([-abs(step) for step in array.strides], kind="stable"))
            inside = array.transpose(axes)
            dtype = array.dtype.newbyteorder("=")
            step = _step(inside.shape, dtype)
            chunks = tuple(max(1, size) for size in (step, *inside.shape[1:])[: inside.ndim])
            target = group.create_array(
                name, shape=inside.shape, chunks=chunks, dtype=dtype, compressors=[Crc32cCodec()], filters=None
            )
            if inside.ndim == 0:
                target[...] = to_host(inside)
            for first in range(0, inside.shape[0] if inside.size and inside.ndim else 0, step):
                target[first : first + step] = to_host(inside[first : first + step])
            entries[name] = dataclasses.asdict(_Entry(inside.shape, dtype.str, axes, on_device(array)))
    return entries


def _step(shape: tuple[int, ...], dtype: np.dtype[Any]) -> int:
    """Rows of a piece."""
    row = int(np.prod(shape[1:], dtype=np.int64)) * dtype.itemsize
    return max(1, min(PIECE // max(1, row), shape[0] if shape else 1))


def _read_arrays(folder: Path, entries: dict[str, Any], devices: bool) -> dict[str, Any]:
    """Arrays of a generation, in the layout they had, and where they lay, if with `devices`.

    Raises
    ------
    Exception
        One of `DAMAGE`: pieces that are missing or wrong.
    """
    group = zarr.open_group(folder, mode="r")
    found = {
        name: _Entry(tuple(entry["shape"]), entry["dtype"], tuple(entry["axes"]), bool(entry.get("device")))
        for name, entry in entries.items()
    }
    stored = sum(item.stat().st_size for item in folder.rglob("*") if item.is_file())
    needed = sum(int(np.prod(entry.shape, dtype=object)) * np.dtype(entry.dtype).itemsize for entry in found.values())
    if stored < needed:  # before so much memory is asked for
        raise ValueError(f"{needed} bytes are stated and {stored} are there")
    arrays = {name: _read_array(group, name, entry) for name, entry in found.items()}
    if not (devices and any(entry.device for entry in found.values()) and available()):
        return arrays
    return {name: to_device(np.asarray(array)) if found[name].device else array for name, array in arrays.items()}


def _read_array(group: zarr.Group, name: str, entry: _Entry) -> Any:
    source = group[name]
    if not isinstance(source, zarr.Array) or source.shape != entry.shape or source.dtype.str != entry.dtype:
        raise ValueError(f"{name} is not what was written")
    if source.nchunks_initialized != source.nchunks:
        raise ValueError(f"pieces of {name} are missing")
    inside = empty_aligned(entry.shape, entry.dtype)
    if inside.ndim == 0:
        inside[...] = source[...]
        return inside[()]
    step = source.chunks[0]
    for first in range(0, inside.shape[0] if inside.size else 0, step):
        inside[first : first + step] = source[first : first + step]
    return inside.transpose(np.argsort(entry.axes))


def _write_manifest(path: Path, content: dict[str, Any]) -> None:
    text = json.dumps(content)
    path.write_text(json.dumps({"content": text, "crc32": zlib.crc32(text.encode())}), encoding="utf-8")


def _read_manifest(path: Path) -> dict[str, Any]:
    kept = json.loads(path.read_text(encoding="utf-8"))
    if zlib.crc32(kept["content"].encode()) != kept["crc32"]:
        raise ValueError(f"{path.name} does not agree with its checksum")
    content = json.loads(kept["content"])
    if content["version"] != _VERSION:
        raise ValueError(f"version {content['version']} of the layout is not known here")
    return dict(content)
