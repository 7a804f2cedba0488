"""Checkpoints of parties that solve one problem together: all of them keep their state at the same iteration.

A checkpoint is a folder ``iteration-0000000020`` with the state of each party (`dtomo.io.checkpoints`). It gets its
name when all states are in it, and the last two are kept. The folder must be one that all workers see.
"""

import contextlib
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dtomo.io.checkpoints import Checkpoints, Schedule
from dtomo.operators import Peers

if TYPE_CHECKING:
    from dtomo.algorithms import State

GENERATIONS = 2
"""Checkpoints that are kept."""

_NAME = re.compile(r"iteration-(\d{10})")


class CrewCheckpoints:
    """A `dtomo.algorithms.Checkpointer` for one of several parties, whose decisions are those of the first.

    Parameters
    ----------
    peers
        The others.
    folder
        Of all checkpoints of this problem, and of nothing else.
    made_with
        JSON values that decide the result; a checkpoint made with others is refused.
    schedule
        When it is time to; that of the first party counts.

    Attributes
    ----------
    notes
        Sentences about checkpoints that could not be written or read.
    resumed
        The iteration that the run went on from; 0: from the beginning.
    first
        The residual norm that it began with, where it went on; else 0.
    """

    def __init__(
        self, peers: Peers, folder: Path, *, made_with: Mapping[str, Any] | None = None, schedule: Schedule
    ) -> None:
        self.peers, self.folder, self.made_with, self.schedule = peers, folder, dict(made_with or {}), schedule
        self.notes: list[str] = []
        self.resumed, self.first = 0, 0.0

    def restore(self) -> "State | None":
        """The newest state that all parties have whole.

        Raises
        ------
        UserError
            It was made with other values.
        """
        for number in self.peers.first(self._numbers()):
            store = self._store(self._path(number))
            found = store.restore()
            if self._all(found is not None) and found is not None:
                self.resumed, self.first = number, float(found.residuals[0, 0])
                return found
            self.notes += store.notes
        return None

    def offer(self, state: "State") -> None:
        """Keep the states of all if it is time to; a disk that is full is noted and stops nothing."""
        if self.peers.first(self.schedule.due(state.iteration)):
            self._keep(state)
            self.schedule.tried()

    def _keep(self, state: "State") -> None:
        part = self.folder / f".part-{state.iteration:010d}"
        if self.peers.number == 0:
            for left in self.folder.glob(".part-*"):
                shutil.rmtree(left, ignore_errors=True)
        self.peers.first(None)  # nobody writes before what was left there is gone
        store = self._store(part)
        store.keep(state)
        self.notes += store.notes
        if self._all(not store.notes) and self.peers.number == 0:
            target = self._path(state.iteration)
            shutil.rmtree(target, ignore_errors=True)
            try:
                os.rename(part, target)
            except OSError as error:
                self.notes.append(f"no checkpoint could be written to {self.folder} ({error.strerror})")
            for number in self._numbers()[GENERATIONS:]:
                shutil.rmtree(self._path(number), ignore_errors=True)

    def _all(self, here: bool) -> bool:
        """Whether it is so with all parties."""
        return bool(self.peers.total(np.array([float(not here)]))[0] == 0)

    def _store(self, path: Path) -> Checkpoints:
        return Checkpoints(path / f"slab-{self.peers.number:06d}", made_with=self.made_with)

    def _path(self, number: int) -> Path:
        return self.folder / f"iteration-{number:010d}"

    def _numbers(self) -> list[int]:
        """Iterations of the checkpoints that are there, the newest first."""
        names: list[str] = []
        with contextlib.suppress(FileNotFoundError):
            names = [item.name for item in self.folder.iterdir()]
        return sorted((int(match[1]) for match in map(_NAME.fullmatch, names) if match), reverse=True)
