"""What a slab that is being solved keeps on disk, so that a lost worker costs minutes and not the slab."""

import contextlib
import dataclasses
import hashlib
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

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


class Finished(NamedTuple):
    """A block that is done: its slices (z, y, x) in the unit of the output, what was left, what was repaired."""

    slices: NDArray[Any]
    residuals: list[float]
    report: NormalizeReport


class SlabCheckpoints:
    """Checkpoints of a slab: the solver's state in the present block, and the blocks done before.

    They lie in the progress folder of the output. Nothing is written before it is time to: a slab that takes less
    than that leaves the disk alone.

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
        return Checkpoints(folder, made_with=self.made_with | rows, schedule=self.schedule)


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
        """Save the blocks done and the solver's state if it is time to."""
        if self.slab.schedule.due(state.iteration):
            self.slab.save_finished()
            self.store.keep(state)
            self._take_notes()

    def _take_notes(self) -> None:
        self.slab.notes += [note for note in self.store.notes if note not in self.slab.notes]
        self.store.notes.clear()


def state_bytes(algorithm: str, volume: int, data: int) -> int:
    """Bytes of a solver's state, from those of its solution and of its data; 0 for one that has none."""
    return {"sirt": volume, "cgls": 2 * volume + data}.get(algorithm, 0)
