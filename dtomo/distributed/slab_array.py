"""An array cut along z whose slabs stay where they are: the iterate of a problem that couples them.

One task per slab per iteration updates all of a slab's state on the worker that holds it, so nothing moves but what
neighbours share (`dtomo.distributed.halo`) and sums (`dtomo.distributed.sums`). See docs/distribution.md.
"""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from dtomo.device import to_host
from dtomo.distributed import graph
from dtomo.distributed.graph import Call, PinnedTask, Ref
from dtomo.distributed.halo import Boundary, HaloPlan, Piece, cut_piece, plan_halo, put_on
from dtomo.distributed.queue import TaskFailed
from dtomo.distributed.slabs import Slab
from dtomo.distributed.sums import add_up, divide, plan_sum
from dtomo.errors import UserError

if TYPE_CHECKING:
    from distributed import Client, Future

    from dtomo.io import VolumeWriter

Function = Callable[..., Any]


@dataclasses.dataclass(frozen=True, eq=False)
class SlabArray:
    """A volume or a set of projections cut along z, or any other state that belongs to slabs, on the workers.

    A value: `update` makes a new one. The part of a slab is an array or a dict of arrays (solution, residual, state of
    an optimiser), real or complex, in host memory or on the worker's device, or whatever else a function returned;
    functions must not change what they are given.

    Attributes
    ----------
    client
        Of the cluster.
    slabs
        In order; one part each.
    parts
        A future of each part.
    homes
        The worker of each part.
    axis
        Along which the arrays are cut: 0 for a volume (z, y, x), 1 for projections (angle, row, column).
    """

    client: "Client"
    slabs: tuple[Slab, ...]
    parts: tuple["Future", ...]
    homes: tuple[str, ...]
    axis: int = 0

    @classmethod
    def create(
        cls,
        client: "Client",
        function: Function,
        shared: Any,
        slabs: Iterable[Slab],
        homes: Sequence[str] | None = None,
        *,
        axis: int = 0,
    ) -> "SlabArray":
        """Parts made by ``function(shared, slab)`` where they will stay.

        Parameters
        ----------
        client
            Of a cluster with at least one worker.
        function, shared
            Both travel to each worker once. `shared` is a value that can be pickled or a future.
        slabs
            In order.
        homes
            The worker of each slab; default: consecutive slabs on one worker, equally many on each.
        axis
            See `SlabArray`.

        Raises
        ------
        UserError
            No slabs.
        """
        slabs = tuple(slabs)
        if not slabs:
            raise UserError("an array on the workers needs at least one slab")
        where = tuple(homes) if homes is not None else graph.spread(len(slabs), graph.workers_in_order(client))
        return cls(client, slabs, (), where, axis)._run(function, shared, [[] for _ in slabs])

    def update(self, function: Function, shared: Any = None, *others: "SlabArray | Halo") -> "SlabArray":
        """New parts ``function(shared, slab, part, *others)``: one task per slab, each where its slab is.

        Parameters
        ----------
        function
            Called with the parts of `others` of the same slab; of a `Halo`, with the array that has its borders put on.
            It must not change them.
        shared
            What all tasks need: a value, or a future such as a sum. Travels to each worker once.
        others
            Arrays with at least the same slabs, best with the same homes.

        Returns
        -------
        SlabArray
            Computed in the background; its parts hold errors until they are waited for.

        Raises
        ------
        UserError
            Another array lacks one of the slabs.
        """
        tasks: list[PinnedTask] = []
        operands: list[list[Any]] = [[Ref(part.key)] for part in self.parts]
        for other in others:
            other_operands = other.operands(self, tasks) if isinstance(other, Halo) else self._matching(other)
            for operand, argument in zip(operands, other_operands):
                operand.append(argument)
        return self._run(function, shared, operands, tasks)

    def _matching(self, other: "SlabArray") -> list[Ref]:
        theirs = dict(zip(other.slabs, other.parts))
        missing = [slab for slab in self.slabs if slab not in theirs]
        if missing:
            raise UserError(f"arrays that are updated together are cut alike: one of them lacks {missing[0]}")
        return [Ref(theirs[slab].key) for slab in self.slabs]

    def _run(
        self, function: Function, shared: Any, operands: list[list[Any]], before: Sequence[PinnedTask] = ()
    ) -> "SlabArray":
        name = graph.unique("slab")
        function, shared = graph.place(self.client, function), graph.place(self.client, shared)
        tasks = slab_tasks(name, self.slabs, self.homes, _reference(function), _reference(shared), operands)
        keys = [task.key for task in tasks]
        parts = graph.submit(self.client, [*before, *tasks], keys)
        return dataclasses.replace(self, parts=tuple(parts))

    def subset(self, indices: Iterable[int]) -> "SlabArray":
        """The slabs with these numbers (`Slab.index`)."""
        wanted = set(indices)
        chosen = [place for place, slab in enumerate(self.slabs) if slab.index in wanted]
        return dataclasses.replace(
            self,
            slabs=tuple(self.slabs[place] for place in chosen),
            parts=tuple(self.parts[place] for place in chosen),
            homes=tuple(self.homes[place] for place in chosen),
        )

    def replaced(self, other: "SlabArray") -> "SlabArray":
        """With the parts and homes that `other` has of some of the slabs."""
        new = {slab.index: (part, home) for slab, part, home in zip(other.slabs, other.parts, other.homes)}
        both = [new.get(slab.index, old) for slab, *old in zip(self.slabs, self.parts, self.homes)]
        return dataclasses.replace(self, parts=tuple(part for part, _ in both), homes=tuple(home for _, home in both))

    def sum(self, finish: Callable[[Any], Any] | None = None) -> "Future":
        """The future of the sum of all parts, in the order of `sums.tree_sum`; `finish` is applied to it once."""
        return sum_parts(self.client, self.parts, self.homes, finish)

    def mean(self) -> "Future":
        """The future of the mean of parts that are pairs ``(sum of values, sum of weights)``, divided once."""
        return self.sum(divide)

    def write(self, writer: "VolumeWriter", key: str | None = None) -> None:
        """Write all slabs (of dicts: the array `key`), each from its worker, and wait; the writer is not finished.

        Raises
        ------
        TaskFailed
            The first slab that could not be written.
        """
        self.update(_write_part, (writer, key)).wait()

    def wait(self) -> "SlabArray":
        """Wait until all parts are there.

        Raises
        ------
        TaskFailed
            The first slab whose task raised, or whose worker died on it.
        """
        from distributed import wait
        from distributed.scheduler import KilledWorker

        wait(list(self.parts), return_when="ALL_COMPLETED")
        while any(part.status == "lost" for part in self.parts):  # with its worker; Dask makes it again
            wait(list(self.parts), return_when="ALL_COMPLETED")
        for slab, part in zip(self.slabs, self.parts):
            if part.status != "finished":
                cause = part.exception() if part.status == "error" else ConnectionError("its worker was lost")
                raise TaskFailed(slab, cause, killed=isinstance(cause, KilledWorker))
        return self


