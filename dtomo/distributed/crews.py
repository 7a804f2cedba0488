"""Parties of one problem on the workers of a cluster: a task for each worker, letters from worker to worker.

The parties of a worker are its crew, and a crew is one task, whatever the number of iterations. Letters go past the
scheduler, as calls between workers. Where a worker dies, all crews stop, and new ones begin on the workers that are
there then; what they go on from is the business of the work (`dtomo.distributed.crew_checkpoints`).
"""

import asyncio
import contextlib
import dataclasses
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from dtomo.distributed import graph
from dtomo.distributed.clusters import TRIES, WAIT_FOR_WORKERS
from dtomo.distributed.graph import PinnedTask, Ref
from dtomo.distributed.queue import TaskFailed, wait_for_worker
from dtomo.distributed.together import Left, Party, Post, run_parties
from dtomo.errors import StoppedError

if TYPE_CHECKING:
    from distributed import Client, Future

Work = Callable[[Party, Any, Any], Any]
"""``work(party, shared, own)``: `shared` is the same for all, `own` what there is for this one alone."""

PATIENCE = 0.5
"""Seconds between two looks at whether all workers are there."""

_POSTS: dict[str, Post] = {}
_OVER: deque[str] = deque(maxlen=64)
"""Runs that letters may still come for, though nobody takes them any more."""


def _post_of(run: str) -> Post:
    if run not in _POSTS:
        _POSTS[run] = Post()
        if run in _OVER:
            _POSTS[run].stop("the run is over")
    return _POSTS[run]


def _arrived(run: str, to: int, source: int, number: int, value: Any) -> None:
    if run not in _OVER:
        _post_of(run).put(to, source, number, value)


def _stopped(run: str, why: str) -> None:
    if run not in _OVER:
        _post_of(run).stop(why)


def _enrol(dask_worker: Any = None) -> None:
    """A worker takes letters from now on."""
    dask_worker.handlers |= {"dtomo_letter": _arrived, "dtomo_stop": _stopped}


class _Carrier:
    """Takes letters of a crew to where they belong."""

    def __init__(self, run: str, homes: Sequence[str], worker: Any) -> None:
        self._run, self._homes, self._worker = run, homes, worker

    def deliver(self, to: int, source: int, number: int, value: Any) -> None:
        from distributed.protocol import to_serialize

        if self._homes[to] == self._worker.address:
            _post_of(self._run).put(to, source, number, value)
            return
        message = {"run": self._run, "to": to, "source": source, "number": number, "value": to_serialize(value)}
        self._call(self._homes[to], "dtomo_letter", message, needed=True)

    def stop_others(self, why: str) -> None:
        for address in {*self._homes} - {self._worker.address}:
            self._call(address, "dtomo_stop", {"run": self._run, "why": why}, needed=False)

    def _call(self, address: str, handler: str, message: dict[str, Any], *, needed: bool) -> None:
        async def call() -> None:
            try:
                await getattr(self._worker.rpc(address), handler)(**message)
            except (OSError, asyncio.CancelledError) as error:  # of a worker that is gone
                if needed:
                    _stopped(self._run, f"{address} does not answer ({type(error).__name__})")

        asyncio.run_coroutine_threadsafe(call(), self._worker.loop.asyncio_loop)


def _crew(run: str, homes: tuple[str, ...], topic: str, work: Work, shared: Any, numbers: Any, own: list[Any]) -> Any:
    """The task of a worker: all its parties, until they are done."""
    from distributed import get_worker

    worker = get_worker()
    if {homes[number] for number in numbers} != {worker.address} or run in _OVER:
        raise Left("the worker of these slabs is gone")
    post, carrier = _post_of(run), _Carrier(run, homes, worker)

    def report(message: Any) -> None:
        worker.log_event(topic, (run, message))

    parties = [Party(post, number, len(homes), carrier.deliver, report) for number in numbers]
    given = dict(zip(numbers, own))
    try:
        return run_parties(post, parties, lambda party: work(party, shared, given[party.number]), carrier.stop_others)
    finally:
        _OVER.append(run)
        _POSTS.pop(run, None)


def _result_of(found: list[Any], place: int) -> Any:
    return found[place]


