"""``dtomo info`` of scans for joint ptycho-tomography, and of its results."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dtomo.io.ptychotomo import PtychotomoScan


def joint_lines(path: Path, angles: str | None = None, angle_unit: str | None = None) -> list[str] | None:
    """What is in a joint scan or a result of ``dtomo ptychotomo``; None: it is neither.

    Parameters
    ----------
    path
        One file of all angles, a folder of a ptychographic file for each, or a result.
    angles, angle_unit
        A file of them, where the scan does not state them, and degrees or radians.

    Raises
    ------
    UserError
        A joint scan that is damaged, a result that is unfinished.
    """
    if path.is_dir():
        found = _result_lines(path)
        return _folder_lines(path, angles, angle_unit) if found is None else found
    from dtomo.io.ptychotomo import open_ptychotomo
    from dtomo.io.ptychotomo.writer import is_ptychotomo_file

    if not path.is_file() or not is_ptychotomo_file(path):
        return None
    return _scan_lines(open_ptychotomo(path, angles=angles, angle_unit=angle_unit))


def _folder_lines(path: Path, angles: str | None, angle_unit: str | None) -> list[str] | None:
    """Of a folder of ptychographic files; None: it holds other things."""
    from dtomo.io.ptycho import recognise_ptycho
    from dtomo.io.ptychotomo import open_ptychotomo
    from dtomo.io.ptychotomo.opening import ptychographic_files

    files = ptychographic_files(path)
    if len(files) < 2 or recognise_ptycho(files[0]) is None:
        return None
    return _scan_lines(open_ptychotomo(path, angles=angles, angle_unit=angle_unit))


def _row(name: str, value: str) -> str:
    return f"  {name:<18}{value}"


def _scan_lines(scan: "PtychotomoScan") -> list[str]:
    from dtomo.distributed.plan import size

    frames, rows, columns = scan.shape
    each = scan.frames_per_angle
    image_rows, image_columns = scan.image_shape
    raw = frames * rows * columns * scan.frames.dtype.itemsize
    lines = [
        f"{scan.path}: scan for joint ptycho-tomography",
        _row("frames", f"{frames} × {rows} × {columns} {scan.frames.dtype}, {size(raw)}"),
        _row("angles", f"{len(scan.angles)}, from {scan.angles.min():g} to {scan.angles.max():g} degrees"),
        _row("frames per angle", f"{each.min()} to {each.max()}"),
        _row("images", f"{image_rows} × {image_columns}"),
        _row("volume", f"{image_rows} × {image_columns} × {image_columns} voxels"),
    ]
    lines += [_row("neighbours", _apart(scan))]
    missing = []
    for name, value, factor, unit in (
        ("center", scan.center, 1.0, "column"),
        ("voxel size", scan.pixel_size, 1e9, "nm"),
        ("wavelength", scan.wavelength, 1e12, "pm"),
        ("distance", scan.distance, 1.0, "m"),
    ):
        if value is None:
            missing.append("center (the middle is taken)" if name == "center" else name)
        else:
            lines.append(_row(name, f"{value * factor:.4g} {unit}"))
    for name, array in (("probe", scan.probe), ("background", scan.background)):
        if array is not None:
            lines.append(_row(name, " × ".join(map(str, array.shape))))
    masked = 0 if scan.mask is None else int((~scan.mask).sum())
    lines.append(_row("masked", f"{masked} of {rows * columns} pixels"))
    if missing:
        lines.append(_row("missing", ", ".join(missing)))
    from dtomo.ptychotomo.scans import data_of
    from dtomo.ptychotomo.thickness import thickness_sentence

    thick = thickness_sentence(data_of(scan), None)
    return lines + [_row("note", warning) for warning in (*scan.warnings, *([thick] if thick else []))]


def _apart(scan: "PtychotomoScan") -> str:
    """How far the frames of the angle with most of them lie apart."""
    from dtomo.ptycho.plausible import neighbours_apart

    places = scan.positions[scan.angle_of_frame == int(scan.frames_per_angle.argmax())]
    if len({tuple(place) for place in places.tolist()}) < 2:
        return "one frame at an angle"
    apart = neighbours_apart(places, scan.shape[1:])
    return f"{100 * apart:.0f} % of a frame apart at an angle"


def _result_lines(path: Path) -> list[str] | None:
    from dtomo.ptychotomo.results import VOLUMES, open_parameters, volume_path

    if not all(volume_path(path, name).is_dir() for name in VOLUMES):
        return None
    from dtomo.io import open_volume

    group, noted = open_parameters(path)
    lines = [f"{path}: result of joint ptycho-tomography"]
    for name in VOLUMES:
        volume = open_volume(volume_path(path, name))
        voxels = " × ".join(map(str, volume.shape))
        lines.append(_row(name, f"{voxels} (z, y, x) {volume.dtype} in {volume.path.name}"))
    pixel = volume.isotropic_voxel_size()
    lines += [] if pixel is None else [_row("voxel size", f"{pixel * 1e3:.4g} nm")]
    lines.append(_row("values", "of the refractive index" if noted.get("unit") == "1" else str(noted.get("unit"))))
    lines.append(_row("epochs", str(noted.get("epochs"))))
    lines += [_row(name, " × ".join(map(str, array.shape))) for name, array in sorted(group.arrays())]
    return lines
