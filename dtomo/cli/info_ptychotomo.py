"""``dtomo info`` of scans for joint ptycho-tomography, and of its results."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dtomo.io.ptychotomo import PtychotomoScan


def joint_lines(path: Path) -> list[str] | None:
    """What is in a joint scan (one file of all angles) or a result of ``dtomo ptychotomo``; None: it is neither.

    Raises
    ------
    UserError
        A joint scan that is damaged, a result that is unfinished.
    """
    import h5py

    if path.is_dir():
        return _result_lines(path)
    if not path.is_file() or not h5py.is_hdf5(path):
        return None
    from dtomo.io.hdf5_files import open_hdf5
    from dtomo.io.ptychotomo import open_ptychotomo
    from dtomo.io.ptychotomo.writer import is_ptychotomo

    with open_hdf5(path) as file:
        if not is_ptychotomo(file):
            return None
    return _scan_lines(open_ptychotomo(path))


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
    return lines + [_row("note", warning) for warning in scan.warnings]


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
