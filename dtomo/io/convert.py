"""Volumes from one format to another, slab by slab."""

import math
import os
from pathlib import Path

from dtomo.io.volumes import VoxelSize, create_volume, open_volume, stored_dtype, volume_format

_SLAB_BYTES = 256 * 2**20


def slab_for(shape: tuple[int, int, int], itemsize: int, limit: int = _SLAB_BYTES) -> int:
    """Slices of a slab of at most about `limit` bytes: a power of two from 1 to 64."""
    fitting = max(1, limit // max(1, shape[1] * shape[2] * itemsize))
    return min(64, 2 ** int(math.log2(fitting)))


def convert(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    voxel_size_um: VoxelSize = None,
    overwrite: bool = False,
) -> Path:
    """Copy a volume into the format of the target's suffix; memory holds one slab (about 256 MB).

    Parameters
    ----------
    source
        Any volume `open_volume` reads.
    target
        ``.zarr``, ``.mrc`` or ``.tif``.
    voxel_size_um
        In place of what the source says.
    overwrite
        Replace an existing output.

    Raises
    ------
    UserError
        The source cannot be read or the output is refused; see `open_volume` and `create_volume`.
    """
    volume_format(target)
    volume = open_volume(source)
    dtype = stored_dtype(target, volume.dtype)
    slab = slab_for(volume.shape, dtype.itemsize)
    writer = create_volume(
        target,
        volume.shape,
        dtype,
        voxel_size_um=volume.voxel_size_um if voxel_size_um is None else voxel_size_um,
        origin_um=volume.origin_um,
        attributes={"converted_from": str(volume.path)},
        slab=slab,
        overwrite=overwrite,
        inputs=[volume.path],
    )
    for start in range(0, volume.shape[0], slab):
        writer.write_slab(start, volume.source.read(slice(start, start + slab)))
    return writer.finish()
