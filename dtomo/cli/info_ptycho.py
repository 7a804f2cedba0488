"""``dtomo info`` of a ptychographic scan."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dtomo.io.ptycho import PtychoScan


def _row(name: str, value: str, where: str | None = None) -> str:
    return f"  {name:<18}{value}" + (f"  [{where}]" if where else "")


def ptycho_lines(scan: "PtychoScan") -> list[str]:
    """What is in a scan, what is missing."""
    from dtomo.distributed.plan import size

    frames, rows, columns = scan.shape
    found = scan.found
    raw = frames * rows * columns * scan.dtype.itemsize
    lines = [
        f"{scan.path}: ptychographic scan ({scan.format})",
        _row("frames", f"{frames} × {rows} × {columns} {scan.dtype}, {size(raw)}", found.get("frames")),
        _row("positions", _extent(scan), found.get("positions")),
        _row("motion", found["motion"]),
        *_angles(scan),
    ]
    missing = []
    pixel = scan.detector_pixel and " × ".join(f"{length * 1e6:g}" for length in scan.detector_pixel)
    for name, value, where in (
        ("energy", None if scan.energy is None else f"{scan.energy:g} keV", found.get("wavelength")),
        ("distance", None if scan.distance is None else f"{scan.distance:g} m", found.get("distance")),
        ("detector pixel", pixel and f"{pixel} µm", found.get("detector_pixel")),
    ):
        if value is None:
            missing.append(name)
        else:
            lines.append(_row(name, value, where))
    if scan.object_pixel_size is not None:
        kind = "near field" if scan.near_field else "far field"
        sizes = " × ".join(f"{length * 1e9:.4g}" for length in scan.object_pixel_size)
        lines.append(_row("object pixel", f"{sizes} nm ({kind})"))
    for name, array in (("background", scan.background), ("probe", scan.probe), ("intensities", scan.intensities)):
        if array is not None:
            lines.append(_row(name, " × ".join(map(str, array.shape)), found.get(name)))
    masked = 0 if scan.mask is None else int((~scan.mask).sum())
    lines.append(_row("masked", f"{masked} of {rows * columns} pixels", found.get("mask")))
    if scan.saturation is not None:
        lines.append(_row("saturation", f"{scan.saturation:g} counts"))
    if missing:
        lines.append(_row("missing", ", ".join(missing)))
    return lines + [_row("note", warning) for warning in scan.warnings]


def _extent(scan: "PtychoScan") -> str:
    """Rows and columns that the positions span."""
    span = scan.positions.max(0) - scan.positions.min(0)
    if scan.position_unit == "pixels":
        return f"over {span[0]:.4g} × {span[1]:.4g} pixels (row, column)"
    return f"over {span[0] * 1e6:.4g} × {span[1] * 1e6:.4g} µm (row, column)"


def _angles(scan: "PtychoScan") -> list[str]:
    """The angles of rotation that the file states."""
    from dtomo.errors import UserError
    from dtomo.io.angles import to_degrees
    from dtomo.io.ptychotomo.stated_angles import grouped, stated_angles

    try:
        table = stated_angles(scan.path, scan.directions)
        degrees = None if table is None else grouped(to_degrees(table)[0])[0]
    except UserError as error:  # of no use for rotation; the scan is whole without it
        return [_row("angle", f"not taken: {error}")]
    if table is None or degrees is None:
        return []
    if len(degrees) == 1:
        return [_row("angle", f"{degrees[0]:g} degrees", table.where)]
    said = f"{len(degrees)}, from {degrees[0]:g} to {degrees[-1]:g} degrees: a scan for dtomo ptychotomo"
    return [_row("angles", said, table.where)]
