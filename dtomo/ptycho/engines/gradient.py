"""What all solvers that follow gradients share: what is refined from when on, and gradients as whole arrays."""

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dtomo.arrays import array_module
from dtomo.errors import UserError
from dtomo.ptycho.engine import Engine, Parameters
from dtomo.ptycho.engines.searching import Search
from dtomo.ptycho.frames import FrameBlock
from dtomo.ptycho.regularisers import Constraints
from dtomo.windows import Rows, Window

if TYPE_CHECKING:
    from dtomo.ptycho.model import PtychoModel

REFINED = (
    "object",
    "probe",
    "variable_probe",
    "probe_weights",
    "background",
    "scale",
    "positions",
    "distance",
)
"""What can be refined."""

PER_FRAME = ("probe_weights", "scale", "positions")
"""Parameters that have a row for each frame."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class GradientEngine(Engine):
    """A solver that follows the gradients of a model.

    Attributes
    ----------
    model
        Gives loss and gradients of a block.
    wanted
        Names of the parameters that are refined.
    start
        First epoch (from 0) in which a parameter is refined, by name; default 0.
    constraints
        Penalties and projections.
    batch
        Frames of a step; None: all.
    position_range
        How far positions may be from the first ones, pixels; None: anywhere on the object.
    search_trials, search_reach, search_epochs
        Search for positions by trial as well, see `dtomo.ptycho.engines.searching.Search`; default: no trials.

    Raises
    ------
    UserError
        Names that nothing has, or no names.
    """

    model: "PtychoModel"
    wanted: tuple[str, ...] = ("object", "probe")
    start: Mapping[str, int] = dataclasses.field(default_factory=dict)
    constraints: Constraints = dataclasses.field(default_factory=Constraints)
    batch: int | None = None
    position_range: float | None = None
    search_trials: int = 0
    search_reach: float = 5.0
    search_epochs: int = 30
    searches: ClassVar[bool] = False
    """Whether `update` takes the moves of a search."""

    def __post_init__(self) -> None:
        known_names(self.wanted, REFINED, "can be refined")
        known_names(self.start, self.wanted, "is refined and so can start later")
        if not self.wanted:
            raise UserError("nothing is to be refined; name one parameter at least, as object")
        if self.position_range is not None and not self.position_range > 0:
            raise UserError(f"the range of positions is above 0 pixels; got {self.position_range}")
        if self._search.trials and not ("positions" in self.wanted and self.searches):
            raise UserError(
                f"{type(self).__name__} does not search for positions; refine them with adam or conjugate gradients, "
                "or leave the search out"
            )

    @property
    def _search(self) -> Search:
        return Search(self.search_trials, self.search_reach, self.search_epochs)

    def begin(self, parameters: Parameters) -> dict[str, Any]:
        """The parameters, the epoch (which goes to the blocks), and frames seen so far."""
        missing = [name for name in self.wanted if name not in parameters]
        if missing:
            raise UserError(f"{missing[0]} is to be refined but has no first guess; give one, or do not refine it")
        state: dict[str, Any] = {"parameters": dict(parameters), "shared": {"epoch": 0}, "seen": 0}
        if self.position_range is not None:
            state["first_positions"] = parameters["positions"].copy()
        return state

    def wanted_in(self, epoch: int) -> tuple[str, ...]:
        """Names of what is refined in an epoch."""
        return tuple(name for name in self.wanted if epoch >= self.start.get(name, 0))

    def evaluate(self, sent: Mapping[str, Any], block: FrameBlock, kept: Any) -> tuple[dict[str, Any], Any]:
        """Loss, count, and the gradients of what is refined now."""
        return self.evaluated(sent, block, self.wanted_in(sent["shared"]["epoch"])), None

    def evaluated(self, sent: Mapping[str, Any], block: FrameBlock, wanted: tuple[str, ...]) -> dict[str, Any]:
        """Sums of a block: loss, count, number of frames, gradients by name."""
        loss, count, gradients = self.model.loss_and_gradient(sent["parameters"], block, wanted)
        sums = {"loss": loss, "count": count, "frames": len(block), "gradients": dict(gradients)}
        return self.searched(sent, block, wanted, sums)

    def searched(
        self, sent: Mapping[str, Any], block: FrameBlock, wanted: tuple[str, ...], sums: dict[str, Any]
    ) -> dict[str, Any]:
        """The sums with "moves" of positions where such are searched for."""
        since = sent["shared"]["epoch"] - self.start.get("positions", 0)
        if "positions" in wanted and self._search.on(since):
            sums["moves"] = self._search.moves(self.model, sent["parameters"], block, since)
        return sums

    def whole_gradients(self, parameters: Parameters, sums: Mapping[str, Any]) -> dict[str, Any]:
        """Gradients of the loss with penalties, as whole arrays; those of parameters per frame stay as they are."""
        whole = {
            name: gradient if isinstance(gradient, Rows) else whole_array(gradient, parameters[name])
            for name, gradient in sums["gradients"].items()
        }
        fraction = sums["frames"] / frames_of(parameters)
        return self.constraints.penalized(parameters, whole, fraction)[1]

    def move(self, parameters: Parameters, moves: Rows) -> NDArray[np.int64]:
        """Positions after what a search has found; the numbers of the frames that moved."""
        xp = array_module(parameters["positions"])
        moved = xp.asarray(moves.index)[moves.values.any(axis=1)]
        parameters["positions"] = parameters["positions"] + moves.put_into(parameters["positions"].shape)
        return moved

    def settle(self, state: Mapping[str, Any], parameters: Parameters, changed: tuple[str, ...]) -> None:
        """After an update: projections, positions within the object and near those that `begin` has kept."""
        self.constraints.project(parameters, changed)
        if "positions" not in changed:
            return
        if self.position_range is not None:
            first = state["first_positions"]
            moved = parameters["positions"] - first
            lengths = np.sqrt((moved**2).sum(axis=1, keepdims=True))
            parameters["positions"] = first + moved * np.minimum(1, self.position_range / lengths.clip(1e-30))
        parameters["positions"] = inside_object(parameters)

    def count_frames(self, state: dict[str, Any], frames: int) -> None:
        """Step is over: the epoch follows from the frames seen."""
        state["seen"] += int(frames)
        state["shared"] = {**state["shared"], "epoch": state["seen"] // frames_of(state["parameters"])}


def frames_of(parameters: Mapping[str, Any]) -> int:
    """Frames of the scan."""
    return len(parameters["positions"])


def known_names(names: Any, known: tuple[str, ...], what: str) -> None:
    """Refuse names that are not among those known.

    Raises
    ------
    UserError
        Some other name.
    """
    other = sorted(set(names) - set(known))
    if other:
        raise UserError(f"{other[0]} is not a parameter that {what}; choose among {', '.join(known)}")


def whole_array(gradient: Any, parameter: Any) -> Any:
    """A gradient in the shape of its parameter."""
    if isinstance(gradient, Window | Rows):
        if isinstance(gradient, Window) and gradient.origin == (0, 0) and gradient.values.shape == parameter.shape:
            return gradient.values
        return gradient.put_into(parameter.shape)
    return gradient


def inside_object(parameters: Mapping[str, Any]) -> Any:
    """Positions, put where frames are within the object."""
    positions = parameters["positions"]
    room = [whole - part for whole, part in zip(parameters["object"].shape[-2:], parameters["probe"].shape[-2:])]
    return array_module(positions).clip(positions, 0, array_module(positions).asarray(room, positions.dtype))


def size_of(name: str, parameters: Mapping[str, Any]) -> float:
    """How large changes of a parameter are, so that one rate serves all.

    The probe and what varies of it: the largest modulus of the probe; the background: its root mean square, 1 (a count)
    at least; the distance: itself; all others (object, weights, scale, positions in pixels): 1.
    """
    if name in ("probe", "variable_probe"):
        largest = float(np.abs(parameters["probe"]).max())
        if largest == 0:
            raise UserError("the first guess of the probe is zero everywhere; give another")
        return largest
    if name == "background":
        return max(1.0, float((parameters[name] ** 2).mean(dtype=np.float64)) ** 0.5)
    if name == "distance":
        return abs(float(parameters[name])) or 1.0
    return 1.0


def squared_modulus(array: NDArray[Any]) -> NDArray[Any]:
    """|z|², real."""
    return array.real**2 + array.imag**2 if np.iscomplexobj(array) else array**2
