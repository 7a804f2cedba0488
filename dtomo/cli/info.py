"""``dtomo info``: what is in a file, what is missing, what it would cost to reconstruct."""

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dtomo.cli import options
from dtomo.errors import UserError

if TYPE_CHECKING:
    from dtomo.io import Scan, Volume
    from dtomo.settings import ReconSettings


VALUES = {"counts": "raw counts", "transmission": "transmissions", "integrals": "line integrals"}
"""What projections hold, in words."""


def info(
    files: Annotated[
        list[str], typer.Argument(metavar="FILE…", help="Scans, volumes, particle lists.", show_default=False)
    ],
    dataset: options.Dataset = None,
    angles: options.Angles = None,
    angle_unit: options.AngleUnit = None,
    flats: options.Flats = None,
    darks: options.Darks = None,
    values: options.Values = None,
    normalized: options.Normalized = None,
    workers: options.Workers = None,
    memory: options.Memory = None,
) -> None:
    """Show what is in FILE, what is missing, and what it would cost to reconstruct."""
    from dtomo.settings import ReconSettings

    given = {
        "dataset": dataset,
        "angles": angles,
        "angle_unit": angle_unit,
        "flats": flats,
        "darks": darks,
        "values": values,
        "normalized": normalized,
        "workers": workers,
        "memory": memory,
    }
    failed = False
    for number, file in enumerate(files):
        settings = ReconSettings(scan=file, output="volume.zarr", **given)
        try:
            lines = describe(settings)
        except UserError as error:
            print(f"dtomo: {error}", file=sys.stderr)
            failed = True
            continue
        print(("\n" if number else "") + "\n".join(lines))
    if failed:
        raise typer.Exit(2)


def describe(settings: "ReconSettings") -> list[str]:
    """Lines about a scan, a volume or a particle list.

    Raises
    ------
    UserError
        The file is neither.
    """
    from dtomo import io
    from dtomo.cli.info_particles import particle_lines
    from dtomo.cli.info_ptycho import ptycho_lines
    from dtomo.cli.info_ptychotomo import joint_lines
    from dtomo.io.ptycho.opening import open_ptycho, recognise_ptycho

    path = settings.scan
    listed = particle_lines(path)
    if listed is not None:
        return listed
    if settings.angles is None and recognise_ptycho(path) is not None:
        return ptycho_lines(open_ptycho(path, dataset=settings.dataset))
    joint = joint_lines(path, settings.angles, settings.angle_unit)
    if joint is not None:
        return joint
    try:
        scan = _open(settings)
    except UserError as as_scan:
        try:
            volume = io.open_volume(str(settings.scan))
        except UserError:
            raise as_scan from None
        return _volume_lines(volume, str(as_scan))
    return _scan_lines(scan) + _cost_lines(scan, settings)


def value_text(unit: str) -> str:
    """What the voxels of a volume dtomo wrote are, from the unit it noted."""
    return f"attenuation in {unit}" if unit.startswith("1/") else f"what the projections are integrals of, {unit}"


def _open(settings: "ReconSettings") -> "Scan":
    from dtomo import io

    return io.open(
        settings.scan,
        dataset=settings.dataset,
        angles=settings.angles,
        angle_unit=settings.angle_unit,
        flats=settings.flats,
        darks=settings.darks,
        values=settings.values,
    )


def _row(name: str, value: str, where: str | None = None) -> str:
    return f"  {name:<18}{value}" + (f"  [{where}]" if where else "")


def _scan_lines(scan: "Scan") -> list[str]:
    from dtomo.distributed.plan import size

    angles, rows, columns = scan.shape
    found = scan.found
    raw = angles * rows * columns * scan.dtype.itemsize
    lines = [
        f"{scan.path}: {'raw scan' if scan.values == 'counts' else 'scan'} ({scan.format})",
        _row(
            "projections",
            f"{angles} × {rows} × {columns} (angle, row, column) {scan.dtype}, {size(raw)}",
            found.get("projections"),
        ),
        _row("values", VALUES[scan.values]),
        _row("angles", _angle_text(scan), found.get("angles")),
    ]
    if scan.geometry is not None:
        lines.append(_row("geometry", _geometry_text(scan.geometry), found.get("geometry")))
    missing = []
    for name, source in (("flats", scan.flat_source), ("darks", scan.dark_source)):
        if source is not None:
            lines.append(_row(name, str(source.shape[0]), found.get(name)))
        elif not scan.normalized:
            missing.append(name)
    values = (
        ("center", scan.center, "column"),
        ("pixel_size", scan.pixel_size, "µm"),
        ("energy", scan.energy, "keV"),
        ("sample_detector_distance", scan.sample_detector_distance, "mm"),
    )
    for name, value, unit in values:
        label = name.replace("sample_detector_", "").replace("_", " ")
        if name == "center" and scan.geometry is not None:
            continue
        if value is None:
            missing.append("center (will be searched for)" if name == "center" else label)
        else:
            lines.append(_row(label, f"{value:g} {unit}", found.get(name)))
    if missing:
        lines.append(_row("missing", ", ".join(missing)))
    return lines + [_row("note", warning) for warning in scan.warnings]


def _geometry_text(geometry: Any) -> str:
    z, y, x = geometry.shape
    sizes = " × ".join(f"{length * 1e3:g}" for length in geometry.voxel)
    return f"{geometry.beam} beam, {z} × {y} × {x} voxels of {sizes} (z, y, x) µm"


def _angle_text(scan: "Scan") -> str:
    import numpy as np

    low, high = float(scan.angles.min()), float(scan.angles.max())
    steps = np.diff(scan.angles)
    even = len(steps) > 0 and np.ptp(steps) <= 1e-3 * abs(steps.mean())
    step = f" in steps of {steps.mean():.6g}" if even else ""
    return f"{len(scan.angles)}, from {low:g} to {high:g} degrees{step}"


def _cost_lines(scan: "Scan", settings: "ReconSettings") -> list[str]:
    from dtomo.distributed.clusters import resources
    from dtomo.geometry import ParallelBeam
    from dtomo.recon.cost import make_plan

    available = resources(workers=settings.workers, memory=settings.memory)
    if scan.geometry is not None:
        from dtomo.recon.geometry_job import plan_of

        lines = plan_of(scan, settings, available).lines()
        return ["  to reconstruct it by filtered back projection:", *("    " + line for line in lines)]
    plan = make_plan(scan, settings, ParallelBeam(scan.angles, scan.shape[2]), available)
    return ["  to reconstruct it by filtered back projection:", *("    " + line for line in plan.lines())]


def _volume_lines(volume: "Volume", as_scan: str) -> list[str]:
    from dtomo.distributed.plan import size

    z, y, x = volume.shape
    lines = [
        f"{volume.path}: volume ({volume.format})",
        _row("voxels", f"{z} × {y} × {x} (z, y, x) {volume.dtype}, {size(z * y * x * volume.dtype.itemsize)}"),
    ]
    if volume.voxel_size is None:
        lines.append(_row("missing", "voxel size"))
    else:
        sizes = " × ".join(f"{length:g}" for length in volume.voxel_size)
        lines.append(_row("voxel size", f"{sizes} (z, y, x) {volume.unit}"))
    if "unit" in volume.attributes:
        lines.append(_row("values", value_text(str(volume.attributes["unit"]))))
    lines += [_row("note", warning) for warning in volume.warnings]
    return [*lines, _row("as a scan", as_scan)] if volume.path.suffix != ".zarr" else lines
