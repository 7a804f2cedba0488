"""What a slab that is being solved keeps on disk, so that a lost worker costs minutes and not the slab."""

import contextlib
import dataclasses
import hashlib
import os
import shutil
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import uuid4

from numpy.typing import NDArray

from dtomo.distributed.slabs import Slab
from dtomo.errors import StoppedError
from dtomo.io.checkpoints import Checkpoints, Schedule
from dtomo.io.output import progress_folder
from dtomo.prep.flats import NormalizeReport
from dtomo.settings import checkpoint_interval

if TYPE_CHECKING:
    from dtomo.algorithms import State
    from dtomo.recon.slab import Job


_CLAIM = "claim"


class Finished(NamedTuple):
    """A block that is done: its slices (z, y, x) in the unit of the output, what was left, what was repaired."""

    slices: NDArray[Any]
    residuals: list[float]
    report: NormalizeReport


class SlabCheckpoints:
    """Checkpoints of a slab: the solver's state in the present block, and the blocks done before.

    They lie in the progress folder of the output. No state is written before it is time to. Whoever solves a slab puts
    a claim beside them: a worker that is thought dead, or was told to let go of its task, may still be at it, and stops
    once another one has taken over or the slab is done.

    Parameters
    ----------
    job, slab
        What is being done.
    """

    def __init__(self, job: "Job", slab: Slab) -> None:
        self.folder = progress_folder(job.output) / f"checkpoints-{slab.start:08d}-{slab.stop:08d}"
        iterative = job.settings.algorithm != "fbp"
        self._iterations = job.settings.iterations
        self.schedule = Schedule(*checkpoint_interval(job.settings.checkpoint_every if iterative else "never"))
        self.made_with = {
            **job.settings.that_decide_the_result(),
            "geometry": hashlib.sha256(repr(job.geometry.key).encode()).hexdigest(),
            "scale": job.scale,
            "fold_about": job.fold_about,
        }
        self.notes: list[str] = []
        self.resumed = 0  # iterations that need not be made again
        self._unsaved: list[tuple[Slab, Finished]] = []
        self._named, self._token, self._looked = str(slab), "", 0.0
        if iterative:
            self._claim()

    def _claim(self) -> None:
        token = f"{socket.gethostname()} {os.getpid()} {uuid4().hex}"
        part = self.folder / f".{_CLAIM}.{os.getpid()}"
        try:
            self.folder.mkdir(exist_ok=True)  # the progress folder itself is there, or the run is over
            part.write_text(token)
            os.replace(part, self.folder / _CLAIM)
        except OSError as error:
            self.notes.append(f"{self.folder} cannot be written ({error.strerror}), so there are no checkpoints in it")
            self.schedule = Schedule()
            return
        self._token = token

    def check(self, *, now: bool = False) -> None:
        """Stop where another worker has taken over; looks once a second, or `now`.

        Raises
        ------
        StoppedError
            The slab is somebody else's, or done.
        """
        if not self._token or (not now and time.monotonic() - self._looked < 1):
            return
        self._looked = time.monotonic()
        try:
            owner = (self.folder / _CLAIM).read_text()
        except FileNotFoundError:
            owner = ""
            self.remove()  # what was being written meanwhile came too late
            with contextlib.suppress(OSError):  # of a run that goes on
                self.folder.parent.rmdir()
        if owner != self._token:
            raise StoppedError(f"{self._named} were taken over by another worker")

    def block(self, block: Slab) -> "BlockCheckpoints":
        """For the solver of a block."""
        return BlockCheckpoints(self, self._of(block))

    def finished(self, block: Slab) -> Finished | None:
        """A block that was done before the worker died."""
        store = self._of(block, "done")
        found = store.load()
        self.notes += store.notes
        if found is None:
            return None
        self.resumed += self._iterations
        report = NormalizeReport(**{**found.info["report"], "warnings": tuple(found.info["report"]["warnings"])})
        return Finished(found.state["slices"], list(found.info["residuals"]), report)

    def finish(self, block: Slab, done: Finished) -> None:
        """A block is done, and others follow; its slices stay as they are until the slab is done."""
        self.check()
        self._unsaved.append((block, done))
        if self.schedule.due():
            self.save_finished()
            self.schedule.tried()

    def save_finished(self) -> None:
        """Keep the blocks that were done since the last time; their solver's state is not needed any more."""
        while self._unsaved:
            block, done = self._unsaved[0]
            info = {"residuals": done.residuals, "report": dataclasses.asdict(done.report)}
            try:
                self._of(block, "done").save({"slices": done.slices}, info)
            except StoppedError as error:
                self.notes.append(f"{error}; the run goes on without it")
                return
            self._of(block).remove()
            del self._unsaved[0]

    def remove(self) -> None:
        """The slab is in the output."""
        with contextlib.suppress(OSError):  # what cannot be removed goes with the progress folder at the end
            shutil.rmtree(self.folder)

    def _of(self, block: Slab, what: str = "at") -> Checkpoints:
        folder: Path = self.folder / f"{what}-{block.start:08d}-{block.stop:08d}"
        rows = {"rows": [block.start, block.stop]}
        # the algorithm takes its state to where it works, and blocks that are done belong in host memory
        return Checkpoints(folder, made_with=self.made_with | rows, schedule=self.schedule, devices=False)


class BlockCheckpoints:
    """A `dtomo.algorithms.Checkpointer` that also keeps the blocks done before, when it is time to."""

    def __init__(self, slab: SlabCheckpoints, store: Checkpoints) -> None:
        self.slab, self.store = slab, store

    def restore(self) -> "State | None":
        """The solver's last state."""
        found = self.store.restore()
        self._take_notes()
        self.slab.resumed += found.iteration if found else 0
        return found

    def offer(self, state: "State") -> None:
        """Save the blocks done and the solver's state if it is time to.

        Raises
        ------
        StoppedError
            Another worker solves this slab now.
        """
        self.slab.check()
        if self.slab.schedule.due(state.iteration):
            self.slab.save_finished()
            self.store.keep(state)
            self._take_notes()
            self.slab.check(now=True)

    def _take_notes(self) -> None:
        self.slab.notes += [note for note in self.store.notes if note not in self.slab.notes]
        self.store.notes.clear()
