"""What a joint run takes of a device's memory, said before it starts; nothing of it was measured on a device yet."""

import dataclasses
import math
from typing import TYPE_CHECKING

from dtomo.device import PLANS
from dtomo.elementwise import DEVICE_PIECE
from dtomo.ptycho.cost import WAVES
from dtomo.ptychotomo.engines.volume_engine import CHUNK
from dtomo.ptychotomo.slab import BLOCK_BYTES, COPIES

if TYPE_CHECKING:
    from dtomo.ptychotomo.cost import JointSizes

COMPLEX = 8
PASSING = {"adam": 0, "cg": 16, "admm": 0}
"""Bytes for a voxel of a slab that an engine makes for a moment, of the whole slab."""
SLOPE = 8
"""Bytes for a voxel of the slope of a total variation, where it is made of a whole slab."""
PIECE = 32
"""Bytes for an element of a piece, of what element-wise work makes on the way."""
REST = 0.95
"""Part of a worker's share that is planned with: memory comes in pieces that do not fit one another."""


@dataclasses.dataclass(frozen=True)
class OnDevice:
    """What lies on the device of a worker.

    Attributes
    ----------
    parts
        Bytes by name, at the worst moment.
    slabs
        Bytes of slabs that stay there; None: all, else the others come one at a time.
    frames
        Bytes of frames that are kept there.
    """

    parts: dict[str, int]
    slabs: int | None
    frames: int


def on_device(sizes: "JointSizes", share: int, rows: int, slabs: int, most_frames: int, frames: int) -> OnDevice:
    """What a worker puts on its device: first what must be there, then slabs, then frames, as far as its share goes.

    Parameters
    ----------
    sizes
        Of the run.
    share
        Bytes that the worker may take.
    rows
        Of its highest slab.
    slabs
        How many it has.
    most_frames
        Of one angle in one slab.
    frames
        Bytes of all its frames.
    """
    one = rows * sizes.row
    frame = sizes.frames[1] * sizes.frames[2] * sizes.itemsize
    parts = {
        "images": max(BLOCK_BYTES, COPIES * COMPLEX * sizes.slices * (rows + sizes.seen) * sizes.columns),
        "on the way": _passing(sizes, rows),
        "exit waves": (WAVES + PLANS) * min(sizes.slices + 1, 8) * most_frames * sizes.exit_waves,
        "shared": sizes.shared + sizes.probe * (2 * sizes.subset if sizes.settings.own_probes else 12),
        "frames on the way": 2 * most_frames * frame,
    }
    free = int(REST * share) - sum(parts.values())
    stay = None if slabs * one <= free else max(0, free - one)
    parts["slabs"] = slabs * one if stay is None else one + stay // one * one
    kept = int(max(0, min(frames, free - parts["slabs"]))) if stay is None else 0
    return OnDevice(parts | ({"frames kept": kept} if kept else {}), stay, kept)


def _passing(sizes: "JointSizes", rows: int) -> int:
    """Arrays of the volume's shape, or of some of its rows, that are there for a moment, and pieces of them."""
    engine, plane = sizes.settings.engine, sizes.columns**2
    penalized = sizes.settings.total_variation > 0
    of_slab = max(PASSING[engine], SLOPE if penalized and engine != "admm" else 0) * rows * plane
    of_rows = 3 * COMPLEX * min(CHUNK, rows) * plane
    fitting = sizes.fitting * (2 if penalized else 1)
    elements = max(rows * plane, math.ceil(sizes.row * rows / COMPLEX) if engine == "admm" else 0)
    return max(of_slab, of_rows, fitting) + PIECE * min(DEVICE_PIECE, elements)
