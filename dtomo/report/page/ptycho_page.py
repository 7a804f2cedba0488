"""The pages of ``dtomo ptycho`` and ``dtomo ptychotomo``."""

from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from dtomo.algorithms.resolution import threshold_values
from dtomo.io import open_volume
from dtomo.io.ptycho.results import read_results
from dtomo.ptychotomo.results import VOLUMES, read_parameters, volume_path
from dtomo.report.page.html import Card, Page
from dtomo.report.page.records import Record, number, numbers, record_cards, resource_cards, time_tiles, when
from dtomo.report.page.stacks import stack_of_array, stacks_of
from dtomo.report.page.svg import Line, plot

_IMAGE = ("slice", "row", "column")


def is_ptycho(output: Path) -> bool:
    """Whether `output` is a result of ``dtomo ptycho``."""
    if output.is_dir():
        return (output / "obj").is_dir() and (output / "probe").is_dir()
    if not h5py.is_hdf5(output):
        return False
    with h5py.File(output) as file:
        return "obj" in file and "probe" in file


def is_joint(output: Path) -> bool:
    """Whether `output` is a result of ``dtomo ptychotomo``."""
    return all(volume_path(output, name).is_dir() for name in VOLUMES)


def ptycho_page(output: Path, foot: str) -> Page:
    """Object, probe modes, loss, ring correlation.

    Raises
    ------
    UserError
        A result that cannot be read.
    """
    result, record = read_results(output), Record.beside(output)
    spacing = None
    if result.pixel_size is not None:
        height, width = (1e6 * size for size in result.pixel_size)
        spacing = (1.0, height, width)
    image = result.transmission[0]
    modes, slices, rows, columns = result.object.shape
    tiles = [
        (f"{rows} × {columns}", "pixels of the object"),
        (str(len(result.probe)), "probe mode" + "s" * (len(result.probe) > 1)),
    ]
    tiles += [(str(count), what) for count, what in ((slices, "slices"), (modes, "object modes")) if count > 1]
    tiles += _loss_tile(result.history) + _resolution_tile(record.summary.get("frc")) + time_tiles(record)
    probe = np.abs(result.probe)
    stacks = [
        stack_of_array(np.angle(image), "Object, phase", "rad", spacing, _IMAGE, flat=True),
        stack_of_array(np.abs(image), "Object, magnitude", "", spacing, _IMAGE, flat=True),
        stack_of_array(probe, "Probe modes, magnitude", "√counts", spacing, ("mode", "row", "column"), flat=True),
    ]
    powers = [("mode " + str(place), f"{100 * power:.2f} %") for place, power in enumerate(result.mode_powers)]
    curves = [_loss(result.history, result.loss), Card("Power of the probe modes", rows=tuple(powers))]
    if result.frc is not None:
        curve, found = result.frc, record.summary.get("frc")
        limit = [
            Line("half-bit", curve.frequency / curve.nyquist, threshold_values("half-bit", curve.count), dashed=True)
        ]
        curves.insert(1, _correlation(curve.frequency / curve.nyquist, curve.correlation, limit, found, "half-scans"))
    moved = record.summary.get("positions_moved")
    if isinstance(moved, dict):
        rows_of = [(name, f"{number(moved.get(name)) or 0:.3f} pixels") for name in ("mean", "most")]
        curves.append(Card("Positions moved", rows=tuple(rows_of)))
    return Page(
        output.name, f"Ptychography{when(record)}. {output}", tiles, record.notes, stacks, curves,
        resource_cards(record), record_cards(record, "ptycho"), foot,
    )  # fmt: skip


def joint_page(output: Path, foot: str) -> Page:
    """δ and β, loss, shifts of the views, shell correlation.

    Raises
    ------
    UserError
        A result that cannot be read.
    """
    parameters, record = read_parameters(output), Record.beside(output)
    volume = open_volume(volume_path(output, VOLUMES[0]))
    unit = str(parameters["attributes"].get("unit", ""))
    tiles = [(" × ".join(map(str, volume.shape)), "voxels (z, y, x)"), (str(len(parameters["angles"])), "angles")]
    tiles += _loss_tile(parameters["loss_history"]) + _resolution_tile(record.summary.get("fsc")) + time_tiles(record)
    stacks = [stack for name, sign in zip(VOLUMES, "δβ") for stack in stacks_of(volume_path(output, name), sign, unit)]
    probe = np.abs(parameters["probe"])
    probe = probe.reshape(-1, *probe.shape[-2:])
    stacks.append(stack_of_array(probe, "Probe, magnitude", "√counts", None, ("mode", "row", "column"), flat=True))
    curves = [_loss(parameters["loss_history"], "loss per pixel")]
    if "fsc" in parameters:
        frequency, correlation, _ = parameters["fsc"]
        found = record.summary.get("fsc")
        nyquist = number(found.get("nyquist")) if isinstance(found, dict) else None
        curves.append(
            _correlation(frequency / (nyquist or float(frequency[-1])), correlation, [], found, "halves of the angles")
        )
    if "shifts" in parameters:
        order = np.argsort(parameters["angles"])
        lines = [
            Line(name, parameters["angles"][order], parameters["shifts"][order, place])
            for place, name in enumerate(("rows", "columns"))
        ]
        curves.append(Card("Alignment: shifts of the images", plot=plot(lines, "angle, degrees", "pixels")))
    return Page(
        output.name, f"Joint ptycho-tomography{when(record)}. {output}", tiles, record.notes, stacks, curves,
        resource_cards(record), record_cards(record, "ptychotomo"), foot,
    )  # fmt: skip


def _loss_tile(history: NDArray[Any]) -> list[tuple[str, str]]:
    return (
        [(f"{float(history[-1]):.4g}", f"loss after {len(history)} epoch{'s' * (len(history) > 1)}")]
        if len(history)
        else []
    )


def _loss(history: NDArray[Any], name: str) -> Card:
    values = numbers([float(one) for one in history])
    drawn = plot([Line("loss", np.arange(1, len(values) + 1), values)], "epoch", name, log=True)
    return Card("Convergence", plot=drawn)


def _resolution_tile(found: Any) -> list[tuple[str, str]]:
    if not isinstance(found, dict):
        return []
    frequency, nyquist = number(found.get("frequency")), number(found.get("nyquist"))
    if not frequency or not nyquist:
        return []
    return [(f"{frequency / nyquist:.2f} of Nyquist", f"halves agree up to ({found.get('threshold', 'threshold')})")]


def _correlation(frequency: NDArray[Any], values: NDArray[Any], limits: list[Line], found: Any, of: str) -> Card:
    """Correlation over frequency (of Nyquist), and where it falls below its threshold."""
    marks = []
    for value, what in _resolution_tile(found):
        marks = [(float(value.split()[0]), "resolution" if what else "")]
    lines = [Line("correlation", frequency, values), *limits]
    low = min(0.0, float(np.nanmin(values, initial=0.0)))
    drawn = plot(lines, "spatial frequency, of Nyquist", "correlation", marks=marks, low=low, high=1.04)
    return Card(f"Correlation of two {of}", plot=drawn)
