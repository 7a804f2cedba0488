"""What runners of epochs on Dask workers share: who is there, data and tasks on one worker, waiting, losses."""

import time
from abc import abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from dtomo.distributed import graph
from dtomo.distributed.clusters import WAIT_FOR_WORKERS
from dtomo.distributed.queue import wait_for_worker
from dtomo.ptycho.driver import Runner, Setback
from dtomo.ptycho.evaluator import Problem

if TYPE_CHECKING:
    from distributed import Client, Future


class Lost(Exception):
    """A task came to a process that does not hold what it needs."""


class WorkersRunner(Runner):
    """Epochs on the workers of a cluster.

    Parameters
    ----------
    client
        Of a cluster with at least one worker; those there at the beginning (after a loss: then) are used.
    problem
        Placed on each worker.
    """

    copies = True

    def __init__(self, client: "Client", problem: Problem) -> None:
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
            self._client.run(forget, self._name, on_error="ignore")
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
