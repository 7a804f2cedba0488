"""The model of joint ptycho-tomography: from rows of the volume to images of all angles, and from frames back.

The unknown is v = k Δ u, radians per voxel, with u = -δ + iβ (n = 1 - δ + iβ, waves exp(+ikz)) and the voxel Δ that is
a pixel of the images. The image of an angle is T = exp(i A v), with line integrals A; frames see it as the transmission
of a `dtomo.ptycho.model.PtychoModel`. With ∂L/∂T̄ from the frames, ∂L/∂p̄ = conj(iT) ∂L/∂T̄ and ∂L/∂v̄ = Aᵀ ∂L/∂p̄
(D. Gürsoy, Optics Letters 42 (2017) 3169).
"""

import dataclasses
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dtomo.arrays import array_module
from dtomo.elementwise import in_pieces
from dtomo.errors import UserError
from dtomo.geometry import ParallelBeam
from dtomo.operators.projection import ParallelProjector
from dtomo.ptycho.frames import FrameBlock
from dtomo.ptycho.model import PtychoModel
from dtomo.windows import Rows, Window

PARAMETERS = ("probe", "shifts", "ramps", "scale", "background")
"""What there is to be refined beside the volume."""


class Projector(Protocol):
    """Line integrals for some of the angles, in one or more slices along the beam."""

    slices: int

    def forward(self, rows: NDArray[Any], angles: NDArray[np.int64]) -> NDArray[Any]:
        """Of rows of the volume ``(z, y, x)``: ``(angle, slice, z, column)``."""

    def adjoint(self, images: NDArray[Any], angles: NDArray[np.int64]) -> NDArray[Any]:
        """The exact adjoint."""


@dataclasses.dataclass(frozen=True)
class LineProjector:
    """All of a ray in one slice, by `dtomo.operators.projection.ParallelProjector`."""

    geometry: ParallelBeam
    slices: int = dataclasses.field(default=1, init=False)

    def forward(self, rows: NDArray[Any], angles: NDArray[np.int64]) -> NDArray[Any]:
        """``(angle, 1, z, column)``."""
        return self._of(angles, rows).forward(rows)[:, None]

    def adjoint(self, images: NDArray[Any], angles: NDArray[np.int64]) -> NDArray[Any]:
        """``(z, y, x)``."""
        return self._of(angles, images[0, 0]).adjoint(images[:, 0])

    def _of(self, angles: NDArray[np.int64], rows: NDArray[Any]) -> ParallelProjector:
        return ParallelProjector(_some(self.geometry, angles.tobytes()), len(rows), np.complex64, like=rows)


@lru_cache(maxsize=1024)
def _some(geometry: ParallelBeam, angles: bytes) -> ParallelBeam:
    """The geometry of some of the angles."""
    return geometry.replace(angles=geometry.angles[np.frombuffer(angles, np.int64)])


