"""Boxes cut out of tomograms into one store, a shard for each group of particles, with a list beside it."""

import dataclasses
from pathlib import Path

import numpy as np
import zarr

from dtomo import __version__, io
from dtomo.distributed.progress import Counter
from dtomo.errors import UserError
from dtomo.io.output import progress_folder, unlocked_at_end
from dtomo.io.particles import Particles, read_particles, write_particles
from dtomo.io.progress import Progress
from dtomo.runs.session import part_way, resumable, speaker
from dtomo.subtomo.boxes import Boxes, boxes_in_tomograms
from dtomo.subtomo.inputs import tomograms_of
from dtomo.threads import map_in_order

SHARD_BYTES = 64 * 2**20
"""Of the boxes that share a file."""


def extract_boxes(
    particle_list: Path,
    output: Path,
    tomograms: Path,
    box: int,
    *,
    workers: int | None = None,
    overwrite: bool = False,
    quiet: bool = False,
) -> Particles:
    """Cut a box about each position of a list; returns the list of what was cut.

    The store holds float32 ``(particle, z, y, x)``, a chunk for each particle; the list, named as the store but with
    the suffix of `particle_list`, names ``STORE.zarr:NUMBER`` and keeps in its shifts what positions were off whole
    voxels.

    Parameters
    ----------
    particle_list
        With positions.
    output
        The store, ``OUT.zarr``.
    tomograms
        A volume, or a YAML table of names and volumes.
    box
        Side of the boxes, voxels.
    workers
        Threads that read; default: as the cores allow.
    overwrite, quiet
        As for all runs.

    Raises
    ------
    UserError
        Bad input; nothing was touched.
    """
    say = speaker(quiet)
    if output.suffix.lower() != ".zarr":
        raise UserError(f"{output}: boxes go to a store, so give a name that ends with .zarr")
    if box < 4:
        raise UserError(f"--box is 4 voxels at least; got {box}")
    particles = read_particles(particle_list)
    boxes, moved = boxes_in_tomograms(particles, tomograms_of(tomograms), box)
    lost = set(boxes.missing())
    kept = [number for number in range(len(particles)) if number not in lost]
    if lost:
        some = ", ".join(str(number) for number in sorted(lost)[:10])
        say(f"note: {len(lost)} of {len(particles)} boxes leave their tomogram and are skipped: particles {some}")
    if not kept:
        raise UserError(f"all {len(particles)} boxes leave their tomograms; check --box, and the units of positions")
    beside = output.with_suffix(particle_list.suffix)
    io.check_output(output, inputs=[particle_list, tomograms], overwrite=overwrite, bytes_needed=4 * box**3 * len(kept))
    if beside.exists() and not overwrite:
        raise UserError(f"{beside}, the list of the boxes, exists; give another name, or replace it with --overwrite")
    with resumable(output), unlocked_at_end(output):
        if output.is_dir():
            io.output.clear(output)
        progress = Progress(progress_folder(output))
        progress.start(output)
        with part_way(output):
            _write(boxes, kept, output, workers, quiet)
        files = [f"{output.name}:{index}" for index in range(len(kept))]
        found = dataclasses.replace(moved.selected(kept), files=files)
        write_particles(beside, found, overwrite=True)
        progress.remove()
    say(f"{output}: {len(kept)} boxes of {box}³ voxels; their list is {beside}")
    return found


def _write(boxes: Boxes, kept: list[int], output: Path, workers: int | None, quiet: bool) -> None:
    size = boxes.size
    together = max(1, min(len(kept), SHARD_BYTES // (4 * size**3)))
    store = zarr.create_array(
        output,
        shape=(len(kept), size, size, size),
        chunks=(1, size, size, size),
        shards=(together, size, size, size),
        dtype=np.float32,
        attributes={"dtomo": {"version": __version__, "kind": "particles"}},
    )
    with Counter(len(kept), "boxes", quiet=quiet) as counter:
        for first in range(0, len(kept), together):
            some = kept[first : first + together]
            store[first : first + len(some)] = np.stack(list(map_in_order(boxes.read, some)))
            counter.advance(to=first + len(some))
