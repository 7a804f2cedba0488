"""Projections of a thick sample in slices along the beam, for multislice propagation."""

import dataclasses
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtomo.arrays import array_module, empty_aligned
from dtomo.errors import UserError
from dtomo.geometry import ParallelBeam
from dtomo.kernels import sections
from dtomo.kernels.layout import volume_inside_out
from dtomo.operators.projection import joseph_rays


@dataclasses.dataclass(frozen=True)
class SectionsProjector:
    """Line integrals in each slice of a sample; see `dtomo.kernels.sections`. Slice 0 is met first.

    Attributes
    ----------
    geometry
        Of all angles.
    slices
        Along the beam, about the axis.
    thickness
        Of a slice, voxels.

    Raises
    ------
    UserError
        No slices, or slices without thickness.
    """

    geometry: ParallelBeam
    slices: int
    thickness: float

    def __post_init__(self) -> None:
        if self.slices < 1 or not (np.isfinite(self.thickness) and self.thickness > 0):
            raise UserError(
                f"slices are 1 at least, of a thickness above 0 voxels; got {self.slices} of {self.thickness}"
            )

    def forward(self, rows: NDArray[Any], angles: NDArray[np.int64]) -> NDArray[Any]:
        """Rows of a volume ``(z, y, x)``, complex64, into ``(angle, slice, z, column)``, z innermost in memory."""
        some = self._some(angles)
        shape = (len(angles), self.slices, some.columns, len(rows))
        out = empty_aligned(shape, np.complex64, array_module(rows))
        inside = volume_inside_out(rows.astype(np.complex64, copy=False))
        sections.forward(_numbers(inside), _numbers(out), joseph_rays(some), some.radians, self.thickness)
        return np.swapaxes(out, 2, 3)

    def adjoint(self, images: NDArray[Any], angles: NDArray[np.int64]) -> NDArray[Any]:
        """The exact adjoint: ``(angle, slice, z, column)`` into ``(z, y, x)``."""
        some = self._some(angles)
        expected = (len(angles), self.slices, images.shape[2], some.columns)
        if images.shape != expected:
            raise UserError(f"images have shape {images.shape}; {expected} was expected")
        xp = array_module(images)
        inside = xp.ascontiguousarray(np.swapaxes(images.astype(np.complex64, copy=False), 2, 3))
        out = empty_aligned((some.height, some.width, images.shape[2]), np.complex64, xp)
        sections.adjoint(_numbers(inside), _numbers(out), joseph_rays(some), some.radians, self.thickness)
        return np.moveaxis(out, -1, 0)

    def _some(self, angles: NDArray[np.int64]) -> ParallelBeam:
        return self.geometry.replace(angles=self.geometry.angles[angles])


def _numbers(array: NDArray[Any]) -> NDArray[np.float32]:
    return array.view(np.float32)
