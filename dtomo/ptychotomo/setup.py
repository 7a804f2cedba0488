"""From a joint scan and settings to what the driver takes: model, solver, first guesses, slabs."""

import dataclasses
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtomo.errors import UserError, shown
from dtomo.geometry import ParallelBeam
from dtomo.io.sources import SelectedFrames
from dtomo.ptycho import start as first
from dtomo.ptycho.frame_store import Arrange
from dtomo.ptycho.frames import to_model_order
from dtomo.ptycho.setup import Data, as_it_is, first_probe, make_model, photons_of
from dtomo.ptychotomo.constraints import VolumeConstraints
from dtomo.ptychotomo.engines.adam import JointAdam
from dtomo.ptychotomo.engines.admm import JointADMM
from dtomo.ptychotomo.engines.conjugate import JointConjugateGradient
from dtomo.ptychotomo.engines.volume_engine import VolumeEngine
from dtomo.ptychotomo.layout import REACH, Layout, cut
from dtomo.ptychotomo.model import JointModel
from dtomo.settings import JointSettings, PtychoSettings

MOST_LOOKED_AT = 4096
"""Frames whose mean makes the first probe."""

BRIGHT = 98.0
"""Percentile of the counts of frames that is taken for those without sample."""

ENGINES: dict[str, type[VolumeEngine]] = {"adam": JointAdam, "cg": JointConjugateGradient, "admm": JointADMM}


@dataclasses.dataclass(frozen=True, eq=False)
class JointData:
    """A scan over angles in the form of the models.

    Attributes
    ----------
    frames
        As in ptychography: frames of all angles, positions ``(frame, 2)`` of pixel [0, 0] of the probe in the images,
        row and column; mask, first probe, lengths.
    angles
        Degrees ``(angle,)``.
    angle_of_frame
        Number of each frame's angle, int64 ``(frame,)``.
    image_shape
        Rows and columns of the images of all angles; the volume has as many rows, and slices of columns × columns.
    center
        Column of the axis; None: the middle.
    """

    frames: Data
    angles: NDArray[np.float64]
    angle_of_frame: NDArray[np.int64]
    image_shape: tuple[int, int]
    center: float | None = None

    def __post_init__(self) -> None:
        count = len(self.frames.positions)
        where = self.frames.source.location
        if len(self.angle_of_frame) != count:
            raise UserError(f"{where}: {count} frames take as many numbers of angles; got {len(self.angle_of_frame)}")
        if len(self.angles) < 2:
            raise UserError(f"{where}: a volume takes frames at two angles at least; there is {len(self.angles)}")
        if count and not (self.angle_of_frame.min() >= 0 and self.angle_of_frame.max() < len(self.angles)):
            raise UserError(f"{where}: angles of frames are numbers from 0 to {len(self.angles) - 1}")
        if self.center is not None and not 0 <= self.center <= self.image_shape[1] - 1:
            raise UserError(
                f"{where}: column {self.center:g} of the rotation axis lies outside of images of {self.image_shape[1]} "
                "columns; give another one (--center), or leave it out for the middle"
            )
        room = np.array(self.image_shape) - self.frames.frame_shape
        if (room < 0).any() or (self.frames.positions < -0.5).any() or (self.frames.positions > room + 0.5).any():
            raise UserError(f"{where}: positions lie outside of images of {self.image_shape} pixels")

    @property
    def wavenumber(self) -> float | None:
        """k Δ: radians per voxel for each unit of the refractive index; None if lengths are not known."""
        pixel, wavelength = self.frames.pixel_size, self.frames.wavelength
        if pixel is None or wavelength is None:
            return None
        return float(2 * np.pi / wavelength * pixel[1])

    @property
    def geometry(self) -> ParallelBeam:
        """Of images and slices."""
        return ParallelBeam(self.angles, self.image_shape[1], self.center)

    def some(self, chosen: NDArray[np.int64]) -> "JointData":
        """Only these angles, numbered anew."""
        keep = np.flatnonzero(np.isin(self.angle_of_frame, chosen))
        numbers = np.full(len(self.angles), -1)
        numbers[chosen] = np.arange(len(chosen))
        frames = dataclasses.replace(
            self.frames, source=SelectedFrames.of(self.frames.source, keep), positions=self.frames.positions[keep]
        )
        return dataclasses.replace(
            self, frames=frames, angles=self.angles[chosen], angle_of_frame=numbers[self.angle_of_frame[keep]]
        )

    def of_angle(self, angle: int) -> Data:
        """The frames of one angle."""
        keep = np.flatnonzero(self.angle_of_frame == angle)
        return dataclasses.replace(
            self.frames, source=SelectedFrames.of(self.frames.source, keep), positions=self.frames.positions[keep]
        )


@dataclasses.dataclass(frozen=True, eq=False)
class JointSetup:
    """What `dtomo.ptychotomo.driver.JointProblem` is made of.

    Attributes
    ----------
    engine
        The solver, with its model.
    parameters
        First guesses of all but the volume.
    layout
        Of slabs and frames.
    arrange
        What is done to frames as they are read.
    """

    engine: VolumeEngine
    parameters: dict[str, Any]
    layout: Layout
    arrange: Arrange = to_model_order


def prepare(
    data: JointData, settings: JointSettings, slab_rows: int | None = None, probe: NDArray[Any] | None = None
) -> JointSetup:
    """Model, solver, first guesses and slabs; reads some of the frames unless a probe is given.

    Parameters
    ----------
    data, settings
        Of the run.
    slab_rows
        Rows of a slab; None: one slab.
    probe
        First guess ``(mode, row, column)`` in counts; None: as the settings say.

    Raises
    ------
    UserError
        Settings that do not fit the data or one another.
    """
    model = joint_model(data, settings)
    layout = layout_of(data, settings, slab_rows)
    engine = make_engine(model, settings, layout)
    return JointSetup(
        engine,
        first_parameters(data, settings, probe),
        layout,
        as_it_is if data.frames.near_field else to_model_order,
    )


