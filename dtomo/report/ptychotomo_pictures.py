"""Pictures of a joint result: slices of δ and β in three planes, probe, loss, shifts, shell correlation."""

import os
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from dtomo.errors import UserError
from dtomo.io import open_volume
from dtomo.ptychotomo.results import VOLUMES, read_parameters, volume_path
from dtomo.report.draw import LINE, STYLE, gray_range, new_figure, show_residuals, show_slice
from dtomo.report.ptycho_pictures import colored

MOST_VOXELS = 1024
"""Along a side of a picture; larger volumes are drawn with every n-th voxel."""
PLANES = ("z", "y", "x")


def write_pictures(output: str | os.PathLike[str], *, folder: str | os.PathLike[str] | None = None) -> list[Path]:
    """Write PNG pictures of a result beside it.

    Parameters
    ----------
    output
        The result.
    folder
        Where to write; default ``OUT.pictures`` beside it.

    Returns
    -------
    list of Path
        ``overview.png``, ``delta.png``, ``beta.png``.

    Raises
    ------
    UserError
        No result, or a folder that cannot be written.
    """
    output = Path(output)
    where = output.with_name(f"{output.name}.pictures") if folder is None else Path(folder)
    parameters = read_parameters(output)
    try:
        where.mkdir(parents=True, exist_ok=True)
        with mpl.rc_context(STYLE):
            figures = {"overview": _overview(output, parameters)}
            figures |= {name: _slices(output, name, parameters["attributes"]["unit"]) for name in VOLUMES}
            written = []
            for name, figure in figures.items():
                figure.savefig(where / f"{name}.png")
                written.append(where / f"{name}.png")
            return written
    except OSError as error:
        raise UserError(f"pictures cannot be written to {where}: {error.strerror or error}") from error


def middle_slices(output: Path, name: str) -> list[NDArray[Any]]:
    """Slices through the middle of δ or β: z, y and x fixed."""
    array = open_volume(volume_path(output, name)).array
    step = max(1, -(-max(array.shape) // MOST_VOXELS))
    rows, height, width = array.shape
    found = array[rows // 2, ::step, ::step], array[::step, height // 2, ::step], array[::step, ::step, width // 2]
    return [np.asarray(image) for image in found]


def _slices(output: Path, name: str, unit: str) -> Figure:
    images = middle_slices(output, name)
    figure = new_figure(12, 4.6)
    low, high = gray_range(images)
    pixel = open_volume(volume_path(output, name)).isotropic_voxel_size()
    for number, (plane, image) in enumerate(zip(PLANES, images), 1):
        names = [axis for axis in PLANES if axis != plane]
        axes = figure.add_subplot(1, 3, number)
        show_slice(axes, image, (low, high), f"{name} ({unit}), middle of {plane}", (names[0], names[1]), pixel)
    return figure


def _overview(output: Path, parameters: dict[str, Any]) -> Figure:
    figure = new_figure(12, 8)
    pixel = open_volume(volume_path(output, "delta")).isotropic_voxel_size()
    for number, name in enumerate(VOLUMES, 1):
        image = middle_slices(output, name)[0]
        axes = figure.add_subplot(2, 3, number)
        show_slice(axes, image, gray_range([image]), f"{name}, middle slice", pixel_size=pixel)
    axes = figure.add_subplot(2, 3, 3)
    probe = parameters["probe"]
    waves = probe.reshape(-1, *probe.shape[-2:])
    show_slice(axes, colored(waves[0]), (0, 1), "probe (color: phase)", ("row", "column"))
    axes = figure.add_subplot(2, 3, 4)
    show_residuals(axes, [float(loss) for loss in parameters["loss_history"]])
    axes.set_title("loss per pixel")
    axes.set_xlabel("epoch")
    axes.set_ylabel("")
    if "shifts" in parameters:
        _lines(figure.add_subplot(2, 3, 5), parameters["angles"], parameters["shifts"], ("rows", "columns"))
    if "fsc" in parameters:
        axes = figure.add_subplot(2, 3, 6)
        frequency, correlation, _ = parameters["fsc"]
        axes.plot(2 * frequency * (1.0 if pixel is None else pixel * 1e-6), correlation, color=LINE)
        axes.set_xlabel("spatial frequency, of Nyquist")
        axes.axhline(0, color="0.7", linewidth=0.8)
        axes.set_title("correlation of two halves of the angles")
        axes.set_ylim(-0.1, 1.05)
    figure.suptitle(output.name)
    return figure


def _lines(axes: Axes, angles: NDArray[Any], values: NDArray[Any], names: tuple[str, ...]) -> None:
    order = np.argsort(angles)
    for name, column in zip(names, values.T):
        axes.plot(angles[order], column[order], label=name)
    axes.legend()
    axes.set_title("shifts of the images, pixels")
    axes.set_xlabel("angle, degrees")
