"""`dtomo.fit`: a model and its data in, the history out, the fitted parameters in the model."""

import contextlib
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dtomo.errors import UserError, shown
from dtomo.fitting.callbacks import Callback, callback_of
from dtomo.fitting.data import Columns, Split
from dtomo.fitting.history import Epoch, History
from dtomo.fitting.loop import Loop, Plan, save_split
from dtomo.fitting.model import steps_of, trainable_of
from dtomo.fitting.optimizers import LBFGS
from dtomo.fitting.runner import ClusterRunner, LocalRunner
from dtomo.io.checkpoints import Checkpoints, Schedule

if TYPE_CHECKING:
    from distributed import Client

BATCH = 32


def fit(
    model: Any,
    data: Any,
    *,
    loss: Callable[..., Any] | None = None,
    validation: float | Sequence[int] = 0.1,
    batch: int | None = BATCH,
    epochs: int = 10,
    optimizer: Any = None,
    scheduler: Any = None,
    gradient_clip: float | None = None,
    callbacks: Iterable[Callback | Callable[[Epoch], bool | None]] = (),
    best: bool = False,
    seed: int = 0,
    block: int | None = None,
    client: "Client | None" = None,
    workers: int | None = None,
    checkpoints: str | os.PathLike[str] | Checkpoints | None = None,
) -> History:
    """Fit a model of your own, data-parallel, with held-out validation.

    Losses, gradients and metrics are summed over fixed blocks in a fixed tree and divided once by the true count: the
    result does not depend on the number of workers (bit for bit where the model's own arithmetic does not).

    Parameters
    ----------
    model
        An object with ``parameters`` and ``loss_and_gradient`` (`dtomo.fitting.Model`), a
        `dtomo.fitting.OperatorModel`, or a ``torch.nn.Module``. It is not wrapped; when the fit returns, it holds the
        fitted parameters, which are written into its own arrays.
    data
        NumPy, Dask or Zarr array whose first axis is the sample; a list of files, each a sample; a `dtomo.Scan`, for
        projections as stored and angles in degrees; or a tuple of these. A model gets some samples of each.
    loss
        Of a Torch module: ``loss(prediction, target)``; default: its own method ``loss(*batch)``.
    validation
        The part of the samples that is held out, chosen once from `seed`, or the numbers of the samples.
    batch
        Samples of a step; None: all. The last batch of an epoch may be smaller, and counts as what it is.
    epochs
        Passes over the samples that are trained on, each in an order of its own; those before a checkpoint count.
    optimizer, scheduler
        One of `dtomo.fitting` (or its name; default: Adam), and a function from the epochs done to the factor of its
        rate. For Torch modules: Torch's, or functions that make them of the parameters, and of the optimizer.
    gradient_clip
        Largest norm of all gradients of a step together; beyond it they are scaled down.
    callbacks
        Called on the client after each epoch: `dtomo.fitting.Callback`, or functions of an `Epoch`. True ends the fit.
    best
        Keep the parameters of the smallest validation (loss, where nothing is held out), not the last.
    seed
        Of the choice, the order, and random numbers of blocks.
    block
        Samples that a model is given at once, at most; default: an eighth of a batch. It is part of what decides the
        bits, and of what batch normalisation sees: modules that have some want blocks of many samples.
    client
        Of a Dask cluster; None: this process, or `workers` processes that are started here and end with the fit.
    workers
        How many processes to start; with a client, how many of its workers to use at most.
    checkpoints
        A folder: the state is kept there after each epoch, with the choice of samples, and a fit that finds one goes on
        from it, with the same bits. Or `dtomo.io.checkpoints.Checkpoints` with a schedule of their own (minutes: also
        within an epoch).

    Returns
    -------
    History
        A record of each epoch.

    Raises
    ------
    UserError
        A model, data or settings that do not go; a model that returns NaN, a gradient of the wrong shape or kind, or
        none for one of its parameters; something in it that cannot be sent to workers.
    StoppedError
        Workers were lost again and again; go on with the same `checkpoints`.
    """
    columns = Columns.of(data)
    split = Split.of(len(columns), validation, _whole_seed(seed))
    plan = Plan.of(epochs, batch, block, gradient_clip, best, seed, len(split.training))
    trainable = trainable_of(model, loss)
    steps = steps_of(trainable, optimizer, scheduler)
    check_clip(plan, steps)
    told = [callback_of(callback) for callback in callbacks]
    kept = None if checkpoints is None else _checkpoints(checkpoints, made_with(columns, split, plan, trainable, steps))
    with running(trainable.task, columns, client, workers) as runner:
        if kept is not None:
            save_split(kept.folder, split)
        history = Loop(trainable, steps, runner, columns, split, plan, told, kept).run()
    for note in [] if kept is None else kept.notes:
        warnings.warn(note, stacklevel=2)
    return history


@contextlib.contextmanager
def running(task: Any, columns: Columns, client: "Client | None", workers: int | None) -> Iterator[Any]:
    """What evaluates blocks: in this process, on a cluster, or on processes that end with it.

    Raises
    ------
    UserError
        No client, or no number of workers.
    """
    with contextlib.ExitStack() as stack:
        if workers is not None and (not isinstance(workers, int) or isinstance(workers, bool) or workers < 1):
            raise UserError(f"workers of a fit is a whole number from 1; got {shown(repr(workers))}")
        if workers is not None and client is None:
            from dtomo.distributed.clusters import connect

            client = stack.enter_context(connect("local", workers=workers))
        if client is None:
            runner: Any = LocalRunner(task, columns)
        else:
            _check_client(client)
            runner = ClusterRunner(client, task, columns, workers)
        try:
            yield runner
        finally:
            runner.close()


def check_clip(plan: Plan, steps: Any) -> None:
    """Refuse to change gradients that a line search relies on.

    Raises
    ------
    UserError
        It would.
    """
    if plan.gradient_clip is not None and isinstance(getattr(steps, "optimizer", None), LBFGS):
        raise UserError("gradient_clip is for steps along gradients: L-BFGS chooses the length of its steps itself")


def _check_client(client: Any) -> None:
    from distributed import Client

    if not isinstance(client, Client) or client.asynchronous:
        raise UserError(f"client is a dask.distributed.Client that is not asynchronous; got {shown(repr(client))}")


def _whole_seed(seed: Any) -> int:
    if not isinstance(seed, int | np.integer) or isinstance(seed, bool) or seed < 0:
        raise UserError(f"seed of a fit is a whole number from 0; got {seed!r}")
    return int(seed)


def made_with(columns: Columns, split: Split, plan: Plan, trainable: Any, steps: Any) -> dict[str, Any]:
    """What decides the result, as far as it can be compared: what a checkpoint is made with."""
    optimizer = getattr(steps, "optimizer", None)
    return {
        "data": columns.described(),
        "held out": len(split.held_out),
        "batch": plan.batch,
        "block": plan.block,
        "gradient_clip": plan.gradient_clip,
        "best": plan.best,
        "seed": plan.seed,
        "parameters": {name: [list(value.shape), value.dtype.str] for name, value in trainable.parameters().items()},
        "optimizer": repr(optimizer) if type(optimizer).__module__.startswith("dtomo.") else type(optimizer).__name__,
    }


def _checkpoints(given: Any, made_with: dict[str, Any]) -> Checkpoints:
    if isinstance(given, Checkpoints):
        given.made_with |= made_with
        return given
    return Checkpoints(Path(given), made_with=made_with, schedule=Schedule(iterations=1), devices=False)
