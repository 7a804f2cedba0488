"""The three middle slices of a volume, small enough to be sent while a run goes on."""

import dataclasses
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

MOST = 512
"""Pixels of a side at most."""

Plane = Literal["xy", "xz", "yz"]
PLANES: tuple[Plane, ...] = ("xy", "xz", "yz")

_LARGEST = float(np.finfo(np.float16).max)


@dataclasses.dataclass(frozen=True)
class Grid:
    """How the middle slices of a volume ``(z, y, x)`` are thinned to `MOST` pixels.

    Along y and x the mean of whole blocks is taken; along z every so-many-th slice, which needs no neighbours.
    """

    shape: tuple[int, int, int]

    @property
    def steps(self) -> tuple[int, int, int]:
        """Voxels (z, y, x) to a pixel."""
        z, y, x = (-(-size // MOST) for size in self.shape)
        return z, y, x

    @property
    def middle(self) -> tuple[int, int, int]:
        """Voxel (z, y, x) that the three slices go through."""
        z, y, x = (size // 2 for size in self.shape)
        return z, y, x

    def pixels(self, plane: Plane) -> tuple[int, int]:
        """Rows and columns of a picture."""
        (nz, ny, nx), (z, y, x) = self.shape, self.steps
        sizes = {"z": -(-nz // z), "y": ny // y, "x": nx // x}
        return sizes[plane[1]], sizes[plane[0]]

    def rows(self, start: int, stop: int) -> range:
        """Rows of the xz and yz pictures that lie in slices ``start:stop``."""
        step = self.steps[0]
        return range(-(-start // step), -(-stop // step))

    def cut(self, part: NDArray[Any], start: int, *, also_xy: int | None = None) -> dict[Plane, NDArray[Any]]:
        """What slices `start` and following ``(z, y, x)`` hold of the pictures.

        Parameters
        ----------
        part
            Slices of the volume, all of y and x.
        start
            Number of the first one.
        also_xy
            Number of the slice wanted as "xy"; left out if it is not in `part`.

        Returns
        -------
        dict
            Rows `rows` of "xz" and "yz", and perhaps the whole of "xy".
        """
        _, y, x = self.middle
        _, step_y, step_x = self.steps
        rows = self.rows(start, start + len(part))
        where = slice(rows.start * self.steps[0] - start, None, self.steps[0])
        found: dict[Plane, NDArray[Any]] = {}
        with np.errstate(invalid="ignore", over="ignore"):
            if len(rows):
                found["xz"] = _mean(part[where, y, :], step_x)
                found["yz"] = _mean(part[where, :, x], step_y)
            if also_xy is not None and start <= also_xy < start + len(part):
                found["xy"] = _thinned(part[also_xy - start], step_y, step_x)
        return found


def _thinned(image: NDArray[Any], step_y: int, step_x: int) -> NDArray[Any]:
    """Mean of blocks of pixels, taken strip by strip: a whole copy might not fit into memory."""
    strips = (image[first : first + step_y] for first in range(0, image.shape[0] - step_y + 1, step_y))
    return np.stack([_mean(strip, step_x).mean(0) for strip in strips])


def _mean(image: NDArray[Any], step: int) -> NDArray[Any]:
    """Mean of blocks of `step` along the rows; what is left over at their end is left out."""
    whole = image.shape[1] // step
    return image[:, : whole * step].reshape(image.shape[0], whole, step).mean(2)


def pack(image: NDArray[Any], factor: float = 1.0) -> dict[str, Any]:
    """A picture, real or complex, as a message: float16 with a common factor, two to a complex number.

    What comes out is multiplied by `factor`.
    """
    kind = "complex" if np.iscomplexobj(image) else "real"
    numbers = np.ascontiguousarray(image, np.complex64 if kind == "complex" else np.float32).view(np.float32)
    sizes = np.abs(numbers[np.isfinite(numbers)], dtype=np.float64)
    scale = float(sizes.mean()) if sizes.size else 0.0
    scale = scale if scale > 0 else 1.0
    scaled = np.clip(numbers.astype(np.float64) / scale, -_LARGEST, _LARGEST)
    return {
        "numbers": kind,
        "shape": list(image.shape),
        "scale": scale * factor,
        "data": scaled.astype("<f2").tobytes(),
    }


def unpack(message: dict[str, Any]) -> NDArray[Any]:
    """The picture that `pack` made a message of: float32 or complex64.

    Raises
    ------
    ValueError, KeyError, TypeError
        A message that is none.
    """
    rows, columns = message["shape"]
    with np.errstate(over="ignore"):
        numbers = np.frombuffer(message["data"], "<f2").astype(np.float32) * np.float32(message["scale"])
    if message["numbers"] == "complex":
        return numbers.view(np.complex64).reshape(rows, columns)
    return numbers.reshape(rows, columns)
