"""Phantoms whose slices and line integrals are known in closed form: sums of ellipsoids.

No projector of dtomo takes part, so that a reconstruction compared with a phantom tests the projector too.

A phantom is a table of ellipsoids with one axis along z. Its cut at a height z is a sum of ellipses, and the
line integral through an ellipse of half axes a, b at distance r (in units of its half width w) from its
middle is ``2 a b / w * sqrt(1 - r**2)``, whose mean over a detector column is a difference of
``G(r) = (r sqrt(1 - r**2) + asin r) / 2`` at the column's two edges (Kak & Slaney, Principles of Computerized
Tomographic Imaging, 1988, section 3.1, integrated).
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dtomo.errors import UserError

FILL = 0.95
"""Radius of the phantom's unit circle, in units of half the slice: the object never touches the border."""

# value, half axes a, b, c, middle x, y, z, turn about z in degrees: the modified Shepp-Logan head (Toft 1996)
_HEAD = (
    (1.0, 0.69, 0.92, 0.81, 0.0, 0.0, 0.0, 0.0),
    (-0.8, 0.6624, 0.874, 0.78, 0.0, -0.0184, 0.0, 0.0),
    (-0.2, 0.11, 0.31, 0.22, 0.22, 0.0, 0.0, -18.0),
    (-0.2, 0.16, 0.41, 0.28, -0.22, 0.0, 0.0, 18.0),
    (0.1, 0.21, 0.25, 0.41, 0.0, 0.35, -0.15, 0.0),
    (0.1, 0.046, 0.046, 0.5, 0.0, 0.1, 0.25, 0.0),
    (0.1, 0.046, 0.046, 0.5, 0.0, -0.1, 0.25, 0.0),
    (0.1, 0.046, 0.023, 0.2, -0.08, -0.605, 0.0, 0.0),
    (0.1, 0.023, 0.023, 0.2, 0.0, -0.606, 0.0, 0.0),
    (0.1, 0.023, 0.046, 0.2, 0.06, -0.605, 0.0, 0.0),
)


