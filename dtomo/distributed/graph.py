"""Tasks that run where their data is: one small graph per iteration, in which functions and settings stand once."""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any
from uuid import uuid4

if TYPE_CHECKING:
    from dask.highlevelgraph import HighLevelGraph
    from distributed import Client, Future

INLINE = 2048
"""Bytes (pickled) up to which what all tasks share is written into each of them; more travels to each worker once."""

Key = tuple[str, int]


def unique(name: str) -> str:
    """A name for keys that no other graph uses."""
    return f"dtomo-{name}-{uuid4().hex[:12]}"


def workers_in_order(client: "Client") -> list[str]:
    """Addresses of the workers, in the order of their names: a restarted worker keeps its place."""
    found = client.scheduler_info(n_workers=-1)["workers"]
    return sorted(found, key=lambda address: _natural(found[address]["name"]))


def _natural(name: Any) -> tuple[int, int, str]:
    text = str(name)
    return (0, int(text), "") if text.isdigit() else (1, 0, text)


def spread(count: int, workers: Sequence[str]) -> tuple[str, ...]:
    """A home for each of `count` slabs: consecutive slabs on one worker, as many on each as on any other, or one more.

    Raises
    ------
    ValueError
        No workers.
    """
    if not workers:
        raise ValueError("there are no workers")
    return tuple(workers[index * len(workers) // count] for index in range(count))


@dataclasses.dataclass(frozen=True)
class PinnedTask:
    """``function(*arguments)`` on the worker `home`.

    `arguments` may hold `Ref` and `Call` objects, alone or in a list. A worker takes tasks in the order of their
    numbers (the second part of the key), and those that are `first` before all of these.
    """

    key: Key
    home: str
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    first: bool = False


@dataclasses.dataclass(frozen=True)
class Ref:
    """The result of the task or future with this key."""

    key: Any


@dataclasses.dataclass(frozen=True)
class Call:
    """``function(*arguments)`` inside the task that has it as an argument: made there, gone with it."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]


def build(tasks: Iterable[PinnedTask]) -> "HighLevelGraph":
    """A graph with one layer per worker, whose tasks are to run there and may run elsewhere if it is gone."""
    from dask._task_spec import List, Task, TaskRef
    from dask.highlevelgraph import HighLevelGraph, MaterializedLayer

    def argument(value: Any) -> Any:
        if isinstance(value, Ref):
            return TaskRef(value.key)
        if isinstance(value, Call):
            return Task(None, value.function, *(argument(item) for item in value.arguments))
        if isinstance(value, list):
            return List(*(argument(item) for item in value))
        return value

    nodes: dict[tuple[str, bool], dict[Any, Any]] = {}
    for task in tasks:
        node = Task(task.key, task.function, *(argument(value) for value in task.arguments))
        nodes.setdefault((task.home, task.first), {})[task.key] = node
    layers = {}
    for (home, first), layer in nodes.items():
        annotations = {"workers": [home], "allow_other_workers": True, "priority": 1 if first else _priority}
        layers[f"{home}-{first}"] = MaterializedLayer(layer, annotations=annotations)
    return HighLevelGraph(layers, {name: set() for name in layers})


def _priority(key: Key) -> int:
    return -int(key[1])


def submit(client: "Client", tasks: Sequence[PinnedTask], wanted: Sequence[Key] | None = None) -> list["Future"]:
    """Send the tasks to the scheduler in one message; futures of the keys `wanted` (default: of all tasks)."""
    keys = [task.key for task in tasks] if wanted is None else list(wanted)
    return list(client.get(build(tasks), keys, sync=False)) if keys else []


def graph_bytes(tasks: Iterable[PinnedTask]) -> int:
    """Size of the graph as it travels to the scheduler."""
    from dask._expr import HLGExpr
    from distributed.protocol import serialize, to_serialize

    header, frames = serialize(to_serialize(HLGExpr(build(tasks))), on_error="raise")
    return len(str(header)) + sum(len(frame) for frame in frames)


def place(client: "Client", value: Any) -> Any:
    """What all tasks of an iteration share, ready to be an argument: itself, or the future of a copy on each worker.

    A value that is a future already is taken as it is. The copies are data without a task that made them: if all are
    lost, what needs them is lost too and nothing is computed again behind the driver's back.
    """
    from distributed import Future
    from distributed.protocol.pickle import dumps
    from distributed.sizeof import sizeof

    if value is None or isinstance(value, Future) or (sizeof(value) <= INLINE and len(dumps(value)) <= INLINE):
        return value
    return client.scatter([value], broadcast=True, hash=False)[0]  # of a tuple each item would become one


def bytes_sent(client: "Client") -> int:
    """Bytes that the workers have sent to one another (and to clients that gather) since they started."""
    return sum(client.run(_sent).values())


def _sent(dask_worker: Any) -> int:
    return int(dask_worker.transfer_outgoing_bytes_total)
