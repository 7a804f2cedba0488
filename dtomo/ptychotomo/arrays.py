"""Joint ptycho-tomography from Python: frames, positions and angles in, a volume out, here or on a cluster."""

import dataclasses
import functools
import numbers
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dtomo.distributed.graph import workers_in_order
from dtomo.errors import UserError, shown
from dtomo.io.ptychotomo import open_ptychotomo
from dtomo.io.ptychotomo.scan import check_views
from dtomo.io.sources import Source
from dtomo.ptycho.arrays import check_client, data_of_arrays
from dtomo.ptychotomo.coarse import Found, levels
from dtomo.ptychotomo.driver import JointReport, run
from dtomo.ptychotomo.problem import JointProblem, Start
from dtomo.ptychotomo.scans import check_start, data_of, first_volume, rows_of
from dtomo.ptychotomo.setup import JointData, least_rows, prepare
from dtomo.settings import JointSettings
from dtomo.settings.ptychotomo import READING

if TYPE_CHECKING:
    from distributed import Client

_NOT_HERE = (
    *("scan", "output", "cluster", "workers", "threads", "memory", "devices", "workers_per_device", "device_memory"),
    *("checkpoint_every", "halves", "config"),
)
"""Settings of runs from disk to disk."""

_OF_SCANS = (
    *("origin", "rotation_axis", "sign", "angle_unit", "reverse_angles", "saturation", "pixel_size", "energy"),
    *("distance", *READING),
)
"""Settings that say how a scan is opened."""


@dataclasses.dataclass(frozen=True, eq=False)
class JointVolume:
    """What came of a joint reconstruction from arrays.

    Attributes
    ----------
    volume
        v = k Δ (-δ + iβ) ``(z, y, x)``, complex64, radians per voxel.
    parameters
        What was refined beside it, and the probe ``(mode, row, column)``, by name.
    history
        Sum of the losses of each epoch, and what it was counted over, ``(epoch, 2)``.
    wavenumber
        k Δ; None: the lengths of the scan are not known.
    """

    volume: NDArray[np.complex64]
    parameters: dict[str, Any]
    history: NDArray[np.float64]
    wavenumber: float | None = None

    @property
    def delta(self) -> NDArray[np.float32]:
        """δ ``(z, y, x)``; radians per voxel where lengths are not known."""
        return -self.volume.real / np.float32(self.wavenumber or 1)

    @property
    def beta(self) -> NDArray[np.float32]:
        """β, likewise."""
        return self.volume.imag / np.float32(self.wavenumber or 1)

    @property
    def probe(self) -> NDArray[np.complex64]:
        """``(mode, row, column)``, or one for each angle in front."""
        return np.asarray(self.parameters["probe"])


def open(path: "str | os.PathLike[str] | list[str]", **options: Any) -> JointData:
    """A joint scan on disk, as `reconstruct` takes it.

    Parameters
    ----------
    path
        One file of all angles, or a folder or list of ptychographic files, one for each.
    **options
        Of `dtomo.io.ptychotomo.open_ptychotomo`: `angles`, `sign`, `origin`, `mask`, lengths …

    Raises
    ------
    UserError
        What cannot be read or does not fit.
    """
    return data_of(open_ptychotomo(path, **options))


def reconstruct(
    frames: "JointData | Source | NDArray[Any]",
    positions: ArrayLike | None = None,
    angles: ArrayLike | None = None,
    angle_of_frame: ArrayLike | None = None,
    *,
    image_shape: tuple[int, int] | None = None,
    center: float | None = None,
    mask: NDArray[np.bool_] | None = None,
    dark: NDArray[Any] | None = None,
    probe: "NDArray[Any] | str | None" = None,
    start: "NDArray[Any] | str" = "zero",
    pixel_size: float | None = None,
    wavelength: float | None = None,
    client: "Client | None" = None,
    on_epoch: Callable[[JointReport], bool | None] | None = None,
    **settings: Any,
) -> JointVolume:
    """Reconstruct one complex volume from the frames of all angles.

    The result has the same bits with and without a client, and with any number of its workers, for the same
    `slab_rows`.

    Parameters
    ----------
    frames
        Counts ``(frame, row, column)`` of all angles with frequency zero in the middle (row N // 2): an array or a
        `Source` on disk; or a whole scan from `open`, to which none of the next seven arguments belong.
    positions
        Row and column of the image's pixel under pixel [0, 0] of the probe, pixels ``(frame, 2)``.
    angles
        Degrees ``(angle,)``.
    angle_of_frame
        Number of each frame's angle ``(frame,)``.
    image_shape
        Rows and columns of the images; default: what the frames reach.
    center
        Column of the rotation axis; default: the middle.
    pixel_size, wavelength
        Of the images, and of the light, metres; None: δ and β are in radians per voxel.
    mask, dark, probe
        As `dtomo.ptycho.reconstruct` has them.
    start
        First volume v ``(z, y, x)``, radians per voxel; or "zero", "two-step", or a result on disk.
    client
        Of a Dask cluster; None: this process computes.
    on_epoch
        Called after each epoch; True ends it there.
    **settings
        Any others of `dtomo.settings.JointSettings` that do not say where a run computes or how a scan is opened:
        `engine`, `epochs`, `subsets`, `refine`, `total_variation`, `support`, `slices`, `slab_rows`, `options` …

    Raises
    ------
    UserError
        Arrays or settings that do not fit.
    """
    for name in settings:
        if name in _NOT_HERE:
            raise UserError(
                f"{name} belongs to runs from disk to disk (dtomo.ptychotomo.run); here a client says where"
            )
        if name in _OF_SCANS:
            raise UserError(f"{name} says how a scan is opened: give it to dtomo.ptychotomo.open, or change the arrays")
    if on_epoch is not None and not callable(on_epoch):
        raise UserError(f"on_epoch is called with a report after each epoch; got {shown(repr(on_epoch))}")
    check_client(client)
    given = {"positions": positions, "angles": angles, "angle_of_frame": angle_of_frame, "image_shape": image_shape}
    given |= {"center": center, "pixel_size": pixel_size, "wavelength": wavelength}
    data = _joint_data(frames, given, mask, dark, None if isinstance(probe, str) else probe)
    if probe is not None:
        settings["probe"] = probe if isinstance(probe, str) else "file"
    if isinstance(start, str | os.PathLike):
        settings["start"] = str(start)
    asked = JointSettings(scan=Path(data.frames.source.location), output=Path("result.zarr"), **settings)
    if not isinstance(start, str | os.PathLike):
        if asked.coarse:
            raise UserError("coarse begins with nothing on the coarsest voxels; leave out start")
        given_start = functools.partial(rows_of, _start_volume(start, data))
        return _solved(data, asked, given_start, None, client, on_epoch)
    check_start(data, asked)
    before = None
    for some, level in levels(data, asked):
        first = first_volume(some, level, client) if before is None else before.start(some)
        found = _solved(some, level, first, before, client, on_epoch)
        before = Found(some, found.parameters, found.volume)
    return found