@dataclasses.dataclass(frozen=True, eq=False)
class Phantom:
    """A sum of ellipsoids.

    Parameters
    ----------
    table
        (count, 8) float64: value, half axes a, b, c, middle x, y, z, turn about z in degrees. Lengths are in
        units of ``FILL * size / 2`` voxels, where `size` is the width of a slice; the origin is on the axis,
        in the middle of the slices. Where ellipsoids overlap, their values add.
    """

    table: NDArray[np.float64]

    def __post_init__(self) -> None:
        table = np.array(self.table, np.float64).reshape(-1, 8)
        if not (np.isfinite(table).all() and (table[:, 1:4] > 0).all()):
            raise UserError("a phantom needs finite numbers and positive half axes")
        table.flags.writeable = False
        object.__setattr__(self, "table", table)

    def scaled(self, factor: float) -> "Phantom":
        """The same shapes with all values times `factor`."""
        table = self.table.copy()
        table[:, 0] *= factor
        return Phantom(table)

    def turned(self, degrees: float) -> "Phantom":
        """The same shapes turned about the axis, from x towards y."""
        table = self.table.copy()
        cosine, sine = np.cos(np.deg2rad(degrees)), np.sin(np.deg2rad(degrees))
        table[:, 4:6] = self.table[:, 4:6] @ np.array([[cosine, sine], [-sine, cosine]])
        table[:, 7] += degrees
        return Phantom(table)

    def volume(
        self,
        size: int,
        slices: int | None = None,
        rows: slice | Sequence[int] | None = None,
        width: int | None = None,
        middle: float | None = None,
        fine: int = 8,
    ) -> NDArray[np.float32]:
        """The phantom on voxels, averaged over the area of each.

        Parameters
        ----------
        size
            What sets the scale: the phantom's unit is ``FILL * size / 2`` voxels.
        slices
            Number of slices of the whole volume; default `size`.
        rows
            Which of them to compute; default all.
        width
            Width and height of a slice in voxels; default `size`. Another one only adds or cuts a margin.
        middle
            Pixel, in x and in y, of the rotation axis; default ``(width - 1) / 2``.
        fine
            Lines per row of pixels: exact along x, sampled on this many lines along y.

        Returns
        -------
        array
            (z, y, x) float32. A slice is the cut at the voxel's middle height.
        """
        chosen = _heights(size, slices, rows)
        width = size if width is None else width
        out = np.zeros((len(chosen), width, width), np.float32)
        axis = (width - 1) / 2 if middle is None else middle
        for k, height in enumerate(chosen):
            for value, a, b, x0, y0, turn in self._ellipses(size, height):
                _add_ellipse(out[k], value, a, b, x0 + axis, y0 + axis, turn, fine)
        return out

    def projections(
        self,
        angles: ArrayLike,
        size: int,
        columns: int | None = None,
        center: float | None = None,
        slices: int | None = None,
        rows: slice | Sequence[int] | None = None,
        pitch: float = 1.0,
    ) -> NDArray[np.float32]:
        """Line integrals of the phantom, averaged over the width of each detector column, in closed form.

        Parameters
        ----------
        angles
            Degrees.
        size, slices, rows
            As for `volume`: the same rows of the same object.
        columns
            Detector width in pixels; default `size`.
        center
            Column of the rotation axis; default ``(columns - 1) / 2``.
        pitch
            Detector pixel in units of the voxel.

        Returns
        -------
        array
            (angle, row, column) float32, in units of value times voxels.
        """
        radians = np.deg2rad(np.atleast_1d(np.asarray(angles, np.float64)))
        columns = size if columns is None else columns
        center = (columns - 1) / 2 if center is None else center
        edges = np.asarray((np.arange(columns + 1) - 0.5 - center) * pitch, np.float64)
        heights = _heights(size, slices, rows)
        out = np.empty((len(radians), len(heights), columns), np.float32)
        for i, angle in enumerate(radians):
            out[i] = self._projection(float(angle), size, edges, heights, pitch)
        return out

    def _ellipses(self, size: int, height: float) -> Iterator[tuple[float, float, float, float, float, float]]:
        """The cut at a height (voxels): value, half axes, middle (voxels), turn (radians)."""
        half = FILL * size / 2
        for value, a, b, c, x, y, z, turn in self.table:
            square = 1 - ((height / half - z) / c) ** 2
            if square > 0:
                shrink = half * np.sqrt(square)
                yield value, a * shrink, b * shrink, x * half, y * half, np.deg2rad(turn)

    def _projection(
        self, angle: float, size: int, edges: NDArray[np.float64], heights: NDArray[np.float64], pitch: float
    ) -> NDArray[np.float64]:
        """One projection (row, column); `edges` and `heights` in voxels from the axis and from the middle."""
        half = FILL * size / 2
        out: NDArray[np.float64] = np.zeros((len(heights), len(edges) - 1))
        turns = angle - np.deg2rad(self.table[:, 7])
        widths = half * np.hypot(self.table[:, 1] * np.cos(turns), self.table[:, 2] * np.sin(turns))
        middles = half * (self.table[:, 4] * np.cos(angle) + self.table[:, 5] * np.sin(angle))
        squares = 1 - ((heights[:, None] / half - self.table[:, 6]) / self.table[:, 3]) ** 2
        lows = np.searchsorted(edges, middles - widths)
        highs = np.searchsorted(edges, middles + widths)
        for n, (value, a, b) in enumerate(self.table[:, :3]):
            first, last = max(lows[n] - 1, 0), min(highs[n] + 1, len(edges))
            inside = np.flatnonzero(squares[:, n] > 0)
            if last - first < 2 or not inside.size:
                continue
            square = squares[inside, n][:, None]
            distance = (edges[first:last] - middles[n]) / (widths[n] * np.sqrt(square))
            np.clip(distance, -1, 1, out=distance)
            area = distance * np.sqrt(1 - distance * distance) + np.arcsin(distance)
            chords = np.diff(area, axis=1) * (value * a * b * half**2 / pitch) * square
            if inside.size == inside[-1] - inside[0] + 1:
                out[inside[0] : inside[-1] + 1, first : last - 1] += chords
            else:
                out[inside, first : last - 1] += chords
        return out


def _heights(size: int, slices: int | None, rows: slice | Sequence[int] | None) -> NDArray[np.float64]:
    """Heights of the chosen slices above the middle, in voxels."""
    slices = size if slices is None else slices
    if size < 1 or slices < 1:
        raise UserError(f"a phantom needs a positive size and number of slices; got {size} and {slices}")
    chosen = np.arange(slices)
    if rows is not None:
        chosen = chosen[rows if isinstance(rows, slice) else np.asarray(rows, np.int64)]
    return np.asarray(chosen - (slices - 1) / 2, np.float64)


