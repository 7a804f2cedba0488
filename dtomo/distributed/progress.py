"""Progress with the time left: a bar on a terminal, plain lines elsewhere, nothing if quiet."""

import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

SOON = 1.25
"""Parts count as first ones, done side by side, until this times the seconds that the very first took."""
LINES_APART = 5.0
"""Seconds between lines where there is no terminal."""


def duration(seconds: float) -> str:
    """``"42 s"``, ``"3 min 05 s"`` or ``"2 h 10 min"``."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


class Counter:
    """Counts the parts of a job and tells how long the rest will take.

    Parameters
    ----------
    total
        Parts of the whole job.
    what
        Their name, in the plural: ``"slabs"``.
    done
        Parts that were there before (a resumed run); they do not count for the speed.
    quiet
        Say nothing.
    lines_apart
        Seconds between lines where there is no terminal.
    doing
        Said before the bar.
    """

    def __init__(
        self,
        total: int,
        what: str,
        *,
        done: int = 0,
        quiet: bool = False,
        lines_apart: float = LINES_APART,
        doing: str = "reconstructing",
    ) -> None:
        self.total, self.what, self.done, self.quiet = total, what, done, quiet
        self._before, self._lines_apart, self._doing = done, lines_apart, doing
        self._console = Console(stderr=True)
        self._bar: Progress | None = None
        self._started = self._last = time.monotonic()
        self._soonest = 0.0
        self._first: tuple[int, float] | None = None

    def __enter__(self) -> Self:
        if not self.quiet and self._console.is_terminal:
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn(self.what),
                TimeElapsedColumn(),
                TextColumn("{task.fields[left]}"),
                console=self._console,
            )
            self._bar.start()
            self._bar.add_task(self._doing, total=self.total, completed=self.done, left="")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def seconds_left(self, now: float) -> float:
        """Seconds that the rest will take at the pace so far.

        The first parts, which compile kernels and open files, and whatever was done beside them, do not count once as
        many have followed.
        """
        finished = self.done - self._before
        if finished <= 0:
            return float("nan")
        counted, since = finished, self._started
        if self._first is not None and finished >= 2 * self._first[0]:
            counted, since = finished - self._first[0], self._first[1]
        return (now - since) / counted * (self.total - self.done)

    def _note_first(self, now: float) -> None:
        """How many parts were done soon after the first of them, and when."""
        if self._first is None or now - self._started <= SOON * self._soonest:
            self._soonest = now - self._started if self._first is None else self._soonest
            self._first = (self.done - self._before, now)

    def say(self, line: str) -> None:
        """A line of its own, above the bar."""
        if self._bar is not None:
            self._bar.console.print(line, markup=False, highlight=False)
        elif not self.quiet:
            print(line, file=self._console.file, flush=True)

    def advance(self, note: str = "", to: int | None = None) -> None:
        """One part more is done, or `to` of them: parts that were there before, or are repeated, jump.

        Parameters
        ----------
        note
            Said with it.
        to
            Parts done; default: one more.
        """
        if to is not None and self.done == self._before:
            self._before = to - 1
        self.done = self.done + 1 if to is None else to
        now = time.monotonic()
        self._note_first(now)
        left = f"about {duration(self.seconds_left(now))} left" if self.done < self.total else ""
        parts = [part for part in (note, left) if part]
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=self.done, left=", ".join(parts))
        elif not self.quiet and (now - self._last >= self._lines_apart or self.done == self.total):
            self._last = now
            line = ", ".join([f"{self.done} of {self.total} {self.what} done", *parts])
            print(line, file=self._console.file, flush=True)