@dataclasses.dataclass(frozen=True)
class Halo:
    """An argument of `SlabArray.update`: the arrays of another (or the same) one with `depth` slices of the neighbours.

    It is put together inside the task and gone with it. From a slab on the same worker nothing moves, from one on
    another only the slices needed.

    Parameters
    ----------
    array
        What the slices are of.
    depth
        Slices on each side; a slab may be thinner.
    boundary
        At the ends of the volume: see `dtomo.distributed.halo.Boundary`.
    key
        The array meant, where parts are dicts.
    """

    array: SlabArray
    depth: int
    boundary: Boundary = "cut"
    key: str | None = None

    def operands(self, target: SlabArray, tasks: list[PinnedTask]) -> list[Call]:
        """The argument of each slab's task of `target`; tasks that cut borders are appended to `tasks`."""
        if target.slabs != self.array.slabs:
            raise UserError("a halo is of an array with the same slabs as the one that is updated")
        keys = [part.key for part in self.array.parts]
        plans = plan_halo(self.array.slabs, self.depth, self.boundary)
        found, cuts = halo_operands(plans, keys, self.array.homes, target.homes, self.array.axis, self.key)
        tasks.extend(cuts)
        return found


def halo_operands(
    plans: Sequence[HaloPlan],
    keys: Sequence[Any],
    sources: Sequence[str],
    targets: Sequence[str],
    axis: int,
    key: str | None,
) -> tuple[list[Call], list[PinnedTask]]:
    """Arguments that put halos on, and the tasks that cut what must travel from the homes `sources` to `targets`."""
    name = graph.unique("border")
    cuts: dict[Piece, PinnedTask] = {}
    operands = []
    for index, plan in enumerate(plans):
        borders: list[Any] = []
        for piece in plan.pieces:
            if sources[piece.slab] == targets[index]:
                borders.append(Call(_cut, (Ref(keys[piece.slab]), piece, axis, key)))
                continue
            if piece not in cuts:
                arguments = (Ref(keys[piece.slab]), piece, axis, key)
                cuts[piece] = PinnedTask((name, len(cuts)), sources[piece.slab], _cut, arguments, first=True)
            borders.append(Ref(cuts[piece].key))
        operands.append(Call(_put_on, (Ref(keys[index]), plan, borders, axis, key)))
    return operands, list(cuts.values())


