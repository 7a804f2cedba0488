"""What lies between probe, slices and detector, from a scan's lengths and settings; room for an oversampled probe."""

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dtomo.errors import UserError
from dtomo.operators.propagation import FarField, NearField
from dtomo.settings import PtychoSettings

if TYPE_CHECKING:
    from dtomo.ptycho.setup import Data


def probe_shape(data: "Data", settings: PtychoSettings) -> tuple[int, int]:
    """Rows and columns of the probe."""
    rows, columns = data.frame_shape
    return settings.oversampling * rows, settings.oversampling * columns


def propagation_of(data: "Data", settings: PtychoSettings) -> FarField | NearField:
    """From the exit wave to the detector.

    Raises
    ------
    UserError
        A near field whose lengths are not known, or whose detector is to be oversampled.
    """
    if not data.near_field:
        return FarField()
    if settings.oversampling > 1:
        raise UserError("--oversampling is for far fields; leave it out where frames are images of a near field")
    if data.distance is None:
        raise UserError("a near field takes the distance from sample to detector: give --distance in mm")
    return _free_space(data, settings, data.distance, "a near field")


def between_of(data: "Data", settings: PtychoSettings) -> tuple[NearField, ...]:
    """Free space from each slice of the object to the next.

    Raises
    ------
    UserError
        Several slices of a scan whose lengths are not known.
    """
    if settings.slices == 1:
        return ()
    assert settings.slice_distance is not None
    field = _free_space(data, settings, settings.slice_distance * 1e-6, "--slices")
    return (field,) * (settings.slices - 1)


def _free_space(data: "Data", settings: PtychoSettings, distance: float, what: str) -> NearField:
    if data.pixel_size is None or data.wavelength is None:
        raise UserError(f"{what} takes the wavelength and the pixel size: give --energy, --distance and --pixel-size")
    return NearField(probe_shape(data, settings), data.pixel_size, data.wavelength, distance)


def corner_of_room(data: "Data", settings: PtychoSettings) -> tuple[int, int]:
    """Pixel of an oversampled probe where one of a frame's size begins: their middles (N // 2) are the same."""
    (rows, columns), (height, width) = data.frame_shape, probe_shape(data, settings)
    return height // 2 - rows // 2, width // 2 - columns // 2


def with_room(probe: NDArray[Any], data: "Data", settings: PtychoSettings) -> NDArray[Any]:
    """A probe ``(…, row, column)`` of a frame's size with zeros around it; one with room stays as it is."""
    shape = probe_shape(data, settings)
    if probe.shape[-2:] == shape:
        return probe
    row, column = corner_of_room(data, settings)
    rows, columns = data.frame_shape
    out = np.zeros((*probe.shape[:-2], *shape), probe.dtype)
    out[..., row : row + rows, column : column + columns] = probe
    return out


def probe_from_images(mean: NDArray[np.float64], field: NearField) -> NDArray[np.complex128]:
    """The mean image ``(row, column)`` of a near field, as if its phase were flat, brought back to the sample."""
    return np.asarray(field.adjoint(np.sqrt(mean).astype(np.complex128)))


def doubts(fields: tuple[Any, ...]) -> list[str]:
    """Sentences for the user about near fields that are not sampled finely enough; each once."""
    found = [field.doubt for field in fields if isinstance(field, NearField)]
    return list(dict.fromkeys(doubt for doubt in found if doubt))
