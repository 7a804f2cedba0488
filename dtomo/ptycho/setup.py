"""From data and settings to what a driver takes: model, solver, first guesses, and frames cut into blocks."""

import dataclasses
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtomo.errors import UserError
from dtomo.io.sources import Source
from dtomo.operators.propagation import NearField
from dtomo.ptycho import optics, start
from dtomo.ptycho.blocks import Blocks, cut_frames
from dtomo.ptycho.engine import Engine, Parameters
from dtomo.ptycho.frame_store import Arrange
from dtomo.ptycho.frames import to_model_order
from dtomo.ptycho.model import PtychoModel
from dtomo.ptycho.plausible import check_positions
from dtomo.ptycho.solvers import make_engine, refined
from dtomo.settings import PtychoSettings


@dataclasses.dataclass(frozen=True, eq=False)
class Data:
    """A scan in the form of the models.

    Attributes
    ----------
    source
        Frames ``(frame, row, column)`` in detector order.
    positions
        Of pixel [0, 0] of the probe on the object ``(frame, 2)``, row and column in object pixels.
    mask
        Good pixels ``(row, column)`` in detector order; None: all.
    dark
        Counts without beam, in detector order.
    probe
        First guess ``(mode, row, column)``, its square in counts.
    pixel_size
        Height and width of an object pixel, metres.
    wavelength, distance
        Metres; distance from sample to detector, of a parallel beam if `near_field`.
    saturation
        Counts from which a pixel says nothing.
    basis
        Metres (x, y, z) in the laboratory per row and per column of the object ``(3, 2)``.
    near_field
        Frames are images, which have no frequency zero.
    """

    source: Source
    positions: NDArray[np.float64]
    mask: NDArray[np.bool_] | None = None
    dark: NDArray[Any] | None = None
    probe: NDArray[Any] | None = None
    pixel_size: tuple[float, float] | None = None
    wavelength: float | None = None
    distance: float | None = None
    saturation: float | None = None
    basis: NDArray[np.float64] | None = None
    near_field: bool = False

    def __post_init__(self) -> None:
        frames = self.source.shape[0]
        if len(self.source.shape) != 3:
            raise UserError(f"{self.source.location} has shape {self.source.shape}; (frame, row, column) was expected")
        if self.positions.shape != (frames, 2):
            raise UserError(
                f"{self.source.location} has {frames} frames, so positions have shape ({frames}, 2); got "
                f"{self.positions.shape}"
            )

    @property
    def frame_shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return self.source.shape[1], self.source.shape[2]


@dataclasses.dataclass(frozen=True, eq=False)
class Setup:
    """What `dtomo.ptycho.driver.run` takes.

    Attributes
    ----------
    model, engine
        Values that go to the workers.
    parameters
        First guesses.
    place
        Of the object.
    arrange
        What is done to frames as they are read.
    """

    model: PtychoModel
    engine: Engine
    parameters: Parameters
    place: start.Place
    arrange: Arrange = to_model_order


def place_of(data: Data, settings: PtychoSettings) -> start.Place:
    """Room for the object, before anything is read.

    Raises
    ------
    UserError
        Positions that cannot be meant.
    """
    check_positions(data.positions, optics.probe_shape(data, settings))
    moved = "positions" in settings.refine
    padding = settings.padding
    if padding is None:
        padding = start.PADDING_IF_MOVED if moved else start.PADDING
    positions = data.positions - optics.corner_of_room(data, settings)
    return start.place_object(positions, optics.probe_shape(data, settings), padding)


def prepare(data: Data, settings: PtychoSettings, place: start.Place | None = None) -> Setup:
    """Model, solver and first guesses; reads some of the frames.

    Raises
    ------
    UserError
        Settings that do not fit the data or one another.
    """
    place = place or place_of(data, settings)
    model = make_model(data, settings)
    engine = make_engine(settings, model)
    pattern = start.mean_pattern(data.source, data.mask)
    guess = optics.with_room(first_probe(data, settings, pattern), data, settings)
    probe = start.probe_modes(guess, settings.modes, photons_of(data, settings, pattern))
    obj = start.first_object(
        place.shape,
        modes=settings.object_modes,
        slices=settings.slices,
        exponential=settings.exponential,
        rough=settings.start == "rough",
        seed=settings.seed,
    )
    background = None
    arrange = as_it_is if data.near_field else to_model_order
    if "background" in settings.refine or data.dark is not None:
        background = arrange(start.first_background(pattern, data.dark, data.mask))
    parameters = start.first_parameters(
        probe,
        place,
        obj,
        rank=settings.opr,
        background=background,
        scale="scale" in settings.refine,
        distance=data.distance if "distance" in settings.refine else None,
    )
    model.check(parameters)
    return Setup(model, engine, parameters, place, arrange)


def as_it_is(images: NDArray[Any]) -> NDArray[Any]:
    """Images of a near field have no frequency zero to be put anywhere."""
    return images


