"""Tasks in bounded number: one per worker at a time, each tried again when its worker dies."""

from collections import deque
from collections.abc import Callable, Hashable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import uuid4

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
    *,
    in_flight: int,
) -> None:
    """Run ``function(shared, item)`` for all items, at most `in_flight` at a time, in any order.

    `shared` is one node of the graph: it travels to each worker once, and a worker that replaces a dead one
    gets it again. `on_done(item, result)` is called here, as results come in. A task whose worker dies is
    tried again elsewhere, as often as the scheduler allows (`clusters.TRIES` for a cluster started here). On
    any exception the tasks that still run are cancelled.

    Raises
    ------
    TaskFailed
        The first task that raised or was given up.
    """
    from distributed import as_completed
    from distributed.scheduler import KilledWorker

    name = f"dtomo-{uuid4().hex[:12]}"
    common = client.submit(_identity, shared, key=f"{name}-shared", pure=False)
    waiting = deque(items)
    running: dict[str, tuple[Any, Item]] = {}
    finished = as_completed(raise_errors=False)
    try:
        while waiting or running:
            while waiting and len(running) < in_flight:
                item = waiting.popleft()
                future = client.submit(function, common, item, key=f"{name}-{len(waiting)}", pure=False)
                running[future.key] = (future, item)
                finished.add(future)
            future = next(finished)
            _, item = running.pop(future.key)
            if future.status != "finished":
                cause = (
                    future.exception() if future.status == "error" else RuntimeError("the task was cancelled")
                )
                raise TaskFailed(item, cause, killed=isinstance(cause, KilledWorker))
            on_done(item, future.result())
            future.release()
    finally:
        if running:
            client.cancel([future for future, _ in running.values()], force=True)
