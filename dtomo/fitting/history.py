"""What a fit reports: one record for each epoch, as values and as JSON lines."""

import dataclasses
import json
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtomo.errors import UserError


@dataclasses.dataclass(frozen=True)
class Epoch:
    """One pass over the training data, in numbers that were summed over all of it and divided once.

    Attributes
    ----------
    number
        From 1.
    steps
        Steps of the optimizer so far.
    loss
        Sum of the losses of the epoch's batches over the sum of their counts, each batch at the parameters it was
        evaluated at.
    validation
        Loss over the whole held-out set at the end of the epoch; None if nothing is held out.
    metrics, validation_metrics
        The model's own numbers, likewise.
    rate
        Factor of the optimizer's rate (a rate of its own, for Torch's), in the epoch.
    seconds
        That the epoch took; not compared.
    """

    number: int
    steps: int
    loss: float
    validation: float | None = None
    metrics: Mapping[str, float] = dataclasses.field(default_factory=dict)
    validation_metrics: Mapping[str, float] = dataclasses.field(default_factory=dict)
    rate: float = 1.0
    seconds: float = dataclasses.field(default=0.0, compare=False)

    @property
    def score(self) -> float:
        """What is to be small: the validation, or the loss where nothing is held out."""
        return self.loss if self.validation is None else self.validation

    def scalars(self) -> dict[str, float]:
        """Every number by a name such as ``"loss"``, ``"validation/loss"``, ``"metrics/psnr"``."""
        found = {"loss": self.loss, "rate": self.rate, "seconds": self.seconds}
        if self.validation is not None:
            found["validation/loss"] = self.validation
        found |= {f"metrics/{name}": value for name, value in self.metrics.items()}
        return found | {f"validation/{name}": value for name, value in self.validation_metrics.items()}

    def json(self) -> str:
        """One line of JSON; numbers that are not finite are null."""
        return json.dumps(_finite(dataclasses.asdict(self)), allow_nan=False)


@dataclasses.dataclass(frozen=True)
class History:
    """All epochs of a fit, those before it was resumed among them.

    Attributes
    ----------
    epochs
        In order.
    reason
        Why the fit ended: "epochs", the name of the callback that ended it, or "" while it runs.
    """

    epochs: tuple[Epoch, ...] = ()
    reason: str = ""

    def __len__(self) -> int:
        return len(self.epochs)

    def __iter__(self) -> Iterator[Epoch]:
        return iter(self.epochs)

    def __getitem__(self, index: int) -> Epoch:
        return self.epochs[index]

    def plus(self, epoch: Epoch) -> "History":
        """With one more epoch."""
        return dataclasses.replace(self, epochs=(*self.epochs, epoch))

    @property
    def losses(self) -> NDArray[np.float64]:
        """``(epochs,)``."""
        return np.array([epoch.loss for epoch in self.epochs], np.float64)

    @property
    def validations(self) -> NDArray[np.float64]:
        """``(epochs,)``, NaN where nothing was held out."""
        return np.array([np.nan if one.validation is None else one.validation for one in self.epochs], np.float64)

    @property
    def best(self) -> Epoch | None:
        """The first epoch of the smallest validation (loss, where nothing is held out); None before the first."""
        return min(self.epochs, key=lambda epoch: (epoch.score, epoch.number), default=None)

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write one line of JSON for each epoch.

        Raises
        ------
        UserError
            The file cannot be written.
        """
        path = Path(path)
        beside = path.with_name(f".{path.name}.partial")
        try:
            beside.write_text("".join(f"{epoch.json()}\n" for epoch in self.epochs), "utf-8")
            beside.replace(path)
        except OSError as error:
            raise UserError(f"the history cannot be written to {path}: {error.strerror or error}") from error

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> "History":
        """What `write` or `JsonLines` wrote.

        Raises
        ------
        UserError
            No such file, or a line that is none of a history; the message has its number.
        """
        try:
            lines = Path(path).read_text("utf-8").splitlines()
        except OSError as error:
            raise UserError(f"the history {path} cannot be read: {error.strerror or error}") from error
        epochs = []
        for number, line in enumerate(lines, 1):
            try:
                values = json.loads(line)
                epochs.append(Epoch(**{**values, "loss": math.nan if values["loss"] is None else values["loss"]}))
            except (ValueError, TypeError, KeyError) as error:
                raise UserError(f"line {number} of {path} is no epoch of a history: {line[:60]!r}") from error
        return cls(tuple(epochs))


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _finite(one) for name, one in value.items()}
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value
