"""What does not change in a joint run: solver, frames, layout, and where slabs are computed and stay."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtomo import device
from dtomo.io.sources import Source
from dtomo.ptycho.evaluator import FRAMES_OF_MEMORY
from dtomo.ptycho.frame_store import Arrange, FrameStore
from dtomo.ptycho.frames import to_model_order
from dtomo.ptychotomo.engine import Common, JointEngine, Local, SlabPlace
from dtomo.ptychotomo.layout import Layout, subsets
from dtomo.ptychotomo.slab_store import SlabStore

IMAGES = ("probe", "background")
"""Parameters that go to the device with the slabs."""

Start = Callable[[SlabPlace], NDArray[Any]]
"""Makes the rows of a slab of the first volume, ``(z, y, x)``; called where the slab will be."""


@dataclasses.dataclass(frozen=True, eq=False)
class JointProblem:
    """What does not change in a run; sent to each worker once.

    Attributes
    ----------
    engine
        The solver.
    source
        Of the frames of all angles.
    layout
        Of slabs and frames.
    start
        Of the first volume.
    seed
        Of the order of subsets.
    frame_memory
        Bytes of frames that a process keeps; None: a quarter of its memory.
    arrange
        What is done to frames as they are read.
    slab_memory
        Bytes of slabs that a process holds in memory, the others lie in files; None: all.
    device_memory
        Bytes that a process may take of its device; None: it computes on the CPU.
    device_slabs
        Bytes of slabs that stay on its device, the others come for as long as they are worked on; None: all.
    """

    engine: JointEngine
    source: Source
    layout: Layout
    start: Start
    seed: int = 0
    frame_memory: int | None = None
    arrange: Arrange = to_model_order
    slab_memory: int | None = None
    device_memory: int | None = None
    device_slabs: int | None = None

    def steps(self, epoch: int) -> list[NDArray[np.int64]]:
        """Angles of each step of an epoch."""
        geometry = self.engine.model.geometry
        return subsets(geometry.angles, self.engine.subsets, epoch, self.seed)

    @property
    def on_device(self) -> bool:
        """Whether slabs are computed on devices."""
        return self.device_memory is not None

    def store(self, memory: int | None) -> FrameStore:
        """Of the frames, for one process with so many bytes; they are where slabs are computed."""
        if self.on_device:
            device.limit_memory(self.device_memory)
            device.bound_plan_cache()
        whole = self.device_memory if self.on_device else memory
        budget = self.frame_memory if self.frame_memory is not None else int(FRAMES_OF_MEMORY * (whole or 2**30))
        return FrameStore(self.source, self.layout.blocks, budget, arrange=self.arrange, device=self.on_device)

    def slab_store(self, folder: Path | None = None) -> SlabStore:
        """Of the slabs of one process, with files in a folder of it."""
        return SlabStore(self.slab_memory, folder, on_device=self.on_device, device_memory=self.device_slabs)

    def there(self, array: Any) -> Any:
        """An array where slabs are computed; None stays None."""
        return device.to_device(array) if self.on_device else array

    def begin_slab(self, place: SlabPlace) -> Local:
        """The arrays of a slab before the first pass, where they are computed."""
        return self.engine.begin_slab(place, self.there(self.start(place)))

    def common_there(self, common: Common) -> Common:
        """What slabs share, images of it where slabs are computed; numbers stay on the host."""
        parameters = common["parameters"]
        moved = {name: self.there(parameters[name]) for name in IMAGES if name in parameters}
        return {**common, "parameters": {**parameters, **moved}}
