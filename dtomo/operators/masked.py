"""An operator that sees nothing outside of a support."""

import copy
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtomo.arrays import array_module
from dtomo.errors import UserError
from dtomo.operators.base import LinearOperator
from dtomo.operators.coarser import Coarser
from dtomo.operators.differences import Differences


class Masked(LinearOperator):
    """``A M``: `operator` after a mask on its volumes, so that iterations that begin inside of it stay there.

    Parameters
    ----------
    operator
        A.
    mask
        M: True (or not 0) where there may be something; broadcasts to the operator's `shape_in`, for instance
        ``(y, x)`` for all slices.

    Raises
    ------
    UserError
        A mask that does not fit, or that leaves nothing.
    """

    def __init__(self, operator: LinearOperator, mask: Any) -> None:
        self.operator, self.device, self.length = operator, operator.device, operator.length
        self.shape_in, self.shape_out, self.dtype = operator.shape_in, operator.shape_out, operator.dtype
        inside = operator.xp.asarray(mask)
        try:
            fits = np.broadcast_shapes(inside.shape, self.shape_in) == tuple(self.shape_in)
        except ValueError:
            fits = False
        if not fits or inside.dtype.kind not in "biuf":
            raise UserError(f"a mask is of true and false and broadcasts to {tuple(self.shape_in)}, not {inside.shape}")
        inside = inside.astype(bool)
        if not operator.anywhere(bool(inside.any())):
            raise UserError("the mask leaves nothing: it is true where there may be something")
        whole = inside.reshape((1,) * (len(self.shape_in) - inside.ndim) + inside.shape)
        self.mask = whole.astype(np.float32)
        """float32 with as many axes as a volume: 1 inside and 0 outside."""

    def _forward(self, x: NDArray[Any]) -> NDArray[Any]:
        return self.operator._forward(x * self._near(x))

    def _adjoint(self, y: NDArray[Any]) -> NDArray[Any]:
        volume = self.operator._adjoint(y)
        volume *= self._near(volume)
        return volume

    def adjoint_into(self, y: NDArray[Any], work: Callable[..., object], *volumes: Any) -> None:
        def masked(part: NDArray[Any], mask: NDArray[Any], *pieces: Any) -> None:
            part *= mask
            work(part, *pieces)

        self.operator.adjoint_into(y, masked, self.mask, *volumes)

    def _near(self, array: NDArray[Any]) -> Any:
        xp = array_module(array)
        return self.mask if xp is array_module(self.mask) else xp.asarray(self.mask)

    def of_views(self, numbers: Sequence[int] | NDArray[np.integer[Any]]) -> "Masked":
        """The same mask before some of the views."""
        some = copy.copy(self)
        some.operator = self.operator.of_views(numbers)
        some.shape_out = some.operator.shape_out
        return some

    def coarser(self, factor: int) -> Coarser:
        """Behind the mask of the coarser voxels that it touches."""
        plain = self.operator.coarser(factor)
        return dataclasses.replace(plain, operator=Masked(plain.operator, plain.volume(self.mask) > 0))

    def column_sums(self, weights: NDArray[Any] | None = None) -> NDArray[Any]:
        """Those of the operator, and 0 outside."""
        return self.operator.column_sums(weights) * self.mask

    def differences(self, spacing: tuple[float, ...]) -> Differences:
        """Those of the operator."""
        return self.operator.differences(spacing)

    def largest(self, here: float) -> float:
        """As the operator."""
        return self.operator.largest(here)

    def anywhere(self, here: bool) -> bool:
        """As the operator."""
        return self.operator.anywhere(here)

    def zeros(self) -> NDArray[Any]:
        return self.operator.zeros()

    def arrange(self, data: NDArray[Any]) -> NDArray[Any]:
        return self.operator.arrange(data)

    def dot_in(self, x: NDArray[Any], y: NDArray[Any]) -> NDArray[np.float64]:
        return self.operator.dot_in(x, y)

    def dot_out(self, x: NDArray[Any], y: NDArray[Any]) -> NDArray[np.float64]:
        return self.operator.dot_out(x, y)

    def factor_in(self, values: NDArray[Any]) -> NDArray[Any]:
        return self.operator.factor_in(values)

    def factor_out(self, values: NDArray[Any]) -> NDArray[Any]:
        return self.operator.factor_out(values)
