"""The model of ptychography: from object and probe to intensities, and from counts to gradients.

Parameters are a dict of arrays:

- ``object`` (object mode, slice, row, column), complex: transmission T, or u with T = exp(iu) if `exponential`;
- ``probe`` (mode, row, column), complex, in the object's pixels;
- ``variable_probe`` (rank, mode, row, column) and ``probe_weights`` (frame, rank), complex: the probe of frame j is
  P + Σ w_jk V_k (OPR: M. Odstrcil et al., Optics Express 24 (2016) 8360);
- ``background`` (row, column), real, model order: its square is added to the intensities;
- ``scale`` (frame,), real: amplitude of the probe at a frame;
- ``positions`` (frame, 2), float64: row and column of the object pixel under pixel [0, 0] of the probe;
- ``distance`` (), float64: metres of a near field, in place of its own.

Of these, object, probe and positions must be there. Every mode of the object meets every mode of the probe, and their
intensities add up (P. Thibault and A. Menzel, Nature 494 (2013) 68). Gradients are ∂L/∂z̄ for complex parameters and
dL/dx for real ones, sums over frames (see `dtomo.kernels.detection` for the losses).
"""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dtomo.arrays import array_module, empty_aligned
from dtomo.errors import UserError
from dtomo.kernels import detection, patches
from dtomo.operators.propagation import FarField, NearField
from dtomo.ptycho.frames import FrameBlock
from dtomo.ptycho.stages import Stages, Sums
from dtomo.ptycho.views import Views, object_shape
from dtomo.windows import Window

__all__ = ["FarField", "NearField", "Propagation", "PtychoModel", "Views", "object_shape"]


class Propagation(Protocol):
    """How exit waves ``(…, row, column)`` come to the detector; `overwrite`: both ways may use the waves' memory."""

    def forward(self, waves: NDArray[Any], overwrite: bool = False) -> NDArray[Any]:
        """Waves on the detector, in model order."""

    def adjoint(self, waves: NDArray[Any], overwrite: bool = False) -> NDArray[Any]:
        """The adjoint of `forward`."""