@dataclasses.dataclass
class _Try:
    """The crews of one try."""

    client: "Client"
    run: str
    homes: tuple[str, ...]
    crews: list["Future"]
    numbers: list[list[int]]

    def wait(self) -> bool:
        """Wait for all; whether they are done.

        Raises
        ------
        Exception
            What a party raised.
        """
        from distributed import wait
        from distributed.scheduler import KilledWorker

        told = False
        while any(crew.status == "pending" for crew in self.crews):
            with contextlib.suppress(TimeoutError):
                wait(self.crews, timeout=PATIENCE)
            gone = set(self.homes).difference(graph.workers_in_order(self.client))
            if gone and not told:
                told = True
                self._tell("a worker is gone")
            if gone and all(crew.status != "pending" or self._of(place) in gone for place, crew in self._placed()):
                return False
        for place, crew in self._placed():
            error = crew.exception() if crew.status == "error" else None
            if error is not None and not isinstance(error, Left | KilledWorker):
                raise TaskFailed(self.numbers[place], error, killed=False)
        return all(crew.status == "finished" for crew in self.crews)

    def _placed(self) -> Iterator[tuple[int, "Future"]]:
        return iter(enumerate(self.crews))

    def _of(self, place: int) -> str:
        return self.homes[self.numbers[place][0]]

    def _tell(self, why: str) -> None:
        there = [address for address in graph.workers_in_order(self.client) if address in self.homes]
        if there:
            self.client.run(_stopped, self.run, why, workers=there, on_error="ignore")

    def results(self) -> list["Future"]:
        """A future of what each party returned, where it is."""
        name = graph.unique("party")
        tasks = {
            number: PinnedTask((name, number), self._of(place), _result_of, (Ref(crew.key), at))
            for place, crew in self._placed()
            for at, number in enumerate(self.numbers[place])
        }
        return graph.submit(self.client, [tasks[number] for number in sorted(tasks)])

    def leave(self) -> None:
        """Nobody waits for them any more."""
        self._tell("the run was given up")
        for crew in self.crews:
            crew.cancel(force=True)


def run_crews(
    client: "Client",
    work: Work,
    shared: Any,
    count: int,
    *,
    own: Callable[[tuple[str, ...]], Sequence[Any]] | None = None,
    on_report: Callable[[Any], None] | None = None,
) -> list["Future"]:
    """Run ``work(party, shared, own)`` for `count` parties on the workers, and wait for them.

    Consecutive parties are on one worker. Where a worker is lost, all begin again; `work` goes on from what it kept.

    Parameters
    ----------
    client
        Of a cluster with at least one worker.
    work, shared
        Travel to each worker once.
    count
        Parties.
    own
        ``own(homes)``: what there is for each party alone, values or futures, given the workers of all. Called again
        where workers are lost.
    on_report
        Called with what parties report, in a thread of the client: tuples that begin with a number, which grows as the
        work goes on (of the iteration).

    Returns
    -------
    list of Future
        Of what each party returned; they stay on the workers.

    Raises
    ------
    TaskFailed
        A party raised; `item` are the numbers of those of its worker.
    StoppedError
        Workers were lost `clusters.TRIES` times without getting any further, or none came back.
    """
    topic, furthest = graph.unique("crews"), [-1]

    def told(event: Any) -> None:
        message = event[1][1]
        furthest[0] = max(furthest[0], message[0])
        if on_report is not None:
            on_report(message)

    wanted, losses, before = len(graph.workers_in_order(client)), 0, -1
    client.subscribe_topic(topic, told)
    try:
        while True:
            begun = None
            try:
                # a worker may be lost before its crew has begun: counted below, and begun again, like any other loss
                with contextlib.suppress(OSError, TimeoutError):
                    begun = _begin(client, topic, work, shared, count, own)
                    if begun.wait():
                        return begun.results()
            except BaseException:
                if begun is not None:
                    begun.leave()
                raise
            if begun is not None:
                begun.leave()
            losses = 1 if furthest[0] > before else losses + 1
            before = furthest[0]
            if losses >= TRIES:
                raise StoppedError(f"workers were lost {TRIES} times without getting further: give them more --memory")
            _wait_for(client, wanted)
    finally:
        client.unsubscribe_topic(topic)


def _begin(client: "Client", topic: str, work: Work, shared: Any, count: int, own: Any) -> _Try:
    run, homes = graph.unique("crew"), graph.spread(count, graph.workers_in_order(client))
    workers = list(dict.fromkeys(homes))
    client.run(_enrol, workers=workers)
    numbers = [[number for number in range(count) if homes[number] == address] for address in workers]
    given = list(own(homes)) if own is not None else [None] * count
    work, shared = graph.place(client, work), graph.place(client, shared)
    tasks = []
    for place, address in enumerate(workers):
        mine = [_argument(given[number]) for number in numbers[place]]
        arguments = (run, homes, topic, _argument(work), _argument(shared), tuple(numbers[place]), mine)
        tasks.append(PinnedTask((run, place), address, _crew, arguments))
    return _Try(client, run, homes, graph.submit(client, tasks), numbers)


def _argument(value: Any) -> Any:
    from distributed import Future

    return Ref(value.key) if isinstance(value, Future) else value


def _wait_for(client: "Client", wanted: int) -> None:
    """Until as many workers are there as at the start, for a while; for the first one longer."""
    deadline = time.monotonic() + WAIT_FOR_WORKERS
    while time.monotonic() < deadline and len(graph.workers_in_order(client)) < wanted:
        time.sleep(0.1)
    wait_for_worker(client)
