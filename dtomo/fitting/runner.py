"""Sums over the blocks of a batch, in this process or on the workers of a cluster, with the same bits.

Blocks are added in the tree of `dtomo.distributed.sums`; each worker takes consecutive blocks and adds up whole nodes
of the tree, and the few nodes that remain are added here. A step is one message to each worker, which carries the
parameters, and one back; it goes past the scheduler's queue of tasks (``Client.run``), which took 13 ms for two small
tasks where this takes 2 (both on two cores). Workers hold the model and the data they have read, nothing that a fit
cannot do without: if one is lost, those that are there do the step.
"""

import abc
import asyncio
import contextlib
import dataclasses
import math
import pickle
import time
import traceback
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dtomo.distributed import graph
from dtomo.distributed.clusters import TRIES
from dtomo.distributed.queue import wait_for_worker
from dtomo.distributed.sums import Node, partial_sums, sum_of_parts
from dtomo.errors import StoppedError, UserError
from dtomo.fitting.checks import PLACE, users_line
from dtomo.fitting.data import Columns, Index, Reader
from dtomo.fitting.travel import packed, unpacked

if TYPE_CHECKING:
    from distributed import Client

KEEP = 0.25
"""Part of a process's memory that what it has read may take."""

MESSAGE = 2**31
"""Bytes of data in memory that are sent to a worker at most: msgpack, which packs messages, counts to 2**32."""

FRESH = 2.0
"""Seconds after which the list of workers is asked for again."""


@dataclasses.dataclass(frozen=True, eq=False)
class Work:
    """Blocks that are evaluated at the same parameters.

    Attributes
    ----------
    blocks
        Samples of each.
    gradient
        Whether they are trained on.
    seeds
        Of the step: seed, epoch, number of the step. Random numbers of a block are made from these and its number.
    """

    blocks: tuple[Index, ...]
    gradient: bool
    seeds: tuple[int, int, int]

    def key(self, block: int) -> int:
        """What random numbers of a block are made from."""
        return int(np.random.SeedSequence([*self.seeds, block]).generate_state(1, np.uint64)[0] >> np.uint64(1))


