"""The two-step result, which joint reconstructions start from and are compared with: ptychography, then tomography.

Each angle is reconstructed on its own (`dtomo.ptycho`), its image made a projection p = -i ln T, and the projections
are put together by filtered back projection. What ptychography cannot tell is fixed for each angle: a constant and a
ramp of the phase, and the scale of the modulus, from the columns at both sides where there is no sample (M.
Guizar-Sicairos et al., Optics Express 19 (2011) 21345).
"""

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.ndimage
from numpy.typing import NDArray

from dtomo.algorithms.fbp import fbp
from dtomo.ptycho import driver
from dtomo.ptycho.blocks import cut_frames
from dtomo.ptycho.curvatures import illumination
from dtomo.ptycho.engines.conjugate import ConjugateGradient
from dtomo.ptycho.frames import to_model_order
from dtomo.ptycho.setup import as_it_is, make_model
from dtomo.ptychotomo.align import align_projections
from dtomo.ptychotomo.constraints import VolumeConstraints
from dtomo.ptychotomo.engine import SlabPlace
from dtomo.ptychotomo.setup import JointData, first_parameters
from dtomo.settings import JointSettings

if TYPE_CHECKING:
    from distributed import Client

EPOCHS = 100
"""Of the ptychography of an angle."""

SHARED_EPOCHS = 20
"""In which the probe is found, from a few angles one after another."""

VACUUM = 0.06
"""Part of the columns that light falls on, at each side, where there is no sample, if nothing is said of its radius."""

LIT = 0.3
"""Light, as part of its median, from which on a pixel of an image is known."""


@dataclasses.dataclass(frozen=True, eq=False)
class TwoStep:
    """What came of ptychography and tomography, one after the other.

    Attributes
    ----------
    images
        Transmissions ``(angle, row, column)``, complex64; 1 where no light fell.
    projections
        p = -i ln T ``(angle, row, column)``, complex64, unwrapped, zero beside the sample.
    probe
        ``(mode, row, column)``.
    volume
        v = k Δ u ``(z, y, x)``, complex64.
    shifts
        ``(angle, 2)`` of the projections, as `dtomo.ptychotomo.model` has them; 0 where they are not refined.
    """

    images: NDArray[np.complex64]
    projections: NDArray[np.complex64]
    probe: NDArray[np.complex64]
    volume: NDArray[np.complex64]
    shifts: NDArray[np.float64]


