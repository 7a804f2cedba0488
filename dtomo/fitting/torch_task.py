"""What travels to workers of a fit of a Torch module: blocks evaluated by autograd, several at once, with fixed bits.

A block is computed with one of Torch's threads, on every worker: the bits of oneDNN's convolutions and of matrix
products depend on their number (https://github.com/uxlfoundation/oneDNN/issues/1443,
https://github.com/pytorch/pytorch/issues/88718), and Adam makes whole steps of gradients that are zero but for
rounding. A process with several threads computes several blocks at once instead, each on a copy of the module, so that
blocks share nothing that they write. Which thread or copy takes a block does not matter.

Torch has one generator of random numbers for all threads of a process. Where a block has drawn from it, as dropout
does, blocks that ran beside it are evaluated again, and from then on one after another, each with its own numbers.
"""

import contextlib
import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from dtomo.device import available
from dtomo.errors import UserError, shown
from dtomo.fitting.travel import packed, unpacked
from dtomo.threads import get_threads, run_blocks

Batch: TypeAlias = "NDArray[Any] | tuple[NDArray[Any], ...]"
Loss: TypeAlias = Callable[..., Any]

_LARGE = {np.dtype(np.uint16): np.int32, np.dtype(np.uint32): np.int64, np.dtype(np.uint64): np.int64}
"""dtypes that Torch hardly computes with, and what holds their values."""


@dataclasses.dataclass
class TorchTask:
    """The module and its loss.

    Attributes
    ----------
    module
        Of the user's class; on the worker a copy.
    loss
        ``loss(prediction, target)``, or None: the module's own ``loss(*batch)``. Either returns a mean (a real
        scalar), one number for each sample, or ``(sum, count)``.
    """

    module: nn.Module
    loss: Loss | None = None

    def __post_init__(self) -> None:
        self._copies: list[TorchTask] | None = []  # None: it cannot be copied
        self._draws = {True: False, False: False}  # whether blocks draw random numbers: trained on, validated

    def __reduce__(self) -> tuple[Any, ...]:
        return _arrived, (self.module, self.loss)

    def evaluate_blocks(
        self, values: Mapping[str, NDArray[Any]], blocks: Iterable[tuple[Batch, int]], *, gradient: bool
    ) -> Iterator[dict[str, Any]]:
        """Sums of each block, in order, as many at once as this process has threads.

        On the CPU, blocks are evaluated on copies of the module, made when they are first needed: what changes in the
        module afterwards counts where it is a parameter or a buffer.

        Parameters
        ----------
        values, gradient
            See `evaluate`.
        blocks
            Batch and key of each.
        """
        left = iter(blocks)
        while some := list(itertools.islice(left, self._at_once(gradient))):
            copies = self._copied(len(some))
            found = self._beside(copies, values, some, gradient) if len(copies) > 1 else None
            if found is None:
                found = [copies[0].evaluate(values, batch, gradient=gradient, key=key) for batch, key in some]
            yield from found

    def _at_once(self, gradient: bool) -> int:
        return 1 if self._cuda() or self._draws[gradient] or self._copies is None else get_threads()

    def _copied(self, count: int) -> "list[TorchTask]":
        """So many tasks that share nothing; this one alone where it cannot be copied, or lies on a device."""
        if self._copies is not None and len(self._copies) < count and not self._cuda():
            try:
                data = packed((self.module, self.loss), "model")
                self._copies += [TorchTask(*unpacked(data)) for _ in range(count - len(self._copies))]
            except UserError:
                self._copies = None
        return self._copies[:count] if self._copies else [self]

    def _beside(
        self,
        copies: "Sequence[TorchTask]",
        values: Mapping[str, NDArray[Any]],
        blocks: Sequence[tuple[Batch, int]],
        gradient: bool,
    ) -> list[dict[str, Any]] | None:
        """Sums of each block, evaluated side by side; None if that cannot be, as one of them drew random numbers."""
        threads = torch.get_num_threads()

        def work(number: int, _: int) -> dict[str, Any] | Exception:
            try:
                with one_thread(threads):
                    return copies[number]._evaluated(values, blocks[number][0], gradient)
            except Exception as error:  # noqa: BLE001 - raised below, when no block is at work any more
                return error

        with torch.random.fork_rng(devices=()):
            torch.manual_seed(blocks[0][1])
            before = torch.get_rng_state()
            made = run_blocks(work, len(blocks), 1)
            self._draws[gradient] = not torch.equal(torch.get_rng_state(), before)
        if self._draws[gradient]:
            return None
        found = []
        for one in made:
            if isinstance(one, Exception):
                raise one
            found.append(one)
        return found

    def evaluate(self, values: Mapping[str, NDArray[Any]], batch: Batch, *, gradient: bool, key: int) -> dict[str, Any]:
        """Sums over one block, fit for `dtomo.distributed.sums.tree_sum`.

        Parameters
        ----------
        values
            Parameters and buffers by name.
        batch
            Arrays whose first axis is the sample: the last one is the target, the others are the module's arguments;
            a single array is both.
        gradient
            Whether the block is trained on: module in training mode, gradients. Else it is in evaluation mode.
        key
            What random numbers are made from.

        Returns
        -------
        dict
            ``loss`` (float), ``count`` (float); with `gradient` ``gradients`` (∂L/∂z̄ for complex parameters, zeros
            for a parameter that the loss does not depend on), ``used`` (whether it does) and ``buffers`` (times the
            count); without, ``metrics``: what the module's own ``metrics(*batch)`` returns, sums by name.

        Raises
        ------
        UserError
            A loss that is none.
        """
        devices = range(torch.cuda.device_count() if self._cuda() else 0)
        with one_thread(torch.get_num_threads()), torch.random.fork_rng(devices=devices):
            torch.manual_seed(key)
            return self._evaluated(values, batch, gradient)

    def _evaluated(self, values: Mapping[str, NDArray[Any]], batch: Batch, gradient: bool) -> dict[str, Any]:
        with _modes(self.module), torch.set_grad_enabled(gradient):
            self._load(values)
            self.module.train(gradient)
            tensors = [self._tensor(one) for one in (batch if isinstance(batch, tuple) else (batch,))]
            return self._trained(tensors) if gradient else self._validated(tensors)

    def _trained(self, tensors: Sequence[torch.Tensor]) -> dict[str, Any]:
        parameters = trained(self.module)
        for parameter in parameters.values():
            parameter.grad = None
        total, count = self._loss(tensors)
        if total.requires_grad:
            total.backward()
        found = {name: parameter.grad for name, parameter in parameters.items()}
        for parameter in parameters.values():
            parameter.grad = None
        return {
            "loss": float(total.detach()),
            "count": count,
            "gradients": {
                name: _half(to_numpy(parameters[name].new_zeros(parameters[name].shape) if slope is None else slope))
                for name, slope in found.items()
            },
            "used": {name: float(slope is not None) for name, slope in found.items()},
            "buffers": {
                name: count * to_numpy(buffer).astype(np.result_type(to_numpy(buffer).dtype, np.float64))
                for name, buffer in self.module.named_buffers()
            },
        }

    def _validated(self, tensors: Sequence[torch.Tensor]) -> dict[str, Any]:
        total, count = self._loss(tensors)
        own = getattr(self.module, "metrics", None)
        metrics = {name: float(value) for name, value in own(*tensors).items()} if callable(own) else {}
        return {"loss": float(total), "count": count, "metrics": metrics}

    def _loss(self, tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, float]:
        """Sum and count of a block, from whatever form the user's loss has."""
        samples = len(tensors[0])
        if self.loss is None:
            made = self.module.loss(*tensors)
        else:
            made = self.loss(self.module(*(tensors[:-1] or tensors)), tensors[-1])
        total, count = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
        if not isinstance(total, torch.Tensor) or total.is_complex():
            what = "a complex tensor" if isinstance(total, torch.Tensor) else shown(repr(total))
            raise UserError(f"the loss of {type(self.module).__name__} is a real tensor; got {what}")
        if count is not None:
            return total.sum(), float(count)
        if total.ndim == 0:
            return total * samples, float(samples)
        if total.shape == (samples,):
            return total.sum(), float(samples)
        raise UserError(
            f"the loss of {type(self.module).__name__} is a mean, one number for each of {samples} samples, or "
            f"(sum, count); got a tensor of shape {tuple(total.shape)}"
        )

    def _cuda(self) -> bool:
        held = next((tensor for tensor in (*self.module.parameters(), *self.module.buffers())), None)
        return torch.cuda.is_available() and (available() or (held is not None and held.is_cuda))

    def _load(self, values: Mapping[str, NDArray[Any]]) -> None:
        if self._cuda():
            self.module.to("cuda")
        with torch.no_grad():
            for name, tensor in (*self.module.named_parameters(), *self.module.named_buffers()):
                if name in values:
                    tensor.copy_(from_numpy(values[name]))

    def _tensor(self, values: NDArray[Any]) -> torch.Tensor:
        tensor = from_numpy(np.asarray(values).astype(_LARGE.get(values.dtype, values.dtype), copy=False))
        # a copy in Torch's own memory, which is aligned: bits of products depend on where vectors begin
        return tensor.to("cuda") if self._cuda() else tensor.clone()