def _add_ellipse(
    image: NDArray[np.float32], value: float, a: float, b: float, x0: float, y0: float, turn: float, fine: int
) -> None:
    """Add value times the covered part of each pixel; lengths in pixels, turn in radians."""
    rows, columns = image.shape
    reach = float(np.hypot(a * np.sin(turn), b * np.cos(turn)))
    first, last = max(int(np.floor(y0 - reach)), 0), min(int(np.ceil(y0 + reach)) + 2, rows)
    reach = float(np.hypot(a * np.cos(turn), b * np.sin(turn)))
    left, right = max(int(np.floor(x0 - reach)), 0), min(int(np.ceil(x0 + reach)) + 2, columns)
    if first >= last or left >= right:
        return
    y = (np.arange((last - first) * fine) + 0.5) / fine - 0.5 + first - y0
    # the ellipse is p x^2 + 2 q x y + r y^2 < 1; each line cuts it between two values of x
    c, s = np.cos(turn), np.sin(turn)
    p = (c / a) ** 2 + (s / b) ** 2
    q = (1 / a**2 - 1 / b**2) * c * s
    r = (s / a) ** 2 + (c / b) ** 2
    under = (q * y) ** 2 - p * (r * y * y - 1)
    half = np.sqrt(np.maximum(under, 0)) / p
    centre = x0 - q * y / p
    edges = np.arange(left, right + 1) - 0.5
    covered = np.diff(np.clip(edges, (centre - half)[:, None], (centre + half)[:, None]), axis=1)
    part = covered.reshape(last - first, fine, right - left).mean(1)
    image[first:last, left:right] += (value * part).astype(np.float32)


def head() -> Phantom:
    """The modified Shepp-Logan head with ellipsoids: skull 1, brain 0.2, features of 0.1 to 0.2."""
    return Phantom(np.array(_HEAD))


@functools.cache
def sample(seed: int = 0, features: int = 320) -> Phantom:
    """A piece of rock in a tube: an oval body of value 1 with grains, pores (value 0), inclusions, a crack.

    The body is taller than it is wide, so that every slice of a cube cuts it. Features do not overlap.
    """
    rng = np.random.default_rng([seed, 1])
    # off the axis, as a holder always is: a circle about the axis looks like a ring to be removed
    tube = [(0.25, 0.93, 0.93, 60.0, 0.05, 0.04, 0.0, 0.0), (-0.25, 0.89, 0.89, 60.0, 0.05, 0.04, 0.0, 0.0)]
    body = (1.0, 0.84, 0.74, 1.8, 0.06, 0.02, 0.0, 20.0)
    crack = (-1.0, 0.3, 0.012, 0.5, 0.3, 0.33, 0.1, -28.0)
    rows = [*tube, body, crack]
    along = np.cos(np.deg2rad(crack[7])), np.sin(np.deg2rad(crack[7]))
    balls = [
        (crack[4] + d * along[0], crack[5] + d * along[1], height, 0.05)
        for d in np.linspace(-0.3, 0.3, 13)
        for height in np.linspace(-0.4, 0.6, 15)
    ]
    for n in range(features):
        large = 0.16 if n < features // 10 else 0.09 if n < features // 2 else 0.05
        for _ in range(200):
            radius = large * rng.uniform(0.6, 1.0)
            x, y, z = rng.uniform(-0.8, 0.8), rng.uniform(-0.7, 0.7), rng.uniform(-1.1, 1.1)
            placed = np.array(balls)
            free = np.sqrt(((placed[:, :3] - (x, y, z)) ** 2).sum(1)) > placed[:, 3] + radius
            if free.all() and _inside(body, x, y, z, radius):
                break
        else:
            continue
        a, b, c = radius * rng.uniform(0.55, 1.0, 3)
        value = (-1.0, -1.0, -0.25, 0.3, 1.2)[rng.integers(5)] if large < 0.1 else (-1.0, 0.25, -0.3)[n % 3]
        rows.append((value, a, b, c, x, y, z, rng.uniform(0, 180)))
        balls.append((x, y, z, radius))
    return Phantom(np.array(rows))


def _inside(body: tuple[float, ...], x: float, y: float, z: float, radius: float) -> bool:
    """Whether a ball lies well inside the body."""
    turn = np.deg2rad(body[7])
    u = (x - body[4]) * np.cos(turn) + (y - body[5]) * np.sin(turn)
    v = (y - body[5]) * np.cos(turn) - (x - body[4]) * np.sin(turn)
    margin = radius + 0.03
    axes = np.array(body[1:4]) - margin
    return bool(((np.array([u, v, z]) / axes) ** 2).sum() < 1)


PHANTOMS: dict[str, Callable[[], Phantom]] = {"sample": sample, "head": head}
"""Phantoms by name, for the command line."""


def named(name: str) -> Phantom:
    """A phantom by its name.

    Raises
    ------
    UserError
        There is none of that name.
    """
    if name not in PHANTOMS:
        raise UserError(f"there is no phantom named {name!r}; there are {', '.join(sorted(PHANTOMS))}")
    return PHANTOMS[name]()