class Here:
    """What a process holds of a fit: the task and what it has read."""

    def __init__(self, task: Any, columns: Columns, limit: int) -> None:
        self.task, self.reader = task, Reader(columns, limit)

    def sums(self, values: Mapping[str, NDArray[Any]], work: Work, numbers: range) -> dict[Node, Any]:
        """Sums over blocks `numbers` of the work, by node of the tree."""
        blocks = ((self.reader.batch(work.blocks[number]), work.key(number)) for number in numbers)
        made = self._made(self.task.evaluate_blocks(values, blocks, gradient=work.gradient))
        return partial_sums(zip(numbers, made, strict=True), len(work.blocks))

    def _made(self, made: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """The same; what the user's code raises knows its place in it."""
        try:
            yield from made
        except Exception as error:
            if not isinstance(error, UserError) and not hasattr(error, PLACE):
                with contextlib.suppress(AttributeError):  # of classes that take no attributes
                    setattr(error, PLACE, users_line(error))
            raise


class Runner(abc.ABC):
    """Evaluates blocks, wherever that is."""

    @abc.abstractmethod
    def sums(self, values: Mapping[str, NDArray[Any]], work: Work) -> dict[str, Any]:
        """Sums over all blocks of a work, at these parameters and buffers.

        Raises
        ------
        UserError
            Data that cannot be read, or a model that returns what it must not.
        StoppedError
            Workers were lost again and again.
        """

    @abc.abstractmethod
    def close(self) -> None:
        """Let go of everything."""


class LocalRunner(Runner):
    """In this process, with the user's own object."""

    def __init__(self, task: Any, columns: Columns) -> None:
        from dtomo.distributed.clusters import machine

        self._here = Here(task, columns, int(KEEP * machine()[1]))

    def sums(self, values: Mapping[str, NDArray[Any]], work: Work) -> dict[str, Any]:
        """Block after block."""
        nodes = self._here.sums(values, work, range(len(work.blocks)))
        found: dict[str, Any] = sum_of_parts([nodes], len(work.blocks))
        return found

    def close(self) -> None:
        """Nothing is held beyond this object."""


_FITS: dict[str, Here] = {}
"""Fits that this process works for, by name."""


@dataclasses.dataclass(frozen=True)
class _Failed:
    """What a model raised."""

    error: Exception


class _Missing:
    """A worker does not know the fit: it has just begun."""


def _begin(name: str, data: bytes, limit: int | None) -> None:
    task, columns = unpacked(data)
    _FITS[name] = Here(task, columns, int(KEEP * limit) if limit else 2**30)


def _forget(name: str) -> None:
    _FITS.pop(name, None)


def _evaluate(name: str, values: Any, work: Work, numbers: range) -> Any:
    if name not in _FITS:
        return _Missing()
    try:
        return _FITS[name].sums(values, work, numbers)
    except Exception as error:  # noqa: BLE001 - the user's own code, whose errors are told where the fit was begun
        return _Failed(_fit_to_travel(error))


def _fit_to_travel(error: Exception) -> Exception:
    if not isinstance(error, UserError):
        error.add_note(f"on a worker:\n{traceback.format_exc()}")
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # noqa: BLE001 - an exception of the user's that does not travel is told as text
        return RuntimeError(traceback.format_exc())
    return error


async def _begin_there(name: str, data: bytes, dask_worker: Any = None) -> None:
    limit = dask_worker.memory_manager.memory_limit
    await asyncio.get_running_loop().run_in_executor(dask_worker.executors["default"], _begin, name, data, limit)


async def _evaluate_there(name: str, values: Any, shares: Any, work: Work, dask_worker: Any = None) -> Any:
    """In the thread that has the worker's cores."""
    mine = shares.get(dask_worker.address)
    if mine is None:
        return {}
    loop, where = asyncio.get_running_loop(), dask_worker.executors["default"]
    return await loop.run_in_executor(where, _evaluate, name, values, work, mine)


def _check_size(columns: Columns, client: "Client") -> None:
    """Refuse to send more than workers can keep, or than a message can hold."""
    size = sum(math.prod(part.shape) * np.dtype(part.dtype).itemsize for part in columns.parts if part.kept)
    found = client.scheduler_info(n_workers=-1)["workers"].values()
    most = min([MESSAGE, *(int(KEEP * worker["memory_limit"]) for worker in found if worker["memory_limit"])])
    if size > most:
        raise UserError(
            f"data in memory goes whole to each worker, and {size / 1e9:.3g} GB are more than the {most / 1e9:.3g} GB "
            "that one can take: write it with numpy.save and give numpy.load(path, mmap_mode='r'), or a Zarr array, of "
            "which workers read what they need"
        )


class ClusterRunner(Runner):
    """On the workers of a cluster.

    Parameters
    ----------
    client
        Of a cluster; workers may come and go.
    task, columns
        Sent to each worker once.
    most
        Workers that are used at most; None: all.

    Raises
    ------
    UserError
        A model or data that cannot be sent, or data in memory that is too large to be; the message names what.
    """

    def __init__(self, client: "Client", task: Any, columns: Columns, most: int | None = None) -> None:
        self._client, self._most, self._name = client, most, graph.unique("fit")
        _check_size(columns, client)
        for attribute in ("model", "module"):
            if hasattr(task, attribute):
                packed(getattr(task, attribute), "model")
        packed(getattr(task, "loss", None), "loss")
        packed(columns, "data")
        self._data = packed((task, columns), "model")
        self._known: set[str] = set()
        self._workers: list[str] = []
        self._asked = -FRESH

    def sums(self, values: Mapping[str, NDArray[Any]], work: Work) -> dict[str, Any]:
        """Consecutive blocks on each worker."""
        for _ in range(TRIES):
            workers = self._present()
            shares = self._shares(work, workers)
            try:
                self._introduce(list(shares))
                replies = self._client.run(
                    _evaluate_there, self._name, dict(values), shares, work, workers=list(shares), on_error="return"
                )
            except OSError as error:
                lost: BaseException = error
            else:
                found = self._sum(replies, len(work.blocks))
                if isinstance(found, dict):
                    return found
                lost = found
            self._asked = -FRESH
            time.sleep(0.2)
        raise StoppedError(
            f"workers were lost {TRIES} times in one step of a fit ({lost}): give them memory, or take smaller blocks"
        ) from lost

    def _sum(self, replies: Mapping[str, Any], count: int) -> Any:
        """The sum, or why a worker has not done its part."""
        for address, reply in replies.items():
            if isinstance(reply, _Failed):
                raise reply.error
            if isinstance(reply, _Missing | BaseException):
                self._known.discard(address)
                return reply if isinstance(reply, BaseException) else ConnectionError("a worker was started again")
        return sum_of_parts(replies.values(), count)

    def _shares(self, work: Work, workers: list[str]) -> dict[str, range]:
        """Numbers of each worker's blocks."""
        borders = [len(work.blocks) * place // len(workers) for place in range(len(workers) + 1)]
        return {
            address: range(first, last) for address, first, last in zip(workers, borders, borders[1:]) if last > first
        }

    def _present(self) -> list[str]:
        if not self._workers or time.monotonic() - self._asked > FRESH:
            self._workers = graph.workers_in_order(self._client)
            if not self._workers:
                wait_for_worker(self._client)
                self._workers = graph.workers_in_order(self._client)
            self._asked = time.monotonic()
        return self._workers[: self._most]

    def _introduce(self, workers: list[str]) -> None:
        """Send model and data to workers that do not have them."""
        new = [address for address in workers if address not in self._known]
        if new:
            self._client.run(_begin_there, self._name, self._data, workers=new)
            self._known.update(new)

    def close(self) -> None:
        """Let the workers forget the fit."""
        self._client.run(_forget, self._name, on_error="ignore")
