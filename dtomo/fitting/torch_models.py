"""Torch modules as models: autograd inside the task, sums over blocks, and the user's own optimizer on the client.

The module is sent to each worker once, its parameters and buffers with every step. A worker gets sums of its blocks:
losses, counts, gradients. On the client the gradients, divided once by the count of the batch, are put where
``backward()`` would have put them, and the user's optimizer makes its step on the user's parameters: module, optimizer
and scheduler are never wrapped, and between two steps they are what they would be in a loop of one's own.

Torch's gradient of a complex parameter is ∂L/∂x + i ∂L/∂y, twice ∂L/∂z̄; what leaves this module is ∂L/∂z̄, as
everywhere in this package, and what goes to Torch's optimizers is Torch's. No reduction, message or checkpoint sees
complex numbers as pairs of reals.

Buffers (running means of batch normalisation …): each block begins with those of the last step; what the blocks make of
them is averaged by their counts, so that they are the same on any number of workers. Blocks are evaluated by
`dtomo.fitting.torch_task`.
"""

import inspect
import io
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from dtomo.errors import UserError, shown
from dtomo.fitting.model import write_parameters
from dtomo.fitting.torch_task import Loss, TorchTask, from_numpy, one_thread, to_numpy, trained

Arrays: TypeAlias = dict[str, NDArray[Any]]


class TorchTrainable:
    """A user's module on the client.

    Parameters
    ----------
    module, loss
        See `TorchTask`. The module is the user's own object, changed by nothing but its optimizer and `store`.

    Raises
    ------
    UserError
        Nothing to train, or neither a loss nor a method ``loss``.
    """

    def __init__(self, module: nn.Module, loss: Loss | None = None) -> None:
        self.module = module
        if loss is None and not callable(getattr(module, "loss", None)):
            raise UserError(
                f"{type(module).__name__} needs a loss: fit(…, loss=function of prediction and target), or a method "
                "loss(*batch)"
            )
        if not trained(module):
            raise UserError(f"{type(module).__name__} has no parameter that requires a gradient: there is none to fit")
        self.task = TorchTask(module, loss)

    def parameters(self) -> Arrays:
        """Copies of the parameters that are trained, by name."""
        return {name: to_numpy(value) for name, value in trained(self.module).items()}

    def buffers(self) -> Arrays:
        """Copies of the buffers, by name."""
        return {name: to_numpy(value) for name, value in self.module.named_buffers()}

    def store(self, values: Mapping[str, NDArray[Any]]) -> None:
        """Put parameters and buffers into the user's module."""
        with torch.no_grad():
            for name, tensor in (*self.module.named_parameters(), *self.module.named_buffers()):
                if name in values:
                    tensor.copy_(from_numpy(values[name]))

    def store_buffers(self, sums: Mapping[str, NDArray[Any]], count: float) -> None:
        """Buffers from their sums over all blocks of a batch, divided once."""
        means = {name: np.asarray(value) / count for name, value in sums.items()}
        kinds = {name: to_numpy(value).dtype for name, value in self.module.named_buffers()}
        self.store({
            name: (np.rint(mean) if kinds[name].kind in "iub" else mean).astype(kinds[name])
            for name, mean in means.items()
        })  # fmt: skip

    def finish(self) -> None:
        """The fit is over: the user's module has the parameters already."""

    def save(self, folder: Path) -> None:
        """Write ``parameters.npz``, and ``model.pt``: the module's ``state_dict``."""
        write_parameters(folder, self.parameters())
        part = folder / ".model.part"
        torch.save(self.module.state_dict(), part)
        part.replace(folder / "model.pt")