def two_step(
    data: JointData,
    settings: JointSettings,
    *,
    epochs: int = EPOCHS,
    probe: NDArray[Any] | None = None,
    client: "Client | None" = None,
    on_angle: Callable[[int, int], None] | None = None,
) -> TwoStep:
    """Ptychography of each angle, then filtered back projection.

    Parameters
    ----------
    data, settings
        Of the run: loss, modes, first probe.
    epochs
        Of each angle.
    probe
        First guess; None: as the settings say.
    client
        Of a cluster, whose workers take an angle at a time; None: this process.
    on_angle
        Told how many angles are done, of how many.
    """
    shared = np.asarray(first_parameters(data, settings, probe)["probe"])
    shared = shared[0] if shared.ndim == 4 else shared
    count = len(data.angles)
    if "probe" in settings.refine:
        for angle in (0, count // 3, 2 * count // 3):
            shared = solve_angle(data, settings, angle, shared, SHARED_EPOCHS, refine=True)[2]
    images = np.empty((count, *data.image_shape), np.complex64)
    lit = np.empty(images.shape, bool)
    if client is None:
        for angle in range(count):
            images[angle], lit[angle], _ = solve_angle(data, settings, angle, shared, epochs)
            if on_angle is not None:
                on_angle(angle + 1, count)
    else:
        from distributed import as_completed

        given = client.scatter([data, settings, shared], broadcast=True, hash=False)
        futures = {
            client.submit(_one, *given[:2], angle, given[2], epochs, pure=False): angle for angle in range(count)
        }
        for done, (future, found) in enumerate(as_completed(list(futures), with_results=True), 1):
            images[futures[future]], lit[futures[future]] = found
            if on_angle is not None:
                on_angle(done, count)
    return assembled(data, images, lit, shared, settings.support, align="shifts" in settings.refine)


def assembled(
    data: JointData,
    images: NDArray[np.complex64],
    lit: NDArray[np.bool_],
    probe: NDArray[np.complex64],
    radius: float | None = None,
    align: bool = False,
) -> TwoStep:
    """Projections and the volume from the images of all angles, shifted to one another if asked for."""
    geometry = data.geometry
    projections = np.stack([projection_of(*pair, geometry.center, radius or None) for pair in zip(images, lit)])
    shifts = np.zeros((len(images), 2))
    put = projections
    if align:
        shifts = align_projections(-projections.real, geometry, radius=radius or None)
        put = np.stack([_shifted(one, by) for one, by in zip(projections, shifts)])
    parts = [fbp(np.ascontiguousarray(part), geometry) for part in (put.real, put.imag)]
    volume = (parts[0] + 1j * parts[1]).astype(np.complex64)
    if radius:
        VolumeConstraints(support=radius).project(SlabPlace(0, 0, len(volume), len(volume)), volume)
    return TwoStep(images, projections, probe, volume, shifts)


def _shifted(image: NDArray[Any], by: NDArray[np.float64]) -> NDArray[np.complex64]:
    parts = [scipy.ndimage.shift(np.ascontiguousarray(part), by, order=1) for part in (image.real, image.imag)]
    return (parts[0] + 1j * parts[1]).astype(np.complex64)


def solve_angle(
    data: JointData,
    settings: JointSettings,
    angle: int,
    probe: NDArray[Any],
    epochs: int,
    *,
    refine: bool = False,
) -> tuple[NDArray[np.complex64], NDArray[np.bool_], NDArray[np.complex64]]:
    """The image of one angle, 1 where no light fell; where it did; and the probe, refined if asked for."""
    one = data.of_angle(angle)
    if not len(one.positions):
        return (
            np.ones(data.image_shape, np.complex64),
            np.zeros(data.image_shape, bool),
            np.asarray(probe, np.complex64),
        )
    model = make_model(one, settings.of_one_angle())
    wanted = ("object", "probe") if refine else ("object",)
    engine = ConjugateGradient(model=model, wanted=wanted)
    room = np.array(data.image_shape) - one.frame_shape
    parameters = {
        "object": np.ones((1, 1, *data.image_shape), np.complex64),
        "probe": np.asarray(probe, np.complex64),
        "positions": one.positions.clip(0, room),
    }
    blocks = cut_frames(parameters["positions"], one.frame_shape, engine.batch, seed=settings.seed)
    found = driver.run(
        engine,
        one.source,
        parameters,
        epochs,
        blocks=blocks,
        arrange=as_it_is if one.near_field else to_model_order,
    ).parameters
    light = illumination(found)
    lit = light > LIT * np.median(light[light > 0])
    image = np.where(lit, found["object"][0, 0], 1)
    return image.astype(np.complex64), lit, np.asarray(found["probe"], np.complex64)


def projection_of(
    image: NDArray[np.complex64], lit: NDArray[np.bool_], center: float, radius: float | None = None
) -> NDArray[np.complex64]:
    """p = -i ln T of an image ``(row, column)``, with what ptychography cannot tell taken from both sides.

    Parameters
    ----------
    image
        T.
    lit
        Where light fell; elsewhere the projection is 0.
    center
        Column of the axis.
    radius
        Columns on each side of it that the sample may take; None: all but `VACUUM` of those that light fell on.
    """
    from skimage.restoration import unwrap_phase

    lit = lit & np.isfinite(image)
    image = np.where(lit, image, 1)
    if not lit.any():
        return np.zeros(image.shape, np.complex64)
    columns = np.flatnonzero(lit.any(0))
    if radius is None:
        radius = max(abs(columns[0] - center), abs(columns[-1] - center)) * (1 - VACUUM)
    phase = np.ma.filled(unwrap_phase(np.ma.array(np.angle(image).astype(np.float64), mask=~lit)), 0.0)
    decay = -np.log(np.abs(image).clip(1e-3).astype(np.float64))
    y, x = np.indices(image.shape)
    vacuum = lit & (np.abs(x - center) > radius)
    if vacuum.sum() < 8:
        vacuum = lit & np.isin(x, (columns[0], columns[-1]))
    table = np.stack([np.ones(image.shape), y, x], -1)
    phase -= table @ _robust(table[vacuum], phase[vacuum])
    decay -= np.median(decay[vacuum])
    return np.where(lit, phase + 1j * decay, 0).astype(np.complex64)


def _robust(table: NDArray[np.float64], values: NDArray[np.float64], rounds: int = 5) -> NDArray[np.float64]:
    """Coefficients of a plane through most of the values: least squares, weighted anew by the residuals."""
    weights = np.ones(len(values))
    for _ in range(rounds):
        found, *_ = np.linalg.lstsq(table * weights[:, None], values * weights, rcond=None)
        misses = np.abs(values - table @ found)
        weights = 1 / np.sqrt(1 + (misses / max(1e-6, np.median(misses))) ** 2)
    return np.asarray(found)


def _one(data: JointData, settings: JointSettings, angle: int, probe: NDArray[Any], epochs: int) -> Any:
    return solve_angle(data, settings, angle, probe, epochs)[:2]
