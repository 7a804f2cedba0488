"""The contract of linear operators, and what follows from it."""

import abc
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dtomo.arrays import array_module, on_device
from dtomo.elementwise import in_pieces
from dtomo.errors import UserError
from dtomo.operators.coarser import Coarser

if TYPE_CHECKING:
    from dtomo.operators.differences import Differences


class LinearOperator(abc.ABC):
    """A linear map between arrays of fixed shapes, with its exact adjoint.

    Attributes
    ----------
    shape_in, shape_out
        Shapes of what `forward` takes and gives (and `adjoint` gives and takes).
    dtype
        float32 or complex64, of both.
    device
        Whether the arrays that the operator makes of its own (`zeros`, `row_sums`, `factor_in`, …) lie on a GPU.
        `forward` and `adjoint` return their results where their arguments lie.
    length
        Of a way through a voxel, in the operator's unit: about what its entries are.

    Notes
    -----
    A *separable* operator acts on every slice alike and by itself: its inner products are taken slice by slice, so
    that an iterative method treats each slice as a problem of its own and the result of a slice does not depend on
    which others were computed with it.
    """

    shape_in: tuple[int, ...]
    shape_out: tuple[int, ...]
    dtype: np.dtype[Any]
    device: bool = False
    length: float = 1.0

    @property
    def xp(self) -> Any:
        """The module of the arrays that the operator makes: NumPy or CuPy."""
        if not self.device:
            return np
        import cupy

        return cupy

    @abc.abstractmethod
    def _forward(self, x: NDArray[Any]) -> NDArray[Any]: ...

    @abc.abstractmethod
    def _adjoint(self, y: NDArray[Any]) -> NDArray[Any]: ...

    def forward(self, x: NDArray[Any]) -> NDArray[Any]:
        """A x.

        Raises
        ------
        UserError
            `x` has another shape, or is complex where the operator is real.
        """
        return self._forward(self._checked(x, self.shape_in, "forward"))

    def adjoint(self, y: NDArray[Any]) -> NDArray[Any]:
        """Aᴴ y; raises as `forward` does."""
        return self._adjoint(self._checked(y, self.shape_out, "adjoint"))

    def adjoint_into(self, y: NDArray[Any], work: Callable[..., object], *volumes: Any) -> None:
        """Call ``work(part, …)`` with parts of Aᴴ y, which it may write over, and the same parts of `volumes`.

        As `dtomo.elementwise.in_pieces` does with ``adjoint(y)`` and volumes (or what broadcasts to them, or numbers),
        which `work` changes where they lie; projectors give it parts that are in the cache still.
        """
        in_pieces(work, self.adjoint(y), *volumes)

    def of_views(self, numbers: Sequence[int] | NDArray[np.integer[Any]]) -> "LinearOperator":
        """The operator of some of the views only, in that order: those places of the first axis of `shape_out`.

        Projectors have it; methods of ordered subsets and held-out views need it.

        Raises
        ------
        UserError
            Numbers that are none of its views, or an operator that cannot be taken apart.
        """
        raise UserError(f"{type(self).__name__} cannot be taken apart into views")

    def coarser(self, factor: int) -> Coarser:
        """The same problem on voxels and pixels `factor` times as large: see `Coarser`.

        Raises
        ------
        UserError
            An operator that has no such thing.
        """
        raise UserError(f"{type(self).__name__} cannot be made coarser")

    def differences(self, spacing: tuple[float, ...]) -> "Differences":
        """Differences of its volumes, of voxels of that size (see `dtomo.operators.Differences`)."""
        from dtomo.operators.differences import Differences  # an operator itself

        return Differences(self.shape_in, spacing, self.dtype, self.device)  # type: ignore[arg-type]

    def largest(self, here: float) -> float:
        """The largest value in all parts of the problem: that here, for an operator that has all of it."""
        return here

    def anywhere(self, here: bool) -> bool:
        """Whether something is so in any part of the problem: here, for an operator that has all of it."""
        return here

    def _view_numbers(self, numbers: Sequence[int] | NDArray[np.integer[Any]]) -> NDArray[np.int64]:
        """Numbers of views, refused where there are none of that number."""
        chosen = np.asarray(numbers)
        views = self.shape_out[0]
        whole = chosen.ndim == 1 and chosen.size > 0 and chosen.dtype.kind in "iu"
        if not whole or chosen.min() < 0 or chosen.max() >= views:
            raise UserError(f"views are given by numbers from 0 to {views - 1}; got {numbers!r:.60}")
        return chosen.astype(np.int64)

    def row_sums(self) -> NDArray[Any]:
        """A applied to ones (broadcasts to `shape_out`)."""
        return self.forward(self.xp.ones(self.shape_in, self.dtype)).real

    def column_sums(self, weights: NDArray[Any] | None = None) -> NDArray[Any]:
        """Aᴴ applied to ones or to `weights` (broadcasts to `shape_in`)."""
        ones = self.xp.ones(self.shape_out, self.dtype) if weights is None else weights.astype(self.dtype)
        return self.adjoint(ones).real

    def zeros(self) -> NDArray[Any]:
        """A volume of zeros, in the memory layout that `adjoint` returns."""
        return self.xp.zeros(self.shape_in, self.dtype)

    def arrange(self, data: NDArray[Any]) -> NDArray[Any]:
        """Data in the operator's dtype and the memory layout that `forward` returns; a copy only where needed."""
        return data.astype(self.dtype, copy=False)

    def dot_in(self, x: NDArray[Any], y: NDArray[Any]) -> NDArray[np.float64]:
        """Real part of the inner product of two volumes in float64: of each slice, ``(slices,)``, or ``(1,)``.

        On the host, wherever the volumes lie.
        """
        return _dot(x, y)

    def dot_out(self, x: NDArray[Any], y: NDArray[Any]) -> NDArray[np.float64]:
        """Real part of the inner product of two sets of projections, likewise."""
        return _dot(x, y)

    def factor_in(self, values: NDArray[Any]) -> NDArray[Any]:
        """One value for each slice (or one for all), on the host, shaped to multiply a volume and put where that is."""
        return self.xp.asarray(_spread(values, len(self.shape_in), 0))

    def factor_out(self, values: NDArray[Any]) -> NDArray[Any]:
        """One value for each slice (or one for all), on the host, shaped to multiply projections, likewise."""
        return self.xp.asarray(_spread(values, len(self.shape_out), 1))

    def norm(self, iterations: int = 30, seed: int = 0) -> float:
        """The largest singular value, from below, by the power method."""
        rng = np.random.default_rng(seed)
        x = self.xp.asarray(rng.standard_normal(self.shape_in).astype(self.dtype))
        value = 0.0
        for _ in range(iterations):
            x = self.adjoint(self.forward((x / max(_length(x), 1e-30)).astype(self.dtype)))
            value = float(np.sqrt(_length(x)))
        return value

    def _checked(self, array: NDArray[Any], shape: tuple[int, ...], what: str) -> NDArray[Any]:
        name = type(self).__name__
        if not isinstance(array, np.ndarray) and not on_device(array):
            raise UserError(
                f"{name}.{what} takes a NumPy or CuPy array, one block at a time, not {type(array).__name__}"
            )
        if tuple(array.shape) != tuple(shape):
            raise UserError(f"{name}.{what} takes an array of shape {tuple(shape)}, not {tuple(array.shape)}")
        if np.iscomplexobj(array) and self.dtype.kind != "c":
            raise UserError(f"{name}.{what} is real but was given complex data; make the operator with dtype=complex64")
        return array.astype(self.dtype, copy=False)


def _dot(x: NDArray[Any], y: NDArray[Any]) -> NDArray[np.float64]:
    array_module(x, y)
    return np.array([float(np.vdot(x.astype(np.complex128), y.astype(np.complex128)).real)])


def _length(x: NDArray[Any]) -> float:
    return float(np.linalg.norm(x.astype(np.complex128).ravel()))


def _spread(values: NDArray[Any], dimensions: int, axis: int) -> NDArray[Any]:
    shape = [1] * dimensions
    if values.size > 1:
        shape[axis] = values.size
    return values.reshape(shape).astype(np.float32)
