"""The stages of a ptychographic model for the frames of a block, forwards and backwards, a few frames at a time.

Illumination (probe of a frame) → interaction (times the object under it) → propagation → detection (intensities, loss).
A group of frames goes through all stages while it is in the cache; on a device the whole block is one group. Groups
follow from the size of a frame alone, and what they add to the probe is added up in their order.
"""

import dataclasses
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dtomo.arrays import array_module, empty_aligned, writeable_view
from dtomo.errors import UserError
from dtomo.kernels import detection, exit_waves, patches, shifts
from dtomo.kernels.propagation import fourier
from dtomo.ptycho.paths import NearPath, path_of
from dtomo.ptycho.slices import back_through, through
from dtomo.ptycho.views import Places, places
from dtomo.threads import run_blocks
from dtomo.windows import Rows, Window

if TYPE_CHECKING:
    from dtomo.ptycho.model import PtychoModel

GROUP = 2**17
"""Pixels of the waves that go through the stages together: a megabyte of complex64."""

PROBE_OF_FRAME = ("probe", "variable_probe", "probe_weights", "scale", "positions")
"""Parameters that make up the probe of a frame."""


class Stages:
    """A model at some parameters, for some frames.

    Parameters
    ----------
    model
        Of which.
    parameters
        See `dtomo.ptycho.model`.
    indices
        Numbers of the frames.
    wanted
        Names of the parameters whose gradients are to come.

    Attributes
    ----------
    places
        Where the frames lie.
    shifted
        Whether probes of frames are made from the probe's spectrum: not if all lie on whole pixels, and stay there.
    detector
        What is known of the detector.
    """

    def __init__(
        self, model: "PtychoModel", parameters: dict[str, Any], indices: NDArray[np.int64], wanted: Iterable[str] = ()
    ) -> None:
        self.model, self.parameters, self.indices = model, parameters, indices
        self.object, self.probe = parameters["object"], parameters["probe"]
        if self.object.shape[1] != len(model.between) + 1:
            raise UserError(f"the object has {self.object.shape[1]} slices; the model takes {len(model.between) + 1}")
        self.xp = array_module(self.object, self.probe)
        self.dtype = self.probe.dtype
        self.real = np.zeros(0, self.dtype).real.dtype
        shape, patch = self.object.shape[-2:], self.probe.shape[-2:]
        self.places: Places = places(self._rows_of("positions"), patch, shape, model.subpixel)
        self.shifted = model.subpixel and ("positions" in wanted or bool(self.places.fractions.any()))
        self.image, origin = self._transmission()
        self._slices = [self.xp.ascontiguousarray(self.image[:, k]) for k in range(self.image.shape[1])]
        self._incident: dict[int, list[NDArray[Any]]] = {}
        self._corners = self.xp.asarray(self.places.corners - origin)
        self.mixture = self._mixture()
        self.path = path_of(self)
        self.detector = self._detector()

    def groups(self, work: Callable[[slice], Any]) -> list[Any]:
        """Call `work` for every group of frames; results in their order."""
        count = len(self.indices)
        if self.xp is not np:
            return [work(slice(0, count))]
        return run_blocks(lambda start, stop: work(slice(start, stop)), count, self.group)

    @property
    def group(self) -> int:
        """Frames of a group."""
        modes = len(self.image) * len(self.probe)
        return max(1, GROUP // (modes * self.probe.shape[-2] * self.probe.shape[-1]))

    def probes(self, frames: slice) -> NDArray[Any]:
        """Probe of each frame ``(frame, mode, row, column)``, or one for all."""
        if self.mixture is None:
            return self.probe[None]
        mixed = shifts.mix(self.mixture.of(frames))
        return fourier(mixed, self.xp, inverse=True) if self.shifted else mixed

    def waves(self, frames: slice, probes: NDArray[Any], keep: bool = False) -> NDArray[Any]:
        """Exit waves ``(frame, object mode, mode, row, column)``; `keep`: `back` will be called."""
        incident: list[NDArray[Any]] | None = [] if keep else None
        found = through(probes, self._slices, self._corners[frames], self.model.between, incident)
        if incident:
            self._incident[frames.start] = incident
        return found

    def patches(self) -> NDArray[Any]:
        """Transmission under each frame ``(frame, object mode, slice, row, column)``."""
        if self.model.exponential:
            window = self.image
        else:
            (row, column), (rows, columns) = self.places.origin, self.places.extent
            window = self.image[..., row : row + rows, column : column + columns]
        return patches.extract(window, self.places.cover(self.xp))

    def room(self) -> dict[str, Any]:
        """For "waves" and "probes", not filled (but for a probe that all frames have); and "corners"."""
        count, shape = len(self.indices), self.probe.shape
        waves = empty_aligned((count, len(self.image), *shape), self.dtype, self.xp)
        probes = self.probe[None] if self.mixture is None else empty_aligned((count, *shape), self.dtype, self.xp)
        return {"waves": waves, "probes": probes, "corners": self.places.corners}

    def far(self, frames: slice, waves: NDArray[Any], sums: "Sums | None" = None) -> NDArray[Any]:
        """Waves on the detector; exit waves may be overwritten. `sums`: for which `near` will be called."""
        return self.path.forward(frames, waves, sums is not None and sums.slopes is not None)

    def near(self, frames: slice, far: NDArray[Any], sums: "Sums | None" = None) -> NDArray[Any]:
        """The adjoint of `far`; what the way itself changes is put into `sums`."""
        shape = len(self.image), *self.probe.shape
        return self.path.adjoint(frames, far, shape, None if sums is None else sums.slopes)

    def detect(self, far: NDArray[Any], measured: NDArray[Any], derivative: NDArray[Any] | None = None) -> float:
        """The loss; waves on the detector become derivatives by their conjugates."""
        return detection.residual(far, measured, self.detector, derivative)

    def back(self, frames: slice, probes: NDArray[Any], changes: NDArray[Any], sums: "Sums", slot: int) -> None:
        """Add what derivatives χ by the exit waves' conjugates (overwritten) give for the wanted parameters."""
        corners, image, between = self._corners[frames], self._slices[0], self.model.between
        if between:
            incident = self._incident.pop(frames.start, [])
            if not incident:
                through(probes, self._slices, corners, between, incident)
            products = None if sums.products is None else sums.products[frames]
            changes = back_through(changes, self._slices, corners, between, incident, products)
        if sums.products is not None:
            exit_waves.object_products(probes, changes, sums.products[frames, :, 0])
        if sums.mixture is None:
            return
        if self.mixture is None:
            exit_waves.probe_sum(image, corners, changes, sums.mixture.base[slot])
            return
        gradients = exit_waves.probe_products(image, corners, changes)
        if self.shifted:
            gradients = fourier(gradients, self.xp, inverse=False)
        shifts.unmix(gradients, self.mixture.of(frames), sums.slot(frames, slot))

    def _rows_of(self, name: str) -> NDArray[Any]:
        """Rows of these frames of a table that lies wherever it does."""
        table = self.parameters[name]
        rows: NDArray[Any] = table[array_module(table).asarray(self.indices)]
        return rows

    def _transmission(self) -> tuple[NDArray[Any], tuple[int, int]]:
        """T where it is needed, ``(object mode, slice, row, column)``, and the object's pixel under its first."""
        if not self.model.exponential:
            return writeable_view(self.xp.ascontiguousarray(self.object)), (0, 0)
        (row, column), (rows, columns) = self.places.origin, self.places.extent
        return np.exp(1j * self.object[..., row : row + rows, column : column + columns]), (row, column)

    def _mixture(self) -> shifts.Mixture | None:
        """What the probes of frames are made of; None: all have the same."""
        values, xp, dtype = self.parameters, self.xp, self.dtype
        if not (self.shifted or "scale" in values or "variable_probe" in values):
            return None
        base, count = self.probe, len(self.indices)
        variable, weights = xp.zeros((0, *base.shape), dtype), xp.zeros((count, 0), dtype)
        if "variable_probe" in values:
            variable, weights = values["variable_probe"], self._rows_of("probe_weights").astype(dtype)
        scale = self._rows_of("scale").astype(self.real) if "scale" in values else xp.ones(count, self.real)
        if self.shifted:
            base = fourier(xp.array(base), xp, inverse=False)
            variable = fourier(xp.array(variable), xp, inverse=False) if len(variable) else variable
        fractions = xp.asarray(self.places.fractions)
        rows, columns = (shifts.phases(fractions[:, k], base.shape[k - 2], dtype) for k in (0, 1))
        return shifts.Mixture(*map(xp.ascontiguousarray, (base, variable, weights, scale, rows, columns)))

    def _detector(self) -> detection.Detector:
        shape, xp = self.model.frame_shape, self.xp
        root = self.parameters.get("background")
        background = xp.zeros(shape, self.real) if root is None else xp.ascontiguousarray(root * root, self.real)
        good = xp.ones(shape, bool) if self.model.mask is None else xp.ascontiguousarray(xp.asarray(self.model.mask))
        saturation = np.inf if self.model.saturation is None else self.model.saturation
        return detection.Detector(self.model.loss, good, background, saturation)


@dataclasses.dataclass
class Sums:
    """Gradients of a block as they come together: a slot for each group, and a place for each frame.

    Attributes
    ----------
    wanted
        Names of parameters.
    products
        Adjoints of exit waves for the object, ``(frame, object mode, slice, row, column)``.
    mixture
        What the probes of frames are made of; sums have an axis for the slot in front.
    derivative
        Σ dL/dS of each slot.
    slopes
        Of a near field: what each frame's loss changes by with the distance, and by the shift back of its waves in rows
        and columns, float64 ``(frame, 3)``.
    """

    wanted: tuple[str, ...]
    products: NDArray[Any] | None = None
    mixture: shifts.MixtureSums | None = None
    derivative: NDArray[Any] | None = None
    slopes: NDArray[np.float64] | None = None

    @classmethod
    def of(cls, stages: Stages, wanted: Iterable[str]) -> "Sums":
        """Room for what is wanted."""
        names, xp, count = tuple(wanted), stages.xp, len(stages.indices)
        _check(names, stages)
        sums = cls(names)
        slots = 1 if xp is not np else -(-count // stages.group)
        if "object" in names:
            shape = (count, *stages.image.shape[:2], *stages.places.patch)
            sums.products = empty_aligned(shape, stages.dtype, xp)
        if set(names) & set(PROBE_OF_FRAME):
            sums.mixture = _room(stages, names, slots)
        if "background" in names:
            sums.derivative = xp.zeros((slots, *stages.model.frame_shape), stages.real)
        if "distance" in names or ("positions" in names and isinstance(stages.path, NearPath)):
            sums.slopes = xp.zeros((count, 3), np.float64)
        return sums

    @property
    def waves(self) -> bool:
        """Whether derivatives by exit waves are needed."""
        return any(part is not None for part in (self.products, self.mixture, self.slopes))

    def slot(self, frames: slice, slot: int) -> shifts.MixtureSums:
        """Room for a group."""
        assert self.mixture is not None
        base, variable, weights, tables = self.mixture
        return shifts.MixtureSums(
            base[slot] if base.size else base[0],
            variable[slot] if variable.size else variable[0],
            weights[frames] if weights.size else weights,
            tables[frames] if tables.size else tables,
        )

    def gradients(self, stages: Stages) -> dict[str, Any]:
        """Gradients by name, from the sums of all groups."""
        found: dict[str, Any] = {}
        indices, parameters, real = stages.indices, stages.parameters, stages.real
        if self.products is not None:
            one = len(indices) == 1  # its window is its patch
            values = self.products[0] if one else patches.add(self.products, stages.places.cover(stages.xp))
            if stages.model.exponential:
                values *= np.conj(1j * stages.image)
            found["object"] = Window(values, stages.places.origin)
        if self.mixture is not None:
            base, variable, weights, tables = self.mixture
            backwards = stages.shifted
            if "probe" in self.wanted:
                found["probe"] = _space(base.sum(0), stages, backwards)
            if "variable_probe" in self.wanted:
                found["variable_probe"] = _space(variable.sum(0), stages, backwards)
            if "probe_weights" in self.wanted:
                found["probe_weights"] = Rows(indices, weights.astype(stages.dtype))
            if "scale" in self.wanted:
                found["scale"] = Rows(indices, tables[:, 0].astype(parameters["scale"].dtype))
            if "positions" in self.wanted:
                back = 0 if self.slopes is None else self.slopes[:, 1:]
                found["positions"] = Rows(indices, tables[:, 1:] + back)
        if "distance" in self.wanted:
            assert self.slopes is not None
            found["distance"] = self.slopes[:, 0].sum()
        if self.derivative is not None:
            found["background"] = 2 * parameters["background"] * self.derivative.sum(0).astype(real)
        return {name: found[name] for name in self.wanted}


def _space(spectrum: NDArray[Any], stages: Stages, backwards: bool) -> NDArray[Any]:
    return fourier(spectrum, stages.xp, inverse=True) if backwards else spectrum


def _room(stages: Stages, names: tuple[str, ...], slots: int) -> shifts.MixtureSums:
    xp, dtype, count = stages.xp, stages.dtype, len(stages.indices)
    variable = stages.parameters.get("variable_probe")
    rank = 0 if variable is None else len(variable)

    def zeros(name: str, *shape: int) -> NDArray[Any]:
        return xp.zeros(shape if name in names else (1, *(0,) * (len(shape) - 1)), dtype)

    modes = stages.probe.shape
    weights = xp.zeros((count, rank) if "probe_weights" in names else (0, 0), np.complex128)
    tables = xp.zeros((count, 3) if {"scale", "positions"} & set(names) else (0, 3), np.float64)
    return shifts.MixtureSums(
        zeros("probe", slots, *modes), zeros("variable_probe", slots, rank, *modes), weights, tables
    )


def _check(names: tuple[str, ...], stages: Stages) -> None:
    missing = [name for name in names if name not in stages.parameters]
    if missing:
        raise UserError(f"there is no gradient of {missing[0]}: it is not among the parameters")
    if "distance" in names and not isinstance(stages.path, NearPath):
        raise UserError("there is no distance to refine in the far field")
    if "positions" in names and not stages.model.subpixel:
        raise UserError("positions are refined with sub-pixel shifts of the probe only; set subpixel")
