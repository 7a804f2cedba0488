"""What runners of epochs on Dask workers share: who is there and does what, data on workers, waiting, losses."""

import itertools
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dtomo.distributed import graph
from dtomo.distributed.clusters import WAIT_FOR_WORKERS
from dtomo.distributed.queue import wait_for_worker
from dtomo.ptycho.blocks import Blocks
from dtomo.ptycho.driver import Runner, Setback
from dtomo.ptycho.evaluator import Problem

if TYPE_CHECKING:
    from distributed import Client, Future


class Lost(Exception):
    """A task came to a process that does not hold what it needs."""


_EXPECTED: set[str] = set()
"""Names of the runs that this process was there for from the beginning."""


def expected(name: str) -> None:
    """Make sure that this process has been there since the run began: one that was started again holds nothing.

    Raises
    ------
    Lost
        It has not.
    """
    if name not in _EXPECTED:
        raise Lost("a worker is not the one that it was")


def _expect(name: str) -> None:
    _EXPECTED.add(name)


def _forget(name: str, forget: Callable[[str], None]) -> None:
    _EXPECTED.discard(name)
    forget(name)


def shares_of(speeds: Sequence[float]) -> list[float]:
    """Where each worker's part of the blocks ends, as a fraction of all; the last one is 1."""
    ends = np.cumsum(np.asarray(speeds, np.float64)) / np.sum(speeds)
    return [*map(float, ends[:-1]), 1.0]


def owners(batch: Sequence[int], ends: Sequence[float]) -> dict[int, int]:
    """The worker (by place) of each block of a batch: consecutive blocks, in proportion to the workers' parts."""
    borders = [round(len(batch) * end) for end in ends]
    found: dict[int, int] = {}
    for worker, (first, last) in enumerate(itertools.pairwise([0, *borders])):
        found |= dict.fromkeys(batch[first:last], worker)
    return found


def all_owners(blocks: Blocks, ends: Sequence[float]) -> dict[int, int]:
    """The worker (by place) of each block of the scan."""
    found: dict[int, int] = {}
    for batch in blocks.batches:
        found |= owners(batch, ends)
    return found


class Workers(ABC):
    """The workers of a run, and what lies on each of them.

    Parameters
    ----------
    client
        Of a cluster with at least one worker; those there at the beginning (after a loss: then) are used.
    problem
        A value, placed on each worker.
    """

    def __init__(self, client: "Client", problem: Any) -> None:
        self._client, self._problem = client, problem
        self._expected = len(graph.workers_in_order(client))
        self._workers: list[str] = []
        self._name, self._passes = "", 0
        self._placed: Any = None

    @abstractmethod
    def close(self) -> None:
        """Let the workers forget the run."""

    def _leave(self, forget: Callable[[str], None]) -> None:
        """Call `forget` with the name of the run on each worker."""
        self._placed = None
        if self._name:
            self._client.run(_forget, self._name, forget, on_error="ignore")
            self._name = ""

    def _gather(self) -> None:
        """A new run on the workers that are there now: as many as at first, if they come back in time."""
        lost = bool(self._name)
        self.close()
        deadline = time.monotonic() + WAIT_FOR_WORKERS
        while lost and time.monotonic() < deadline and len(graph.workers_in_order(self._client)) < self._expected:
            time.sleep(0.1)
        wait_for_worker(self._client)
        self._workers = graph.workers_in_order(self._client)
        self._name = graph.unique("ptycho")
        self._passes = 0
        try:
            self._client.run(_expect, self._name, workers=self._workers)
        except (TimeoutError, OSError) as error:
            raise Setback("a worker was lost before the run began") from error
        self._placed = self._scatter(self._problem, None)

    def _scatter(self, value: Any, address: str | None) -> "Future":
        """A value on one worker, or on each."""
        workers = self._workers if address is None else [address]
        try:
            return self._client.scatter([value], workers=workers, broadcast=address is None, hash=False)[0]
        except (TimeoutError, OSError) as error:
            raise Setback("a worker was lost before it had its data") from error

    def _submit(self, function: Any, address: str, *arguments: Any) -> "Future":
        return self._client.submit(
            function, self._name, *arguments, workers=[address], allow_other_workers=True, pure=False, priority=1
        )

    def _wait(self, future: "Future", fetch: bool = True) -> Any:
        """The result of a future.

        Raises
        ------
        Setback
            Workers of the run are gone.
        Exception
            What the task raised.
        """
        from distributed import CancelledError, wait
        from distributed.scheduler import KilledWorker

        while True:
            try:
                wait([future], timeout=1.0)
                break
            except TimeoutError:
                self._check_workers()
            except CancelledError as error:
                raise Setback("a task was cancelled") from error
        if future.status == "error":
            cause = future.exception()
            if isinstance(cause, KilledWorker | Lost):
                raise Setback(str(cause)) from cause
            raise cause
        if future.status != "finished":
            raise Setback(f"a task is {future.status}")
        return future.result() if fetch else None

    def _check_workers(self) -> None:
        gone = set(self._workers).difference(graph.workers_in_order(self._client))
        if gone:
            raise Setback(f"{len(gone)} worker{'s' * (len(gone) > 1)} gone")


class WorkersRunner(Workers, Runner):
    """Epochs of ptychography on the workers of a cluster; see `Workers`."""

    copies = True

    def __init__(self, client: "Client", problem: Problem) -> None:
        super().__init__(client, problem)
