"""A whole scan, and two halves of it if asked for, through the driver; and what came of it as a result."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dtomo.algorithms.resolution import FourierCorrelation, fourier_correlation, soft_mask
from dtomo.errors import StoppedError
from dtomo.io.checkpoints import Checkpoints
from dtomo.ptycho import driver, gauge
from dtomo.ptycho.blocks import Blocks
from dtomo.ptycho.curvatures import illumination
from dtomo.ptycho.engine import Parameters
from dtomo.ptycho.frame_errors import frame_errors
from dtomo.ptycho.nested import flatten, unflatten
from dtomo.ptycho.result import PtychoResult
from dtomo.ptycho.setup import Data, Setup, half_scans
from dtomo.settings import PtychoSettings

if TYPE_CHECKING:
    from distributed import Client

COVERED = 0.1
"""Light, as part of its 90th percentile, from which on a pixel of the object is looked at in a correlation."""

OnEpoch = Callable[[str, driver.EpochReport], bool | None]
"""Told after each epoch: ``"whole"``, ``"first half"`` or ``"second half"``, and the report."""


@dataclasses.dataclass(frozen=True, eq=False)
class Where:
    """What computes.

    Attributes
    ----------
    client
        Of a cluster; None: this process.
    frame_memory
        Bytes of frames that each process keeps; None: a quarter of its memory.
    device_memory
        Bytes that each process may take of its device; None: the CPU computes.
    tile
        Rows of the bands of an object in tiles; None: it is whole on each worker.
    """

    client: "Client | None" = None
    frame_memory: int | None = None
    device_memory: int | None = None
    tile: int | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class Kept:
    """Checkpoints of a part of a run: while it goes on, and of its end."""

    states: Checkpoints
    end: Checkpoints


def solve(
    data: Data,
    setup: Setup,
    settings: PtychoSettings,
    where: Where,
    *,
    on_epoch: OnEpoch | None = None,
    kept: Mapping[str, Kept] | None = None,
) -> PtychoResult:
    """Reconstruct a scan.

    Parameters
    ----------
    data, setup, settings
        What, and how; see `dtomo.ptycho.setup.prepare`.
    where
        What computes.
    on_epoch
        Called after each epoch; True ends that part there.
    kept
        Checkpoints of ``"whole"``, ``"first half"`` and ``"second half"``.

    Raises
    ------
    StoppedError
        Workers were lost again and again, or the loss is not finite any more.
    """
    parts: dict[str, Blocks | None] = {"whole": None}
    if settings.frc:
        parts |= dict(zip(("first half", "second half"), half_scans(setup, data, settings), strict=True))
    done: dict[str, tuple[Parameters, NDArray[np.float64]]] = {}
    for name, blocks in parts.items():
        stored = None if kept is None else kept.get(name)
        done[name] = _part(name, data, setup, settings, where, blocks, on_epoch, stored)
    parameters, losses = done["whole"]
    found = _in_gauge(parameters, data, settings)
    curve = None
    if settings.frc:
        halves = [_in_gauge(done[name][0], data, settings) for name in ("first half", "second half")]
        curve = correlation(halves[0], halves[1], settings, data.pixel_size)
    errors = None
    if where.tile is None:  # else the object may be too large to be looked at as a whole
        errors = frame_errors(
            setup.model,
            data.source,
            parameters,
            client=where.client,
            arrange=setup.arrange,
            frame_memory=where.frame_memory,
            device_memory=where.device_memory,
        )
    return result_of(found, losses, parameters, data, setup, settings, curve, errors)


def _part(
    name: str,
    data: Data,
    setup: Setup,
    settings: PtychoSettings,
    where: Where,
    blocks: Blocks | None,
    on_epoch: OnEpoch | None,
    kept: Kept | None,
) -> tuple[Parameters, NDArray[np.float64]]:
    """Parameters and losses of a part; what is done already is read."""
    before = None if kept is None else kept.end.load()
    if before is not None:
        losses = np.asarray(before.state.pop("losses"), np.float64)
        return unflatten(before.info["form"], before.state), losses

    def report(epoch: driver.EpochReport) -> bool | None:
        if not np.isfinite(epoch.loss):
            raise StoppedError(
                f"the loss is not finite after epoch {epoch.epoch}: the frames hold such values, which want --mask, or "
                f"--engine {settings.engine} made too large steps, see --option"
            )
        return None if on_epoch is None else on_epoch(name, epoch)

    came = driver.run(
        setup.engine,
        data.source,
        setup.parameters,
        settings.epochs,
        client=where.client,
        blocks=blocks,
        seed=settings.seed,
        on_epoch=report,
        checkpoints=None if kept is None else kept.states,
        frame_memory=where.frame_memory,
        arrange=setup.arrange,
        device_memory=where.device_memory,
        tile=where.tile,
    )
    if kept is not None and settings.frc:
        form, leaves = flatten(came.parameters, "end")
        kept.end.save({**leaves, "losses": came.losses}, {"form": form})
    return came.parameters, came.losses


def _in_gauge(parameters: Parameters, data: Data, settings: PtychoSettings) -> Parameters:
    return gauge.fixed(parameters, exponential=settings.exponential, near_field=data.near_field)


def correlation(
    first: Parameters, second: Parameters, settings: PtychoSettings, pixel_size: tuple[float, float] | None
) -> FourierCorrelation:
    """Ring correlation of the objects of two half-scans, where both have light.

    Parameters
    ----------
    first, second
        In the gauge of `dtomo.ptycho.gauge`.
    settings
        Of the run.
    pixel_size
        Height and width of an object pixel; None: frequencies are per pixel.
    """
    light = [illumination(one) for one in (first, second)]
    images = [gauge.transmission(one["object"], settings.exponential)[0].prod(axis=0) for one in (first, second)]
    rows, columns = (min(images[0].shape[axis], images[1].shape[axis]) for axis in (0, 1))
    images = [image[:rows, :columns] for image in images]
    region = np.ones((rows, columns), bool)
    for one in light:
        lit = one[:rows, :columns]
        region &= lit > COVERED * np.percentile(lit[lit > 0], 90)
    inside = _bounds(region)
    region, images = region[inside], [image[inside] for image in images]
    moved = gauge.aligned(images[1], images[0], region)
    window = soft_mask(_shrunk(region))
    return fourier_correlation(images[0], moved, window=window, pixel_size=pixel_size or 1.0)


def _bounds(region: NDArray[np.bool_]) -> tuple[slice, slice]:
    rows, columns = (np.flatnonzero(region.any(axis)) for axis in (1, 0))
    return slice(int(rows[0]), int(rows[-1]) + 1), slice(int(columns[0]), int(columns[-1]) + 1)


def _shrunk(region: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Room for the window to fall off within the region, where there is some."""
    from scipy.ndimage import binary_erosion

    inner = binary_erosion(region, iterations=5)
    return inner if inner.any() else region


