"""A projector cut into slabs of the volume: each is with one of several peers, which exchange rows of projections.

What a peer sees is an ordinary operator on arrays of its own: a slab of the volume, and some of the detector's rows.
`forward` sends the projections of the slab to those who have the rows and adds up what comes; `adjoint` fetches the
rows that the slab is seen in. Inner products are of the whole. So algorithms run on slabs as they are.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from dtomo.arrays import empty_aligned
from dtomo.elementwise import in_pieces
from dtomo.errors import UserError
from dtomo.geometry import ParallelBeam, VectorGeometry
from dtomo.kernels.dual_fields import back_to
from dtomo.kernels.layout import projections_inside_out
from dtomo.operators.differences import Differences
from dtomo.operators.peers import Peers
from dtomo.operators.projection import ParallelProjector, Projector
from dtomo.operators.rays import RayProjector

Span = tuple[int, int]


def rows_reached(geometry: VectorGeometry, slices: Span) -> NDArray[np.int64]:
    """Rows (first, last + 1) of the detector that rays through slices of the volume end in: ``(views, 2)``.

    A little more than those, never less; all where the slices reach behind a source, equal numbers where none.
    """
    _, height, width = geometry.shape
    # interpolation gives a voxel the two voxels' width around its middle
    ends = [(-1, width), (-1, height), (slices[0] - 1, slices[1])]
    points = np.array([(x, y, z, 1) for x in ends[0] for y in ends[1] for z in ends[2]])
    numbers = geometry.voxel_matrices() @ points.T
    depth = numbers[:, 2]
    behind = (depth <= 1e-6).any(1)
    rows = numbers[:, 1] / np.where(behind[:, None] | (geometry.beam == "fan"), 1.0, depth)
    low, high = (np.clip(n, -2.0, geometry.rows + 2.0) for n in (rows.min(1) - 0.01, rows.max(1) + 0.01))
    found = np.stack([np.ceil(low), np.floor(high) + 1], 1).astype(np.int64)
    found[behind] = 0, geometry.rows
    found = np.clip(found, 0, geometry.rows)
    found[found[:, 0] >= found[:, 1]] = 0
    return found


@dataclasses.dataclass(frozen=True)
class SlabLayout:
    """Who has what: slices of the volume, rows of the detector, and what must be exchanged.

    Attributes
    ----------
    geometry
        Of the whole.
    slabs
        Slices (first, last + 1) of each peer's slab, from the first to the last slice of the volume.
    rows
        Rows (first, last + 1) of the detector that each peer has: as many, close to where its slab is seen.
    """

    geometry: VectorGeometry
    slabs: tuple[Span, ...]
    rows: tuple[Span, ...]

    @classmethod
    def of(cls, geometry: VectorGeometry, slabs: Sequence[Span]) -> "SlabLayout":
        """That of a geometry and slabs that follow one another.

        Raises
        ------
        UserError
            Slabs that are not the volume, or more of them than the detector has rows.
        """
        ends, count, rows = [0, *(stop for _, stop in slabs)], len(slabs), geometry.rows
        whole = ends[-1] == geometry.shape[0] and all(a < b for a, b in slabs)
        if not slabs or not whole or [first for first, _ in slabs] != ends[:-1]:
            raise UserError(f"slabs follow one another from slice 0 to {geometry.shape[0]}, not as {slabs}")
        if count > rows:
            raise UserError(
                f"{count} slabs need as many rows of the detector, and there are {rows}: take fewer, thicker slabs"
            )
        spans = [(rows * n // count, rows * (n + 1) // count) for n in range(count)]
        along = geometry.voxel_matrices()[:, 1, 2].sum()  # of rows, for a slice further
        return cls(geometry, tuple(slabs), tuple(spans if along >= 0 else spans[::-1]))

    def blocks(self) -> list[tuple[Span, list[Span]]]:
        """Views (first, last + 1) that are exchanged at once, and the rows that each slab reaches in them.

        So many that what a slab reaches in them is about as much as a peer has of all views.
        """
        views = self.geometry.views
        reached = [rows_reached(self.geometry, slab) for slab in self.slabs]
        wide = max(int(rows[:, 1].max() - rows[:, 0].min()) for rows in reached)
        own = max(last - first for first, last in self.rows)
        count = 1 if len(self.slabs) == 1 else min(max(1, -(-wide // own)), views)
        found = []
        for number in range(count):
            span = views * number // count, views * (number + 1) // count
            found.append((span, [_hull(rows[slice(*span)]) for rows in reached]))
        return found

    def of_views(self, numbers: NDArray[np.int64]) -> "SlabLayout":
        """The same slabs, some of the views."""
        return dataclasses.replace(self, geometry=self.geometry.of_views(numbers))


def _hull(rows: NDArray[np.int64]) -> Span:
    rows = rows[rows[:, 0] < rows[:, 1]]
    return (int(rows[:, 0].min()), int(rows[:, 1].max())) if len(rows) else (0, 0)


def even_slabs(slices: int, count: int) -> tuple[Span, ...]:
    """`count` slabs (first, last + 1) of as many slices each, or one more."""
    return tuple((slices * n // count, slices * (n + 1) // count) for n in range(count))


class OfSeveral(Projector):
    """What operators of parts of a problem have in common: sums, differences and questions of the whole."""

    separable = False
    peers: Peers

    def differences(self, spacing: tuple[float, ...]) -> Differences:
        """Differences that go on into the neighbours' slabs."""
        return SlabDifferences(self.shape_in, spacing, self.dtype, self.peers)

    def largest(self, here: float) -> float:
        """The largest value that any of the peers has."""
        return float(max(self.peers.gathered(here)))

    def anywhere(self, here: bool) -> bool:
        """Whether it is so with any of the peers."""
        return bool(self.peers.total(np.array([float(here)]))[0])

    def _dot(self, x: NDArray[Any], y: NDArray[Any]) -> NDArray[np.float64]:
        return self.peers.total(super()._dot(x, y))


