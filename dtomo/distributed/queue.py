"""Tasks in bounded number: one per worker at a time, each tried again when its worker dies."""

import dataclasses
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from uuid import uuid4

from dtomo.distributed.clusters import TRIES, WAIT_FOR_WORKERS

if TYPE_CHECKING:
    from distributed import Client

Item = TypeVar("Item", bound=Hashable)


class TaskFailed(Exception):
    """A task that raised, or that killed every worker it met.

    `item` is what it worked on, `cause` what it raised.
    """

    def __init__(self, item: Any, cause: BaseException, *, killed: bool) -> None:
        super().__init__(f"{item}: {cause}")
        self.item, self.cause, self.killed = item, cause, killed


def _identity(value: Any) -> Any:
    return value


def run_tasks(
    client: "Client",
    function: Callable[[Any, Item], Any],
    shared: Any,
    items: Iterable[Item],
    on_done: Callable[[Item, Any], None],
) -> None:
    """Run ``function(shared, item)`` for all items, one per worker at a time, in any order.

    `shared` is one node of the graph: it travels to each worker once, and a worker that replaces a dead one
    gets it again. `on_done(item, result)` is called here, as results come in. A task whose worker dies is
    tried again on a free one, `clusters.TRIES` times in all (times what the scheduler of a cluster that was
    not started here allows); as a worker has one task at a time, no task is blamed for the death of another.
    On any exception the tasks that still run are cancelled.

    Raises
    ------
    TaskFailed
        The first task that raised or was given up.
    """
    name = f"dtomo-{uuid4().hex[:12]}"
    common = client.submit(_identity, shared, key=f"{name}-shared", pure=False)
    waiting = deque(_Task(item) for item in items)
    running: dict[Any, _Task[Item]] = {}
    try:
        while waiting or running:
            for worker in _free_workers(client, running.values()) if waiting else ():
                task = waiting.popleft()
                key = f"{name}-{id(task)}-{task.tries}"
                future = client.submit(
                    function, common, task.item, key=key, workers=worker, allow_other_workers=True, pure=False
                )
                task.worker, task.tries = worker, task.tries + 1
                running[future] = task
                if not waiting:
                    break
            for future in _finished(list(running)):
                task = running.pop(future)
                if _to_be_tried_again(future, task):
                    waiting.appendleft(task)
                else:
                    on_done(task.item, future.result())
                future.release()
    finally:
        if running:
            client.cancel(list(running), force=True)


@dataclasses.dataclass
class _Task(Generic[Item]):
    """An item, how often it was tried, and where it runs."""

    item: Item
    tries: int = 0
    worker: str = ""


def _free_workers(client: "Client", running: Iterable[_Task[Item]]) -> list[str]:
    """Workers that have no task of ours; waits for one if there is none at all."""
    busy = {task.worker for task in running}
    present = client.scheduler_info(n_workers=-1)["workers"]
    if not present and not busy:
        client.wait_for_workers(1, timeout=WAIT_FOR_WORKERS)
        present = client.scheduler_info(n_workers=-1)["workers"]
    return [address for address in present if address not in busy]


def _finished(futures: list[Any]) -> list[Any]:
    """Futures that are done; none if nothing is within a second (a new worker may be free by then)."""
    from distributed import wait

    if not futures:
        return []
    try:
        return list(wait(futures, timeout=1.0, return_when="FIRST_COMPLETED").done)
    except TimeoutError:
        return []


def _to_be_tried_again(future: Any, task: _Task[Any]) -> bool:
    """Whether a task's worker died and there are tries left; raises TaskFailed for other failures."""
    from distributed.scheduler import KilledWorker

    if future.status == "finished":
        return False
    cause = future.exception() if future.status == "error" else ConnectionError("the cluster was lost")
    killed = isinstance(cause, KilledWorker)
    if killed and task.tries < TRIES:
        return True
    raise TaskFailed(task.item, cause, killed=killed)
