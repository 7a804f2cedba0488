"""Whether a sample is thin enough for one projection, and slices for those that are not.

A wave that goes through a sample of thickness t may be taken as one projection while t ≲ 5.2 δr² / λ, with δr the
resolution aimed at (E. H. R. Tsai et al., Optics Express 24 (2016) 29089).
"""

import math
from typing import TYPE_CHECKING, Any

from dtomo.errors import UserError
from dtomo.operators.propagation import NearField

if TYPE_CHECKING:
    from dtomo.ptychotomo.setup import JointData

DEPTH = 5.2


def depth_of_focus(resolution: float, wavelength: float) -> float:
    """Thickness that one projection is right for, metres.

    Parameters
    ----------
    resolution, wavelength
        Metres.
    """
    if not (resolution > 0 and wavelength > 0):
        raise UserError(f"resolution and wavelength are above 0 m; got {resolution} and {wavelength}")
    return DEPTH * resolution**2 / wavelength


def slices_needed(thickness: float, resolution: float, wavelength: float) -> int:
    """How many slices a sample of this thickness takes."""
    return max(1, math.ceil(thickness / depth_of_focus(resolution, wavelength) - 1e-9))


def thickness_sentence(data: "JointData", slices: int | None) -> str | None:
    """What to say where one projection, or so many slices, may not do; None: they do."""
    pixel, wavelength = data.frames.pixel_size, data.frames.wavelength
    if pixel is None or wavelength is None:
        return None
    thickness = data.image_shape[1] * pixel[1]
    needed = slices_needed(thickness, pixel[1], wavelength)
    if needed <= (slices or 1):
        return None
    focus = depth_of_focus(pixel[1], wavelength)
    return (
        f"a volume {thickness * 1e6:.3g} µm thick is more than the depth of focus at the size of a voxel, "
        f"{focus * 1e6:.3g} µm; for that resolution take --slices {needed}, or see whether less will do"
    )


def sections(data: "JointData", slices: int) -> tuple[tuple[NearField, ...], Any]:
    """Free space between the slices, and the projector that keeps their depths apart.

    Raises
    ------
    UserError
        A scan that does not say its lengths.
    """
    from dtomo.operators.sections import SectionsProjector

    pixel, wavelength = data.frames.pixel_size, data.frames.wavelength
    if pixel is None or wavelength is None:
        raise UserError(
            "slices take the wavelength and the size of a voxel; give --energy, --distance and --pixel-size"
        )
    thickness = data.image_shape[1] / slices
    field = NearField(data.frames.frame_shape, pixel, wavelength, thickness * pixel[1])
    return (field,) * (slices - 1), SectionsProjector(data.geometry, slices, thickness)