def make_model(data: Data, settings: PtychoSettings) -> PtychoModel:
    """What is known of the scan.

    Raises
    ------
    UserError
        Lengths that the model needs and neither scan nor settings say.
    """
    arrange = as_it_is if data.near_field else to_model_order
    mask = None if data.mask is None or data.mask.all() else arrange(data.mask)
    return PtychoModel(
        data.frame_shape,
        loss=settings.loss,
        mask=mask,
        saturation=data.saturation,
        exponential=settings.exponential,
        propagation=optics.propagation_of(data, settings),
        oversampling=settings.oversampling,
        subpixel=settings.subpixel,
        between=optics.between_of(data, settings),
    )


def first_probe(data: Data, settings: PtychoSettings, pattern: start.Pattern) -> NDArray[Any]:
    """Where the probe starts ``(row, column)`` or ``(mode, row, column)``, in any unit."""
    if settings.probe == "file" and data.probe is None:
        raise UserError(f"--probe file: {data.source.location} has no probe; give --probe pattern or a file")
    if settings.probe == "file" or (settings.probe == "auto" and data.probe is not None):
        assert data.probe is not None
        _refuse_defocus(settings, "the probe of the scan is as it is")
        return data.probe
    if settings.probe == "aperture":
        assert settings.aperture is not None
        return start.round_aperture(data.frame_shape, settings.aperture)
    if settings.probe not in ("auto", "pattern"):
        return read_probe(settings.probe, data.frame_shape)
    if data.near_field:
        _refuse_defocus(settings, "the probe of a near field comes from the mean image")
        field = optics.propagation_of(data, settings)
        assert isinstance(field, NearField)
        return optics.probe_from_images(pattern.mean, field)
    phase = None
    if settings.defocus is None:
        from dtomo.ptycho.focus import focus_phase

        phase = focus_phase(data, pattern, settings.seed)
    elif settings.defocus:  # 0 needs no lengths
        if data.pixel_size is None or data.wavelength is None:
            raise UserError(
                "--defocus takes the wavelength and the pixel size: give --energy, --distance, --pixel-size"
            )
        phase = start.defocus_phase(data.frame_shape, data.pixel_size, data.wavelength, settings.defocus * 1e-6)
    return start.probe_from_pattern(pattern.mean, phase)


def _refuse_defocus(settings: PtychoSettings, why: str) -> None:
    if settings.defocus is not None:
        raise UserError(f"--defocus is of a probe from the pattern of a far field, but {why}; leave it out")


def read_probe(name: str, shape: tuple[int, int]) -> NDArray[Any]:
    """A probe from a file: NumPy, or HDF5 with its dataset.

    Raises
    ------
    UserError
        Not a file with complex images of this shape.
    """
    path, _, dataset = name.partition(":")
    try:
        if dataset:
            import h5py

            with h5py.File(path) as file:
                probe = np.asarray(file[dataset])
        else:
            probe = np.load(path, allow_pickle=False)
    except (OSError, KeyError, ValueError, TypeError) as error:
        raise UserError(
            f"--probe {name} cannot be read; give auto, file, pattern, aperture, a .npy file or FILE.h5:/dataset"
        ) from error
    if probe.ndim not in (2, 3) or probe.shape[-2:] != shape or probe.dtype.kind not in "fc":
        raise UserError(f"--probe {name} holds {probe.dtype} of shape {probe.shape}; {shape} was expected")
    return np.asarray(probe, np.complex128)


def photons_of(data: Data, settings: PtychoSettings, pattern: start.Pattern) -> float:
    """Counts of the probe: those of a frame on average, without what is dark."""
    dark = 0.0 if data.dark is None else float(np.nansum(np.where(_good(data), data.dark, 0)))
    return max(pattern.photons - dark, 0.01 * pattern.photons)


def _good(data: Data) -> NDArray[np.bool_]:
    return np.ones(data.frame_shape, bool) if data.mask is None else data.mask


def whole_scan(setup: Setup, data: Data, settings: PtychoSettings) -> Blocks:
    """All frames, cut as the solver takes them."""
    return cut_frames(setup.place.positions, data.frame_shape, setup.engine.batch, seed=settings.seed)


def half_scans(setup: Setup, data: Data, settings: PtychoSettings) -> tuple[Blocks, Blocks]:
    """Two halves of the frames, each spread evenly over the scan, cut as the solver takes them.

    Raises
    ------
    UserError
        Fewer than two frames.
    """
    positions = setup.place.positions
    if len(positions) < 2:
        raise UserError("--frc takes two half-scans, so two frames at least")
    both = cut_frames(positions, data.frame_shape, -(-len(positions) // 2), seed=settings.seed)
    halves = []
    for batch in both.batches:
        chosen = np.sort(np.concatenate([both.frames[block] for block in batch]))
        cut = cut_frames(positions[chosen], data.frame_shape, setup.engine.batch, seed=settings.seed)
        halves.append(Blocks(tuple(chosen[frames] for frames in cut.frames), cut.batches))
    return halves[0], halves[1]


__all__ = ["Data", "Setup", "half_scans", "make_model", "place_of", "prepare", "refined", "whole_scan"]
