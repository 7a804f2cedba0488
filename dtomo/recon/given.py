"""Volumes that a solver is given: where there may be something, and where to begin."""

import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtomo import io
from dtomo.errors import UserError
from dtomo.recon.solvers import NEEDS, Given
from dtomo.settings import STARTS, ReconSettings

Shape = tuple[int, int, int]


def circle(height: int, width: int) -> NDArray[np.bool_]:
    """The largest circle in a slice: ``(1, y, x)``, True inside."""
    y, x = np.ogrid[:height, :width]
    return (4 * ((y - (height - 1) / 2) ** 2 + (x - (width - 1) / 2) ** 2) <= min(height, width) ** 2)[None]


def volumes(settings: ReconSettings) -> dict[str, str]:
    """The volumes that are read, by the option that names them: files, or ``FILE.h5:/dataset``."""
    named = {"mask": settings.mask, "start": settings.start}
    return {name: str(value) for name, value in named.items() if value not in (None, "circle", *STARTS)}


def files(settings: ReconSettings) -> list[Path]:
    """The files that these lie in."""
    named = volumes(settings).values()
    return [Path(text if os.path.exists(text) else text.rpartition(":/")[0] or text) for text in named]


def check_given(settings: ReconSettings, scan: io.Scan, shape: Shape | None = None) -> None:
    """Refuse what does not fit a scan, or (where that is known) the `shape` of its volume.

    Raises
    ------
    UserError
        A file that is no volume or has another size; what complex scans have not.
    """
    if scan.is_complex:
        real = {"lower": settings.lower, "upper": settings.upper, "weights": settings.weights == "photons" or None}
        for name, value in real.items():
            if value is not None:
                raise UserError(f"--{name} is of real volumes, but {scan.path} is complex; leave it out")
    if settings.weights == "photons" and scan.values == "integrals":
        raise UserError(
            f"--weights photons come from counts or transmissions, but {scan.path} holds line integrals; leave it out"
        )
    for option, path in volumes(settings).items():
        found = io.open_volume(path)
        if found.dtype.kind == "c" and not (option == "start" and scan.is_complex):
            raise UserError(f"--{option} {path} is complex; real numbers were expected")
        if shape is None:
            continue
        fits = [shape, (1, *shape[1:])] if option == "mask" else [shape]
        if found.shape not in fits:
            raise UserError(
                f"--{option} {path} has {_sizes(found.shape)} voxels, but the volume has {_sizes(shape)} (z, y, x)"
                + (", or one slice for all" if option == "mask" else "")
            )


def given_to(settings: ReconSettings, rows: slice, shape: Shape, scale: float) -> Given:
    """What the solver of some slices is given: `rows` of a volume of that shape.

    Raises
    ------
    UserError
        A file that cannot be read any more, values to begin with that are not finite, a mask that leaves nothing.
    """
    if settings.algorithm not in NEEDS:
        return Given(scale)
    read: dict[str, Any] = {name: _read(name, path, rows) for name, path in volumes(settings).items()}
    if settings.mask == "circle":
        read["mask"] = circle(*shape[1:])
    return Given(scale, read.get("mask"), read.get("start"))


def _read(option: str, path: str, rows: slice) -> NDArray[Any]:
    volume = io.open_volume(path)
    values = volume.source.read(rows if volume.shape[0] > 1 or option == "start" else slice(None))
    if option == "mask":
        return values > 0
    if not np.isfinite(values).all():
        raise UserError(f"--start {path} has values that are not finite")
    return values.astype(np.complex64 if values.dtype.kind == "c" else np.float32, copy=False)


def _sizes(shape: tuple[int, ...]) -> str:
    return " × ".join(map(str, shape))
