"""A search for positions by trial, for errors that gradients do not get over.

A. M. Maiden et al., "An annealing algorithm to correct positioning errors in ptychography", Ultramicroscopy 120 (2012)
64: random moves of each frame are tried, the best is taken, and they become shorter from one epoch to the next. The
moves are drawn from the numbers of epoch and frame, so that they do not depend on blocks or workers.
"""

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dtomo.arrays import array_module
from dtomo.device import to_host
from dtomo.errors import UserError
from dtomo.ptycho.frames import FrameBlock
from dtomo.windows import Rows

if TYPE_CHECKING:
    from dtomo.ptycho.model import PtychoModel


@dataclasses.dataclass(frozen=True)
class Search:
    """When positions are searched for, and how far.

    Attributes
    ----------
    trials
        Moves of each frame that are tried in an epoch; each takes as long as a loss without its gradient. 0: none.
    reach
        Longest move of the first epoch of the search, pixels.
    epochs
        Epochs that it takes, from that on in which positions are refined.
    """

    trials: int = 0
    reach: float = 5.0
    epochs: int = 30

    def __post_init__(self) -> None:
        if self.trials < 0 or self.epochs < 1 or not self.reach > 0:
            raise UserError(
                f"a search has trials from 0, a reach above 0 and epochs from 1; got {self.trials}, {self.reach} and "
                f"{self.epochs}"
            )

    def on(self, since: int) -> bool:
        """Whether it is on, so many epochs after it began."""
        return self.trials > 0 and 0 <= since < self.epochs

    def moves(self, model: "PtychoModel", parameters: Mapping[str, Any], block: FrameBlock, since: int) -> Rows:
        """The best move of each frame ``(frame, 2)``; zero where it is best left where it is.

        Parameters
        ----------
        model, parameters
            Tried with.
        block
            Frames.
        since
            Epochs since the search began.
        """
        xp = array_module(parameters["positions"])
        rows = xp.asarray(block.indices)
        amplitudes, good = _measured(model, block)
        best = np.zeros((len(block), 2))
        least = _losses(model, parameters, block, amplitudes, good)
        for trial in range(self.trials):
            moves = self._drawn(block, since, trial)
            positions = parameters["positions"].copy()
            positions[rows] += xp.asarray(moves)
            losses = _losses(model, {**parameters, "positions": positions}, block, amplitudes, good)
            better = losses < least
            best[better], least[better] = moves[better], losses[better]
        return Rows(block.indices, xp.asarray(best))

    def _drawn(self, block: FrameBlock, since: int, trial: int) -> NDArray[np.float64]:
        """Moves drawn evenly from a disk that becomes smaller."""
        reach = self.reach * (1 - since / self.epochs)
        drawn = np.array([np.random.default_rng([since, trial, int(j)]).uniform(size=2) for j in block.indices])
        angles, lengths = 2 * np.pi * drawn[:, 0], reach * np.sqrt(drawn[:, 1])
        return np.stack([lengths * np.sin(angles), lengths * np.cos(angles)], 1)


def _measured(model: "PtychoModel", block: FrameBlock) -> tuple[NDArray[Any], NDArray[Any]]:
    """Amplitudes of the counts, and where they count."""
    xp = array_module(block.intensities)
    good = xp.ones(block.intensities.shape, bool)
    if model.mask is not None:
        good &= xp.asarray(model.mask)
    if model.saturation is not None:
        good &= block.intensities < model.saturation
    return np.sqrt(np.where(good, block.intensities, 0).clip(min=0).astype(np.float32)), good


def _losses(
    model: "PtychoModel", parameters: Mapping[str, Any], block: FrameBlock, amplitudes: Any, good: Any
) -> NDArray[np.float64]:
    """Σ (√S − √I)² of each frame, on the host."""
    off = np.sqrt(model.intensities(parameters, block.indices)) - amplitudes
    sums = np.where(good, off**2, 0).sum(axis=(-2, -1), dtype=np.float64)
    return np.array(to_host(sums))
