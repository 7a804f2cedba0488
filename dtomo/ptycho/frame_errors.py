"""How well each frame fits a result: one look at all frames, wherever they are."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dtomo.io.sources import Source
from dtomo.ptycho import driver
from dtomo.ptycho.engine import Engine, Parameters
from dtomo.ptycho.frame_store import Arrange
from dtomo.ptycho.frames import FrameBlock, to_model_order
from dtomo.ptycho.model import PtychoModel
from dtomo.windows import Rows

if TYPE_CHECKING:
    from distributed import Client


def frame_errors(
    model: PtychoModel,
    source: Source,
    parameters: Parameters,
    *,
    client: "Client | None" = None,
    arrange: Arrange = to_model_order,
    frame_memory: int | None = None,
    device_memory: int | None = None,
) -> NDArray[np.float64]:
    """Loss of each frame per good pixel, float64 ``(frame,)``; each frame is read once.

    Parameters
    ----------
    model
        Whose loss.
    source, parameters
        Frames, and what they are compared with.
    client, arrange, frame_memory, device_memory
        See `dtomo.ptycho.driver.run`.
    """
    looked = driver.run(
        Look(model),
        source,
        parameters,
        1,
        client=client,
        arrange=arrange,
        frame_memory=frame_memory,
        device_memory=device_memory,
    )
    return np.asarray(looked.parameters["frame_error"], np.float64)


@dataclasses.dataclass(frozen=True)
class Look(Engine):
    """Changes nothing; its result is ``frame_error``."""

    model: PtychoModel

    def begin(self, parameters: Parameters) -> dict[str, Any]:
        """The parameters."""
        return {"parameters": parameters, "errors": np.zeros(len(parameters["positions"]))}

    def steps(self, epoch: int, batches: int) -> Sequence[Sequence[int]]:
        """One, of all frames."""
        return [list(range(batches))]

    def evaluate(self, sent: Mapping[str, Any], block: FrameBlock, kept: Any) -> tuple[dict[str, Any], Any]:
        """Frame by frame."""
        errors, total, pixels = np.zeros(len(block)), 0.0, 0
        for number in range(len(block)):
            one = slice(number, number + 1)
            frame = FrameBlock(block.indices[one], block.intensities[one])
            loss, count, _ = self.model.loss_and_gradient(sent["parameters"], frame, ())
            errors[number], total, pixels = loss / max(1, count), total + loss, pixels + count
        return {"loss": total, "count": pixels, "errors": Rows(block.indices, errors)}, None

    def update(self, state: dict[str, Any], sums: dict[str, Any]) -> dict[str, Any]:
        """Of all blocks."""
        return {**state, "errors": sums["errors"].put_into(state["errors"].shape)}

    def finish(self, state: dict[str, Any]) -> Parameters:
        """Only the errors."""
        return {"frame_error": state["errors"]}
