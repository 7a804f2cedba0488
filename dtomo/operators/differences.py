"""Forward differences of volumes along their axes, as an operator."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtomo.arrays import single_precision
from dtomo.errors import UserError
from dtomo.kernels.differences import differences
from dtomo.kernels.dual_fields import ascend, descend, relaxed
from dtomo.operators.base import LinearOperator


class Differences(LinearOperator):
    """``(u[i + 1] - u[i]) / spacing`` along each axis, 0 at the last voxel; its adjoint is the negative divergence.

    From ``(z, y, x)`` to ``(component, z, y, x)``.

    Parameters
    ----------
    shape
        ``(z, y, x)``
    spacing
        Size of a voxel along z, y and x, in any unit; of y and x only: differences within slices.
    dtype
        float32 or complex64.
    device
        Whether arrays that the operator makes lie on a GPU.

    Raises
    ------
    UserError
        A spacing that is not two or three positive numbers, or another dtype.
    """

    def __init__(
        self,
        shape: tuple[int, int, int],
        spacing: tuple[float, ...] = (1.0, 1.0, 1.0),
        dtype: Any = np.float32,
        device: bool = False,
    ) -> None:
        steps = tuple(float(step) for step in spacing)
        if len(steps) not in (2, 3) or not all(0 < step < np.inf for step in steps):
            raise UserError(f"the spacing of voxels is positive, along z, y, x or along y, x; got {spacing}")
        self.spacing, self.device = steps, device
        self.dtype = np.dtype(dtype)
        if self.dtype not in (np.float32, np.complex64):
            raise UserError(f"differences are of float32 or complex64 volumes, not of {self.dtype}")
        self.shape_in = tuple(shape)
        self.shape_out = (len(steps), *self.shape_in)

    @property
    def step_bound(self) -> float:
        """``4 Σ 1 / spacing²``: at least the squared norm, which large volumes come close to."""
        return 4 * sum(1 / step**2 for step in self.spacing)

    def field(self, volume: NDArray[Any]) -> NDArray[Any]:
        """Zeros ``(component, z, y, x)`` that lie in memory as the results of `forward` for that volume do."""
        return self.forward(volume * np.float32(0))

    def ascend(
        self,
        field: NDArray[Any],
        ahead: NDArray[Any],
        volume: NDArray[Any],
        step: NDArray[np.float32] | float,
        *,
        limit: float,
        momentum: float = 0.0,
        isotropic: bool = True,
    ) -> tuple[NDArray[Any], NDArray[Any]]:
        """Step of a dual field of total variation: see `dtomo.kernels.dual_fields.ascend`.

        `step` is one number, or one for each slice, on the host. Returns both fields, written over.
        """
        steps = np.broadcast_to(np.asarray(step, np.float32).reshape(-1), self.shape_in[:1])
        return ascend(
            field, ahead, volume, self.spacing, step=steps, limit=limit, momentum=momentum, isotropic=isotropic
        )

    def relaxed(
        self,
        volume: NDArray[Any],
        field: NDArray[Any],
        factor: Any,
        bounds: tuple[float | None, float | None] = (None, None),
    ) -> NDArray[Any]:
        """``volume - factor Dᴴ field`` within bounds: see `dtomo.kernels.dual_fields.relaxed`."""
        return relaxed(volume, field, self.spacing, factor, bounds)

    def _forward(self, x: NDArray[Any]) -> NDArray[Any]:
        return differences(single_precision(x), self.spacing)

    def _adjoint(self, y: NDArray[Any]) -> NDArray[Any]:
        return descend(single_precision(y), self.spacing)
