"""Any straight rays: where the source, the detector and its axes lie in each view."""

import dataclasses
import importlib
import os
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dtomo.errors import UserError
from dtomo.geometry.parallel import ParallelBeam

Beam = Literal["parallel", "fan", "cone"]
Vectors = NDArray[np.float64]

MOST = 1e9  # of any length, in voxels
FLATTEST = 1e-3  # least cosine between the beam and the normal of the detector


@dataclasses.dataclass(frozen=True, eq=False)
class VectorGeometry:
    """Rays to every pixel of a flat detector, which lies anew in each view, through one volume.

    Vectors are (x, y, z), lengths in one unit of the user's choice (mm, voxels). Pixel (row, column) of a view has its
    middle at::

        detector + (column - (columns - 1) / 2) * column_step + (row - (rows - 1) / 2) * row_step

    and voxel (z, y, x) of the volume at ``middle + (index - (size - 1) / 2) * voxel`` along each axis. See
    `dtomo.geometry.constructors` for readable ways to make one, and docs/geometries.md for pictures.

    Parameters
    ----------
    beam
        "parallel": all rays of a view along `source`, a direction. "cone": rays start at `source`, a point. "fan":
        a source for each row of the detector, `source` that of the middle between the rows; the one of a row is moved
        with it: slices are projected alike, each by a fan of its own.
    source, detector, column_step, row_step
        ``(views, 3)``, or ``(3,)`` for all views.
    rows, columns
        Size of the detector.
    shape
        ``(z, y, x)`` of the volume.
    voxel
        Size of a voxel, ``(z, y, x)``, or one number.
    middle
        (x, y, z) of the middle of the volume.

    Raises
    ------
    UserError
        Vectors that are not finite, sizes that are not positive, a detector whose steps span no plane, rays along the
        detector, a source in the volume.
    """

    beam: Beam
    source: Vectors
    detector: Vectors
    column_step: Vectors
    row_step: Vectors
    rows: int
    columns: int
    shape: tuple[int, int, int]
    voxel: tuple[float, float, float] = (1.0, 1.0, 1.0)
    middle: tuple[float, float, float] = (0.0, 0.0, 0.0)

    def __post_init__(self) -> None:
        put = object.__setattr__
        if self.beam not in get_args(Beam):
            raise UserError(f"a beam is parallel, fan or cone, not {self.beam!r}")
        names = ("source", "detector", "column_step", "row_step")
        tables = [_vectors(getattr(self, name), name) for name in names]
        views = max(len(table) for table in tables)
        for name, table in zip(names, tables):
            if len(table) not in (1, views) or not views:
                raise UserError(f"a geometry has as many vectors of each kind as views; {name} has {len(table)}")
            table = np.ascontiguousarray(np.broadcast_to(table, (views, 3)))
            table.flags.writeable = False
            put(self, name, table)
        put(self, "rows", size_of(self.rows, "rows of the detector"))
        put(self, "columns", size_of(self.columns, "columns of the detector"))
        if np.shape(self.shape) != (3,):
            raise UserError(f"the shape of a volume is (z, y, x), not {self.shape!r:.60}")
        put(self, "shape", tuple(size_of(n, "voxels of the volume") for n in self.shape))
        voxel = np.broadcast_to(numbers_of(self.voxel, "size of a voxel", (1, 3)), 3)
        if not (voxel > 0).all():
            raise UserError(f"the size of a voxel is positive, not {self.voxel!r:.60}")
        put(self, "voxel", tuple(map(float, voxel)))
        put(self, "middle", tuple(map(float, numbers_of(self.middle, "middle of the volume", (3,)))))
        self._check()

    def _check(self) -> None:
        size = min(self.voxel)
        for table in (self.source, self.detector) if self.beam != "parallel" else (self.detector,):
            _refuse(np.abs(table).max(1) > MOST * size, "a position is more than 1e9 voxels away")
        for table in (self.column_step, self.row_step):
            longest = np.abs(table).max(1)
            wrong = (longest > MOST * size) | (longest < size / MOST)
            _refuse(wrong, "a step of the detector is no voxels or more than 1e9 voxels long")
        normal = np.cross(self.column_step, self.row_step)
        lengths = [np.linalg.norm(table, axis=1) for table in (self.column_step, self.row_step, normal)]
        flat = lengths[2] <= FLATTEST * lengths[0] * lengths[1]
        _refuse(flat, "the steps to the next column and row of the detector are in one direction")
        normal = normal / lengths[2][:, None]
        beam = self.source if self.beam == "parallel" else self.detector - self.source
        longest = np.abs(beam).max(1)
        if self.beam == "parallel":
            _refuse((longest < 1e-30) | (longest > 1e30), "the direction of the beam is zero or endlessly long")
        else:
            _refuse(longest == 0, "the source lies on the detector")
        grazing = np.abs(np.sum(beam * normal, 1)) < FLATTEST * np.linalg.norm(beam, axis=1)
        _refuse(grazing, "the beam goes along the detector, not through it")
        if self.beam == "cone":
            half = self.lengths[::-1] / 2
            inside = (np.abs(self.source - self.middle) < half).all(1)
            _refuse(inside, "the source lies in the volume")

    @property
    def views(self) -> int:
        """How many."""
        return len(self.source)

    @property
    def lengths(self) -> NDArray[np.float64]:
        """Edges of the volume, ``(z, y, x)``."""
        return np.array(self.shape) * self.voxel

    @property
    def key(self) -> tuple[object, ...]:
        """What makes two geometries equal: hashable, used for caches."""
        tables = (self.source, self.detector, self.column_step, self.row_step)
        sizes = (self.rows, self.columns, self.shape, self.voxel, self.middle)
        return (self.beam, *(table.tobytes() for table in tables), *sizes)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, VectorGeometry) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def replace(self, **changes: Any) -> "VectorGeometry":
        """A copy with some values changed."""
        return dataclasses.replace(self, **changes)

    def __reduce__(self) -> tuple[object, ...]:
        return VectorGeometry, tuple(getattr(self, field.name) for field in dataclasses.fields(self))

    def __repr__(self) -> str:
        return (
            f"VectorGeometry({self.beam!r}, {self.views} views, {self.rows} x {self.columns} pixels, "
            f"shape={self.shape}, voxel={self.voxel}, middle={self.middle})"
        )

    def matrices(self) -> Vectors:
        """Where points are seen: ``(views, 3, 4)``, each times (x, y, z, 1) gives (column · w, row · w, w).

        `w` is 1 on the detector and 0 at the source; with a parallel beam it is 1 everywhere. With "fan" the second
        number is the row itself, not the row times w.
        """
        u, v, n, start = self.column_step, self.row_step, np.cross(self.column_step, self.row_step), self.detector
        square = np.sum(n * n, 1, keepdims=True)
        dual_u, dual_v = np.cross(v, n) / square, np.cross(n, u) / square
        found = np.empty((self.views, 3, 4))
        middle = ((self.columns - 1) / 2, (self.rows - 1) / 2)
        if self.beam == "parallel":
            depth = np.sum(self.source * n, 1, keepdims=True)
            for k, dual in enumerate((dual_u, dual_v)):
                found[:, k, :3] = dual - np.sum(self.source * dual, 1, keepdims=True) / depth * n
                found[:, k, 3] = middle[k] - np.sum(found[:, k, :3] * start, 1)
            found[:, 2] = 0, 0, 0, 1
            return found
        way = start - self.source
        found[:, 2, :3] = n / np.sum(way * n, 1, keepdims=True)
        for k, dual in enumerate((dual_u, dual_v)):
            aside = np.sum(way * dual, 1, keepdims=True)
            if k == 1 and self.beam == "fan":
                found[:, 1, :3], aside = dual - aside * found[:, 2, :3], 0.0 * aside
            else:
                found[:, k, :3] = dual + (middle[k] - aside) * found[:, 2, :3]
        found[:, :, 3] = -np.sum(found[:, :, :3] * self.source[:, None], 2)
        if self.beam == "fan":
            found[:, 1, 3] += middle[1]
        return found

    def voxel_matrices(self) -> Vectors:
        """The same for numbers of voxels: they take (number along x, along y, along z, 1)."""
        size = np.array(self.voxel)[::-1]
        first = np.array(self.middle) - (np.array(self.shape)[::-1] - 1) / 2 * size
        found = self.matrices()
        found[:, :, 3] += found[:, :, :3] @ first
        found[:, :, :3] *= size
        return found

    def of_views(self, numbers: ArrayLike | slice) -> "VectorGeometry":
        """Some of the views, by number, by True and False, or as a slice.

        Raises
        ------
        UserError
            None of the views, or one that there is not.
        """
        try:
            chosen = np.arange(self.views)[numbers if isinstance(numbers, slice) else np.asarray(numbers)]
        except IndexError:
            chosen = np.empty(0, np.int64)
        if not chosen.size:
            raise UserError(f"views are chosen by number, from 0 to {self.views - 1}, not by {numbers!r:.60}")
        tables = {name: getattr(self, name)[chosen] for name in ("source", "detector", "column_step", "row_step")}
        return self.replace(**tables)

    def of_slices(self, start: int, stop: int) -> "VectorGeometry":
        """The slab of the volume from slice `start` up to `stop`; the projections of slabs add up to the whole's."""
        moved = (start + stop - self.shape[0]) / 2 * self.voxel[0]
        x, y, z = self.middle
        return self.replace(shape=(stop - start, *self.shape[1:]), middle=(x, y, z + moved))

    def of_rows(self, start: int, stop: int) -> "VectorGeometry":
        """Rows `start` up to `stop` of the detector."""
        moved = (start + stop - self.rows) / 2 * self.row_step
        source = self.source + moved if self.beam == "fan" else self.source
        return self.replace(rows=stop - start, detector=self.detector + moved, source=source)

    def with_columns(self, before: int, behind: int) -> "VectorGeometry":
        """With so many more columns of the detector before the first and behind the last (negative: fewer)."""
        moved = (behind - before) / 2 * self.column_step
        return self.replace(columns=self.columns + before + behind, detector=self.detector + moved)

    def coarser(self, factor: int) -> "VectorGeometry":
        """Voxels and pixels `factor` times as large, over at least the same volume and detector.

        What remains where a size is no multiple is filled up at its end (`dtomo.operators` does the same to data).

        Raises
        ------
        UserError
            A factor that is no whole number from 1.
        """
        factor = size_of(factor, "voxels along the side of a coarser one")
        columns, across, moved_columns = _coarser(self.columns, self.column_step, factor)
        rows, down, moved_rows = _coarser(self.rows, self.row_step, factor)
        scales = [1 if n == 1 else factor for n in self.shape]
        shape = [-(-n // scale) for n, scale in zip(self.shape, scales)]
        moved = [(m * s - n) / 2 * v for m, s, n, v in zip(shape, scales, self.shape, self.voxel)]
        return self.replace(
            source=self.source + moved_rows if self.beam == "fan" else self.source,
            detector=self.detector + moved_columns + moved_rows,
            column_step=across, row_step=down, rows=rows, columns=columns, shape=tuple(shape),
            voxel=tuple(v * s for v, s in zip(self.voxel, scales)), middle=tuple(np.add(self.middle, moved[::-1])),
        )  # fmt: skip

    def plot(self, path: str | os.PathLike[str] | None = None, title: str = "") -> Any:
        """Draw volume, source and detector, and what the detector sees: see `dtomo.report.geometry_pictures`.

        Parameters
        ----------
        path
            Where to write the picture; None: nowhere, the figure is returned.
        title
            Above it.

        Returns
        -------
        matplotlib.figure.Figure
        """
        # pictures belong to the layer on top, which is loaded only where one is asked for
        pictures = importlib.import_module("dtomo.report.geometry_pictures")
        return pictures.draw_geometry(self, path, title)

    @classmethod
    def of_parallel(cls, geometry: ParallelBeam, slices: int) -> "VectorGeometry":
        """The same rays as a `ParallelBeam`, with as many rows as slices; lengths in voxels."""
        g = geometry
        cosine, sine = np.cos(g.radians), np.sin(g.radians)
        zero, one = np.zeros_like(cosine), np.ones_like(cosine)
        across = np.stack([cosine, sine, zero], 1) * g.pitch
        return cls(
            "parallel", np.stack([-sine, cosine, zero], 1), ((g.columns - 1) / 2 - g.center) * across, across,
            np.stack([zero, zero, one], 1), slices, g.columns, (slices, g.height, g.width),
        )  # fmt: skip


def _coarser(pixels: int, step: Vectors, factor: int) -> tuple[int, Vectors, Vectors]:
    """Pixels and their step, and how far the middle of the detector moves; one alone stays as it is."""
    if pixels == 1:
        return 1, step, np.zeros_like(step)
    wanted = -(-pixels // factor)
    return wanted, step * factor, (wanted * factor - pixels) / 2 * step


def _refuse(wrong: Any, what: str) -> None:
    if np.any(wrong):
        raise UserError(f"view {int(np.argmax(wrong))}: {what}")


def _vectors(values: ArrayLike, name: str) -> Vectors:
    try:
        table = np.array(values, np.float64)
    except (TypeError, ValueError):
        raise UserError(f"{name} of a geometry is a table of vectors (x, y, z), not {values!r:.60}") from None
    table = table[None] if table.ndim == 1 else table
    if table.ndim != 2 or table.shape[1] != 3 or not len(table):
        raise UserError(f"{name} of a geometry is a table (views, 3) of vectors (x, y, z), not of shape {table.shape}")
    _refuse(~np.isfinite(table).all(1), f"{name} is not finite")
    return table + 0.0  # no negative zeros: equal vectors, equal bits


def numbers_of(values: Any, name: str, sizes: tuple[int, ...]) -> NDArray[np.float64]:
    """Finite numbers, flat, as many as one of `sizes` says; else a `UserError` that speaks of the `name`."""
    try:
        found = np.array(values, np.float64).reshape(-1)
    except (TypeError, ValueError):
        found = np.empty(0)
    if found.size not in sizes or not np.isfinite(found).all():
        wanted = "a finite number" if sizes[-1] == 1 else f"{sizes[-1]} finite numbers"
        raise UserError(f"the {name} is {wanted}, not {values!r:.60}")
    return found + 0.0


def size_of(value: Any, name: str) -> int:
    """A whole number from 1; else a `UserError` that speaks of the number of `name`."""
    try:
        whole = float(value)
    except (TypeError, ValueError):
        whole = 0.0
    if isinstance(value, bool) or not whole.is_integer() or not 1 <= whole <= 2**31:
        raise UserError(f"the number of {name} is a whole number from 1, not {value!r:.60}")
    return int(whole)
