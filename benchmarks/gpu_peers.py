"""ASTRA's projectors for CUDA beside ours, for `benchmarks.gpu`: the same sizes, arrays that lie on the device."""

import dataclasses
import importlib.util
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from benchmarks.gpu_place import Clock, Place
from benchmarks.gpu_speed import Extent, Row, filled, fitted


def astra_missing() -> str:
    """Why ASTRA cannot be measured; empty if it can."""
    if importlib.util.find_spec("astra") is None:
        return "ASTRA is not installed"
    import astra

    return "" if astra.astra.use_cuda() else "ASTRA is installed without CUDA, or finds no GPU"


def astra_speed(place: Place, extent: Extent, clock: Clock, seconds: float) -> Iterator[Row]:
    """Rows of FP3D_CUDA and BP3D_CUDA in parallel3d, as `gpu_speed.speed` gives them."""
    for task, algorithm in (("forward", "FP3D_CUDA"), ("back", "BP3D_CUDA")):
        name = f"ASTRA {algorithm}"
        if clock.left < 2 * seconds:
            yield {"task": name, "extent": str(extent), "left_out": "no time left"}
            continue
        place.free_memory()
        now = fitted(extent, task, place.room() // 2)  # textures are copies
        whole = len(now.geometry.angles)
        few = dataclasses.replace(now, angles=max(1, whole // 32))
        least = _seconds(place, few, algorithm, 2, seconds / 4)
        share = min(1.0, seconds / 2 / (min(least) * whole / len(few.geometry.angles)))
        now = dataclasses.replace(now, angles=max(1, int(whole * share)))
        samples = _seconds(place, now, algorithm, 3, seconds)
        yield {
            "task": name, "extent": str(now), "size": now.size, "slices": now.slices,
            "angles": len(now.geometry.angles), "runs": len(samples), "seconds": min(samples),
            "gups": now.updates / min(samples) / 1e9,
        }  # fmt: skip


def _seconds(place: Place, extent: Extent, algorithm: str, repeats: int, limit: float) -> list[float]:
    """Of runs after the first, on arrays (z, y, x) and (row, angle, column) that ASTRA takes where they lie."""
    import astra

    geometry = extent.geometry
    size, slices, angles = extent.size, extent.slices, len(geometry.angles)
    volume_geometry = astra.create_vol_geom(size, size, slices)
    beam = astra.create_proj_geom("parallel3d", 1.0, 1.0, slices, size, np.asarray(geometry.radians))
    volume = astra.data3d.link("-vol", volume_geometry, filled(place, (slices, size, size)))
    projections = astra.data3d.link("-sino", beam, filled(place, (slices, angles, size)))
    settings = astra.astra_dict(algorithm)
    settings["ProjectionDataId"] = projections
    settings["VolumeDataId" if algorithm.startswith("FP") else "ReconstructionDataId"] = volume
    number = astra.algorithm.create(settings)
    try:
        run: Callable[[], Any] = lambda: astra.algorithm.run(number)  # noqa: E731
        run()
        return place.seconds(run, repeats, limit)
    finally:
        astra.algorithm.delete(number)
        astra.data3d.delete([volume, projections])
