"""Ptychography from Python: frames and positions in, a result out, in this process or on a cluster."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dtomo.errors import UserError, shown
from dtomo.io.ptycho.doubts import GOOD
from dtomo.io.sources import ArraySource, Source
from dtomo.ptycho.driver import EpochReport
from dtomo.ptycho.result import PtychoResult
from dtomo.ptycho.setup import Data, prepare
from dtomo.ptycho.solve import Where, solve
from dtomo.settings import PtychoSettings

if TYPE_CHECKING:
    from distributed import Client

_NOT_HERE = ("scan", "output", "cluster", "workers", "threads", "memory", "devices", "workers_per_device", "config")
"""Settings of runs from disk to disk."""

_OF_SCANS = (
    *("dataset", "position_unit", "motion", "swap_axes", "flip_rows", "flip_columns", "flip_frames", "center", "crop"),
    *("exclude_frames", "saturation", "pixel_size", "energy", "distance", "near_field", "magnification"),
    "check_orientation",
)
"""Settings that say how a scan is opened."""


def reconstruct(
    frames: "Data | Source | NDArray[Any]",
    positions: NDArray[Any] | None = None,
    *,
    engine: str = "lsqml",
    epochs: int = 100,
    mask: NDArray[np.bool_] | None = None,
    dark: NDArray[Any] | None = None,
    probe: "NDArray[Any] | str | None" = None,
    client: "Client | None" = None,
    on_epoch: Callable[[EpochReport], bool | None] | None = None,
    frame_memory: int | None = None,
    **settings: Any,
) -> PtychoResult:
    """Reconstruct object and probe.

    The result has the same bits with and without a client, and with any number of its workers.

    Parameters
    ----------
    frames
        Counts ``(frame, row, column)`` with frequency zero in the middle (row N // 2): an array, a `Source` on disk; or
        a whole scan from `dtomo.ptycho.open`.
    positions
        Row and column of the object pixel under pixel [0, 0] of the probe, in object pixels ``(frame, 2)``; a scan has
        its own.
    engine
        "lsqml", "epie", "rpie", "dm", "raar", "adam" or "cg".
    epochs
        How often each frame is used.
    mask
        Good pixels ``(row, column)``, as the frames lie.
    dark
        Counts without beam ``(row, column)``.
    probe
        First guess ``(row, column)`` or ``(mode, row, column)``, in any unit, or how to make one: "pattern" or
        "aperture".
    client
        Of a Dask cluster; None: this process computes.
    on_epoch
        Called after each epoch of the whole scan; True ends it there.
    frame_memory
        Bytes of frames that each process keeps; default: a quarter of its memory.
    **settings
        Any others of `dtomo.settings.PtychoSettings` that do not say where a run computes or how a scan is opened:
        `modes`, `refine`, `batch`, `loss`, `opr`, `frc`, `options`, `seed` …

    Returns
    -------
    PtychoResult
        In the gauge of `dtomo.ptycho.gauge`: modes orthogonal, probe in the middle, no ramp in the object.

    Raises
    ------
    UserError
        Arrays or settings that do not fit.
    """
    for name in settings:
        if name in _NOT_HERE:
            raise UserError(f"{name} belongs to runs from disk to disk (dtomo.ptycho.run); here a client says where")
        if name in _OF_SCANS:
            raise UserError(
                f"{name} says how a scan is opened: give it to dtomo.ptycho.open, or change the arrays (all that "
                "goes with them is a dtomo.ptycho.setup.Data)"
            )
    if on_epoch is not None and not callable(on_epoch):
        raise UserError(f"on_epoch is called with a report after each epoch; got {shown(repr(on_epoch))}")
    if frame_memory is not None and (not isinstance(frame_memory, int) or frame_memory < 0):
        raise UserError(f"frame_memory is a whole number of bytes from 0; got {shown(repr(frame_memory))}")
    check_client(client)
    data = data_of_arrays(frames, positions, mask, dark, None if isinstance(probe, str) else probe)
    if isinstance(probe, str):
        settings["probe"] = probe
    elif probe is not None:
        settings["probe"] = "file"
    given: dict[str, Any] = {"engine": engine, "epochs": epochs, **settings}
    asked = PtychoSettings(scan=Path(data.source.location), output=Path("result.h5"), **given)

    def told(part: str, report: EpochReport) -> bool | None:
        return on_epoch(report) if on_epoch is not None and part == "whole" else None

    tile = asked.tile if isinstance(asked.tile, int) else None
    where = Where(client, frame_memory, tile=tile)
    return solve(data, prepare(data, asked), asked, where, on_epoch=told)


def check_client(client: Any) -> None:
    """A client that answers at once, or none.

    Raises
    ------
    UserError
        Neither.
    """
    if client is None:
        return
    from distributed import Client

    if not isinstance(client, Client) or client.asynchronous:
        raise UserError(
            f"client is a dask.distributed.Client that is not asynchronous; got {shown(repr(client))}: give "
            "Client(address), or leave it out"
        )


def data_of_arrays(
    frames: Any, positions: Any, mask: NDArray[Any] | None, dark: NDArray[Any] | None, probe: NDArray[Any] | None
) -> Data:
    """Arrays in the form of the models, checked; see `reconstruct` for what they are.

    Raises
    ------
    UserError
        Arrays that do not fit.
    """
    if isinstance(frames, Data):
        if positions is not None:
            raise UserError("a scan has its own positions; give frames and positions, or the scan alone")
        given: dict[str, Any] = {"mask": mask, "dark": dark, "probe": probe}
        return dataclasses.replace(frames, **{name: value for name, value in given.items() if value is not None})
    if positions is None:
        raise UserError("frames take positions: row and column of the probe's first pixel on the object, in its pixels")
    source = frames if isinstance(frames, Source) else ArraySource(np.asarray(frames), "the frames")
    if np.dtype(source.dtype).kind not in "biuf" or np.asarray(positions).dtype.kind not in "biuf":
        raise UserError(f"frames and positions are real numbers; got {source.dtype} and {np.asarray(positions).dtype}")
    places = np.asarray(positions, np.float64)
    good = None if mask is None else np.asarray(mask)
    _check_images(source.shape[1:], good, dark, probe)
    if not isinstance(frames, Source):
        _refuse_negative(source.read(), good)
    return Data(source, places, good, dark, probe)


def _check_images(shape: tuple[int, int], mask: Any, dark: Any, probe: Any) -> None:
    """Shapes and kinds of what has the size of a frame."""
    for name, array, kinds, axes in (("mask", mask, "b", 2), ("dark", dark, "biuf", 2), ("probe", probe, "iufc", 3)):
        if array is None:
            continue
        found = np.asarray(array)
        if found.shape[-2:] != shape or found.ndim > axes:
            modes = ", or modes of it" if axes == 3 else ""
            raise UserError(f"the {name} has the shape of a frame, {shape}{modes}; got {found.shape}")
        if found.dtype.kind not in kinds:
            wanted = "is bool, True where a pixel is good" if name == "mask" else "holds numbers"
            raise UserError(f"the {name} {wanted}; got {found.dtype}")
    if mask is not None and 0 < mask.mean() < GOOD:
        raise UserError(f"the mask leaves {100 * mask.mean():.3g} % of the pixels; is it inverted? True means good")


def _refuse_negative(frames: NDArray[Any], good: NDArray[np.bool_] | None) -> None:
    """Counts below 0 have no amplitude; what is under the mask does not matter."""
    negative = np.zeros(frames.shape[1:], bool)
    for frame in frames:
        negative |= frame < 0
    wrong = int((negative if good is None else negative & good).sum())
    if wrong:
        raise UserError(f"{wrong} pixels of the frames hold counts below 0; give a mask without them, or set them to 0")
