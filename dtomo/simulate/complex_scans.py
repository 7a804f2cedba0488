"""A scan of complex line integrals, as ptychography gives them, of a phantom that is known exactly."""

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import zarr
from numpy.typing import ArrayLike, NDArray

from dtomo.errors import UserError
from dtomo.io.zarr_store import CHUNK, new_zarr_scan
from dtomo.simulate.phantoms import Phantom, sample
from dtomo.simulate.scans import (
    ABSORPTION,
    GROUP,
    MOST_THREADS,
    ScanTruth,
    chosen_angles,
    computed_ahead,
    default_center,
    refuse_sizes,
)

IMAGINARY, TURN = 0.3, 110.0
"""Largest imaginary line integral, of the largest real one; degrees that one part is turned against the other."""
_WORKING = 40
"""Bytes per value that a thread takes meanwhile."""


@dataclasses.dataclass(frozen=True, eq=False)
class ComplexPhantom:
    """Two phantoms: one the real part, the other the imaginary part; methods as those of `Phantom`, complex64."""

    real: Phantom
    imaginary: Phantom

    def volume(
        self, size: int, slices: int | None = None, rows: slice | Sequence[int] | None = None, width: int | None = None
    ) -> NDArray[np.complex64]:
        """(z, y, x), see `Phantom.volume`."""
        return _complex(*(part.volume(size, slices, rows, width) for part in (self.real, self.imaginary)))

    def projections(self, *arguments: Any, **options: Any) -> NDArray[np.complex64]:
        """(angle, row, column), see `Phantom.projections`."""
        return _complex(*(part.projections(*arguments, **options) for part in (self.real, self.imaginary)))


def _complex(real: NDArray[np.float32], imaginary: NDArray[np.float32]) -> NDArray[np.complex64]:
    out = np.empty(real.shape, np.complex64)
    out.real, out.imag = real, imaginary
    return out


def simulate_complex_scan(
    path: str | os.PathLike[str],
    *,
    size: int = 256,
    rows: int | None = None,
    angles: int | ArrayLike | None = None,
    center: float | None = None,
    columns: int | None = None,
    pixel_size: float | None = None,
    full_turn: bool = False,
    overwrite: bool = False,
) -> ScanTruth:
    """Write a Zarr scan of complex line integrals (complex64, without noise), band by band of rows.

    Real and imaginary part are two pieces of rock with other grains, one turned against the other. The largest real
    integral is about 2, the largest imaginary one about 0.6. Memory is that of a few chunks of the store.

    Parameters
    ----------
    path
        Zarr store to write, see `dtomo.io.zarr_store` for its layout. The truth is in its attributes.
    size, rows, angles, center, columns, full_turn
        See `simulate_scan`; the default of `columns` is `size`.
    pixel_size
        µm; None leaves it out.
    overwrite
        Replace a store that dtomo wrote.

    Raises
    ------
    UserError
        Sizes that make no scan or too wide for the memory; a path that is not .zarr or exists.
    """
    path = Path(path)
    if path.suffix.lower() != ".zarr":
        raise UserError(f"{path}: complex scans are written as .zarr; give a name such as scan.zarr")
    rows, columns = size if rows is None else rows, size if columns is None else columns
    refuse_sizes(size, rows, columns, center=center, pixel_size=pixel_size)
    needed, free = 2 * MOST_THREADS * CHUNK[0] * CHUNK[1] * columns * _WORKING, psutil.virtual_memory().available
    if needed > free:
        raise UserError(
            f"simulating {columns} columns takes {needed / 1e9:.3g} GB of memory, but {free / 1e9:.3g} GB are free; "
            "choose a smaller size"
        )
    degrees = chosen_angles(angles, size, full_turn)
    center = default_center(size, columns) if center is None else float(center)
    truth = ScanTruth(path, _phantom(size), size, rows, columns, center, degrees, pixel_size)
    with new_zarr_scan(
        path,
        shape=(len(degrees), rows, columns),
        dtype=np.complex64,
        angles=degrees,
        pixel_size=pixel_size,
        extra={"values": "integrals", GROUP: _stored(truth)},
        overwrite=overwrite,
    ) as store:
        _fill(store, truth)
    return truth


def _phantom(size: int) -> ComplexPhantom:
    """In units per pixel."""
    parts = sample(0), sample(1).turned(TURN)
    longest = [float(part.projections(np.arange(0, 180, 15), 64, slices=5).max()) * size / 64 for part in parts]
    return ComplexPhantom(
        parts[0].scaled(ABSORPTION / longest[0]), parts[1].scaled(IMAGINARY * ABSORPTION / longest[1])
    )


def _fill(store: zarr.Array, truth: ScanTruth) -> None:
    """Compute and write the projections, chunk of angles and rows by chunk."""
    count, rows, _ = store.shape
    parts = [
        (slice(a, min(a + CHUNK[0], count)), slice(r, min(r + CHUNK[1], rows)))
        for r in range(0, rows, CHUNK[1])
        for a in range(0, count, CHUNK[0])
    ]

    def compute(number: int) -> NDArray[np.complex64]:
        views, band = parts[number]
        return truth.phantom.projections(  # type: ignore[return-value]
            truth.angles[views], truth.size, truth.columns, truth.center, truth.slices, rows=band
        )

    for part, values in zip(parts, computed_ahead(compute, len(parts))):
        store[part] = values


def _stored(truth: ScanTruth) -> dict[str, Any]:
    """The truth as attributes of the store."""
    assert isinstance(truth.phantom, ComplexPhantom)
    return {
        "ellipsoids_real": truth.phantom.real.table.tolist(),
        "ellipsoids_imaginary": truth.phantom.imaginary.table.tolist(),
        "size": truth.size,
        "center": truth.center,
    }


def read_complex_truth(path: Path) -> ScanTruth:
    """What a simulated complex scan was made from.

    Raises
    ------
    UserError
        The store was not written by `simulate_complex_scan`.
    """
    group = zarr.open_group(path, mode="r")
    stated: Any = group.attrs.get(GROUP)
    if not isinstance(stated, dict):
        raise UserError(f"{path} was not simulated by dtomo: it has no attribute '{GROUP}' with the truth")
    _, rows, columns = group["projections"].shape
    parts = (Phantom(np.asarray(stated[f"ellipsoids_{name}"])) for name in ("real", "imaginary"))
    size: Any = group.attrs.get("pixel_size")
    angles = np.asarray(group["angles"][:], np.float64)
    return ScanTruth(path, ComplexPhantom(*parts), stated["size"], rows, columns, stated["center"], angles, size)
