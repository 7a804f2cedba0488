"""Objects too large to be sent around: bands of rows, each with its frames and the state of its solver on one worker.

A frame belongs to the band that holds its first row; its other rows may reach into the next band. Before a pass each
band gets the first rows of the next one (the halo), evaluates its frames on both, keeps the gradient of its own rows
and hands on that of the halo, which the next band adds to its own. All else that is summed (probe, background, scalars,
rows of frames) is small: it is added up by tree over all blocks, and every band makes the same update of it beside that
of its rows. Bands have a fixed height, so the result has the same bits on any number of workers; the object differs
from that of the whole by rounding, because its gradients are added in another order.

This is for solvers whose update of the object acts on each of its pixels alone (`Engine.tiled`).
"""

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dtomo.arrays import array_module, writeable_view
from dtomo.device import to_host
from dtomo.distributed import graph
from dtomo.distributed.graph import Key, PinnedTask, Ref
from dtomo.distributed.sums import Node, partial_sums, sum_of_parts, tree_sum
from dtomo.errors import UserError
from dtomo.ptycho.engine import Engine, Parameters
from dtomo.ptycho.evaluator import Evaluator, Problem, Share, sent_of, steps_of
from dtomo.ptycho.nested import mapped
from dtomo.ptycho.workers import Lost, WorkersRunner
from dtomo.windows import Window

if TYPE_CHECKING:
    from distributed import Client

Path = tuple[str, ...]
Gradients = dict[Path, NDArray[Any]]
"""Of an object or the like, by where it stands in the sums."""


@dataclasses.dataclass(frozen=True)
class Bands:
    """How the rows of an object are cut.

    Attributes
    ----------
    borders
        First row of each band, and the number of rows.
    halo
        Rows of the next band that frames reach.
    """

    borders: tuple[int, ...]
    halo: int

    def __len__(self) -> int:
        return len(self.borders) - 1

    def rows(self, band: int) -> slice:
        """Of a band."""
        return slice(self.borders[band], self.borders[band + 1])

    def of_frames(self, positions: NDArray[np.float64]) -> NDArray[np.int64]:
        """The band of each frame, by its first row."""
        return np.clip(np.searchsorted(self.borders, np.floor(positions[:, 0]), "right") - 1, 0, len(self) - 1)


