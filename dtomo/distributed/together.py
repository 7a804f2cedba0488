"""Parties that solve one problem together, each in a thread of its own: letters between them, in and out of a process.

A party runs an ordinary program on arrays of its own and speaks to the others through `dtomo.operators.Peers`. In one
process one party computes at a time, with all of the process's threads, while the others wait for letters. What each
computes does not depend on where the others are.
"""

import threading
from collections.abc import Callable, Sequence
from contextvars import copy_context
from typing import Any

from dtomo.operators import Peers

Deliver = Callable[[int, int, int, Any], None]
"""``deliver(to, source, number, value)``: brings a letter to another party, without waiting for it to be taken."""

Work = Callable[["Party"], Any]


class Left(Exception):
    """The others do not go on: one of them failed, or its process is gone."""


class Post:
    """Letters to the parties of a run that are in this process."""

    def __init__(self) -> None:
        self._letters: dict[tuple[int, int, int], Any] = {}
        self._news = threading.Condition()
        self._stopped: str | None = None
        self.turn = threading.Lock()
        """Held by the party that computes."""

    def put(self, to: int, source: int, number: int, value: Any) -> None:
        """A letter has come."""
        with self._news:
            if self._stopped is None:
                self._letters[to, source, number] = value
                self._news.notify_all()

    def take(self, to: int, source: int, number: int) -> Any:
        """Wait for a letter; meanwhile another party has the turn, which the caller must have.

        Raises
        ------
        Left
            It will never come.
        """
        key = to, source, number
        with self._news:
            if self._stopped is None and key in self._letters:
                return self._letters.pop(key)
        self.turn.release()
        try:
            with self._news:
                self._news.wait_for(lambda: self._stopped is not None or key in self._letters)
                if self._stopped is not None:
                    raise Left(self._stopped)
                return self._letters.pop(key)
        finally:
            self.turn.acquire()

    def stop(self, why: str) -> None:
        """Nobody need wait any longer."""
        with self._news:
            if self._stopped is None:
                self._stopped = why
            self._letters.clear()
            self._news.notify_all()


class Party(Peers):
    """One of `count` parties.

    Parameters
    ----------
    post
        Of this process.
    number, count
        Which one, and of how many.
    deliver
        Brings letters to the others.
    report
        Takes what it reports.
    """

    def __init__(
        self, post: Post, number: int, count: int, deliver: Deliver, report: Callable[[Any], None] | None = None
    ) -> None:
        self.number, self.count = number, count
        self._post, self._deliver, self._report = post, deliver, report
        self._sent, self._received = [0] * count, [0] * count

    def send(self, to: int, value: Any) -> None:
        """See `Peers`."""
        self._deliver(to, self.number, self._sent[to], value)
        self._sent[to] += 1

    def receive(self, source: int) -> Any:
        """See `Peers`; raises `Left` where the others do not go on."""
        found = self._post.take(self.number, source, self._received[source])
        self._received[source] += 1
        return found

    def report(self, message: Any) -> None:
        """Tell whoever waits for the result how it goes."""
        if self._report is not None:
            self._report(message)


def run_parties(post: Post, parties: Sequence[Party], work: Work, failed: Callable[[str], None] | None = None) -> list:
    """Run ``work(party)`` for each in a thread of its own, and return what they return.

    Parameters
    ----------
    post
        Of this process.
    parties
        All of them that are in this process.
    work
        Each comes to the same calls of its party in the same order.
    failed
        Told once where one of them fails: the others elsewhere are to stop.

    Raises
    ------
    Left
        A party elsewhere failed.
    Exception
        What the first party raised.
    """
    results: list[Any] = [None] * len(parties)
    errors: list[BaseException] = []

    def one(place: int, party: Party) -> None:
        with post.turn:
            try:
                results[place] = work(party)
            except BaseException as error:  # noqa: BLE001 - raised again below, in the thread that waits
                errors.append(error)
                why = f"slab {party.number + 1} of {party.count}: {type(error).__name__}"
                post.stop(why)
                if failed is not None and not isinstance(error, Left):
                    failed(why)

    threads = [
        threading.Thread(target=copy_context().run, args=(one, place, party), name=f"dtomo-party-{party.number}")
        for place, party in enumerate(parties)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise next((error for error in errors if not isinstance(error, Left)), errors[0])
    return results


def run_here(work: Work, count: int, report: Callable[[Any], None] | None = None) -> list[Any]:
    """Run ``work(peers)`` for `count` parties in this process: what they return, in order.

    Raises
    ------
    Exception
        What the first party that failed raised.
    """
    post = Post()
    return run_parties(post, [Party(post, number, count, post.put, report) for number in range(count)], work)
