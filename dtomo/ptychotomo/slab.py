"""What one slab does in a pass: borders out, frames met, derivatives of borders in. Arrays only; see `engine`.

A slab on a device (its arrays, and images among the parameters) is worked on there, one angle after another; what goes
to other slabs, and sums, are host arrays in any case.
"""

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtomo.arrays import array_module, on_device
from dtomo.device import to_device, to_host
from dtomo.distributed.sums import tree_sum
from dtomo.ptycho.frame_store import FrameStore
from dtomo.ptycho.frames import FrameBlock
from dtomo.ptychotomo.engine import Common, JointEngine, Local, SlabPlace
from dtomo.ptychotomo.layout import Layout
from dtomo.threads import map_in_order
from dtomo.windows import Rows

BLOCK_BYTES = 2**27
"""Bytes of images, derivatives and what is made of them on the way, of the angles that are worked on together."""

COPIES = 5
"""Arrays as large as the images that there are at once."""

ROWS = 64
"""Of a border that are worked on at a time."""

MOST_ANGLES = 32
"""Of a block of angles: more do not make projections quicker."""


@dataclasses.dataclass(frozen=True, eq=False)
class Borders:
    """What a slab shows its neighbours before a pass.

    Attributes
    ----------
    first, last
        Images ``(angle, slice, row, column)`` of its first rows, for the slab before, and of its last rows, for the one
        after; None where there is none or it needs no row.
    first_planes, last_planes
        Of the volume, for regularisers.
    """

    first: NDArray[Any] | None
    last: NDArray[Any] | None
    first_planes: NDArray[Any] | None
    last_planes: NDArray[Any] | None


@dataclasses.dataclass(frozen=True, eq=False)
class Met:
    """What meeting the frames of a slab gives.

    Attributes
    ----------
    sums
        ``"loss"``, ``"count"``, ``"losses"`` of each angle, ``"gradients"`` of the parameters wanted.
    above, below
        ∂L/∂T̄ of the rows of the slab before and of the one after that its frames saw; None: there are none.
    """

    sums: dict[str, Any]
    above: NDArray[Any] | None
    below: NDArray[Any] | None


