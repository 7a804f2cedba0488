"""What all ptychographic solvers are: a function on a block of frames, and one on the sum over blocks.

A solver says which blocks make a step (`Engine.steps`), what each block gives (`Engine.evaluate`: sums of gradients
and the like, computed wherever the block's frames are) and what the sum over the blocks of a step makes of the state
(`Engine.update`, once). Blocks do not depend on the workers and sums are taken in a fixed tree
(`dtomo.distributed.sums`), so the result has the same bits on any number of workers. `dtomo.ptycho.driver` takes an
engine through its steps, in this process or on a cluster.
"""

import abc
from collections.abc import Mapping, Sequence
from typing import Any

from dtomo.ptycho.frames import FrameBlock

Parameters = dict[str, Any]
"""What is reconstructed, by name: see `dtomo.ptycho.model.PtychoModel`."""


class Engine(abc.ABC):
    """A solver for one model; a value that is pickled to the workers (no arrays larger than a frame).

    Attributes
    ----------
    batch
        Frames of a step, or None: all of them.
    keeps
        Whether blocks have values of their own from one step to the next (exit waves of a difference map).
    tiled
        Whether `update` gives the same on some rows of the object, all else being whole, as on all of them: then the
        object can be cut into tiles (`dtomo.ptycho.tiles`).
    """

    batch: int | None = None
    keeps: bool = False
    tiled: bool = False

    @abc.abstractmethod
    def begin(self, parameters: Parameters) -> dict[str, Any]:
        """The state before the first step: ``{"parameters": …, …}``; arrays, numbers, and dicts of them.

        What is under "parameters" is sent to every block; the rest (moments, directions) stays where `update` runs,
        but for what is under "shared" (small: step lengths, which phase a line search is in), which goes with it.
        """

    def steps(self, epoch: int, batches: int) -> Sequence[Sequence[int]]:
        """Which batches of blocks make each step of an epoch; the driver cuts frames into batches once.

        Default: one step for each batch, in an order drawn from the epoch's number.
        """
        from numpy.random import default_rng

        return [[int(number)] for number in default_rng([epoch, batches]).permutation(batches)]

    def more(self, state: Mapping[str, Any]) -> bool:
        """Whether the same frames are to be evaluated again before the step is over (line search, second pass)."""
        return False

    @abc.abstractmethod
    def evaluate(self, sent: Mapping[str, Any], block: FrameBlock, kept: Any) -> tuple[dict[str, Any], Any]:
        """What a block gives: sums (arrays, numbers, `Window`, `Rows`, dicts of them), and what it keeps.

        Parameters
        ----------
        sent
            ``{"parameters": …, "shared": …}`` of the state.
        block
            Frames.
        kept
            What this block's last evaluation kept; None the first time, and always where the engine keeps nothing
            beyond the passes of one step (what is kept between passes is dropped when a step is over, unless `keeps`).

        Returns
        -------
        sums
            ``"loss"`` and ``"count"`` are among them: added up over an epoch they make its history.
        kept
        """

    @abc.abstractmethod
    def update(self, state: dict[str, Any], sums: dict[str, Any]) -> dict[str, Any]:
        """The state after a pass; it may change the arrays of `state` (nobody else has them)."""

    def finish(self, state: dict[str, Any]) -> Parameters:
        """The result from the last state."""
        return dict(state["parameters"])