def slab_tasks(
    name: str, slabs: Sequence[Slab], homes: Sequence[str], function: Any, shared: Any, operands: Sequence[list[Any]]
) -> list[PinnedTask]:
    """The tasks of one iteration."""
    return [
        PinnedTask((name, slab.index), home, _apply, (function, shared, slab, *operand))
        for slab, home, operand in zip(slabs, homes, operands, strict=True)
    ]


def sum_tasks(
    name: str, keys: Sequence[Any], homes: Sequence[str], finish: Callable[[Any], Any] | None
) -> list[PinnedTask]:
    """The tasks of a sum of the futures or tasks `keys`; the last one is the sum."""
    tasks: dict[Any, PinnedTask] = {}
    plan = plan_sum(homes)
    for number, task in enumerate(plan):
        values = [Ref(keys[i]) if level == 0 else Ref(tasks[level, i].key) for level, i in task.leaves]
        last = finish if task is plan[-1] else None
        arguments = (last, task.node, len(keys), task.leaves, values)
        tasks[task.node] = PinnedTask((name, number), str(task.home), _add_up, arguments, first=True)
    return list(tasks.values())


def sum_parts(
    client: "Client",
    parts: Sequence["Future"],
    homes: Sequence[str],
    finish: Callable[[Any], Any] | None = None,
) -> "Future":
    """The future of a tree sum over futures that lie on the workers `homes`; goes before tasks sent earlier.

    Raises
    ------
    UserError
        No parts.
    """
    tasks = sum_tasks(graph.unique("sum"), [part.key for part in parts], homes, finish)
    return graph.submit(client, tasks, [tasks[-1].key])[0]


def _reference(value: Any) -> Any:
    from distributed import Future

    return Ref(value.key) if isinstance(value, Future) else value


def _apply(function: Function, shared: Any, slab: Slab, *operands: Any) -> Any:
    return function(shared, slab, *operands)


def _add_up(finish: Callable[[Any], Any] | None, node: Any, count: int, leaves: Any, values: list[Any]) -> Any:
    total = add_up(node, count, leaves, values)
    return total if finish is None else finish(total)


def _cut(part: Any, piece: Piece, axis: int, key: str | None) -> Any:
    return cut_piece(part if key is None else part[key], piece, axis)


def _put_on(part: Any, plan: HaloPlan, borders: list[Any], axis: int, key: str | None) -> Any:
    return put_on(part if key is None else part[key], plan, borders, axis)


def _write_part(target: tuple["VolumeWriter", str | None], slab: Slab, part: Any) -> None:
    writer, key = target
    writer.write_slab(slab.start, to_host(part if key is None else part[key]))
