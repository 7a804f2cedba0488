"""From an exit wave to a detector: far field, and near field by the angular spectrum.

Values that are cheap to make and to send; they act on waves ``(…, row, column)``, complex64 or complex128, on the host
or a device. Unlike a `LinearOperator` they take any number of waves at once.
"""

import dataclasses
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtomo.arrays import array_module
from dtomo.errors import UserError
from dtomo.kernels import propagation as kernels


@dataclasses.dataclass(frozen=True)
class FarField:
    """The detector sees the unitary Fourier transform, frequency zero at [0, 0]."""

    def forward(self, waves: NDArray[Any], overwrite: bool = False) -> NDArray[Any]:
        """Waves on the detector; `overwrite`: the memory of `waves` may be used."""
        return kernels.fourier(waves, array_module(waves), inverse=False, overwrite=overwrite)

    def adjoint(self, waves: NDArray[Any], overwrite: bool = False) -> NDArray[Any]:
        """The adjoint of `forward`, which is its inverse."""
        return kernels.fourier(waves, array_module(waves), inverse=True, overwrite=overwrite)


@dataclasses.dataclass(frozen=True)
class NearField:
    """The detector sees the wave a distance on, pixel by pixel, with periodic borders.

    See `dtomo.kernels.propagation` for the method. A spherical wave from a point is as a plane one over a shorter
    distance: see `magnified`.

    Attributes
    ----------
    shape
        Rows and columns of the waves.
    pixel_size
        Height and width of a pixel in metres, at the scale of the exit wave.
    wavelength
        Metres.
    distance
        Metres from the exit wave to the detector; negative: backwards.
    paraxial
        To second order in the angle.

    Raises
    ------
    UserError
        A size or wavelength that is not positive, a distance that is not finite.
    """

    shape: tuple[int, int]
    pixel_size: tuple[float, float]
    wavelength: float
    distance: float
    paraxial: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", tuple(int(size) for size in self.shape))
        object.__setattr__(self, "pixel_size", tuple(float(size) for size in self.pixel_size))
        sizes = (*self.shape, *self.pixel_size, self.wavelength)
        if not (np.isfinite(sizes).all() and min(sizes) > 0):
            raise UserError(
                f"shape, pixel size and wavelength of a near field are positive; got {self.shape}, {self.pixel_size} m "
                f"and {self.wavelength} m"
            )
        if not np.isfinite(self.distance):
            raise UserError(f"the distance of a near field is a number of metres; got {self.distance}")

    @classmethod
    def magnified(
        cls,
        shape: tuple[int, int],
        detector_pixel: tuple[float, float],
        wavelength: float,
        source_distance: float,
        detector_distance: float,
        paraxial: bool = False,
    ) -> "NearField":
        """The near field of a point source, by the Fresnel scaling theorem.

        With M = (z₁ + z₂)/z₁ it is that of a plane wave over z₂/M, with pixels of the detector's size / M.

        Parameters
        ----------
        shape
            Rows and columns.
        detector_pixel
            Height and width of a pixel of the detector, metres.
        wavelength
            Metres.
        source_distance, detector_distance
            z₁ from the source to the sample, z₂ from the sample to the detector, metres.
        paraxial
            To second order in the angle.

        Raises
        ------
        UserError
            Distances that are not positive.
        """
        if not (source_distance > 0 and detector_distance > 0):
            raise UserError(
                f"distances from source to sample and on to the detector are positive; got {source_distance} and "
                f"{detector_distance} m"
            )
        factor = (source_distance + detector_distance) / source_distance
        pixel = detector_pixel[0] / factor, detector_pixel[1] / factor
        return cls(shape, pixel, wavelength, detector_distance / factor, paraxial)

    @property
    def reach(self) -> float:
        """Distance in metres up to which the transfer function is sampled finely enough: the least N p²/λ."""
        axes = [count * size**2 for count, size in zip(self.shape, self.pixel_size) if count > 1]
        return min(axes, default=np.inf) / self.wavelength

    @property
    def doubt(self) -> str | None:
        """A sentence for the user where the distance is beyond `reach`; None: nothing is to be said."""
        if abs(self.distance) <= self.reach:
            return None
        return (
            f"a near field of {self.shape[0]} x {self.shape[1]} pixels of {self.pixel_size[0]:.4g} x "
            f"{self.pixel_size[1]:.4g} m is sampled finely enough up to {self.reach:.4g} m but the distance is "
            f"{abs(self.distance):.4g} m: waves wrap around the borders; take larger frames or a shorter distance"
        )

    def at(self, distance: float) -> "NearField":
        """The same over another distance."""
        return dataclasses.replace(self, distance=float(distance))

    @property
    def wavenumbers(self) -> NDArray[np.float64]:
        """Derivative of the transfer function's phase by the distance ``(row, column)``, read-only; on the host."""
        return _wavenumbers(self.shape, self.pixel_size, self.wavelength, self.paraxial)

    def transfer(self, xp: Any, dtype: Any) -> NDArray[Any]:
        """What spectra are multiplied by ``(row, column)``, frequency zero at [0, 0]; not to be written to.

        Parameters
        ----------
        xp
            Where it is wanted: NumPy or CuPy.
        dtype
            complex64 or complex128.
        """
        return _transfer(self, 0 if xp is np else xp.cuda.Device().id + 1, np.dtype(dtype))

    def forward(self, waves: NDArray[Any], overwrite: bool = False) -> NDArray[Any]:
        """Waves on the detector; `overwrite`: the memory of `waves` may be used.

        Raises
        ------
        UserError
            Waves of another shape.
        """
        return self._through(waves, False, overwrite)

    def adjoint(self, waves: NDArray[Any], overwrite: bool = False) -> NDArray[Any]:
        """The adjoint of `forward`, which is its inverse but for evanescent waves; raises as it does."""
        return self._through(waves, True, overwrite)

    def distance_gradient(self, waves: NDArray[Any], changes: NDArray[Any]) -> float:
        """Derivative of a loss by the distance, in 1/m.

        Parameters
        ----------
        waves
            What `forward` was given.
        changes
            ∂L/∂Q̄ for what it gave, Q.
        """
        xp = array_module(waves, changes)
        spectra = [
            xp.ascontiguousarray(kernels.fourier(array, xp, inverse=False, overwrite=False)).reshape(-1, *self.shape)
            for array in (waves, changes)
        ]
        kernels.turn(spectra[0], self.transfer(xp, spectra[0].dtype))
        found = xp.zeros((len(spectra[0]), 3), np.float64)
        kernels.slopes(spectra[0], spectra[1], self.wavenumbers, found)
        return float(found[:, 0].sum())

    def _through(self, waves: NDArray[Any], adjoint: bool, overwrite: bool) -> NDArray[Any]:
        if waves.shape[-2:] != tuple(self.shape):
            raise UserError(f"the near field is of waves of {tuple(self.shape)} pixels; got {waves.shape[-2:]}")
        xp = array_module(waves)
        spectra = xp.ascontiguousarray(kernels.fourier(waves, xp, inverse=False, overwrite=overwrite))
        stack = spectra.reshape(-1, *self.shape)
        kernels.turn(stack, self.transfer(xp, spectra.dtype), adjoint=adjoint)
        return kernels.fourier(spectra, xp, inverse=True)


@lru_cache(maxsize=16)
def _wavenumbers(
    shape: tuple[int, int], pixel_size: tuple[float, float], wavelength: float, paraxial: bool
) -> NDArray[np.float64]:
    found = kernels.wavenumbers(shape, pixel_size, wavelength, paraxial)
    found.flags.writeable = False
    return found


@lru_cache(maxsize=16)
def _transfer(field: NearField, device: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    found = kernels.transfer(field.wavenumbers, field.distance, dtype)
    if device:
        import cupy

        on_it: NDArray[Any] = cupy.asarray(found)
        return on_it
    found.flags.writeable = False
    return found