def _solved(
    data: JointData,
    settings: JointSettings,
    start: Start,
    before: Found | None,
    client: "Client | None",
    on_epoch: Callable[[JointReport], bool | None] | None,
) -> JointVolume:
    """One level."""
    setup = prepare(data, settings, _slab_rows(data, settings, client))
    parameters = setup.parameters if before is None else before.first(data, setup.parameters)
    setup.engine.begin_common(parameters)
    problem = JointProblem(
        setup.engine, data.frames.source, setup.layout, start, seed=settings.seed, arrange=setup.arrange
    )
    result, rows = run(problem, parameters, settings.epochs_wanted, client=client, on_epoch=on_epoch)
    return JointVolume(np.concatenate(rows), result.parameters, result.history, data.wavenumber)


def _joint_data(
    frames: Any, given: dict[str, Any], mask: NDArray[Any] | None, dark: NDArray[Any] | None, probe: Any
) -> JointData:
    if isinstance(frames, JointData):
        twice = [name for name, value in given.items() if value is not None]
        if twice:
            raise UserError(f"a scan has its own {twice[0]}; give arrays, or the scan alone")
        return dataclasses.replace(frames, frames=data_of_arrays(frames.frames, None, mask, dark, probe))
    for name in ("positions", "angles", "angle_of_frame"):
        if given[name] is None:
            raise UserError(f"frames of many angles take {name}; give it, or a scan from dtomo.ptychotomo.open")
    found = data_of_arrays(frames, given["positions"], mask, dark, probe)
    if not np.isfinite(found.positions).all():
        raise UserError("not all positions are finite numbers; correct them or leave those frames out")
    pixel = _length("pixel_size", given["pixel_size"])
    found = dataclasses.replace(
        found,
        pixel_size=None if pixel is None else (pixel, pixel),
        wavelength=_length("wavelength", given["wavelength"]),
    )
    shape = given["image_shape"]
    if not len(found.positions):
        raise UserError("there are no frames; give those of two angles at least")
    if shape is None:
        shape = np.ceil(found.positions.max(0) - 1e-9).astype(int) + found.frame_shape
    angle_numbers = np.asarray(given["angle_of_frame"])
    if angle_numbers.dtype.kind not in "iu" or angle_numbers.ndim != 1:
        raise UserError(
            f"angle_of_frame holds whole numbers (frame,); got {angle_numbers.dtype} of shape {angle_numbers.shape}"
        )
    degrees = np.asarray(given["angles"])
    if degrees.dtype.kind not in "iuf" or degrees.ndim != 1 or not np.isfinite(degrees).all():
        raise UserError(f"angles are finite numbers of degrees (angle,); got {degrees.dtype} {degrees.shape}")
    if len(degrees) > 1:
        check_views(degrees.astype(np.float64), "angles")
    size, center = np.asarray(shape), given["center"]
    if size.shape != (2,) or size.dtype.kind not in "iu":
        raise UserError(f"image_shape is the rows and columns of the images; got {shown(repr(shape))}")
    if center is not None and (isinstance(center, bool) or not isinstance(center, numbers.Real)):
        raise UserError(f"center is a column, a number; got {shown(repr(center))}")
    return JointData(
        found,
        degrees.astype(np.float64),
        angle_numbers.astype(np.int64),
        (int(size[0]), int(size[1])),
        None if center is None else float(center),
    )


def _length(name: str, value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or not 0 < float(value) < np.inf:
        raise UserError(f"{name} is a length above 0 metres; got {shown(repr(value))}")
    return float(value)


def _start_volume(start: Any, data: JointData) -> NDArray[np.complex64]:
    volume = np.asarray(start)
    columns = data.image_shape[1]
    wanted = (data.image_shape[0], columns, columns)
    if volume.shape != wanted or volume.dtype.kind not in "fc" or not np.isfinite(volume).all():
        raise UserError(f"start is a volume of {wanted} finite numbers; got {volume.dtype} of shape {volume.shape}")
    return volume.astype(np.complex64)


def _slab_rows(data: JointData, settings: JointSettings, client: "Client | None") -> int | None:
    """As asked for; else a slab for each worker, as far as slabs may be that low."""
    if settings.slab_rows != "auto":
        return min(int(settings.slab_rows), data.image_shape[0])
    if client is None:
        return None
    workers = max(1, len(workers_in_order(client)))
    return max(least_rows(data, settings), -(-data.image_shape[0] // workers))