class TorchSteps:
    """The user's Torch optimizer and scheduler, driven by sums that come from elsewhere.

    Parameters
    ----------
    trainable
        Whose module they belong to.
    optimizer
        A ``torch.optim.Optimizer`` over the module's parameters, a function that makes one of them (such as
        ``lambda parameters: torch.optim.Adam(parameters, lr=1e-3)``), or None: Adam.
    scheduler
        One of ``torch.optim.lr_scheduler`` over that optimizer, a function that makes one of it, or None. It steps
        once after each epoch.

    Raises
    ------
    UserError
        Neither, or an optimizer over other parameters than the module's.
    """

    def __init__(self, trainable: TorchTrainable, optimizer: Any = None, scheduler: Any = None) -> None:
        self.trainable = trainable
        self.optimizer = _optimizer(trainable.module, optimizer)
        self.scheduler = _scheduler(self.optimizer, scheduler)

    def step(self, evaluate: Callable[[], tuple[float, Arrays, Mapping[str, float]]]) -> float:
        """One step of the optimizer.

        Parameters
        ----------
        evaluate
            Mean loss, mean gradients (∂L/∂z̄) and uses of the present batch, at the parameters that the module has now.
            Optimizers with a closure, such as L-BFGS, call it again.

        Returns
        -------
        float
            The loss before the step.
        """
        losses: list[float] = []

        def closure() -> torch.Tensor:
            loss, gradients, used = evaluate()
            losses.append(loss)
            for name, parameter in trained(self.trainable.module).items():
                slope = gradients[name] * 2 if np.iscomplexobj(gradients[name]) else gradients[name]
                parameter.grad = from_numpy(slope).to(parameter) if used.get(name, 1) else None
            return torch.tensor(loss)

        with one_thread(torch.get_num_threads()):  # L-BFGS has products over parameters, whose bits depend on threads
            if inspect.signature(self.optimizer.step).parameters["closure"].default is inspect.Parameter.empty:
                self.optimizer.step(closure)
            else:
                closure()
                self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return losses[0]

    @property
    def rate(self) -> float:
        """The learning rate of the first group of parameters."""
        return float(self.optimizer.param_groups[0]["lr"])

    def end_epoch(self, score: float) -> None:
        """Let the scheduler make its step; one that waits for a plateau is told the validation (or the loss)."""
        if isinstance(self.scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
            self.scheduler.step(score)
        elif self.scheduler is not None:
            self.scheduler.step()

    def pack(self) -> NDArray[np.uint8]:
        """What optimizer, scheduler and Torch's random numbers of this process know, as bytes."""
        state = {
            "optimizer": self.optimizer.state_dict(),
            "scheduler": None if self.scheduler is None else self.scheduler.state_dict(),
            "random": torch.get_rng_state(),
        }
        file = io.BytesIO()
        torch.save(state, file)
        return np.frombuffer(file.getvalue(), np.uint8)

    def unpack(self, packed: NDArray[np.uint8]) -> None:
        """Go on from what `pack` made, of an optimizer and a scheduler of the same kinds."""
        # weights_only: a checkpoint is data, and must not be able to run code
        state = torch.load(io.BytesIO(np.asarray(packed, np.uint8).tobytes()), weights_only=True)
        self.optimizer.load_state_dict(state["optimizer"])
        if self.scheduler is not None and state["scheduler"] is not None:
            self.scheduler.load_state_dict(state["scheduler"])
        torch.set_rng_state(state["random"])


def named_optimizer(name: str, rate: float | None) -> Callable[[Any], torch.optim.Optimizer]:
    """A function that makes one of Torch's optimizers: "sgd", "adam", "adamw" or "lbfgs"."""
    kind = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW, "lbfgs": torch.optim.LBFGS}
    return lambda parameters: kind[name](parameters, **({} if rate is None else {"lr": rate}))


def _optimizer(module: nn.Module, given: Any) -> torch.optim.Optimizer:
    made = given
    if given is None:
        made = torch.optim.Adam(trained(module).values())
    elif not isinstance(given, torch.optim.Optimizer) and callable(given):
        made = given(trained(module).values())
    if not isinstance(made, torch.optim.Optimizer):
        raise UserError(
            "a Torch module is fitted by one of Torch's optimizers, or by a function that makes one of its parameters; "
            f"got {shown(repr(given))}"
        )
    own = {id(parameter) for parameter in module.parameters()}
    held = {id(parameter) for group in made.param_groups for parameter in group["params"]}
    if not held <= own or not held:
        raise UserError(
            f"the optimizer holds {len(held - own)} parameters that are not those of {type(module).__name__}: make it "
            "of the parameters of the module that is fitted"
        )
    return made


def _scheduler(optimizer: torch.optim.Optimizer, given: Any) -> Any:
    kinds = (torch.optim.lr_scheduler.LRScheduler, torch.optim.lr_scheduler.ReduceLROnPlateau)
    made = given(optimizer) if given is not None and not isinstance(given, kinds) and callable(given) else given
    if made is not None and not isinstance(made, kinds):
        raise UserError(
            "the scheduler of a Torch module is one of torch.optim.lr_scheduler, or a function that makes one of its "
            f"optimizer; got {shown(repr(given))}"
        )
    if made is not None and made.optimizer is not optimizer:
        raise UserError("the scheduler belongs to another optimizer than the one that is given")
    return made
