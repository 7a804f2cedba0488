"""What happens on the client after each epoch: early stopping, JSON lines, TensorBoard, MLflow, functions of a user's.

Callbacks get reduced numbers and are never sent to workers. One that decides something decides it from the history
alone, so that a resumed fit decides alike.
"""

import dataclasses
import math
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dtomo.errors import UserError, shown
from dtomo.fitting.history import Epoch, History

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from tensorboardX import SummaryWriter


class Callback:
    """Called on the client; each method may be left out by a subclass."""

    def begin(self, history: History) -> None:
        """Before the first epoch: with the epochs of a fit that is resumed, else none."""

    def after_epoch(self, history: History) -> bool | None:
        """After each epoch, the last of the history; True ends the fit."""

    def end(self, history: History) -> None:
        """When the fit has ended, also by an error."""


class _Function(Callback):
    """A user's function of an epoch."""

    def __init__(self, function: Callable[[Epoch], bool | None]) -> None:
        self.function = function

    def after_epoch(self, history: History) -> bool | None:
        return self.function(history[-1])


def callback_of(given: Any) -> Callback:
    """A callback from itself, from a function of an `Epoch`, or from an object with any of the methods of `Callback`.

    Raises
    ------
    UserError
        None of these.
    """
    if isinstance(given, Callback):
        return given
    methods = [name for name in ("begin", "after_epoch", "end") if callable(getattr(given, name, None))]
    if methods and not isinstance(given, type):
        return _Methods(given, methods)
    if callable(given) and not isinstance(given, type):
        return _Function(given)
    raise UserError(
        f"a callback is a function of an epoch or a dtomo.fitting.Callback (an object, not a class); "
        f"got {shown(repr(given))}"
    )


class _Methods(Callback):
    """An object that has some of the methods."""

    def __init__(self, target: Any, methods: Iterable[str]) -> None:
        self.target = target
        for name in methods:
            setattr(self, name, getattr(target, name))


def name_of(callback: Callback) -> str:
    """For messages, and for why a fit ended."""
    if isinstance(callback, _Function):
        return getattr(callback.function, "__name__", type(callback.function).__name__)
    return type(callback.target if isinstance(callback, _Methods) else callback).__name__


@dataclasses.dataclass(frozen=True)
class EarlyStopping(Callback):
    """Ends a fit whose validation (loss, where nothing is held out) no longer falls.

    Attributes
    ----------
    patience
        Epochs in a row without a new smallest one.
    least
        A smaller one counts if it is smaller by this part of the smallest so far, from 0 to below 1.

    Raises
    ------
    UserError
        Settings out of their range.
    """

    patience: int = 10
    least: float = 0.0

    def __post_init__(self) -> None:
        if not isinstance(self.patience, int) or self.patience < 1 or not 0 <= self.least < 1:
            raise UserError(
                f"early stopping has a patience of at least 1 epoch and a least improvement from 0 to below 1; "
                f"got {self.patience} and {self.least}"
            )

    def after_epoch(self, history: History) -> bool:
        """Whether the last `patience` epochs brought nothing."""
        smallest, waited = math.inf, 0
        for epoch in history:
            if epoch.score < smallest - self.least * abs(smallest if math.isfinite(smallest) else 0.0):
                smallest, waited = epoch.score, 0
            else:
                waited += 1
        return waited >= self.patience


class JsonLines(Callback):
    """Writes the history as one line of JSON for each epoch, each as soon as it is known.

    Parameters
    ----------
    path
        Of the file. It holds the epochs of this fit alone, those before it was resumed among them.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    def begin(self, history: History) -> None:
        """The epochs so far."""
        history.write(self.path)

    def after_epoch(self, history: History) -> None:
        """One more line."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(f"{history[-1].json()}\n")


class TensorBoard(Callback):
    """Writes every number of an epoch as a scalar for TensorBoard (extra ``tensorboard``: the package tensorboardX).

    Parameters
    ----------
    folder
        Where event files go. Epochs of a resumed fit that are written again replace the ones before.

    Raises
    ------
    UserError
        The package is missing.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        try:
            import tensorboardX  # noqa: F401
        except ImportError as error:
            raise UserError(
                "TensorBoard's event files need the package tensorboardX: pip install 'dtomo[tensorboard]'"
            ) from error
        self.folder = Path(folder)
        self._writer: SummaryWriter | None = None

    def begin(self, history: History) -> None:
        """Open an event file; a resumed fit purges what lies beyond its epochs."""
        from tensorboardX import SummaryWriter

        self._writer = SummaryWriter(str(self.folder), purge_step=len(history) + 1 if len(history) else None)

    def after_epoch(self, history: History) -> None:
        """One point of each curve."""
        if self._writer is None:
            self.begin(History(history.epochs[:-1]))
        assert self._writer is not None
        for name, value in history[-1].scalars().items():
            self._writer.add_scalar(name, value, history[-1].number)
        self._writer.flush()

    def end(self, history: History) -> None:
        """Close the file."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None


class MLflow(Callback):
    """Logs every number of an epoch as a metric of one MLflow run (extra ``mlflow``: the package mlflow-skinny).

    Parameters
    ----------
    experiment
        Its name; made if there is none.
    run
        Name of the run.
    tracking
        Address or folder of the tracking store; default: what MLflow is set to.
    parameters
        Logged once, as the run's parameters.
    run_id
        Of a run to go on with, for a fit that is resumed.

    Attributes
    ----------
    run_id
        Of the run, known when the fit has begun.

    Raises
    ------
    UserError
        The package is missing.
    """

    def __init__(
        self,
        experiment: str = "dtomo",
        *,
        run: str | None = None,
        tracking: str | os.PathLike[str] | None = None,
        parameters: Mapping[str, Any] | None = None,
        run_id: str | None = None,
    ) -> None:
        try:
            import mlflow  # noqa: F401
        except ImportError as error:
            raise UserError("MLflow needs the package mlflow-skinny: pip install 'dtomo[mlflow]'") from error
        self.experiment, self.run, self.tracking = experiment, run, tracking
        self.parameters, self.run_id = dict(parameters or {}), run_id
        self._client: MlflowClient | None = None

    def begin(self, history: History) -> None:
        """Begin the run, or go on with the one that was named."""
        from mlflow import MlflowClient

        self._client = MlflowClient(tracking_uri=None if self.tracking is None else str(self.tracking))
        if self.run_id is None:
            known = self._client.get_experiment_by_name(self.experiment)
            where = known.experiment_id if known else self._client.create_experiment(self.experiment)
            self.run_id = self._client.create_run(where, run_name=self.run).info.run_id
            for name, value in self.parameters.items():
                self._client.log_param(self.run_id, name, value)

    def after_epoch(self, history: History) -> None:
        """One point of each curve."""
        if self._client is None:
            self.begin(History(history.epochs[:-1]))
        assert self._client is not None
        for name, value in history[-1].scalars().items():
            self._client.log_metric(self.run_id, name, value, step=history[-1].number)

    def end(self, history: History) -> None:
        """The run is finished, or failed where the fit ended by an error."""
        if self._client is not None:
            self._client.set_terminated(self.run_id, "FINISHED" if history.reason else "FAILED")
            self._client = None
