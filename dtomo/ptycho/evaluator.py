"""Blocks evaluated in one process: its frames, what its blocks keep, and sums over whole nodes of the tree."""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from dtomo import device
from dtomo.distributed.clusters import machine
from dtomo.distributed.sums import Node, partial_sums
from dtomo.io.sources import Source
from dtomo.ptycho.blocks import Blocks
from dtomo.ptycho.engine import Engine
from dtomo.ptycho.frame_store import Arrange, FrameStore
from dtomo.ptycho.frames import FrameBlock, to_model_order
from dtomo.threads import map_in_order

FRAMES_OF_MEMORY = 0.25
"""Part of a process's memory that frames take where no limit is given."""


@dataclasses.dataclass(frozen=True, eq=False)
class Problem:
    """What does not change in a run; sent to each worker once.

    Attributes
    ----------
    engine
        The solver.
    source
        Of the frames.
    blocks
        How they are cut.
    frame_memory
        Bytes of frames that a process keeps; None: `FRAMES_OF_MEMORY` of its memory.
    arrange
        What is done to frames as they are read.
    device_memory
        Bytes that a process may take of its device; None: it computes on the CPU.
    """

    engine: Engine
    source: Source
    blocks: Blocks
    frame_memory: int | None = None
    arrange: Arrange = to_model_order
    device_memory: int | None = None

    def own(self, array: Any) -> Any:
        """A copy of an array where the engine computes."""
        return device.to_device(array) if self.device_memory is not None else np.array(array)


@dataclasses.dataclass(frozen=True)
class Share:
    """Blocks of a step that one process evaluates.

    Attributes
    ----------
    places
        Of the blocks in the tree of the step, ascending.
    blocks
        Their numbers.
    count
        Blocks of the step.
    following
        The block that this process will need next, if known.
    """

    places: tuple[int, ...]
    blocks: tuple[int, ...]
    count: int
    following: int | None = None


class Evaluator:
    """Evaluates blocks of a problem.

    Parameters
    ----------
    problem
        Of which.
    memory
        Bytes that this process may use; default: what is free.

    Attributes
    ----------
    kept
        What blocks keep, by number.
    frames
        The store of frames.
    """

    def __init__(self, problem: Problem, memory: int | None = None) -> None:
        self.problem = problem
        on_device = problem.device_memory is not None
        if on_device:
            device.limit_memory(problem.device_memory)
            device.bound_plan_cache()
        budget = problem.frame_memory
        if budget is None:
            whole = problem.device_memory if on_device else memory or machine()[1]
            budget = int(FRAMES_OF_MEMORY * (whole or 0))
        blocks = problem.blocks.frames
        self.frames = FrameStore(problem.source, blocks, budget, arrange=problem.arrange, device=on_device)
        self.kept: dict[int, Any] = {}

    def sums(self, sent: Mapping[str, Any], share: Share) -> dict[Node, Any]:
        """Sums over the blocks of a share, over whole nodes of the tree of the step."""
        return partial_sums(self.values(sent, share), share.count)

    def values(self, sent: Mapping[str, Any], share: Share) -> Iterator[tuple[int, Any]]:
        """Place and sums of each block of a share."""
        frames = self.frames.walk(share.blocks, share.following)
        blocks = zip(share.blocks, frames)

        def evaluate(numbered: tuple[int, FrameBlock]) -> tuple[Any, Any]:
            number, block = numbered
            return self.problem.engine.evaluate(sent, block, self.kept.get(number))

        # several blocks at once, each on one thread: their groups of frames need not wait for one another
        at_once = map if self.problem.device_memory is not None or len(share.blocks) == 1 else map_in_order
        for place, number, (value, kept) in zip(share.places, share.blocks, at_once(evaluate, blocks)):
            self.kept[number] = kept
            yield place, value

    def forget(self, blocks: Iterable[int]) -> None:
        """What these blocks kept for further passes of a step is not needed any more."""
        for block in blocks:
            self.kept.pop(block, None)

    def step_is_over(self) -> None:
        """Forget what was kept for further passes of a step, unless it is kept for good."""
        if not self.problem.engine.keeps:
            self.kept.clear()


def sent_of(state: Mapping[str, Any]) -> dict[str, Any]:
    """What goes to the blocks of a state."""
    return {"parameters": state["parameters"], "shared": state.get("shared", {})}


def steps_of(problem: Problem, epoch: int) -> list[list[int]]:
    """The blocks of each step of an epoch."""
    batches = problem.blocks.batches
    steps: Sequence[Sequence[int]] = problem.engine.steps(epoch, len(batches))
    return [[block for batch in step for block in batches[batch]] for step in steps]
