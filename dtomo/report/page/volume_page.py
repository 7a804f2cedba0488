"""The page of a volume: of ``dtomo recon``, or of any other."""

import math
from pathlib import Path
from typing import Any

import numpy as np

from dtomo.distributed.plan import size
from dtomo.io import Volume, open_volume
from dtomo.report.page.html import Card, Page
from dtomo.report.page.records import Record, number, numbers, record_cards, resource_cards, time_tiles, when
from dtomo.report.page.stacks import stacks_of
from dtomo.report.page.svg import Line, plot


def volume_page(output: Path, foot: str) -> Page:
    """Slices, histogram, and all that a record beside the volume tells.

    Raises
    ------
    UserError
        There is no volume at `output`.
    """
    volume = open_volume(output)
    record = Record.beside(output)
    unit = str(record.summary.get("unit") or volume.attributes.get("unit") or "")
    z, y, x = volume.shape
    tiles = [(f"{z} × {y} × {x}", "voxels (z, y, x)"), (size(z * y * x * volume.dtype.itemsize), str(volume.dtype))]
    if volume.voxel_size_um is not None:
        sizes = sorted(set(volume.voxel_size_um))
        tiles.append((" × ".join(f"{one:g}" for one in sizes) + " µm", "voxel size"))
    tiles += _found(record) + time_tiles(record)
    return Page(
        title=output.name,
        lead=_lead(output, record, volume),
        tiles=tiles,
        notes=[*volume.warnings, *record.notes],
        stacks=stacks_of(output, "Slices", unit),
        curves=[_convergence(record), _by_slice(record), _axis(record)],
        resources=resource_cards(record),
        records=record_cards(record, "recon" if record.settings else ""),
        foot=foot,
    )


def _lead(output: Path, record: Record, volume: Volume) -> str:
    algorithm = record.settings.get("algorithm")
    what = f"Reconstruction by {algorithm}" if algorithm else f"Volume ({volume.format})"
    of = f" of {Path(str(record.settings['scan'])).name}" if record.settings.get("scan") else ""
    return f"{what}{of}{when(record)}. {output}"


def _found(record: Record) -> list[tuple[str, str]]:
    """Tiles of what the run found: axis, iterations, residual."""
    tiles = []
    center = record.number("center")
    if center is not None:
        tiles.append((f"column {center:.2f}", "rotation axis"))
    residuals = [left for slab in _slabs(record) if (left := number(slab.get("residual"))) is not None]
    if residuals:
        tiles.append((f"{max(residuals):.3g}", "residual left, worst slab"))
    return tiles


def _slabs(record: Record) -> list[dict[str, Any]]:
    slabs = record.summary.get("slabs")
    return [slab for slab in slabs if isinstance(slab, dict)] if isinstance(slabs, list) else []


def _convergence(record: Record) -> Card:
    """The residual of slabs over the iterations; of many slabs the best, the worst and their geometric mean."""
    curves = [np.array(numbers(slab.get("convergence"))) for slab in _slabs(record)]
    curves = [curve for curve in curves if len(curve) > 1]
    if not curves:
        return Card("Convergence")
    length = max(map(len, curves))
    together = np.array([np.append(curve, np.full(length - len(curve), curve[-1])) for curve in curves])
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = np.exp(np.log(together).mean(0))
    steps = np.arange(length)
    lines = [Line("mean of the slabs" if len(curves) > 1 else "residual", steps, mean)]
    if len(curves) > 1:
        lines += [Line("worst", steps, together.max(0), dashed=True), Line("best", steps, together.min(0), dashed=True)]
    below = "‖A x − b‖ at the start of each iteration over its first value."
    return Card("Convergence", plot=plot(lines, "iteration", "residual / first", log=True), below=below)


def _by_slice(record: Record) -> Card:
    slabs = [(slab, number(slab.get("residual"))) for slab in _slabs(record)]
    ends = [(number(slab.get("start")), number(slab.get("stop")), left) for slab, left in slabs if left is not None]
    known = [(first, last, left) for first, last, left in ends if first is not None and last is not None]
    if len(known) < 2:
        return Card("Residual along z")
    z = [place for first, last, _ in known for place in (first, last - 1)]
    left = [value for _, _, value in known for _ in range(2)]
    drawn = plot([Line("residual", z, left)], "slice z", "residual left / first", low=0.0 if min(left) >= 0 else None)
    return Card("Residual along z", plot=drawn, below="Of the slice of each slab where it is largest.")


def _axis(record: Record) -> Card:
    rows = []
    center = record.number("center")
    if center is not None:
        rows += [
            ("rotation axis", f"column {center:.3f} of the detector"),
            ("how", str(record.summary.get("how", "–"))),
        ]
    if "geometry" in record.summary:
        rows.append(("geometry", f"{record.summary['geometry']} beam, as the scan says"))
    if record.settings.get("alignment"):
        rows.append(("alignment of the views", str(record.settings["alignment"])))
    phase = number(record.settings.get("delta_beta"))
    if phase is not None and math.isfinite(phase):
        rows.append(("phase retrieval, δ/β", f"{phase:g}"))
    return Card("Alignment", rows=tuple(rows))