def _arrived(module: nn.Module, loss: Loss | None) -> TorchTask:
    """A task that has travelled: its module is a copy already."""
    task = TorchTask(module, loss)
    task._copies = [task]
    return task


def trained(module: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that require gradients, by name, each once."""
    return {name: value for name, value in module.named_parameters() if value.requires_grad}


def to_numpy(tensor: torch.Tensor) -> NDArray[Any]:
    """A copy on the host; conjugates that Torch has put off are made."""
    return np.array(tensor.detach().cpu().resolve_conj().resolve_neg().numpy())


def from_numpy(values: NDArray[Any]) -> torch.Tensor:
    """A tensor of an array's values; the memory is the array's where that may be written to."""
    array = np.ascontiguousarray(values).reshape(np.shape(values))
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def _half(slope: NDArray[Any]) -> NDArray[Any]:
    """∂L/∂z̄ of Torch's gradient."""
    return slope / slope.dtype.type(2) if np.iscomplexobj(slope) else slope


@contextlib.contextmanager
def _modes(module: nn.Module) -> Iterator[None]:
    """The parts of a module are in training mode afterwards where they were."""
    before = {part: part.training for part in module.modules()}
    try:
        yield
    finally:
        for part, training in before.items():
            part.training = training


@contextlib.contextmanager
def one_thread(after: int) -> Iterator[None]:
    """One of Torch's threads for what this thread computes; `after` of them, the process's number, at the end."""
    torch.get_num_threads()  # a thread that has not asked yet would take up the process's number later
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(after)