class SlicesProjector(OfSeveral, ParallelProjector):
    """A `ParallelProjector` of some of the slices, which others have the rest of: for priors that join slices.

    Parameters
    ----------
    geometry, slices, dtype
        As for `ParallelProjector`, of this part.
    peers
        In the order of the slices.
    """

    def __init__(self, geometry: ParallelBeam, slices: int, peers: Peers, dtype: DTypeLike = np.float32) -> None:
        super().__init__(geometry, slices, dtype)
        self.peers = peers


class SlabProjector(OfSeveral):
    """What one of several peers has of the projector of any rays.

    Maps its slab ``(z, y, x)`` to its rows ``(view, row, column)``, z and row innermost in memory. `forward` and
    `adjoint`, and all that is made of them, are calls that all peers come to.

    Parameters
    ----------
    layout
        Slabs and rows.
    peers
        The others.
    dtype
        float32 or complex64.

    Raises
    ------
    UserError
        Another dtype, or a layout of another number of slabs.

    Notes
    -----
    See `RayProjector`. Contributions are added in the order of the slabs: the same bits wherever the peers are. Beside
    its arguments and results a call takes about twice the memory of the peer's rows.
    """

    def __init__(self, layout: SlabLayout, peers: Peers, dtype: DTypeLike = np.float32) -> None:
        if len(layout.slabs) != peers.count:
            raise UserError(f"{len(layout.slabs)} slabs are for as many peers, not {peers.count}")
        self.layout, self.peers = layout, peers
        geometry, own = layout.geometry, layout.slabs[peers.number]
        self.whole = RayProjector(geometry.of_slices(*own), dtype)
        self.dtype, self.length = self.whole.dtype, self.whole.length
        self.rows = layout.rows
        self.shape_in = self.whole.shape_in
        first, last = self.rows[peers.number]
        self.shape_out = (geometry.views, last - first, geometry.columns)
        self._blocks = [(span, reached, self._part(span, reached[peers.number])) for span, reached in layout.blocks()]

    def _part(self, views: Span, rows: Span) -> RayProjector | None:
        """The projector of the slab in some views and rows; None where it is not seen."""
        if rows[0] == rows[1]:
            return None
        return RayProjector(self.whole.geometry.of_views(slice(*views)).of_rows(*rows), self.dtype)

    def of_views(self, numbers: Sequence[int] | NDArray[np.integer[Any]]) -> "SlabProjector":
        """Those of some views (see `LinearOperator.of_views`)."""
        return SlabProjector(self.layout.of_views(self._view_numbers(numbers)), self.peers, self.dtype)

    def norm(self, iterations: int = 30, seed: int = 0) -> float:
        """The largest singular value of the whole, from below, by the power method."""
        x, value = self.zeros(), 0.0
        x[...] = np.random.default_rng(seed).uniform(0.5, 1.5, self.shape_in[1:]).astype(np.float32)
        for _ in range(iterations):
            length = np.sqrt(self.dot_in(x, x))
            x *= self.factor_in(1 / np.maximum(length, 1e-30))
            x = self.adjoint(self.forward(x))
            value = float(np.sqrt(np.sqrt(self.dot_in(x, x))[0]))
        return value

    def _forward(self, x: NDArray[Any]) -> NDArray[Any]:
        if self.peers.count == 1:
            return self.whole.forward(x)
        peers, own = self.peers, self.rows[self.peers.number]
        views, rows, columns = self.shape_out
        out = empty_aligned((views, columns, rows), self.dtype)
        out[:] = 0
        for span, reached, part in self._blocks:
            mine = reached[peers.number]
            made = None if part is None else np.swapaxes(part.forward(x), 1, 2)
            for other in range(peers.count):
                common = _common(mine, self.rows[other])
                if other != peers.number and made is not None and common is not None:
                    peers.send(other, np.ascontiguousarray(made[:, :, _within(common, mine)]))
            for source in range(peers.count):
                common = _common(reached[source], own)
                if common is None:
                    continue
                target = out[slice(*span), :, _within(common, own)]
                if source != peers.number:
                    in_pieces(_add, target, peers.receive(source))
                elif made is not None:
                    in_pieces(_add, target, made[:, :, _within(common, mine)])
        return np.swapaxes(out, 1, 2)

    def _adjoint(self, y: NDArray[Any]) -> NDArray[Any]:
        if self.peers.count == 1:
            return self.whole.adjoint(y)
        peers, own, inside = self.peers, self.rows[self.peers.number], projections_inside_out(y)
        volume: NDArray[Any] | None = None
        for span, reached, part in self._blocks:
            here = inside[slice(*span)]
            for other in range(peers.count):
                common = _common(reached[other], own)
                if other != peers.number and common is not None:
                    # a copy in any case: the caller may write over what it gave while it is still on its way
                    peers.send(other, here[:, :, _within(common, own)].copy())
            if part is None:
                continue
            mine = reached[peers.number]
            lines = empty_aligned((span[1] - span[0], self.shape_out[2], mine[1] - mine[0]), self.dtype)
            for source in range(peers.count):
                common = _common(mine, self.rows[source])
                if common is not None:
                    piece = here[:, :, _within(common, own)] if source == peers.number else peers.receive(source)
                    lines[:, :, _within(common, mine)] = piece
            made = part.adjoint(np.swapaxes(lines, 1, 2))
            if volume is None:
                volume = made
            else:
                in_pieces(_add, volume, made)
        return self.zeros() if volume is None else volume