def result_of(
    found: Parameters,
    losses: NDArray[np.float64],
    before: Parameters,
    data: Data,
    setup: Setup,
    settings: PtychoSettings,
    curve: FourierCorrelation | None = None,
    errors: NDArray[np.float64] | None = None,
) -> PtychoResult:
    """What is written, drawn and handed to the caller.

    Parameters
    ----------
    found, before
        Parameters in the gauge that is fixed after a run, and as they came from the driver.
    losses
        Of each epoch.
    data, setup, settings
        Of the run.
    curve
        Of two half-scans.
    errors
        Of frames, see `dtomo.ptycho.frame_errors`.
    """
    moved = np.median(np.asarray(found["positions"]) - np.asarray(before["positions"]), axis=0)
    distance = found.get("distance")
    return PtychoResult(
        object=found["object"],
        probe=found["probe"],
        positions=np.asarray(found["positions"], np.float64),
        start_positions=setup.place.positions + moved,
        history=np.asarray(losses, np.float64),
        loss=settings.loss,
        exponential=settings.exponential,
        near_field=data.near_field,
        oversampling=settings.oversampling,
        background=found.get("background"),
        scale=found.get("scale"),
        variable_probe=found.get("variable_probe"),
        probe_weights=found.get("probe_weights"),
        distance=None if distance is None else float(distance),
        pixel_size=data.pixel_size,
        wavelength=data.wavelength,
        basis=data.basis,
        origin=(float(setup.place.origin[0] - moved[0]), float(setup.place.origin[1] - moved[1])),
        frc=curve,
        frame_error=errors,
        settings=settings.plain(),
    )


def told(result: PtychoResult) -> dict[str, Any]:
    """Numbers of a result for people and for the summary."""
    from dtomo.algorithms.resolution import resolution

    numbers: dict[str, Any] = {
        "epochs": len(result.history),
        "losses": [float(loss) for loss in result.history],
        "mode_powers": [float(power) for power in result.mode_powers],
    }
    if "positions" in result.settings.get("refine", ()) and result.start_positions is not None:
        steps = np.hypot(*(result.positions - result.start_positions).T)
        numbers["positions_moved"] = {"mean": float(steps.mean()), "most": float(steps.max())}
    if result.frc is not None:
        found = resolution(result.frc)
        numbers["frc"] = {
            "threshold": found.threshold,
            "frequency": found.frequency,
            "nyquist": result.frc.nyquist,
            "crossed": found.crossed,
        }
    return numbers
