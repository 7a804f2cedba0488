"""A function of blocks, such as a trained network, applied to a volume of any size chunk by chunk, with halos.

Each chunk is read with a halo as wide as the function looks, and of what comes back the chunk alone is kept: with a
halo at least as wide as the function's reach the result is that of the whole volume at once. Networks that pool see
their input in cells of 2, 4, 8 … voxels: where `multiple` says so, every block begins at a multiple of the cell and
has a whole number of them, as the volume has. Beyond the volume its mirror image continues it.
"""

import dataclasses
import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from dtomo.distributed.clusters import connect
from dtomo.distributed.queue import TaskFailed, run_tasks
from dtomo.errors import StoppedError, UserError
from dtomo.io import VolumeWriter, create_volume, open_volume
from dtomo.io.sources import Source

if TYPE_CHECKING:
    import dask.array
    from distributed import Client

Function: TypeAlias = Callable[[NDArray[Any]], NDArray[Any]]
"""Takes a block ``(z, y, x)`` with its halo and returns one of the same shape. It is sent to workers."""

Sizes: TypeAlias = "int | Sequence[int]"
Span: TypeAlias = tuple[slice, ...]

SLAB = 32
"""Slices that a task of `apply_files` writes."""


@dataclasses.dataclass(frozen=True)
class Tiling:
    """How a volume is cut into chunks with halos.

    Attributes
    ----------
    shape
        Of the volume.
    chunk, halo, multiple
        By axis, in voxels; chunk and halo are multiples of `multiple`.
    """

    shape: tuple[int, ...]
    chunk: tuple[int, ...]
    halo: tuple[int, ...]
    multiple: tuple[int, ...]

    @classmethod
    def of(cls, shape: Sequence[int], chunk: Sizes, halo: Sizes, multiple: Sizes) -> "Tiling":
        """From one number for all axes, or one for each; halos and chunks grow to whole cells.

        Raises
        ------
        UserError
            Numbers out of their range, or not one for each axis.
        """
        cells = _by_axis("multiple", multiple, len(shape), 1)
        wide = [-(-h // m) * m for h, m in zip(_by_axis("halo", halo, len(shape), 0), cells)]
        sizes = [-(-c // m) * m for c, m in zip(_by_axis("chunk", chunk, len(shape), 1), cells)]
        return cls(tuple(int(n) for n in shape), tuple(sizes), tuple(wide), cells)

    def chunks(self, within: Span | None = None) -> Iterator[Span]:
        """The chunks of the volume, or those that begin in a part of it, cut to it; in order."""
        whole = within or tuple(slice(0, size) for size in self.shape)
        spans = [
            [slice(start, min(start + size, part.stop)) for start in range(part.start, part.stop, size)]
            for part, size in zip(whole, self.chunk)
        ]
        yield from itertools.product(*spans)

    def source(self, chunk: Span) -> tuple[Span, tuple[NDArray[np.intp], ...], Span]:
        """What a chunk needs: the part of the volume to read, which of its voxels make the block, where the chunk is.

        The block is ``part[numpy.ix_(*voxels)]``.
        """
        parts, voxels, inside = [], [], []
        for span, size, halo, multiple in zip(chunk, self.shape, self.halo, self.multiple):
            start = span.start // multiple * multiple - halo
            stop = -(-span.stop // multiple) * multiple + halo
            wanted = _mirrored(np.arange(start, stop), size)
            first = int(wanted.min())
            parts.append(slice(first, int(wanted.max()) + 1))
            voxels.append(wanted - first)
            inside.append(slice(span.start - start, span.stop - start))
        return tuple(parts), tuple(voxels), tuple(inside)


def apply(
    function: Function,
    volume: "ArrayLike | dask.array.Array",
    *,
    halo: Sizes,
    chunk: Sizes = 64,
    multiple: Sizes = 1,
    dtype: DTypeLike = np.float32,
) -> "NDArray[Any] | dask.array.Array":
    """Apply a function of blocks to an array chunk by chunk.

    Parameters
    ----------
    function
        Takes a NumPy block with its halo, returns one of the same shape: a trained network's `Predictor`, a filter.
    volume
        NumPy or Dask array of any number of axes; of the latter nothing is computed here.
    halo
        Voxels on every side that the function needs: at least its reach.
    chunk
        Voxels along each side of what is kept.
    multiple
        The function's cell: 2**levels for a network that halves its input so many times.
    dtype
        Of the result.

    Returns
    -------
    array
        Of the volume's shape and kind; a Dask array has one task for each chunk, which reads what it needs.

    Raises
    ------
    UserError
        Sizes out of their range, or a block that comes back with another shape.
    """
    given: Any = volume if hasattr(volume, "dask") else np.asarray(volume)
    tiling = Tiling.of(given.shape, chunk, halo, multiple)
    if not all(given.shape):
        raise UserError(f"a model is applied to voxels, but the volume has the shape {tuple(given.shape)}")
    if hasattr(given, "dask"):
        return _lazily(function, given, tiling, np.dtype(dtype))
    result = np.empty(given.shape, dtype)
    for span in tiling.chunks():
        part, voxels, inside = tiling.source(span)
        result[span] = _applied(given[part], function, voxels, inside, dtype)
    return result


def _applied(
    part: NDArray[Any], function: Function, voxels: tuple[NDArray[np.intp], ...], inside: Span, dtype: DTypeLike
) -> NDArray[Any]:
    """The function's result on the block of a chunk, cut to the chunk."""
    block = part[np.ix_(*voxels)]
    found = np.asarray(function(block))
    if found.shape != block.shape:
        raise UserError(
            f"a model that is applied chunk by chunk returns blocks of the shape it is given: "
            f"it made {found.shape} of {block.shape}"
        )
    return found[inside].astype(dtype, copy=False)


def _lazily(function: Function, volume: Any, tiling: Tiling, dtype: np.dtype[Any]) -> Any:
    """One block per chunk, the function once in the graph."""
    import dask
    import dask.array as da

    shared = dask.delayed(function, name=f"model-{dask.base.tokenize(function)}", pure=True, traverse=False)
    blocks = np.empty([-(-n // c) for n, c in zip(tiling.shape, tiling.chunk)], object)
    for place, span in zip(np.ndindex(blocks.shape), tiling.chunks()):
        part, voxels, inside = tiling.source(span)
        needed = dask.delayed(_applied, pure=True)(volume[part], shared, voxels, inside, dtype)
        blocks[place] = da.from_delayed(needed, tuple(one.stop - one.start for one in span), dtype)
    return da.block(blocks.tolist())


@dataclasses.dataclass(frozen=True)
class _Work:
    """What all tasks of `apply_files` share."""

    function: Function
    source: Source
    tiling: Tiling
    writer: VolumeWriter


def apply_files(
    function: Function,
    volume: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    halo: Sizes,
    chunk: Sizes = 64,
    multiple: Sizes = 1,
    slab: int = SLAB,
    client: "Client | None" = None,
    workers: int | None = None,
    overwrite: bool = False,
    resume: bool = False,
) -> Path:
    """Apply a function of blocks to a volume on disk, into another one, a slab per task.

    A worker holds one slab of the result and one block at a time: neither the volume nor the result is ever whole in
    memory.

    Parameters
    ----------
    function, halo, chunk, multiple
        As for `apply`.
    volume, output
        OME-Zarr, MRC, TIFF, EM …: by content and by suffix.
    slab
        Slices written by each task.
    client, workers
        A cluster; without a client, so many processes of this machine.
    overwrite, resume
        Of the output: replace it, or keep the slabs that are done.

    Returns
    -------
    Path
        The output, whole.

    Raises
    ------
    UserError
        Input or output that is refused, or a function that does not return what it should.
    StoppedError
        A worker that died on it again and again; the output can be resumed.
    """
    given = open_volume(volume)
    shape = given.source.shape
    tiling = Tiling.of(shape, chunk, halo, multiple)
    writer = create_volume(
        output,
        shape,
        np.float32,
        voxel_size_um=given.voxel_size_um,
        origin_um=given.origin_um,
        attributes={"applied": {"chunk": tiling.chunk, "halo": tiling.halo, "multiple": tiling.multiple}},
        slab=slab,
        overwrite=overwrite,
        resume=resume,
        inputs=[volume],
    )
    done = {first for first, _ in writer.done()}
    left = [first for first in range(0, shape[0], writer.slab) if first not in done]
    work = _Work(function, given.source, tiling, writer)
    if client is not None:
        _run(client, work, left)
    else:
        with connect(workers=workers) as own:
            _run(own, work, left)
    return writer.finish()


def _run(client: "Client", work: _Work, slabs: list[int]) -> None:
    try:
        run_tasks(client, _write_slab, work, slabs, lambda first, _: None)
    except TaskFailed as error:
        if isinstance(error.cause, UserError):
            raise error.cause from None
        raise StoppedError(
            f"the model could not be applied to slices from {error.item} on: {error.cause}; what is done is kept in "
            f"{work.writer.path}: go on with resume=True"
        ) from error


def _write_slab(work: _Work, first: int) -> None:
    shape = work.tiling.shape
    stop = min(first + work.writer.slab, shape[0])
    slab = np.empty((stop - first, *shape[1:]), np.float32)
    for span in work.tiling.chunks((slice(first, stop), *(slice(0, size) for size in shape[1:]))):
        part, voxels, inside = work.tiling.source(span)
        block = _applied(work.source.read(*part), work.function, voxels, inside, np.float32)
        slab[(slice(span[0].start - first, span[0].stop - first), *span[1:])] = block
    work.writer.write_slab(first, slab)


def _mirrored(indices: NDArray[np.intp], size: int) -> NDArray[np.intp]:
    """Indices beyond the ends, folded back at the first and the last voxel."""
    period = max(1, 2 * (size - 1))
    folded = indices % period
    return np.minimum(folded, period - folded) if size > 1 else np.zeros_like(indices)


def _by_axis(name: str, sizes: Sizes, axes: int, least: int) -> tuple[int, ...]:
    given = tuple(sizes) if isinstance(sizes, Sequence | np.ndarray) else (sizes,) * axes
    if len(given) != axes or not all(isinstance(n, int | np.integer) and n >= least for n in given):
        raise UserError(
            f"the {name} of a model that is applied is a whole number from {least}, or one for each of {axes} axes; "
            f"got {sizes}"
        )
    return tuple(int(n) for n in given)
