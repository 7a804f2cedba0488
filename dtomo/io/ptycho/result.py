"""What a ptychographic reconstruction gives, as a value: what is written, drawn and handed to the caller."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtomo.algorithms.resolution import FourierCorrelation
from dtomo.errors import UserError


@dataclasses.dataclass(frozen=True, eq=False)
class PtychoResult:
    """Object, probe and all else that was reconstructed, on the host.

    Names, shapes and units are those of the parameters of `dtomo.ptycho.model.PtychoModel`; what a run did not
    reconstruct is None.

    Attributes
    ----------
    object
        ``(mode, slice, row, column)`` complex: transmission T, or u with T = exp(i u) if `exponential`.
    probe
        ``(mode, row, column)`` complex; its square is in counts per frame.
    positions, start_positions
        Row and column of the object pixel under pixel [0, 0] of the probe, float64 ``(frame, 2)``: refined, and as the
        run began.
    history
        Loss of each epoch per unit of its count, float64 ``(epoch,)``.
    loss
        Name of the loss.
    exponential
        What `object` is.
    near_field
        Whether frames are images: then they, and the background, have no frequency zero to be put anywhere.
    background
        ``(row, column)`` real, model order (frequency zero at [0, 0]); its square is added to the intensities.
    scale
        ``(frame,)`` real: amplitude of the probe at each frame.
    variable_probe, probe_weights
        ``(rank, mode, row, column)`` and ``(frame, rank)`` complex: the probe of frame j is P + Σ w_jk V_k.
    distance
        Of propagation, metres, near field.
    frame_error
        ``(frame,)``: what each frame adds to the loss, per pixel.
    pixel_size
        Height and width of an object pixel, metres.
    wavelength
        Metres.
    oversampling
        Pixels of the probe per pixel of the detector, along each axis.
    basis
        Metres (x, y, z) per row and per column of the object, ``(3, 2)``; default: a row is ``(0, -height, 0)``, a
        column ``(-width, 0, 0)``.
    origin
        Row and column of pixel [0, 0] of the object, in pixels of the scan: see `translations`.
    frc
        Correlation of two half-scans.
    settings
        Of the run: text, numbers, lists and mappings.

    Raises
    ------
    UserError
        Shapes that do not fit.
    """

    object: NDArray[Any]
    probe: NDArray[Any]
    positions: NDArray[np.float64]
    start_positions: NDArray[np.float64] | None = None
    history: NDArray[np.float64] = dataclasses.field(default_factory=lambda: np.zeros(0))
    loss: str = "amplitude"
    exponential: bool = False
    near_field: bool = False
    background: NDArray[Any] | None = None
    scale: NDArray[Any] | None = None
    variable_probe: NDArray[Any] | None = None
    probe_weights: NDArray[Any] | None = None
    distance: float | None = None
    frame_error: NDArray[Any] | None = None
    pixel_size: tuple[float, float] | None = None
    wavelength: float | None = None
    oversampling: int = 1
    basis: NDArray[np.float64] | None = None
    origin: tuple[float, float] = (0.0, 0.0)
    frc: FourierCorrelation | None = None
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        frames, shape = len(self.positions), tuple(size // self.oversampling for size in self.probe.shape[-2:])
        for name, array, wanted in (
            ("object", self.object, (None,) * 4),
            ("probe", self.probe, (None,) * 3),
            ("positions", self.positions, (frames, 2)),
            ("start_positions", self.start_positions, (frames, 2)),
            ("history", self.history, (None,)),
            ("background", self.background, shape),
            ("scale", self.scale, (frames,)),
            ("variable_probe", self.variable_probe, (None, *self.probe.shape)),
            ("probe_weights", self.probe_weights, (frames, None)),
            ("frame_error", self.frame_error, (frames,)),
            ("basis", self.basis, (3, 2)),
        ):
            if array is not None and not _fits(array.shape, wanted):
                text = ", ".join("any" if size is None else str(size) for size in wanted)
                raise UserError(f"the {name} of a result has shape {array.shape}; ({text}) was expected")

    @property
    def transmission(self) -> NDArray[Any]:
        """T ``(mode, slice, row, column)``."""
        return np.exp(1j * self.object).astype(self.object.dtype, copy=False) if self.exponential else self.object

    def translations(self, positions: NDArray[np.float64] | None = None) -> NDArray[np.float64]:
        """Motion of the probe (x, y, z), metres, ``(frame, 3)``: basis @ (positions + origin); pixels if unknown.

        Parameters
        ----------
        positions
            Row and column ``(frame, 2)``; default: the refined ones.
        """
        places = self.positions if positions is None else positions
        return np.asarray((places + np.asarray(self.origin)) @ self.metres.T, np.float64)

    @property
    def metres(self) -> NDArray[np.float64]:
        """`basis`, or what it is by default; of pixels of size 1 if nothing is known of them."""
        if self.basis is not None:
            return np.asarray(self.basis, np.float64)
        height, width = self.pixel_size or (1.0, 1.0)
        return np.array([[0.0, -width], [-height, 0.0], [0.0, 0.0]])

    @property
    def mode_powers(self) -> NDArray[np.float64]:
        """Part of the probe's power in each of its modes, ``(mode,)``; zeros for a probe without any."""
        power = (np.abs(self.probe.astype(np.complex128)) ** 2).sum((-2, -1))
        return power / total if (total := power.sum()) > 0 else power


def _fits(shape: tuple[int, ...], wanted: tuple[int | None, ...]) -> bool:
    return len(shape) == len(wanted) and all(size in (None, have) for have, size in zip(shape, wanted))