@dataclasses.dataclass(frozen=True, eq=False)
class JointModel:
    """What is known of a scan beside the volume, the other parameters and the frames; a value.

    Attributes
    ----------
    frames
        How frames come about from a transmission; not `exponential`.
    geometry
        Of all angles. Columns are those of the images.
    rows
        Of the volume and of the images.
    projector
        Default: one slice.

    Raises
    ------
    UserError
        Frames of exponential objects, or of another number of slices than the projector gives.
    """

    frames: PtychoModel
    geometry: ParallelBeam
    rows: int
    projector: Projector = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        if self.projector is None:
            object.__setattr__(self, "projector", LineProjector(self.geometry))
        if self.frames.exponential:
            raise UserError("images are transmissions already; leave exponential out")
        if self.projector.slices != len(self.frames.between) + 1:
            raise UserError(
                f"the projector gives {self.projector.slices} slices; frames go through {len(self.frames.between) + 1}"
            )

    @property
    def angles(self) -> int:
        """How many there are."""
        return len(self.geometry.angles)

    @property
    def volume_shape(self) -> tuple[int, int, int]:
        """(z, y, x)"""
        return self.rows, self.geometry.height, self.geometry.width

    @property
    def image_shape(self) -> tuple[int, int]:
        """Rows and columns of the images."""
        return self.rows, self.geometry.columns

    def transmissions(self, rows: NDArray[Any], angles: NDArray[np.int64]) -> NDArray[Any]:
        """T = exp(i A v) of rows of the volume ``(z, y, x)``, ``(angle, slice, z, column)``."""
        images = self.projector.forward(rows, angles)
        in_pieces(_exponential, images)
        return images

    def derivative(self, images: NDArray[Any], derivatives: NDArray[Any], angles: NDArray[np.int64]) -> NDArray[Any]:
        """∂L/∂v̄ of rows of the volume.

        Parameters
        ----------
        images
            T ``(angle, slice, z, column)``.
        derivatives
            ∂L/∂T̄ of the same shape.
        angles
            Their numbers, int64.
        """
        found = array_module(images).empty_like(images)
        in_pieces(_by_exponent, found, images, derivatives)
        return self.projector.adjoint(found, angles)

    def meet(
        self,
        image: NDArray[Any],
        first_row: int,
        angle: int,
        block: FrameBlock,
        parameters: Mapping[str, Any],
        positions: NDArray[np.float64],
        wanted: Iterable[str],
    ) -> tuple[float, int, dict[str, Any]]:
        """Frames of one angle and the image that they see.

        Parameters
        ----------
        image
            T ``(slice, row, column)`` of some rows, those at the borders included.
        first_row
            Of the image in the volume.
        angle
            Its number.
        block
            Frames of the angle.
        parameters
            All but the volume, by name: probe and background where the image is, numbers of angles on the host.
        positions
            Of all frames of the scan, row and column in the whole image.
        wanted
            Names among "images" and `PARAMETERS`.

        Returns
        -------
        loss, count
            As from `PtychoModel.loss_and_gradient`.
        gradients
            Of "images": ∂L/∂T̄ of the shape of `image`; of the background: as it is; of the others: `Rows`, one for the
            angle, or an array where all angles have the same.
        """
        names = tuple(wanted)
        ramp = self._ramp(parameters, angle, first_row, image)
        seen, given = self.seen(image, first_row, angle, block, parameters, positions, ramp)
        inner = sorted({_INNER[name] for name in names})
        loss, count, found = self.frames.loss_and_gradient(
            given, FrameBlock(np.arange(len(block)), block.intensities), inner
        )
        gradients: dict[str, Any] = {}
        if "object" in found:
            change = _whole(found["object"], given["object"].shape)[0]
            if "ramps" in names:
                gradients["ramps"] = Rows(np.array([angle]), self._ramp_slopes(seen[0], change[0], first_row)[None])
            if "images" in names:
                if ramp is not None:
                    change[0] *= ramp.conj()
                gradients["images"] = change
        if "probe" in names:
            own = parameters["probe"].ndim == 4
            gradients["probe"] = Rows(np.array([angle]), found["probe"][None]) if own else found["probe"]
        if "shifts" in names:
            gradients["shifts"] = Rows(np.array([angle]), found["positions"].values.sum(0)[None])
        if "scale" in names:
            gradients["scale"] = Rows(np.array([angle]), found["scale"].values.sum()[None])
        if "background" in names:
            gradients["background"] = found["background"]
        return loss, count, {name: gradients[name] for name in names}

    def seen(
        self,
        image: NDArray[Any],
        first_row: int,
        angle: int,
        block: FrameBlock,
        parameters: Mapping[str, Any],
        positions: NDArray[np.float64],
        ramp: NDArray[Any] | None = None,
    ) -> tuple[NDArray[Any], dict[str, Any]]:
        """The image with its ramp, and what the model of the frames takes for the frames of an angle; see `meet`."""
        xp = array_module(image)
        ramp = self._ramp(parameters, angle, first_row, image) if ramp is None else ramp
        seen = image if ramp is None else xp.concatenate([image[:1] * ramp, image[1:]])
        places = positions[block.indices] - (first_row, 0)
        if "shifts" in parameters:
            places = places + np.asarray(parameters["shifts"][angle])
        probe = parameters["probe"]
        given = {"object": seen[None], "probe": probe[angle] if probe.ndim == 4 else probe, "positions": places}
        if "scale" in parameters:
            given["scale"] = xp.full(len(block), parameters["scale"][angle], parameters["scale"].dtype)
        if "background" in parameters:
            given["background"] = parameters["background"]
        return seen, given

    def _ramp(self, parameters: Mapping[str, Any], angle: int, first_row: int, image: NDArray[Any]) -> Any:
        """exp(i(a (row - middle) + b (column - middle))) of an angle, or None."""
        if "ramps" not in parameters:
            return None
        xp = array_module(image)
        down, across = (float(part) for part in parameters["ramps"][angle])
        rows, columns = self._places(first_row, image.shape[-2], xp)
        return xp.exp(1j * (down * rows[:, None] + across * columns)).astype(image.dtype)

    def _ramp_slopes(self, seen: NDArray[Any], change: NDArray[Any], first_row: int) -> NDArray[np.float64]:
        """What the loss changes by with a ramp: 2 Re Σ conj(∂L/∂T̄) i (row - middle) T, and so for columns."""
        part = -2 * (change.real * seen.imag - change.imag * seen.real).astype(np.float64)
        rows, columns = self._places(first_row, seen.shape[0], array_module(seen))
        return np.array([float((part.sum(1) * rows).sum()), float((part.sum(0) * columns).sum())])

    def _places(self, first_row: int, count: int, xp: Any) -> tuple[Any, Any]:
        """Of pixels, from the middle of the whole image."""
        rows, columns = self.image_shape
        return first_row + xp.arange(count) - (rows - 1) / 2, xp.arange(columns) - (columns - 1) / 2


_INNER = {"images": "object", "ramps": "object", "probe": "probe", "shifts": "positions", "scale": "scale"}
_INNER["background"] = "background"


def _exponential(image: NDArray[Any]) -> None:
    image *= 1j
    np.exp(image, out=image)


def _by_exponent(found: NDArray[Any], image: NDArray[Any], derivative: NDArray[Any]) -> None:
    np.conj(image, out=found)
    found *= -1j
    found *= derivative


def _whole(window: Window, shape: tuple[int, ...]) -> NDArray[Any]:
    if window.values.shape == shape:
        return window.values
    return window.put_into(shape)
