"""What a task of a run with a geometry needs to know."""

import dataclasses
from pathlib import Path

from dtomo import io
from dtomo.dashboard import Feed
from dtomo.distributed.slabs import Slab
from dtomo.geometry import VectorGeometry
from dtomo.operators.directed import needs_all_rows
from dtomo.operators.voxels import rows_seen
from dtomo.settings import ReconSettings


@dataclasses.dataclass(frozen=True, eq=False)
class GeometryJob:
    """All that a task needs to know, but its slab.

    Attributes
    ----------
    scan, settings, geometry
        Cropped and binned, what was asked for, and the rays.
    scale
        From values per unit of length to the unit of the output.
    threads
        Compute threads of a worker.
    output
        The volume, created already.
    device_memory
        Bytes that the worker may take of its device; None: it computes on the CPU.
    feed
        Goes to the page of the dashboard; None: there is none.
    """

    scan: io.Scan
    settings: ReconSettings
    geometry: VectorGeometry
    scale: float
    threads: int
    output: Path
    device_memory: int | None = None
    feed: Feed | None = None

    def rows(self, slab: Slab) -> slice:
        """Rows of the scan that a slab needs."""
        return slice(*rows_needed(self.geometry, (slab.start, slab.stop)))


def rows_needed(geometry: VectorGeometry, slices: tuple[int, int]) -> tuple[int, int]:
    """Rows (first, last + 1) of the detector that filtered back projection of some slices needs."""
    return (0, geometry.rows) if needs_all_rows(geometry) else rows_seen(geometry, slices)
