"""Aligned views on disk: an MRC stack or a Zarr scan, block of views by block."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dtomo import io
from dtomo.align.reprojection import run_bands
from dtomo.align.views import BLOCK, view_blocks
from dtomo.errors import StoppedError
from dtomo.io.mrc import create_mrc, set_statistics
from dtomo.io.tilts import AlignedSource
from dtomo.io.zarr_store import new_zarr_scan
from dtomo.threads import using_threads

if TYPE_CHECKING:
    from distributed import Client

CHUNK = 32
"""Views of a chunk in Zarr."""


def write_mrc(
    path: Path, views: AlignedSource, pixel_size: float | None, client: "Client | None", threads: int | None
) -> None:
    """Write an MRC stack with the column of the axis in a label; `pixel_size` in µm.

    Raises
    ------
    StoppedError
        The disk is full or refuses.
    """
    voxel = None if pixel_size is None else (pixel_size * 1e4,) * 3
    sums = np.zeros(2)
    ends = [np.inf, -np.inf]
    part = path.with_name(path.name + ".part")
    try:
        offset, stored = create_mrc(part, views.shape, views.dtype, voxel, is_stack=True, axis=views.axis)
        descriptor = os.open(part, os.O_WRONLY)
        try:

            def take(block: tuple[int, int], values: NDArray[np.float32]) -> None:
                place = offset + block[0] * values[0].nbytes
                rest = memoryview(values.astype(stored, copy=False).tobytes())
                while rest:
                    count = os.pwrite(descriptor, rest, place)
                    place, rest = place + count, rest[count:]
                ends[:] = min(ends[0], float(values.min())), max(ends[1], float(values.max()))
                sums[:] += values.sum(dtype=np.float64), (values.astype(np.float64) ** 2).sum()

            run_bands(client, _read, (views, threads), view_blocks(views.shape), take)
        finally:
            os.close(descriptor)
        mean, square = sums / np.prod(views.shape, dtype=np.float64)
        set_statistics(part, ends[0], ends[1], float(mean), float(np.sqrt(max(square - mean**2, 0.0))))
        part.replace(path)
    except OSError as error:
        raise StoppedError(f"cannot write {path}: {error.strerror or error}") from error


def write_zarr(
    path: Path, views: AlignedSource, scan: io.Scan, client: "Client | None", threads: int | None, **extra: Any
) -> None:
    """Write a Zarr scan of line integrals.

    Raises
    ------
    StoppedError
        The disk is full or refuses.
    """
    with new_zarr_scan(
        path, shape=views.shape, dtype=np.float32, angles=views.alignment.tilts, pixel_size=scan.pixel_size,
        energy=scan.energy, sample_detector_distance=scan.sample_detector_distance, overwrite=True,
        extra={"values": "integrals", **extra},
    ) as store:  # fmt: skip

        def take(block: tuple[int, int], values: NDArray[np.float32]) -> None:
            store[slice(*block)] = values

        run_bands(client, _read, (views, threads), view_blocks(views.shape, BLOCK, CHUNK), take)


def _read(job: tuple[AlignedSource, int | None], block: tuple[int, int]) -> NDArray[np.float32]:
    views, threads = job
    with using_threads(threads):
        return views.read(slice(*block))