def _common(one: Span, two: Span) -> Span | None:
    """Rows in both."""
    first, last = max(one[0], two[0]), min(one[1], two[1])
    return (first, last) if first < last else None


def _within(rows: Span, span: Span) -> slice:
    """Rows as they are counted from the first of a span."""
    return slice(rows[0] - span[0], rows[1] - span[0])


def _add(target: NDArray[Any], source: NDArray[Any]) -> None:
    target += source


class SlabDifferences(Differences):
    """`Differences` of a volume of which each peer has a slab: planes at the borders are exchanged.

    Parameters
    ----------
    shape, spacing, dtype
        As for `Differences`, of the slab.
    peers
        In the order of the slabs.
    """

    def __init__(self, shape: tuple[int, ...], spacing: tuple[float, ...], dtype: Any, peers: Peers) -> None:
        super().__init__(shape, spacing, dtype)  # type: ignore[arg-type]
        self.peers = peers
        self.joined = len(self.spacing) == 3 and peers.count > 1

    def ascend(
        self,
        field: NDArray[Any],
        ahead: NDArray[Any],
        volume: NDArray[Any],
        step: NDArray[np.float32] | float,
        *,
        limit: float,
        momentum: float = 0.0,
        isotropic: bool = True,
    ) -> tuple[NDArray[Any], NDArray[Any]]:
        """As `Differences.ascend`; `step` is one number."""
        after = self._after(volume)
        options: dict[str, Any] = {"limit": limit, "momentum": momentum, "isotropic": isotropic}
        if after is None:
            return super().ascend(field, ahead, volume, step, **options)
        # the last plane goes by itself, with the one after it
        pair = np.stack([volume[-1], after])
        both = [_pair(array[:, -1]) for array in (field, ahead)]
        thin = Differences(pair.shape, self.spacing, self.dtype)
        border = thin.ascend(both[0], both[0] if ahead is field else both[1], pair, step, **options)
        found = super().ascend(field, ahead, volume, step, **options)
        for array, part in zip(found, border):
            array[:, -1] = part[:, 0]
        return found

    def relaxed(
        self,
        volume: NDArray[Any],
        field: NDArray[Any],
        factor: Any,
        bounds: tuple[float | None, float | None] = (None, None),
    ) -> NDArray[Any]:
        """As `Differences.relaxed`."""
        if not self.joined:
            return super().relaxed(volume, field, factor, bounds)
        out = self.adjoint(field)
        in_pieces(lambda o, x, f: back_to(o, x, f, bounds), out, volume, factor)
        return out

    def _after(self, volume: NDArray[Any]) -> NDArray[Any] | None:
        """The plane after the last one, from the slab that follows; None where there is none."""
        if not self.joined:
            return None
        if self.peers.number > 0:
            self.peers.send(self.peers.number - 1, volume[0].copy(order="C"))
        if self.peers.number == self.peers.count - 1:
            return None
        found: NDArray[Any] = self.peers.receive(self.peers.number + 1)
        return found

    def _forward(self, x: NDArray[Any]) -> NDArray[Any]:
        after, found = self._after(x), super()._forward(x)
        if after is not None:
            np.subtract(after, x[-1], out=found[0, -1])
            found[0, -1] *= np.float32(1 / self.spacing[0])
        return found

    def _adjoint(self, y: NDArray[Any]) -> NDArray[Any]:
        found = super()._adjoint(y)
        if not self.joined:
            return found
        inverse = np.float32(1 / self.spacing[0])
        if self.peers.number < self.peers.count - 1:
            self.peers.send(self.peers.number + 1, y[0, -1].copy(order="C"))
            found[-1] -= y[0, -1] * inverse
        if self.peers.number > 0:
            found[0] += self.peers.receive(self.peers.number - 1) * inverse
        return found


def _pair(plane: NDArray[Any]) -> NDArray[Any]:
    """Components ``(component, y, x)`` of a plane as those of two planes."""
    return np.stack([plane, np.zeros_like(plane)], 1)
