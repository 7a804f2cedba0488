"""The way from exit waves to the pixels of the detector, and back, for the frames of a block.

Where the detector is oversampled by o, waves are o times as large as frames in rows and columns: in the far field that
is a probe with room around it and a pattern that is computed o times as finely; in the near field pixels are finer. A
pixel of the detector sees the sum over o × o of them. In the far field these lie evenly around the pixel's own
frequency, for even o too: exit waves get a ramp that moves the pattern by (o - 1)/2. As the intensities of pixels are
what counts, the o × o waves that share a pixel are handed on as so many modes.

In the near field the detector stays with the probe: a probe that was moved by a fraction of a pixel on the object's
grid gives an exit wave that has to be moved back. Distance and shifts are factors of one spectrum.
"""

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dtomo.kernels import propagation as kernels
from dtomo.kernels import shifts
from dtomo.operators.propagation import FarField, NearField

if TYPE_CHECKING:
    from dtomo.ptycho.stages import Stages


class Path:
    """Of any propagation.

    Parameters
    ----------
    stages
        For which frames and parameters.
    """

    def __init__(self, stages: "Stages") -> None:
        self._xp, self._propagation, self._fold = stages.xp, stages.model.propagation, stages.model.oversampling
        self._ramp = None
        if self._fold > 1 and isinstance(self._propagation, FarField):
            self._ramp = self._xp.asarray(_ramp(stages.probe.shape[-2:], self._fold).astype(stages.dtype))

    def forward(self, frames: slice, waves: NDArray[Any], keep: bool = False) -> NDArray[Any]:
        """Waves on the detector, ``(frame, …, row, column)``.

        Parameters
        ----------
        frames
            Which of the block.
        waves
            Exit waves ``(frame, object mode, mode, row, column)``; may be overwritten.
        keep
            `adjoint` will be asked for slopes.
        """
        if self._ramp is not None:
            waves *= self._ramp
        return _apart(self._propagated(frames, waves, keep), self._fold)

    def adjoint(
        self, frames: slice, far: NDArray[Any], shape: tuple[int, ...], slopes: NDArray[np.float64] | None = None
    ) -> NDArray[Any]:
        """The adjoint of `forward`.

        Parameters
        ----------
        frames
            Which of the block.
        far
            As `forward` gave them; overwritten.
        shape
            Of the exit waves, but for the frames.
        slopes
            Is set to what the loss changes by with distance and shifts back ``(frame, 3)``; see `slopes`.
        """
        waves = self._returned(frames, _together(far, shape, self._fold), slopes)
        if self._ramp is not None:
            waves *= np.conj(self._ramp)
        return waves

    def slopes(self, frames: slice, waves: NDArray[Any], changes: NDArray[Any], out: NDArray[np.float64]) -> None:
        """dL/d(distance), and by the shift back of each frame in rows and columns, from exit waves and ∂L/∂ψ̄.

        In the far field 0: the detector sees neither.
        """
        out[frames] = 0

    def _propagated(self, frames: slice, waves: NDArray[Any], keep: bool) -> NDArray[Any]:
        return self._propagation.forward(waves, overwrite=True)

    def _returned(self, frames: slice, waves: NDArray[Any], slopes: NDArray[np.float64] | None) -> NDArray[Any]:
        return self._propagation.adjoint(waves, overwrite=True)


class NearPath(Path):
    """Of a near field."""

    def __init__(self, stages: "Stages") -> None:
        super().__init__(stages)
        field = stages.model.propagation
        assert isinstance(field, NearField)
        if "distance" in stages.parameters:
            field = field.at(float(stages.parameters["distance"]))
        self._function = field.transfer(self._xp, stages.dtype)
        self._wavenumbers = field.wavenumbers
        self._phases: tuple[NDArray[Any], ...] = ()
        if stages.shifted:
            back = -self._xp.asarray(stages.places.fractions)
            sizes = enumerate(stages.probe.shape[-2:])
            self._phases = tuple(shifts.phases(back[:, axis], size, stages.dtype) for axis, size in sizes)
        self._kept: dict[int, NDArray[Any]] = {}

    def slopes(self, frames: slice, waves: NDArray[Any], changes: NDArray[Any], out: NDArray[np.float64]) -> None:
        """See `Path`; phases of unit length cancel, evanescent waves stay out."""
        spectra = []
        for array in (waves, changes):
            spectrum = kernels.fourier(array, self._xp, inverse=False, overwrite=False)
            kernels.turn(spectrum, self._function)
            spectra.append(spectrum)
        kernels.slopes(spectra[0], spectra[1], self._wavenumbers, out[frames])

    def _propagated(self, frames: slice, waves: NDArray[Any], keep: bool) -> NDArray[Any]:
        spectra = kernels.fourier(waves, self._xp, inverse=False)
        kernels.turn(spectra, self._function, *self._of(frames))
        if keep:
            self._kept[frames.start] = spectra.copy()
        return kernels.fourier(spectra, self._xp, inverse=True)

    def _returned(self, frames: slice, waves: NDArray[Any], slopes: NDArray[np.float64] | None) -> NDArray[Any]:
        changes = kernels.fourier(waves, self._xp, inverse=False)
        if slopes is not None:
            kernels.slopes(self._kept.pop(frames.start), changes, self._wavenumbers, slopes[frames])
        kernels.turn(changes, self._function, *self._of(frames), adjoint=True)
        return kernels.fourier(changes, self._xp, inverse=True)

    def _of(self, frames: slice) -> tuple[NDArray[Any], ...]:
        return tuple(phases[frames] for phases in self._phases)


def path_of(stages: "Stages") -> Path:
    """The way that a model's waves take."""
    return NearPath(stages) if isinstance(stages.model.propagation, NearField) else Path(stages)


def _ramp(shape: tuple[int, ...], fold: int) -> NDArray[np.complex128]:
    """Moves a far field up by half of fold - 1 pixels in rows and columns."""
    rows, columns = (np.exp(1j * np.pi * (fold - 1) * np.arange(size) / size) for size in shape)
    return np.asarray(rows[:, None] * columns)


def _apart(waves: NDArray[Any], fold: int) -> NDArray[Any]:
    """Waves that share a pixel as modes: ``(frame, …, fold row, fold column)`` to ``(frame, mode, row, column)``."""
    if fold == 1:
        return waves
    frames, (rows, columns) = len(waves), waves.shape[-2:]
    cut = waves.reshape(frames, -1, rows // fold, fold, columns // fold, fold).transpose(0, 1, 3, 5, 2, 4)
    return cut.reshape(frames, -1, rows // fold, columns // fold)


def _together(far: NDArray[Any], shape: tuple[int, ...], fold: int) -> NDArray[Any]:
    """The inverse of `_apart`; `shape` of the waves but for the frames."""
    if fold == 1:
        return far
    frames, (rows, columns) = len(far), far.shape[-2:]
    cut = far.reshape(frames, -1, fold, fold, rows, columns).transpose(0, 1, 4, 2, 5, 3)
    return cut.reshape(frames, *shape)
