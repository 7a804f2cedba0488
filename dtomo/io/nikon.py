"""Geometry of a scan by a Nikon (X-Tek) scanner, from its ``.xtekct`` file: ``key=value`` lines in sections."""

import os
from configparser import ConfigParser
from configparser import Error as ConfigError
from pathlib import Path

import numpy as np

from dtomo.errors import UserError, shown
from dtomo.geometry import VectorGeometry, cone_beam
from dtomo.io.tilts.text import number as finite
from dtomo.io.tilts.text import of_file, small_bytes

_MOST = 10**6
"""Pixels, voxels and projections are fewer than that."""


def read_xtekct(
    path: str | os.PathLike[str], *, bin: int = 1, center: float | None = None, views: int | None = None
) -> VectorGeometry:
    """The cone beam that an ``.xtekct`` file describes; lengths in millimetres.

    Row 0 of the images is on top, and slice 0 of the volume with it: z runs downwards. The object turns the other way
    than the angles of the file grow, as TIGRE's reader of such files takes it; the file does not say, and where the
    sense is the other one the volume comes out mirrored.

    Parameters
    ----------
    path
        The file.
    bin
        Pixels (and voxels) along each side that were put together since.
    center
        Column of the axis in the (binned) images, which is often known better afterwards; default from the file's
        CentreOfRotationTop and -Bottom, or ObjectOffsetX, if there are any, else the middle.
    views
        How many of the projections, evenly over the same angles; default all.

    Returns
    -------
    VectorGeometry
        With the file's voxels, VoxelsZ slices of VoxelsY × VoxelsX.

    Raises
    ------
    UserError
        No such file, or one that lacks a number that is needed.
    """
    path = Path(path)
    values = _values(path)

    def number(*names: str, default: float | None = None) -> float:
        for name in names:
            if name.lower() in values:
                return finite(values[name.lower()], f"{path}: {name}")
        if default is None:
            raise UserError(f"{path} has no {' or '.join(names)}, which a geometry needs")
        return default

    def length(name: str) -> float:
        if not number(name) > 0:
            raise UserError(f"{path}: {name} is {number(name):g}, which no length is")
        return number(name)

    def whole(name: str) -> int:
        value = number(name)
        if not 1 <= value < _MOST or value != int(value):
            raise UserError(f"{path}: {name} is {value:g}, which is no number of things")
        return int(value)

    columns, rows = whole("DetectorPixelsX") // bin, whole("DetectorPixelsY") // bin
    across, down = bin * length("DetectorPixelSizeX"), bin * length("DetectorPixelSizeY")
    near, far = length("SrcToObject"), length("SrcToDetector")
    count = whole("Projections")
    turn = number("AngularStep") * count
    angles = -(number("InitialAngle", default=0.0) + turn * np.arange(views or count) / (views or count))
    if center is None:
        axis = (number("CentreOfRotationTop", "ObjectOffsetX", default=0.0)
                + number("CentreOfRotationBottom", "ObjectOffsetX", default=0.0)) / 2  # fmt: skip
        center = (columns - 1) / 2 + (axis * far / near - number("DetectorOffsetX", default=0.0)) / across
    center_row = (rows - 1) / 2 - number("DetectorOffsetY", default=0.0) / down
    voxels = [whole(f"Voxels{axis}") // bin for axis in "ZYX"]
    size = [bin * length(f"VoxelSize{axis}") for axis in "ZYX"]
    if not near < far:
        raise UserError(f"{path}: SrcToObject is {near:g}, not less than SrcToDetector, {far:g}")
    with of_file(path):
        geometry = cone_beam(
            angles, rows, columns, source_axis=near, source_detector=far, pixel=(down, across), center=center,
            center_row=center_row, shape=(voxels[0], voxels[1], voxels[2]), voxel=(size[0], size[1], size[2]),
        )  # fmt: skip
    offsets = [number(f"Offset{axis}", default=0.0) for axis in "XYZ"]
    return geometry.replace(middle=tuple(offsets))


def _values(path: Path) -> dict[str, str]:
    """All keys of all sections, in small letters."""
    if not path.is_file():
        raise UserError(f"{path} does not exist")
    parser = ConfigParser(strict=False, interpolation=None)
    try:
        parser.read_string(small_bytes(path).decode("utf-8", errors="replace"))
    except (ConfigError, AttributeError) as error:  # AttributeError: lines that go on where none began
        reason = shown(str(error).splitlines()[0], 120)
        raise UserError(f"{path} is no .xtekct file of key=value lines: {reason}") from None
    return {key: value for section in parser.sections() for key, value in parser[section].items()}
