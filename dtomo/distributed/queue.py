"""Tasks in bounded number: one per worker at a time, each tried again when its worker dies."""

import dataclasses
import itertools
import statistics
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from uuid import uuid4

from dtomo.distributed.clusters import TRIES, WAIT_FOR_RETURN
from dtomo.distributed.jobs import jobs_of
from dtomo.distributed.sums import Node, add_up, partner_of
from dtomo.errors import StoppedError, UserError

if TYPE_CHECKING:
    from distributed import Client, Future

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
    function: Callable[..., Any],
    shared: Any,
    items: Iterable[Item],
    on_done: Callable[[Item, Any], None],
    *,
    ahead: bool = False,
    patience: float = WAIT_FOR_RETURN,
) -> None:
    """Run ``function(shared, item)`` for all items, one per worker at a time, in any order.

    `shared` is one node of the graph: it travels to each worker once, and a worker that replaces a dead one
    gets it again. `on_done(item, result)` is called here, as results come in. A task whose worker dies is
    tried again on a free one, `clusters.TRIES` times in all (times what the scheduler of a cluster that was
    not started here allows); as a worker has one task at a time, no task is blamed for the death of another.
    A worker that retires (the end of its lifetime) hands its task on, which counts as no try.
    On any exception the tasks that still run are cancelled.

    Parameters
    ----------
    client, function, shared, items, on_done
        As above.
    ahead
        Each worker gets consecutive items, as long as it has some, and `function` is called with a third argument: the
        item that the worker will most likely have next (None if none is left for it), so that it can be read ahead.
    patience
        Seconds to wait for a worker when none is left (with a batch system: for as long as jobs wait).

    Raises
    ------
    TaskFailed
        The first task that raised or was given up.
    StoppedError
        No worker came back.
    """

    def taken(index: int, future: "Future") -> None:
        on_done(listed[index], future.result())

    listed = list(items)
    order = _Runs(len(listed)) if ahead else _InOrder(len(listed))
    _pull(client, function, shared, listed, taken, order, hints=ahead, patience=patience)


def map_reduce(
    client: "Client",
    function: Callable[[Any, Item], Any],
    shared: Any,
    items: Iterable[Item],
    on_done: Callable[[Item], None] | None = None,
) -> "Future":
    """The sum of ``function(shared, item)`` over all items, each of them done by whoever is free.

    The items are blocks of work whose size does not depend on the workers. A worker gets consecutive ones; one that is
    done before the others takes half of what the slowest has left. Results stay on the workers and are added in the
    order of `sums.tree_sum`: the bits of the sum do not depend on who did what, and about log2(items) partial sums are
    held by each worker.

    Parameters
    ----------
    client, function, shared, items
        As for `run_tasks`; the results are what `sums.tree_sum` adds.
    on_done
        Called for each item that is done.

    Returns
    -------
    Future
        Of the sum, which is done.

    Raises
    ------
    TaskFailed
        The first task that raised or was given up.
    UserError
        No items.
    StoppedError
        No worker came back.
    """

    def taken(index: int, future: "Future") -> None:
        tree.put((0, index), future)
        if on_done is not None:
            on_done(listed[index])

    listed = list(items)
    if not listed:
        raise UserError("a sum needs at least one block")
    tree = _Tree(client, len(listed))
    _pull(client, function, shared, listed, taken, _Runs(len(listed)), hints=False, patience=WAIT_FOR_RETURN)
    return tree.total()


class _Tree:
    """Adds the two children of a node as soon as both are there."""

    def __init__(self, client: "Client", count: int) -> None:
        self._client, self._count, self._name = client, count, f"dtomo-sum-{uuid4().hex[:12]}"
        self._present: dict[Node, Future] = {}

    def put(self, node: Node, future: "Future") -> None:
        while (above := partner_of(node, self._count)) is not None:
            parent, other = above
            if other not in self._present:
                break
            pair = sorted(
                [(node, future), (other, self._present.pop(other))], key=lambda part: part[0][1] << part[0][0]
            )
            leaves = tuple(leaf for leaf, _ in pair)
            key = f"{self._name}-{parent[0]}-{parent[1]}"
            values = [value for _, value in pair]
            future = self._client.submit(add_up, parent, self._count, leaves, values, key=key, pure=False, priority=1)
            node = parent
        self._present[node] = future

    def total(self) -> "Future":
        """The sum, tried again where workers died that held parts of it."""
        from distributed import wait
        from distributed.scheduler import KilledWorker

        (root,) = self._present.values()
        for attempt in range(TRIES + 1):
            wait([root])
            while root.status == "lost":  # its worker died with it; Dask makes it again
                wait([root])
            if root.status == "finished":
                break
            cause = root.exception() if root.status == "error" else ConnectionError("the cluster was lost")
            if attempt == TRIES or not isinstance(cause, KilledWorker):
                raise TaskFailed("the sum", cause, killed=isinstance(cause, KilledWorker))
            self._client.retry([root])
        return root