def joint_model(data: JointData, settings: JointSettings) -> JointModel:
    """What is known of the scan."""
    slices = settings.slices or 1
    frames = make_model(data.frames, settings.of_one_angle())
    geometry = data.geometry
    if slices == 1:
        return JointModel(frames, geometry, data.image_shape[0])
    from dtomo.ptychotomo.thickness import sections

    between, projector = sections(data, slices)
    return JointModel(dataclasses.replace(frames, between=between), geometry, data.image_shape[0], projector)


def make_engine(model: JointModel, settings: JointSettings, layout: Layout) -> VolumeEngine:
    """The solver that the settings name.

    Raises
    ------
    UserError
        Options that it does not have, or values that do not fit.
    """
    kind = ENGINES[settings.engine]
    radius = settings.support if settings.support is not None else (model.geometry.columns - 1) / 2
    constraints = VolumeConstraints(
        total_variation=settings.total_variation, signs=settings.signs, support=radius or None
    )
    start = dict.fromkeys(settings.refine, settings.refine_from) if settings.refine_from else {}
    given: dict[str, Any] = {"model": model, "refine": ("volume", *settings.refine), "start": start}
    given |= {"constraints": constraints, "reach": float(REACH)}
    if kind is JointADMM:
        given["layout"] = layout
    if settings.subsets is not None:
        given["subsets"] = settings.subsets
    elif settings.engine == "adam":
        given["subsets"] = min(JointAdam.subsets, model.angles)
    known = {field.name for field in dataclasses.fields(kind) if field.init} - set(given)
    for name in settings.options:
        if name not in known:
            raise UserError(
                f"--option: {settings.engine} has no option {shown(name)}; it has {', '.join(sorted(known))}"
            )
        if not _fits(getattr(kind, name, None), settings.options[name]):
            raise UserError(
                f"--option: {name} of {settings.engine} is not {shown(repr(settings.options[name]))}; give what is "
                f"like {getattr(kind, name, '{volume: 0.1}')}"
            )
    return kind(**given, **settings.options)


def _fits(default: Any, value: Any) -> bool:
    """Whether a value is of the kind of the default: a number that is finite, or a table of such."""
    if default is None:
        return isinstance(value, dict) and all(_fits(0.0, one) for one in value.values())
    if isinstance(value, bool) or not isinstance(value, int | float) or not np.isfinite(value):
        return False
    return isinstance(value, int) or isinstance(default, float)


def first_parameters(data: JointData, settings: JointSettings, probe: NDArray[Any] | None = None) -> dict[str, Any]:
    """First guesses of all but the volume."""
    frames, one, count = data.frames, settings.of_one_angle(), len(data.angles)
    total = frames.source.shape[0]
    some = np.unique(np.linspace(0, total - 1, min(total, MOST_LOOKED_AT)).astype(np.int64))
    pattern = None
    if probe is None or "background" in settings.refine:
        pattern = first.mean_pattern(frames.source, frames.mask, frames=some)
    if probe is None:
        assert pattern is not None
        guess = first_probe(frames, one, pattern)
        probe = first.probe_modes(guess, settings.modes, brightest(frames, some) / _taken(frames, one, pattern))
    found: dict[str, Any] = {"probe": np.asarray(probe, np.complex64)}
    if settings.own_probes:
        found["probe"] = np.repeat(found["probe"][None], count, 0)
    if "shifts" in settings.refine:
        found["shifts"] = np.zeros((count, 2))
    if "ramps" in settings.refine:
        found["ramps"] = np.zeros((count, 2))
    if "scale" in settings.refine:
        found["scale"] = np.ones(count, np.float32)
    if "background" in settings.refine or frames.dark is not None:
        arrange = as_it_is if frames.near_field else to_model_order
        assert pattern is not None or frames.dark is not None
        found["background"] = arrange(first.first_background(pattern, frames.dark, frames.mask))  # type: ignore[arg-type]
    return found


def brightest(frames: Data, some: NDArray[np.int64]) -> float:
    """Counts of frames that met no sample: more than nearly all others have, as samples only absorb."""
    good = True if frames.mask is None else frames.mask
    sums = []
    for first_frame in range(0, len(some), 64):
        images = frames.source.read(frames=some[first_frame : first_frame + 64])
        sums += np.where(good, images, 0).sum((1, 2), dtype=np.float64).tolist()
    return float(np.percentile(sums, BRIGHT))


def _taken(frames: Data, one: PtychoSettings, pattern: first.Pattern) -> float:
    """Counts of a mean frame for each one of the probe's: what is dark or masked is no light."""
    return max(1e-3, pattern.photons / photons_of(frames, one, pattern))


def reach_of(settings: JointSettings) -> int:
    """Pixels that shifts may go."""
    return REACH if "shifts" in settings.refine else 0


def least_rows(data: JointData, settings: JointSettings) -> int:
    """Of a slab."""
    return min(data.image_shape[0], data.frames.frame_shape[0] + reach_of(settings))


def layout_of(data: JointData, settings: JointSettings, slab_rows: int | None) -> Layout:
    """Slabs and the frames of each."""
    reach = reach_of(settings)
    rows = data.frames.frame_shape[0]
    return cut(
        data.image_shape[0], slab_rows, rows, data.frames.positions, data.angle_of_frame, len(data.angles), reach=reach
    )