@dataclasses.dataclass(frozen=True, eq=False)
class PtychoModel:
    """What is known of a scan beside parameters and frames; a value.

    Attributes
    ----------
    frame_shape
        Rows and columns of a frame.
    loss
        "amplitude", "intensity" or "poisson"; see `dtomo.kernels.detection`.
    mask
        bool ``(row, column)`` in model order, True = good; None: all are.
    saturation
        Counts from which on a pixel is only required to have at least as many; None: no pixel is saturated.
    subpixel
        The probe is shifted by the fraction of the position that whole pixels leave; False: nearest pixel.
    propagation
        To the detector.
    exponential
        The object is u, its transmission exp(iu).
    oversampling
        The probe is so many times as large as a frame in rows and columns: in the far field it has room around it, in
        the near field its pixels are finer. A pixel of the detector sees a sum of intensities (`dtomo.ptycho.paths`).
    between
        Free space from each slice of the object to the next: one less than slices (`dtomo.ptycho.slices`).

    Raises
    ------
    UserError
        An unknown loss, a mask of another shape or dtype, a saturation that is not positive, an oversampling below 1,
        free space for waves of another shape.
    """

    frame_shape: tuple[int, int]
    loss: str = "amplitude"
    mask: NDArray[np.bool_] | None = None
    saturation: float | None = None
    subpixel: bool = True
    propagation: Propagation = dataclasses.field(default_factory=FarField)
    exponential: bool = False
    oversampling: int = 1
    between: tuple[NearField, ...] = ()

    def __post_init__(self) -> None:
        if self.loss not in detection.LOSSES:
            raise UserError(f"the loss is one of {', '.join(detection.LOSSES)}; got {self.loss!r}")
        if self.mask is not None and (self.mask.shape != tuple(self.frame_shape) or self.mask.dtype != bool):
            raise UserError(
                f"the mask is bool (True = good) of the shape of a frame, {tuple(self.frame_shape)}; got "
                f"{self.mask.dtype} {self.mask.shape}"
            )
        if self.saturation is not None and not self.saturation > 0:
            raise UserError(f"the saturation is a positive number of counts; got {self.saturation}")
        if self.oversampling != int(self.oversampling) or self.oversampling < 1:
            raise UserError(f"the oversampling of the detector is a whole number from 1; got {self.oversampling}")
        for field in (self.propagation, *self.between):
            if isinstance(field, NearField) and field.shape != self.probe_shape:
                raise UserError(
                    f"near fields and slices are of the probe's {self.probe_shape} pixels; got {field.shape}"
                )

    def check(self, parameters: Mapping[str, Any], *, inside: bool = True) -> None:
        """Refuse parameters that do not fit the model or one another; called once before a run.

        Parameters
        ----------
        parameters
            First guesses.
        inside
            Refuse positions whose frames reach beyond the object, too (the model moves such frames to its border).

        Raises
        ------
        UserError
            Parameters are missing, or have other shapes or dtypes than they should.
        """
        from dtomo.ptycho.checks import check_parameters

        near = isinstance(self.propagation, NearField)
        check_parameters(
            self.frame_shape, self.probe_shape, len(self.between) + 1, parameters, near_field=near, inside=inside
        )

    def loss_and_gradient(
        self,
        parameters: Mapping[str, Any],
        block: FrameBlock,
        wanted: Iterable[str] = ("object", "probe"),
        *,
        keep: dict[str, Any] | None = None,
    ) -> tuple[float, int, dict[str, Any]]:
        """Loss of a block, how many pixels of it count, and gradients by name.

        Parameters
        ----------
        parameters
            Arrays by name.
        block
            Frames.
        wanted
            Names of the parameters whose gradients are computed.
        keep
            Receives what a second pass needs: χ as "waves", "probes" and "corners", as in `residual` and `Views`.

        Returns
        -------
        loss
            Sum over all good pixels, in float64.
        count
            Number of these.
        gradients
            Sums over the frames: the object's as a `Window`, those per frame as `Rows`.

        Raises
        ------
        UserError
            A gradient of what is not there, or of positions without sub-pixel shifts.
        """
        names = tuple(wanted)
        stages = self._stages(parameters, block.indices, names)
        sums = Sums.of(stages, names)
        kept = {} if keep is None else keep
        if keep is not None:
            kept |= stages.room()

        def work(frames: slice) -> float:
            slot = frames.start // stages.group if stages.xp is np else 0
            probes = stages.probes(frames)
            far = stages.far(frames, stages.waves(frames, probes, keep=bool(kept) or sums.waves), sums)
            derivative = None if sums.derivative is None else sums.derivative[slot]
            loss = stages.detect(far, block.intensities[frames], derivative)
            if kept or sums.waves:
                changes = stages.near(frames, far, sums)
                if kept:
                    kept["waves"][frames] = changes
                    if stages.mixture is not None:
                        kept["probes"][frames] = probes
                stages.back(frames, probes, changes, sums, slot)
            return loss

        loss = sum(stages.groups(work))
        return loss, self.pixels * len(block), sums.gradients(stages)

    @property
    def probe_shape(self) -> tuple[int, int]:
        """Rows and columns of the probe."""
        rows, columns = self.frame_shape
        return self.oversampling * rows, self.oversampling * columns

    @property
    def pixels(self) -> int:
        """Pixels of a frame that count."""
        rows, columns = self.frame_shape
        return rows * columns if self.mask is None else int(self.mask.sum())

    def intensities(self, parameters: Mapping[str, Any], indices: NDArray[np.int64]) -> NDArray[Any]:
        """What the detector sees, ``(frame, row, column)`` in model order.

        Parameters
        ----------
        parameters
            Arrays by name.
        indices
            Numbers of the frames, int64.
        """
        stages = self._stages(parameters, indices)
        out = empty_aligned((len(indices), *self.frame_shape), stages.real, stages.xp)

        def work(frames: slice) -> None:
            far = stages.far(frames, stages.waves(frames, stages.probes(frames)))
            out[frames] = detection.intensities(far, stages.detector.background)

        stages.groups(work)
        return out

    def views(self, parameters: Mapping[str, Any], indices: NDArray[np.int64]) -> Views:
        """What some frames see: their probes, patches of the object, exit waves.

        Parameters
        ----------
        parameters, indices
            As in `intensities`.
        """
        stages = self._stages(parameters, indices)
        waves, probes, _ = stages.room().values()

        def work(frames: slice) -> None:
            own = stages.probes(frames)
            if stages.mixture is not None:
                probes[frames] = own
            waves[frames] = stages.waves(frames, own)

        stages.groups(work)
        return Views(indices, stages.places, probes, stages.patches(), waves)

    def residual(
        self, parameters: Mapping[str, Any], views: Views, block: FrameBlock, waves: NDArray[Any] | None = None
    ) -> tuple[float, int, NDArray[Any]]:
        """Loss, count, and χ = F⁻¹(w Q), the loss's derivative by the conjugate of the exit waves.

        With the amplitude loss ψ - χ has the measured modulus (the background counts as one more mode), and the one it
        had where the mask is False.

        Parameters
        ----------
        parameters
            Arrays by name.
        views
            From `views`, of the block's frames.
        block
            Frames.
        waves
            Other exit waves than those of the views, of the same shape.

        Returns
        -------
        loss, count
            As in `loss_and_gradient`.
        changes
            χ ``(frame, object mode, mode, row, column)``.
        """
        stages = self._stages(parameters, block.indices)
        psi = views.waves if waves is None else waves
        changes = empty_aligned(psi.shape, psi.dtype, stages.xp)

        def work(frames: slice) -> float:
            part = changes[frames]
            part[...] = psi[frames]
            far = stages.far(frames, part)
            loss = stages.detect(far, block.intensities[frames])
            part[...] = stages.near(frames, far)
            return loss

        loss = sum(stages.groups(work))
        return loss, self.pixels * len(block), changes

    def adjoint(
        self, parameters: Mapping[str, Any], views: Views, changes: NDArray[Any], wanted: Iterable[str]
    ) -> dict[str, Any]:
        """Gradients by name from derivatives χ by the exit waves' conjugates, as `loss_and_gradient` gives them.

        Parameters
        ----------
        parameters, views
            As in `residual`.
        changes
            χ, of the shape of the exit waves.
        wanted
            Names of parameters; no background.
        """
        names = tuple(wanted)
        if "background" in names:
            raise UserError("exit waves know no background; its gradient comes from loss_and_gradient")
        stages = self._stages(parameters, views.indices, names)
        sums = Sums.of(stages, names)

        def work(frames: slice) -> None:
            own = views.probes if len(views.probes) == 1 else views.probes[frames]
            slot = frames.start // stages.group if stages.xp is np else 0
            if sums.slopes is not None:
                stages.path.slopes(frames, views.waves[frames], changes[frames], sums.slopes)
            stages.back(frames, own, changes[frames].copy(), sums, slot)

        stages.groups(work)
        return sums.gradients(stages)

    def illumination(self, parameters: Mapping[str, Any], views: Views) -> Window:
        """Σ over frames and modes of |P|², on the object; real ``(row, column)``."""
        power = _power(views.probes).sum(1)
        xp = array_module(power)
        every = power if len(power) == len(views) else xp.broadcast_to(power, (len(views), *power.shape[1:]))
        return Window(patches.add(every, views.places.cover(xp)), views.places.origin)

    def coverage(self, parameters: Mapping[str, Any], views: Views) -> NDArray[Any]:
        """Σ over frames and object modes of |O|² in the probe's pixels; real ``(row, column)``. Of the first slice."""
        return _power(views.patches[:, :, 0]).sum((0, 1))

    def _stages(
        self, parameters: Mapping[str, Any], indices: NDArray[np.int64], wanted: tuple[str, ...] = ()
    ) -> Stages:
        return Stages(self, dict(parameters), np.asarray(indices), wanted)


def _power(array: NDArray[Any]) -> NDArray[Any]:
    return array.real**2 + array.imag**2
