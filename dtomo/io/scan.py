"""A scan: projections, flats and darks as lazy arrays, with the metadata a reconstruction needs."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dtomo.errors import UserError
from dtomo.geometry import VectorGeometry
from dtomo.io.sources import ArraySource, Frames, SelectedFrames, Source, frame_index

if TYPE_CHECKING:
    import dask.array as da

Values = Literal["counts", "transmission", "integrals"]
"""What projections hold: raw counts, transmissions (counts over the open beam), or line integrals."""

_BLOCK = 64 * 2**20
_REPLACEABLE = (
    *("angles", "center", "pixel_size", "energy", "sample_detector_distance", "source_sample_distance"),
    *("geometry", "flats", "darks", "values", "normalized", "found", "warnings"),
)


@dataclasses.dataclass(frozen=True)
class RawSlab:
    """Rows of a scan in memory: ``(frame, row, column)``, as stored, or float32 (complex64) means if it is binned."""

    projections: NDArray[Any]
    flats: NDArray[Any] | None
    darks: NDArray[Any] | None


@dataclasses.dataclass(frozen=True, eq=False)
class Scan:
    """Projections with their metadata; immutable, small, safe to send to other processes.

    Attributes
    ----------
    path, format
        Where it was opened and what it is: "dxchange", "nxtomo", "hdf5", "tiff", "zarr", "mrc".
    projection_source, flat_source, dark_source
        Where the frames lie, of the whole detector; flats and darks None if absent.
    angles
        float64 degrees, one per projection.
    center
        Column of the rotation axis after crop and binning, if stated, else None. Pixel k has its middle at k.
    pixel_size
        µm after binning, or None.
    energy, sample_detector_distance, source_sample_distance
        keV, mm, mm, or None.
    geometry
        Of a scan that is no plain parallel beam, after crop and binning, lengths in mm; else None.
    values
        What the projections hold: "counts", "transmission" or "integrals". Only counts need flats and darks, only
        integrals may be complex.
    found
        What -> where it was found.
    warnings
        Sentences for the user.
    inputs
        Every file read, so that none is written over.
    tilt_series
        Whether the projections are views of an electron microscope: no stripes are removed from them, and their axis
        may lie anywhere until they are aligned.
    tilt_axis
        Degrees that the axis is off the direction of rows, towards that of columns, if a file says so; None: unknown.
    window
        Detector rows and columns in use, raw pixels: (first row, end, first column, end).
    binning
        Raw pixels per pixel, in rows and in columns.
    """

    path: Path
    format: str
    projection_source: Source
    flat_source: Source | None
    dark_source: Source | None
    angles: NDArray[np.float64]
    center: float | None = None
    pixel_size: float | None = None
    energy: float | None = None
    sample_detector_distance: float | None = None
    source_sample_distance: float | None = None
    geometry: VectorGeometry | None = None
    values: Values = "counts"
    found: dict[str, str] = dataclasses.field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    inputs: tuple[Path, ...] = ()
    tilt_series: bool = False
    tilt_axis: float | None = None
    window: tuple[int, int, int, int] | None = None
    binning: int = 1

    def __post_init__(self) -> None:
        put = object.__setattr__
        shape = self.projection_source.shape
        angles = np.array(self.angles, np.float64).reshape(-1)
        angles.flags.writeable = False
        put(self, "angles", angles)
        if self.values not in get_args(Values):
            raise UserError(f"projections hold {', '.join(get_args(Values))}; not {self.values!r}")
        if self.is_complex and self.values != "integrals":
            raise UserError(
                f"{self.projection_source.location} holds complex numbers, which are reconstructed as line integrals "
                f"only (values='integrals', --values integrals), not as {self.values}: the phase of a complex "
                "transmission must be unwrapped first"
            )
        if self.window is None:
            put(self, "window", (0, shape[1], 0, shape[2]))
        held = None if self.geometry is None else (self.geometry.views, self.geometry.rows, self.geometry.columns)
        if held is not None and held != (len(angles), *self._detector):
            raise UserError(
                f"the geometry of {self.path} has {held[0]} views of {held[1]} rows and {held[2]} columns, but its "
                f"projections {len(angles)} of {self._detector[0]} and {self._detector[1]}"
            )
        if len(angles) != shape[0]:
            raise UserError(
                f"{len(angles)} angles for the {shape[0]} projections of "
                f"{self.projection_source.location}; give one per projection"
            )
        if not np.isfinite(angles).all():
            bad = int(np.argmin(np.isfinite(angles)))
            raise UserError(
                f"angle number {bad} of {self.path} is not a finite number; correct it or leave that projection out"
            )
        for what, source in (("flats", self.flat_source), ("darks", self.dark_source)):
            if source is not None and source.dtype.kind == "c":
                raise UserError(f"the {what} {source.location} are complex numbers; they must be real counts")
            if source is not None and source.shape[1:] != shape[1:]:
                raise UserError(
                    f"the {what} {source.location} have frames of {source.shape[1:]} (rows, columns) "
                    "but the projections "
                    f"{self.projection_source.location} of {shape[1:]}; they must match"
                )

    @property
    def normalized(self) -> bool:
        """Whether the projections are no raw counts any more: flats and darks are not needed."""
        return self.values != "counts"

    @property
    def is_complex(self) -> bool:
        """Whether the projections are complex line integrals."""
        return self.projection_source.dtype.kind == "c"

    @property
    def shape(self) -> tuple[int, int, int]:
        """(angles, rows, columns) after crop and binning"""
        return (len(self.angles), *self._detector)

    @property
    def _detector(self) -> tuple[int, int]:
        top, bottom, left, right = self.window or (0, 0, 0, 0)
        return (bottom - top) // self.binning, (right - left) // self.binning

    @property
    def dtype(self) -> np.dtype[Any]:
        """dtype as stored (what ``read`` gives is float32, or complex64, if binned)"""
        return self.projection_source.dtype

    @property
    def projections(self) -> "da.Array":
        """Lazy ``(angle, row, column)``, in bands of rows."""
        return self._lazy(self.projection_source)

    @property
    def flats(self) -> "da.Array | None":
        """Lazy ``(frame, row, column)``, or None."""
        return None if self.flat_source is None else self._lazy(self.flat_source)

    @property
    def darks(self) -> "da.Array | None":
        """Lazy ``(frame, row, column)``, or None."""
        return None if self.dark_source is None else self._lazy(self.dark_source)

    def read(self, rows: slice = slice(None), angles: Frames = slice(None)) -> RawSlab:
        """Rows (of some projections) into memory, with all flats and darks of these rows.

        Raises
        ------
        UserError
            Rows outside the scan, or files that are missing, truncated or damaged.
        """
        height = self.shape[1]
        start, stop, step = rows.indices(height)
        if step != 1 or stop <= start or (rows.stop is not None and rows.stop > height):
            raise UserError(f"{self.path} has rows 0 to {height - 1}; rows {rows.start}:{rows.stop} cannot be read")
        view = {"rows": slice(start, stop), "columns": slice(0, self.shape[2])}
        references = [
            None if source is None else self._view(source).read(slice(None), **view)
            for source in (self.flat_source, self.dark_source)
        ]
        return RawSlab(self._view(self.projection_source).read(angles, **view), *references)

    def crop(self, rows: slice = slice(None), columns: slice = slice(None)) -> "Scan":
        """Some rows and columns (of the scan as it is now); the center moves with the first column."""
        top, _, left, _ = self.window or (0, 0, 0, 0)
        (row0, row1), (column0, column1) = (
            _bounds(part, size, name, self.path)
            for part, size, name in zip((rows, columns), self.shape[1:], ("rows", "columns"))
        )
        b = self.binning
        window = (top + row0 * b, top + row1 * b, left + column0 * b, left + column1 * b)
        center = None if self.center is None else self.center - column0
        geometry = self.geometry
        if geometry is not None:
            geometry = geometry.of_rows(row0, row1).with_columns(-column0, column1 - self.shape[2])
        return dataclasses.replace(self, window=window, center=center, geometry=geometry)

    def bin(self, factor: int) -> "Scan":
        """Means over `factor` × `factor` pixels; what is left over at the end is cut.

        A center c becomes (c - (factor - 1) / 2) / factor, the pixel size grows by `factor`; so do the pixels and
        voxels of a geometry.
        """
        if isinstance(factor, bool) or int(factor) != factor or factor < 1:
            raise UserError(f"binning must be a whole number of pixels, at least 1, not {factor}")
        rows, columns = (size // int(factor) for size in self.shape[1:])
        if not rows or not columns:
            raise UserError(f"binning by {factor} leaves nothing of {self.shape[1]} rows and {self.shape[2]} columns")
        top, _, left, _ = self.window or (0, 0, 0, 0)
        b = self.binning * int(factor)
        geometry = self.geometry
        if geometry is not None:
            whole = geometry.of_rows(0, rows * factor).with_columns(0, columns * factor - geometry.columns)
            geometry = whole.coarser(int(factor))
        return dataclasses.replace(
            self,
            window=(top, top + rows * b, left, left + columns * b),
            binning=b,
            geometry=geometry,
            center=None if self.center is None else (self.center - (factor - 1) / 2) / factor,
            pixel_size=None if self.pixel_size is None else self.pixel_size * factor,
        )

    def select(self, angle_indices: Frames) -> "Scan":
        """Some projections: indices, a slice or a mask."""
        index = frame_index(angle_indices, len(self.angles), str(self.path))
        if not index.size:
            raise UserError(f"no projection of {self.path} is left; it has {len(self.angles)}")
        return dataclasses.replace(
            self,
            projection_source=SelectedFrames.of(self.projection_source, index),
            angles=self.angles[index],
            geometry=None if self.geometry is None else self.geometry.of_views(index),
        )

    def without(self, flats: Frames = (), darks: Frames = ()) -> "Scan":
        """Leave out flats and darks by index, such as a "dark" taken with the shutter open."""
        changes: dict[str, Any] = {}
        for what, source, left_out in (("flat", self.flat_source, flats), ("dark", self.dark_source, darks)):
            if source is None or (not isinstance(left_out, slice) and not len(left_out)):
                continue
            gone = frame_index(left_out, source.shape[0], source.location)
            keep = np.setdiff1d(np.arange(source.shape[0]), gone)
            changes[f"{what}_source"] = SelectedFrames.of(source, keep) if keep.size else None
        return dataclasses.replace(self, **changes)

    def replace(self, **changes: Any) -> "Scan":
        """The user's word over the file's.

        Angles in degrees, center, pixel_size in µm, energy in keV, distances in mm, values (or normalized: True for
        transmissions); flats and darks as an array of the whole detector, a `Source`, or None.
        """
        unknown = set(changes) - set(_REPLACEABLE)
        if unknown:
            raise UserError(f"a scan has no {sorted(unknown)[0]!r} to replace; possible are {', '.join(_REPLACEABLE)}")
        found = dict(changes.pop("found", self.found))
        values: dict[str, Any] = {}
        for name, value in changes.items():
            if name in ("flats", "darks"):
                values[name[:-1] + "_source"] = _as_source(value, f"the {name} given")
            elif name == "normalized":
                values["values"] = "transmission" if value else "counts"
            else:
                values[name] = value
            if name != "warnings":
                found[name] = "given"
        return dataclasses.replace(self, **values, found=found)

    def _view(self, source: Source) -> "FrameView":
        return FrameView(source, self.window or (0, 0, 0, 0), self.binning)

    def _lazy(self, source: Source) -> "da.Array":
        import dask.array as da  # takes 0.3 s to import, which a reconstruction can do without
        from dask.base import tokenize

        view = self._view(source)
        per_row = max(1, view.shape[0] * view.shape[2] * self.binning**2 * source.dtype.itemsize)
        rows = max(1, min(view.shape[1], _BLOCK // per_row))
        name = "frames-" + tokenize(source, view.window, view.binning)
        return da.from_array(
            view,
            chunks=(view.shape[0], rows, view.shape[2]),
            name=name,
            asarray=False,
            meta=np.empty((0, 0, 0), view.dtype),
        )


@dataclasses.dataclass(frozen=True)
class FrameView:
    """A window of a source, binned: what one lazy array reads through. Sliced like an array."""

    source: Source
    window: tuple[int, int, int, int]
    binning: int

    @property
    def shape(self) -> tuple[int, int, int]:
        """(frame, row, column) after crop and binning"""
        top, bottom, left, right = self.window
        return self.source.shape[0], (bottom - top) // self.binning, (right - left) // self.binning

    @property
    def ndim(self) -> int:
        """Always 3."""
        return 3

    @property
    def dtype(self) -> np.dtype[Any]:
        """dtype as stored, or if binned float32 or complex64"""
        return self.source.dtype if self.binning == 1 else np.dtype(_mean_dtype(self.source.dtype))

    def read(self, frames: Frames, rows: slice, columns: slice) -> NDArray[Any]:
        """`rows` and `columns` are plain start:stop within the window, in binned pixels."""
        top, _, left, _ = self.window
        b = self.binning
        raw = self.source.read(
            frames,
            slice(top + rows.start * b, top + rows.stop * b),
            slice(left + columns.start * b, left + columns.stop * b),
        )
        return raw if b == 1 else bin_means(raw, b)

    def __getitem__(self, key: Any) -> NDArray[Any]:
        key = key if isinstance(key, tuple) else (key,)
        frames, rows, columns = list(key) + [slice(None)] * (3 - len(key))
        bands: list[slice] = []
        rest: list[Any] = []
        for part, size in zip((rows, columns), self.shape[1:]):
            index = np.arange(size)[part]
            low, high = (int(np.min(index)), int(np.max(index)) + 1) if index.size else (0, 0)
            bands.append(slice(low, high))
            whole = isinstance(part, slice) and part.step in (None, 1)
            rest.append(slice(None) if whole else index - low)
        if isinstance(frames, slice):
            return self.read(frames, *bands)[:, rest[0]][..., rest[1]]
        block = self.read(np.atleast_1d(frames), *bands)[:, rest[0]][..., rest[1]]
        return block[0] if np.ndim(frames) == 0 else block


def _mean_dtype(dtype: np.dtype[Any]) -> type[np.float32] | type[np.complex64]:
    return np.complex64 if dtype.kind == "c" else np.float32


def bin_means(frames: NDArray[Any], factor: int) -> NDArray[Any]:
    """Means of `factor` × `factor` blocks of every frame, float32 or complex64; sizes must be multiples of `factor`."""
    count, rows, columns = frames.shape
    dtype = _mean_dtype(frames.dtype)
    out = np.empty((count, rows // factor, columns // factor), dtype)
    for number, frame in enumerate(frames):
        blocks = frame.reshape(rows // factor, factor, columns // factor, factor)
        np.mean(blocks, axis=(1, 3), dtype=dtype, out=out[number])
    return out


def _bounds(part: slice, size: int, name: str, path: Path) -> tuple[int, int]:
    start, stop, step = part.indices(size)
    outside = any(end is not None and not -size <= end <= size for end in (part.start, part.stop))
    if step != 1 or stop <= start or outside:
        raise UserError(f"{path} has {size} {name}: {name} {part.start}:{part.stop} cannot be taken")
    return start, stop


def _as_source(value: ArrayLike | Source | None, name: str) -> Source | None:
    if value is None or isinstance(value, Source):
        return value
    return ArraySource(np.asarray(value), name)
