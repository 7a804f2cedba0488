"""How fast projectors, filtered back projection and SIRT are on a device, for `benchmarks.gpu`.

Updates are pairs of voxel and angle. One takes two multiply-adds of a weight and a sample, as a matrix of Joseph's
method has two entries for each pair of ray and row, so the rate is compared with three limits: of multiply-adds, of
samples read from the first-level cache (two of four bytes), and of memory (volume and projections moved once).
"""

import dataclasses
import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from benchmarks.gpu_checks import operator
from benchmarks.gpu_place import Clock, Place
from dtomo.algorithms import fbp, sirt
from dtomo.geometry import ParallelBeam
from dtomo.operators import spectra_can_be_summed

Row = dict[str, Any]

_COPIES = {"forward": 1, "back": 1, "fbp": 3, "sirt": 3}
"""Arrays of the size of the projections in use at once, and as many of the volume's less one, at least one."""


@dataclasses.dataclass(frozen=True)
class Extent:
    """What is reconstructed: `slices` of `size` squared voxels, from pi/2 times as many angles as columns."""

    size: int
    slices: int
    angles: int = 0

    @property
    def geometry(self) -> ParallelBeam:
        """Half a turn."""
        angles = self.angles or round(np.pi / 2 * self.size)
        return ParallelBeam(np.linspace(0, 180, angles, endpoint=False), self.size)

    @property
    def updates(self) -> float:
        """Pairs of voxel and angle."""
        return float(self.size) ** 2 * self.slices * len(self.geometry.angles)

    @property
    def bytes(self) -> tuple[int, int]:
        """Of the volume and of the projections."""
        return self.size**2 * self.slices * 4, len(self.geometry.angles) * self.slices * self.size * 4

    def __str__(self) -> str:
        return f"{self.size}² × {self.slices}, {len(self.geometry.angles)} angles"