class _InOrder:
    """Hands out 0, 1, 2 … to whoever asks."""

    def __init__(self, count: int) -> None:
        self._left = deque(range(count))

    def take(self, worker: str, workers: Sequence[str]) -> int | None:
        """The next item for `worker`, None if there is none left."""
        return self._left.popleft() if self._left else None

    def following(self, worker: str) -> int | None:
        """What `worker` would get after that."""
        return self._left[0] if self._left else None

    def put_back(self, index: int) -> None:
        """It is to be done again, before all others."""
        self._left.appendleft(index)


class _Runs(_InOrder):
    """Hands out consecutive items to each worker; one that has none left gets half of the longest run left."""

    def __init__(self, count: int) -> None:
        super().__init__(0)
        self._count, self._own = count, dict[str, range]()
        self._pool: list[range] | None = None

    def take(self, worker: str, workers: Sequence[str]) -> int | None:
        if self._left:
            return self._left.popleft()
        if self._pool is None:
            borders = [self._count * i // len(workers) for i in range(len(workers) + 1)]
            self._pool = [range(a, b) for a, b in itertools.pairwise(borders) if a < b][::-1]
        for gone in [name for name in self._own if name not in workers]:
            self._pool.append(self._own.pop(gone))
        run = self._own.get(worker) or (self._pool.pop() if self._pool else self._half_of_the_longest())
        self._own[worker] = run[1:]
        return run[0] if run else None

    def following(self, worker: str) -> int | None:
        if self._left:
            return self._left[0]
        run = self._own.get(worker)
        return run[0] if run else None

    def _half_of_the_longest(self) -> range:
        owner = max(self._own, key=lambda name: len(self._own[name]), default=None)
        if owner is None:
            return range(0)
        run = self._own[owner]
        middle = len(run) // 2
        self._own[owner] = run[:middle]
        return run[middle:]


class _Pace:
    """How long workers take for a task, so that the slowest does not begin one that all others would wait for."""

    def __init__(self) -> None:
        self._taken: dict[str, float] = {}

    def note(self, worker: str, seconds: float) -> None:
        """A task was done; the last ones count most."""
        before = self._taken.get(worker, seconds)
        self._taken[worker] = (before + seconds) / 2

    def too_slow(self, worker: str, present: Sequence[str], left: int) -> bool:
        """Whether the others would have done all that is `left` before `worker` has done one of it."""
        others = [self._taken[name] for name in present if name != worker and name in self._taken]
        if worker not in self._taken or not others:
            return False
        rate = sum(1 / max(seconds, 1e-6) for seconds in others)
        return self._taken[worker] > left / rate + statistics.median(others)


@dataclasses.dataclass
class _Task(Generic[Item]):
    """An item, how often it was tried, where it runs and since when."""

    index: int
    item: Item
    tries: int = 0
    worker: str = ""
    begun: float = 0.0


def _pull(
    client: "Client",
    function: Callable[..., Any],
    shared: Any,
    items: Sequence[Any],
    taken: Callable[[int, "Future"], None],
    order: _InOrder,
    *,
    hints: bool,
    patience: float,
) -> None:
    """One task for each worker that is free, until all are done; `taken` gets each finished future."""
    name = f"dtomo-{uuid4().hex[:12]}"
    common = _Shared(client, shared, name)
    tasks = [_Task(index, item) for index, item in enumerate(items)]
    running: dict[Future, _Task[Any]] = {}
    left, pace = len(tasks), _Pace()
    try:
        while left:
            present = _workers(client, running, patience) if len(running) < left else []
            busy = {task.worker for task in running.values()}
            for worker in (address for address in present if address not in busy):
                if running and pace.too_slow(worker, present, left - len(running)):
                    continue
                index = order.take(worker, present)
                if index is None:
                    break
                task = tasks[index]
                following = order.following(worker)
                hint = () if not hints else (None,) if following is None else (items[following],)
                key = f"{name}-{index}-{task.tries}-{uuid4().hex[:4]}"
                future = client.submit(
                    function,
                    common.future,
                    task.item,
                    *hint,
                    key=key,
                    workers=worker,
                    allow_other_workers=True,
                    pure=False,
                )
                task.worker, task.tries, task.begun = worker, task.tries + 1, time.monotonic()
                running[future] = task
            for future in _finished(list(running)):
                task = running.pop(future)
                if common.was_lost(future):
                    task.tries -= 1
                    order.put_back(task.index)
                elif _to_be_tried_again(client, future, task):
                    order.put_back(task.index)
                else:
                    pace.note(task.worker, time.monotonic() - task.begun)
                    taken(task.index, future)
                    left -= 1
                del future
    finally:
        if running:
            client.cancel(list(running), force=True)


class _Shared:
    """What all tasks share, as a node of the graph: made again where a worker died that was just getting it.

    Dask would hold it to blame for that death, and every task that needs it ever after.
    """

    def __init__(self, client: "Client", value: Any, name: str) -> None:
        self._client, self._value, self._name, self._tries = client, value, name, 0
        self.future = self._submit()

    def _submit(self) -> "Future":
        self._tries += 1
        return self._client.submit(_identity, self._value, key=f"{self._name}-shared-{self._tries}", pure=False)

    def was_lost(self, future: "Future") -> bool:
        """Whether a task failed because this did, not through its own fault; it is then there again."""
        from distributed.scheduler import KilledWorker

        cause = future.exception() if future.status == "error" else None
        if not isinstance(cause, KilledWorker) or not str(cause.task).startswith(f"{self._name}-shared-"):
            return False
        if cause.task == self.future.key:  # not seen yet by way of another task
            if self._tries == TRIES:
                return False
            self.future = self._submit()
        return True


def _workers(client: "Client", running: dict["Future", _Task[Any]], patience: float) -> list[str]:
    """Workers that are there; waits for one if there is none and nothing runs.

    Tasks of workers that have retired run elsewhere now, which is noted.
    """
    present = list(client.scheduler_info(n_workers=-1)["workers"])
    if not present and (jobs_of(client) is not None or not running):
        wait_for_worker(client, patience)
        present = list(client.scheduler_info(n_workers=-1)["workers"])
    moved = {future.key: task for future, task in running.items() if task.worker not in present}
    if moved:
        for worker, keys in client.processing().items():
            for key in keys:
                if key in moved:
                    moved[key].worker = worker
    return present


def wait_for_worker(client: "Client", patience: float = WAIT_FOR_RETURN) -> None:
    """Wait until there is a worker: for `patience` seconds, or for as long as jobs wait in a batch system.

    Raises
    ------
    StoppedError
        None came.
    """
    jobs = jobs_of(client)
    if jobs is not None:
        jobs.wait()
        return
    deadline = time.monotonic() + patience
    started: set[int] = set()
    while not client.scheduler_info(n_workers=1)["workers"]:
        in_vain = _started_in_vain(client, started)
        if in_vain or time.monotonic() > deadline:
            none = "none comes back" if in_vain else f"none came back within {patience:.0f} s"
            raise StoppedError(f"no worker is left, and {none}; if they die as they start, they need more --memory")
        time.sleep(0.1)


def _started_in_vain(client: "Client", started: set[int]) -> bool:
    """Whether to wait for workers on this machine no longer: nobody starts them, or each died `TRIES` times at once.

    `started` is for the numbers of their processes that were seen.
    """
    from distributed import Nanny, Status

    nannies = [one for one in getattr(client.cluster, "workers", {}).values() if isinstance(one, Nanny)]
    started.update(nanny.pid for nanny in nannies if nanny.pid)
    ended = all(nanny.status in (Status.closed, Status.failed) for nanny in nannies)
    return bool(nannies) and (ended or len(started) > TRIES * len(nannies))


def _finished(futures: list[Any]) -> list[Any]:
    """Futures that are done; none if nothing is within a second (a new worker may be free by then).

    One whose worker died after it was done ("lost") is not: Dask makes it again, and it is then done once more.
    """
    from distributed import wait

    if not futures:
        return []
    try:
        done = wait(futures, timeout=1.0, return_when="FIRST_COMPLETED").done
        return [future for future in done if future.status != "lost"]
    except TimeoutError:
        return []


def _to_be_tried_again(client: "Client", future: Any, task: _Task[Any]) -> bool:
    """Whether a task's worker died and there are tries left; raises TaskFailed for other failures."""
    from distributed.scheduler import KilledWorker

    if future.status in ("finished", "lost"):  # lost since it was seen to be finished: whoever needs it waits for it
        return False
    cause = future.exception() if future.status == "error" else ConnectionError("the cluster was lost")
    if not isinstance(cause, KilledWorker):
        raise TaskFailed(task.item, cause, killed=False)
    if retired(client, cause.last_worker.address) or _job_ended(client, cause.last_worker):
        task.tries -= 1
    elif task.tries >= TRIES:
        raise TaskFailed(task.item, cause, killed=True)
    return True


def _job_ended(client: "Client", worker: Any) -> bool:
    """Whether a worker is gone because its job was cancelled or its time was over."""
    jobs = jobs_of(client)
    return jobs is not None and jobs.excused(worker.address, str(worker.name))


def retired(client: "Client", address: str) -> bool:
    """Whether a worker left because its time was over; the last one of a cluster cannot hand its task on."""
    actions = {event.get("action") for _, event in client.get_events(address) if isinstance(event, dict)}
    return bool(actions & {"retired", "could-not-retire"})
