"""Two averages on disk, compared: FSC, corrected for the mask, and the resolution it means."""

from pathlib import Path

import numpy as np

from dtomo import io
from dtomo.errors import UserError
from dtomo.io import open_volume
from dtomo.subtomo.comparison import half_curve
from dtomo.subtomo.results import fsc_table


def compare_files(
    first: Path,
    second: Path,
    mask: Path | None = None,
    pixel_size: float | None = None,
    threshold: float = 0.143,
    output: Path | None = None,
    *,
    overwrite: bool = False,
) -> list[str]:
    """Lines for the user; the curves go to `output`, if given.

    Raises
    ------
    UserError
        Volumes that cannot be read or differ in shape, an unknown voxel size, an output that exists.
    """
    volumes = [open_volume(path) for path in (first, second, *([mask] if mask else []))]
    for volume in volumes[1:]:
        if volume.shape != volumes[0].shape:
            raise UserError(f"{volume.path} has {volume.shape} voxels; {first} has {volumes[0].shape}")
    if not 0 < threshold < 1:
        raise UserError(f"--threshold lies between 0 and 1; got {threshold:g}")
    if pixel_size is None:
        found = volumes[0].voxel_size_um
        if found is None or found[0] <= 0:
            raise UserError(f"{first} does not say the size of its voxels; give --pixel-size in Å")
        pixel_size = found[0] * 1e4
    elif not 0 < pixel_size < np.inf:
        raise UserError(f"--pixel-size is a length in Å; got {pixel_size:g}")
    if output is not None and output.exists() and not overwrite:
        raise UserError(f"{output} exists; give another name, or replace it with --overwrite")
    one, two, *window = (np.ascontiguousarray(volume.source.read(slice(None)), np.float32) for volume in volumes)
    curve = half_curve(one, two, window[0] if window else None, pixel_size, threshold=threshold)
    if output is not None:
        with io.output.replaced(output) as part:
            part.write_text(fsc_table(curve), encoding="utf-8")
    lines = [
        f"resolution: {_said(curve.resolution.period)} (FSC {threshold:g}{', corrected for the mask' * bool(window)})"
    ]
    if curve.first_crossing.period != curve.resolution.period:
        lines.append(f"first crossing: {_said(curve.first_crossing.period)}")
    lines.append(f"without a mask the halves agree to {_said(curve.significant.period)} (above noise)")
    return lines


def _said(period: float) -> str:
    return f"{period:.2f} Å" if np.isfinite(period) else "none"