def cut_bands(rows: int, frame_rows: int, height: int) -> Bands:
    """Bands of `height` rows, the last one with what is left over as well.

    Raises
    ------
    UserError
        Bands that are lower than a frame.
    """
    halo = frame_rows + 1  # positions between rows reach one further
    if height < halo:
        raise UserError(f"tiles are at least as high as a frame and a row more, {halo} rows; got {height}")
    return Bands((*(band * height for band in range(max(1, rows // height))), rows), halo)


def without_windows(sums: Mapping[str, Any], at: Path = ()) -> tuple[dict[str, Any], dict[Path, Window]]:
    """Sums without their windows, and the windows by where they stood."""
    rest: dict[str, Any] = {}
    windows: dict[Path, Window] = {}
    for name, value in sums.items():
        if isinstance(value, Window):
            windows[(*at, name)] = value
        elif isinstance(value, dict):
            rest[name], inner = without_windows(value, (*at, name))
            windows |= inner
        else:
            rest[name] = value
    return rest, windows


def with_windows(sums: Mapping[str, Any], windows: Mapping[Path, Window]) -> dict[str, Any]:
    """The inverse of `without_windows`."""
    whole = _copied(sums)
    for path, window in windows.items():
        inside = whole
        for name in path[:-1]:
            inside = inside[name]
        inside[path[-1]] = window
    return whole


def _copied(sums: Mapping[str, Any]) -> dict[str, Any]:
    """New dicts, the same arrays."""
    return {name: _copied(value) if isinstance(value, dict) else value for name, value in sums.items()}


@dataclasses.dataclass
class _Band:
    """What a worker holds of a band."""

    state: dict[str, Any]
    passes: int = 0
    gradients: Gradients = dataclasses.field(default_factory=dict)
    totals: NDArray[np.float64] = dataclasses.field(default_factory=lambda: np.zeros(2))


@dataclasses.dataclass
class _Here:
    """What a worker holds of a run."""

    evaluator: Evaluator
    bands: dict[int, _Band] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class _Pass:
    """Number of a pass in the run, and whether it is the first of its step, and of its epoch."""

    number: int
    first: bool
    begins: bool


_RUNS: dict[str, _Here] = {}
"""Runs that this process works for, by name."""


def _here(name: str, problem: Problem) -> _Here:
    if name not in _RUNS:
        from distributed import get_worker

        _RUNS[name] = _Here(Evaluator(problem, get_worker().memory_manager.memory_limit))
    return _RUNS[name]


def _band(name: str, band: int, number: int | None = None) -> _Band:
    found = _RUNS[name].bands.get(band) if name in _RUNS else None
    if found is None or number not in (None, found.passes):
        raise Lost("a band of the object is not here")
    return found


def _hold(name: str, problem: Problem, band: int, halo: int, value: dict[str, Any], begin: bool) -> Any:
    """Hold a band's state (of parameters: begun); its first rows, for the band before."""
    own = mapped(value, problem.own)
    state = problem.engine.begin(own) if begin else own
    _here(name, problem).bands[band] = _Band(state)
    return _first_rows(state, halo)


def _first_rows(state: Mapping[str, Any], halo: int) -> Any:
    return state["parameters"]["object"][..., :halo, :].copy()


def _evaluate(
    name: str, problem: Problem, number: int, row: int, share: Share, at: _Pass, after: Any, below: Any
) -> tuple[dict[Node, Any], dict[Path, Any]]:
    """Sums over the frames of a band, but for the object's, which stay here, and what those look like."""
    band, evaluator = _band(name, number, at.number), _RUNS[name].evaluator
    sent = sent_of(band.state)
    parameters = sent["parameters"] = dict(sent["parameters"])
    image = parameters["object"]
    if below is not None:
        image = parameters["object"] = array_module(image).concatenate([image, below], -2)
    positions = parameters["positions"]
    parameters["positions"] = positions - array_module(positions).asarray([row, 0], positions.dtype)
    if at.first:
        evaluator.forget(share.blocks)
    windows: list[dict[Path, Window]] = []

    def small() -> Iterator[tuple[int, Any]]:
        for place, value in evaluator.values(mapped(sent, writeable_view), share):
            rest, large = without_windows(value)
            windows.append(large)
            yield place, rest

    partials = partial_sums(small(), share.count)
    band.gradients = {
        path: tree_sum(one[path] for one in windows).put_into(_shape_like(windows[0][path].values, image))
        for path in windows[0]
    }
    return partials, {path: (array.shape[:-2], array.dtype) for path, array in band.gradients.items()}


def _shape_like(values: Any, image: Any) -> tuple[int, ...]:
    return (*values.shape[:-2], *image.shape[-2:])


def _border(name: str, band: int, at: _Pass, after: Any) -> Gradients:
    """What frames of a band give to the rows of the next one."""
    found = _band(name, band, at.number)
    height = found.state["parameters"]["object"].shape[-2]
    return {path: array[..., height:, :].copy() for path, array in found.gradients.items()}


def _total(count: int, parts: list[tuple[dict[Node, Any], dict[Path, Any]]]) -> tuple[Any, dict[Path, Any]]:
    return sum_of_parts([sums for sums, _ in parts], count), parts[0][1]


def _update(name: str, problem: Problem, number: int, halo: int, at: _Pass, total: Any, above: Gradients | None) -> Any:
    """The first rows of the band after the update."""
    band = _band(name, number, at.number)
    sums, looks = total
    if at.begins:
        band.totals = np.zeros(2)
    if at.first:
        band.totals += float(sums["loss"]), float(sums["count"])
    image = band.state["parameters"]["object"]
    windows: dict[Path, Window] = {}
    for path, (leading, dtype) in looks.items():
        own = band.gradients.get(path)
        if own is None:
            own = array_module(image).zeros((*leading, *image.shape[-2:]), dtype)
        own = own[..., : image.shape[-2], :]
        if above is not None and path in above:
            own[..., : above[path].shape[-2], :] += above[path]
        windows[path] = Window(own, (0, 0))
    band.gradients = {}
    own_sums = mapped(sums, lambda array: array.copy())  # other bands of this process take the same
    band.state = problem.engine.update(band.state, with_windows(own_sums, windows))
    band.passes += 1
    return _first_rows(band.state, halo)


def _report(name: str, problem: Problem, number: int, after: Any) -> tuple[float, float, bool]:
    band = _band(name, 0, number)
    return float(band.totals[0]), float(band.totals[1]), bool(problem.engine.more(band.state))


def _state_of(name: str, band: int) -> dict[str, Any]:
    state: dict[str, Any] = mapped(_band(name, band).state, _host_copy)
    return state


def _result_of(name: str, problem: Problem, band: int) -> Parameters:
    found: Parameters = mapped(problem.engine.finish(_band(name, band).state), _host_copy)
    return found


def _host_copy(array: Any) -> Any:
    return np.array(to_host(array))


def _forget(name: str) -> None:
    _RUNS.pop(name, None)


class TileRunner(WorkersRunner):
    """Epochs of an object in bands on the workers of a cluster.

    Parameters
    ----------
    client
        Of a cluster.
    problem
        With blocks of frames of one band each (`cut_frames` with `groups`).
    bands
        Of the object.

    Raises
    ------
    UserError
        An engine that is not `tiled`, or keeps values of frames.
    """

    def __init__(self, client: "Client", problem: Problem, bands: Bands) -> None:
        super().__init__(client, problem)
        if not problem.engine.tiled or problem.engine.keeps:
            raise UserError(
                f"{type(problem.engine).__name__} with these options needs the whole object at once; use Adam without "
                "a refinement of positions, or do not cut the object into tiles"
            )
        self._bands = bands
        self.cut = list(bands.borders)
        self._homes: tuple[str, ...] = ()
        self._pieces: list[Any] = []
        self._piece_keys: list[Any] = []

    def begin(self, parameters: Parameters) -> None:
        """Each band on its worker."""
        positions = np.asarray(parameters["positions"])
        found = self._bands.of_frames(positions)
        self._set_up(found)
        image = parameters["object"]
        parts = [{**parameters, "object": image[..., self._bands.rows(band), :]} for band in range(len(self._bands))]
        self._hold_all(parts, True)

    def restore(self, state: dict[str, Any], kept: dict[int, Any]) -> None:
        """Each band on its worker."""
        bands = state["bands"]
        self._set_up(self._bands.of_frames(np.asarray(bands[0]["parameters"]["positions"])))
        self._hold_all(bands, False)

    def epoch(self, number: int) -> tuple[float, float]:
        """Submit its steps and wait for the sums of losses and counts."""
        steps = steps_of(self._problem, number)
        if type(self._problem.engine).more is Engine.more:
            passes = [self._tasks(blocks, True, index == 0) for index, blocks in enumerate(steps)]
            loss, count, _ = self._go(list(itertools.chain(*passes)))
            return loss, count
        for index, blocks in enumerate(steps):
            loss, count, more = self._go(self._tasks(blocks, True, index == 0))
            while more:
                loss, count, more = self._go(self._tasks(blocks, False, False))
        return loss, count

    def snapshot(self) -> tuple[dict[str, Any], dict[int, Any]]:
        """From the workers, one band after another."""
        return {"bands": [self._wait(self._submit(_state_of, home, band)) for band, home in self._numbered()]}, {}

    def result(self) -> Parameters:
        """From the workers, one band after another; what is not the object from the first."""
        found = [self._wait(self._submit(_result_of, home, self._placed, band)) for band, home in self._numbered()]
        return {**found[0], "object": np.concatenate([one["object"] for one in found], -2)}

    def close(self) -> None:
        """Let the workers forget the run."""
        self._pieces = []
        self._leave(_forget)

    def _numbered(self) -> Iterator[tuple[int, str]]:
        return enumerate(self._homes)

    def _set_up(self, bands_of_frames: NDArray[np.int64]) -> None:
        self._gather()
        self._homes = graph.spread(len(self._bands), self._workers)
        self._owners = [int(bands_of_frames[frames[0]]) for frames in self._problem.blocks.frames]

    def _hold_all(self, values: Sequence[dict[str, Any]], begin: bool) -> None:
        self._pieces = []
        for (band, home), value in zip(self._numbered(), values):
            there = self._scatter(value, home)
            self._pieces.append(self._submit(_hold, home, self._placed, band, self._bands.halo, there, begin))
            self._wait(self._pieces[-1], fetch=False)
        self._piece_keys = [piece.key for piece in self._pieces]

    def _tasks(self, blocks: Sequence[int], first: bool, begins: bool) -> list[PinnedTask]:
        """Those of one pass over the blocks of a step."""
        at = _Pass(self._passes, first, begins)
        problem, pieces = Ref(self._placed.key), self._piece_keys
        evaluated: dict[int, Key] = {}
        borders: dict[int, Key] = {}
        tasks: list[PinnedTask] = []
        for band, home in self._numbered():
            places = tuple(place for place, block in enumerate(blocks) if self._owners[block] == band)
            if not places:
                continue
            share = Share(places, tuple(blocks[place] for place in places), len(blocks))
            last = band == len(self._bands) - 1
            below = None if last else Ref(pieces[band + 1])
            key = evaluated[band] = (f"{self._name}-evaluate-{band}", at.number)
            row = self._bands.borders[band]
            given = (self._name, problem, band, row, share, at, Ref(pieces[band]), below)
            tasks.append(PinnedTask(key, home, _evaluate, given))
            if not last:
                borders[band] = (f"{self._name}-border-{band}", at.number)
                tasks.append(PinnedTask(borders[band], home, _border, (self._name, band, at, Ref(key))))
        total: Key = (f"{self._name}-total", at.number)
        parts = [Ref(key) for key in evaluated.values()]
        tasks.append(PinnedTask(total, self._workers[0], _total, (len(blocks), parts)))
        self._piece_keys = [(f"{self._name}-update-{band}", at.number) for band, _ in self._numbered()]
        for band, home in self._numbered():
            above = Ref(borders[band - 1]) if band - 1 in borders else None
            arguments = (self._name, problem, band, self._bands.halo, at, Ref(total), above)
            tasks.append(PinnedTask(self._piece_keys[band], home, _update, arguments))
        self._passes += 1
        return tasks

    def _go(self, tasks: list[PinnedTask]) -> tuple[float, float, bool]:
        """Submit passes and wait for the report after the last of them."""
        key: Key = (f"{self._name}-report", self._passes)
        arguments = (self._name, Ref(self._placed.key), self._passes, Ref(self._piece_keys[0]))
        report = PinnedTask(key, self._homes[0], _report, arguments)
        *self._pieces, waited = graph.submit(self._client, [*tasks, report], [*self._piece_keys, key])
        found: tuple[float, float, bool] = self._wait(waited)
        return found