def blocks_of_angles(angles: NDArray[np.int64], slices: int, rows: int, columns: int) -> list[slice]:
    """Which angles are worked on together: as many as `BLOCK_BYTES` has room for, by sizes alone."""
    one = COPIES * 8 * slices * rows * columns
    count = int(min(max(1, BLOCK_BYTES // one), MOST_ANGLES))
    return [slice(first, min(first + count, len(angles))) for first in range(0, len(angles), count)]


def borders(
    engine: JointEngine, layout: Layout, place: SlabPlace, local: Local, common: Common, angles: NDArray[np.int64]
) -> Borders:
    """What the neighbours of a slab need of it, for these angles; `engine.prepare` has been called."""
    before, after = place.index > 0, place.index < layout.slabs - 1
    first = last = None
    if before and layout.below:
        first = _images(engine, place, local, common, angles, slice(0, layout.below))
    if after and layout.above:
        last = _images(engine, place, local, common, angles, slice(place.height - layout.above, place.height))
    ends = slice(0, engine.planes), slice(place.height - engine.planes, place.height)
    planes = [
        _own_copy(engine.point(place, local, common, end)) if there and engine.planes else None
        for there, end in zip((before, after), ends)
    ]
    return Borders(first, last, *planes)


def meet(
    engine: JointEngine,
    layout: Layout,
    place: SlabPlace,
    local: Local,
    common: Common,
    angles: NDArray[np.int64],
    store: FrameStore,
    above: NDArray[Any] | None,
    below: NDArray[Any] | None,
) -> Met:
    """Meet the frames of a slab, and gather the derivatives by its own rows.

    Parameters
    ----------
    engine, layout, place, local, common
        Of the pass.
    angles
        Their numbers, int64.
    store
        Of blocks of frames, as `layout.blocks` numbers them.
    above, below
        Images of the last rows of the slab before, ``Borders.last``, and of the first rows of the one after.
    """
    wanted = engine.wanted(common)
    edges = [None if part is None or "images" not in wanted else np.zeros_like(part) for part in (above, below)]
    columns, slices = engine.model.image_shape[1], engine.model.projector.slices
    seen = place.height + sum(0 if part is None else part.shape[2] for part in (above, below))
    rows = slice(0, place.height)

    def angle_by_angle() -> Iterator[dict[str, Any]]:
        for some in blocks_of_angles(angles, slices, seen, columns):
            images = engine.images(place, local, common, angles[some], rows)
            changes = array_module(images).zeros_like(images) if "images" in wanted else None
            around = [None if part is None else _beside(images, part[some]) for part in (above, below)]
            back = [None if part is None else _beside(images, part[some]) for part in edges]
            meeting = _Meeting(engine, layout, place, common, angles[some], images, changes, around, back)
            at_once = map if on_device(images) else map_in_order
            yield from at_once(meeting.one, _frames(layout, store, place, angles[some]))
            for edge, part in zip(edges, back):
                if edge is not None and on_device(part):
                    to_host(part, out=edge[some])
            if changes is not None:
                engine.gather(place, local, common, angles[some], rows, images, changes)

    return Met(_dense(engine.model.angles, common, wanted, angle_by_angle()), edges[0], edges[1])


@dataclasses.dataclass(frozen=True, eq=False)
class _Meeting:
    """Images of a slab and of the rows around it, for some angles; and derivatives that are written there."""

    engine: JointEngine
    layout: Layout
    place: SlabPlace
    common: Common
    angles: NDArray[np.int64]
    images: NDArray[Any]
    changes: NDArray[Any] | None
    around: Sequence[NDArray[Any] | None]
    back: Sequence[NDArray[Any] | None]

    def one(self, item: tuple[int, FrameBlock]) -> dict[str, Any]:
        """The frames of an angle: loss, count, gradients of parameters."""
        k, block = item
        above, below = self.around
        first = 0 if above is None else above.shape[2]
        pieces = [part[k] for part in (above, self.images, below) if part is not None]
        xp = array_module(self.images)
        image = xp.ascontiguousarray(xp.concatenate(pieces, 1) if len(pieces) > 1 else pieces[0])
        wanted = self.engine.wanted(self.common)
        loss, count, found = self.engine.model.meet(
            image,
            self.place.start - first,
            int(self.angles[k]),
            block,
            self.common["parameters"],
            self.layout.positions,
            wanted,
        )
        change = found.pop("images", None)
        if change is not None and self.changes is not None:
            last = first + self.place.height
            self.changes[k] = change[:, first:last]
            for edge, part in zip(self.back, (change[:, :first], change[:, last:])):
                if edge is not None:
                    edge[k] = part
        of_angle = Rows(self.angles[k : k + 1], np.array([loss]))
        return {"loss": loss, "count": count, "losses": of_angle, "gradients": found}


def take_in(
    engine: JointEngine,
    place: SlabPlace,
    local: Local,
    common: Common,
    angles: NDArray[np.int64],
    from_before: NDArray[Any] | None,
    from_after: NDArray[Any] | None,
) -> None:
    """Gather what the frames of the slab before (``Met.below``) and of the one after say of this slab's rows."""
    for changes, at_end in ((from_before, False), (from_after, True)):
        if changes is None:
            continue
        count = changes.shape[2]
        rows = slice(place.height - count, place.height) if at_end else slice(0, count)
        for some in blocks_of_angles(angles, changes.shape[1], count, changes.shape[3]):
            for part in _rows_at_a_time(rows):
                images = engine.images(place, local, common, angles[some], part)
                own = changes[some, :, part.start - rows.start : part.stop - rows.start]
                engine.gather(place, local, common, angles[some], part, images, _beside(images, own))


def _beside(images: NDArray[Any], part: NDArray[Any]) -> NDArray[Any]:
    """A host array where the images are: on the host itself."""
    return to_device(part) if on_device(images) else part


def _own_copy(array: NDArray[Any]) -> NDArray[Any]:
    """On the host."""
    return to_host(array) if on_device(array) else np.array(array)


def _images(
    engine: JointEngine, place: SlabPlace, local: Local, common: Common, angles: NDArray[np.int64], rows: slice
) -> NDArray[Any]:
    slices, columns = engine.model.projector.slices, engine.model.image_shape[1]
    blocks = blocks_of_angles(angles, slices, rows.stop - rows.start, columns)
    shape = len(angles), slices, rows.stop - rows.start, columns
    found = None
    for some in blocks:
        for part in _rows_at_a_time(rows):
            images = to_host(engine.images(place, local, common, angles[some], part))
            found = np.empty(shape, images.dtype) if found is None else found
            found[some, :, part.start - rows.start : part.stop - rows.start] = images
    assert found is not None
    return found


def _rows_at_a_time(rows: slice) -> list[slice]:
    return [slice(first, min(first + ROWS, rows.stop)) for first in range(rows.start, rows.stop, ROWS)]


def _frames(
    layout: Layout, store: FrameStore, place: SlabPlace, angles: NDArray[np.int64]
) -> Iterator[tuple[int, FrameBlock]]:
    """Place among the angles, and frames, of those that have any in the slab."""
    numbers = [layout.block(place.index, int(angle)) for angle in angles]
    there = [k for k, number in enumerate(numbers) if len(layout.blocks[number])]
    yield from zip(there, store.walk([numbers[k] for k in there]))


def _dense(angles: int, common: Common, wanted: Sequence[str], parts: Iterator[Mapping[str, Any]]) -> dict[str, Any]:
    """Sums over the angles of a slab, as they come; what belongs to single angles as a whole table."""
    parameters, first = common["parameters"], next(parts, None)
    total: dict[str, Any] = {"loss": 0.0, "count": 0, "gradients": {}}
    if first is not None:
        total = tree_sum(itertools.chain([first], parts))
    gradients = {}
    for name in wanted:
        if name == "images":
            continue
        found, shape = total["gradients"].get(name), parameters[name].shape
        if found is None:
            found = np.zeros(shape, parameters[name].dtype)
        elif isinstance(found, Rows):
            rows = Rows(found.index, to_host(found.values))
            found = rows.put_into(shape).astype(parameters[name].dtype, copy=False)
        gradients[name] = to_host(found)
    losses = np.zeros(angles) if first is None else total["losses"].put_into((angles,))
    return {"loss": total["loss"], "count": total["count"], "losses": losses, "gradients": gradients}