def fitted(extent: Extent, task: str, room: int) -> Extent:
    """As many slices, halved until they fit into `room` bytes."""
    copies = _COPIES[task]
    while extent.slices > 1:
        volume, projections = extent.bytes
        if (max(copies - 1, 1) * volume + copies * projections) * 1.1 + 2**29 < room:
            break
        extent = dataclasses.replace(extent, slices=-(-extent.slices // 2))
    return extent


def filled(place: Place, shape: tuple[int, int, int]) -> Any:
    """Uneven numbers, made without temporary arrays of that size."""
    xp = place.xp
    array = xp.empty(shape, np.float32)
    inner = (xp.arange(shape[2], dtype=np.float32) % 13) / 13
    array[...] = (xp.arange(shape[1], dtype=np.float32) % 7)[:, None] / 7 + inner
    return array


def _in_time(
    place: Place, extent: Extent, limit: float, prepare: Callable[[Extent], Callable[[], Any]]
) -> tuple[Extent, list[float]]:
    """Seconds of each run: compiled and timed with few angles first, then with as many as fit `limit` seconds."""
    whole = len(extent.geometry.angles)
    few = dataclasses.replace(extent, angles=max(1, whole // 32))
    run = prepare(few)
    run()
    least = min(place.seconds(run, 2, limit / 4))
    del run
    share = min(1.0, limit / 2 / (least * whole / len(few.geometry.angles)))
    if share < 1:
        extent = dataclasses.replace(extent, angles=max(1, int(whole * share)))
    run = prepare(extent)
    return extent, place.seconds(run, 3, limit)


def _projecting(place: Place, task: str) -> Callable[[Extent], Callable[[], Any]]:
    def prepare(extent: Extent) -> Callable[[], Any]:
        here = operator(place, extent.geometry, extent.slices)
        angles, _, columns = here.shape_out
        if task == "forward":
            memory = filled(place, (extent.size, extent.size, extent.slices))
            volume = np.moveaxis(memory, -1, 0)
            return lambda: here.forward(volume)
        memory = filled(place, (angles, columns, extent.slices))
        projections = np.swapaxes(memory, 1, 2)
        return lambda: here.adjoint(projections)

    return prepare


def _filtering(place: Place, method: str) -> Callable[[Extent], Callable[[], Any]]:
    def prepare(extent: Extent) -> Callable[[], Any]:
        geometry = extent.geometry
        projections = filled(place, (len(geometry.angles), extent.slices, extent.size))
        return lambda: fbp(projections, geometry, method=method)

    return prepare


def _iteration(place: Place, extent: Extent, limit: float) -> list[float]:
    """Seconds of single iterations of SIRT, from stopping the time in its callback."""
    here = operator(place, extent.geometry, extent.slices)
    angles, _, columns = here.shape_out
    projections = np.swapaxes(filled(place, (angles, columns, extent.slices)), 1, 2)
    stamps: list[float] = []

    def stamp(number: int, _: Any) -> bool:
        place.wait()
        stamps.append(time.perf_counter())
        return number == 3 or (number > 0 and stamps[-1] - stamps[0] > limit)

    sirt(here, projections, iterations=10, callback=stamp)
    return [after - before for before, after in itertools.pairwise(stamps)]


def speed(place: Place, extent: Extent, limits: dict[str, Any], clock: Clock, seconds: float) -> Iterator[Row]:
    """Rows of forward, back, FBP both ways and an iteration of SIRT.

    Parameters
    ----------
    place, extent
        Where and what; fewer slices where memory is short, fewer angles where a task takes longer than `seconds`.
    limits
        What `gpu_peaks.peaks` found; may be empty.
    clock
        Tasks that would begin with less than 2 · `seconds` left are given up, and say so.
    seconds
        For one task.
    """
    tasks: dict[str, tuple[str, Callable[[Extent], Callable[[], Any]] | None]] = {
        "forward": ("forward", _projecting(place, "forward")),
        "back": ("back", _projecting(place, "back")),
        "FBP by back projection": ("fbp", _filtering(place, "backprojection")),
        "FBP by NUFFT": ("fbp", _filtering(place, "nufft")),
        "SIRT, one iteration": ("sirt", None),
    }
    if not spectra_can_be_summed(place.xp.zeros(1, np.float32)):
        del tasks["FBP by NUFFT"]
        yield {"task": "FBP by NUFFT", "left_out": "no cufinufft"}
    projected = 0.0  # seconds per update of forward and back together
    for name, (kind, prepare) in tasks.items():
        if clock.left < 2 * seconds:
            yield {"task": name, "extent": str(extent), "left_out": "no time left"}
            continue
        place.free_memory()
        now = fitted(extent, kind, place.room())
        if prepare is not None:
            now, samples = _in_time(place, now, seconds, prepare)
            projected += min(samples) / now.updates if kind in ("forward", "back") else 0.0
        else:
            most = min(1.0, seconds / 4 / max(projected * now.updates, 1e-9))
            angles = max(1, int(len(now.geometry.angles) * most))
            now = dataclasses.replace(now, angles=angles)
            samples = _iteration(place, now, seconds)
        yield _row(name, now, samples, limits, 2 if kind == "sirt" else 1) | {"pool_bytes": place.reserved()}
    place.free_memory()


def _row(task: str, extent: Extent, samples: list[float], limits: dict[str, Any], passes: int) -> Row:
    """Time, rate, and fractions of the limits; only projectors touch each sample as the limits count it."""
    best = min(samples)
    updates = extent.updates * passes
    row: Row = {
        "task": task, "extent": str(extent), "size": extent.size, "slices": extent.slices,
        "angles": len(extent.geometry.angles), "runs": len(samples), "seconds": best,
        "median_seconds": statistics.median(samples), "gups": updates / best / 1e9,
    }  # fmt: skip
    if task != "FBP by NUFFT":
        needs = {"fma": 4 * updates, "shared": 8 * updates, "within": float(sum(extent.bytes)) * passes}
        row |= {f"of_{name}": need / best / limits[name] for name, need in needs.items() if limits.get(name)}
    return row


def full_volume(place: Place, extent: Extent, slabs: int, clock: Clock, method: str) -> Row:
    """FBP of `slabs` slabs one after another, each copied from host memory and its volume back; stops when time is up.

    The same projections serve for all slabs. Nothing overlaps; `compute_seconds` is the part without copies.
    """
    extent = fitted(extent, "fbp", place.room())
    geometry = extent.geometry
    projections = np.empty((len(geometry.angles), extent.slices, extent.size), np.float32)
    projections[...] = np.arange(extent.size, dtype=np.float32) % 13
    volume = np.empty((extent.slices, extent.size, extent.size), np.float32)
    start, compute, done = time.perf_counter(), 0.0, 0
    for _ in range(slabs):
        if clock.left < 10 + 2 * (time.perf_counter() - start) / max(done, 1):
            break
        there = place.put(projections)
        place.wait()
        before = time.perf_counter()
        found = fbp(there, geometry, method=method, overwrite=True)
        place.wait()
        compute += time.perf_counter() - before
        volume[...] = place.get(found)
        del there, found
        done += 1
    if done < slabs:
        return {"task": f"FBP of {slabs} slabs", "extent": str(extent), "left_out": f"no time after {done} slabs"}
    return {
        "task": f"FBP of {slabs} slabs by {method}, with copies", "extent": str(extent), "runs": 1,
        "seconds": time.perf_counter() - start, "compute_seconds": compute,
        "gups": slabs * extent.updates / compute / 1e9, "pool_bytes": place.reserved(),
    }  # fmt: skip
