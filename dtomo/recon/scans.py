"""A scan as the settings ask for it, and the axis and geometry that belong to it."""

import dataclasses
from typing import Any

import numpy as np

from dtomo import io, prep
from dtomo.errors import UserError, shown
from dtomo.geometry import ParallelBeam
from dtomo.operators import FILTERS
from dtomo.recon.aligned import aligned_as_asked
from dtomo.recon.prepare import line_integrals
from dtomo.settings import COUNTED, ReconSettings

MOST_ROWS, SEARCH_BYTES = 5, 128 * 2**20
"""Rows that the axis is found from, and the bytes of line integrals (real numbers) that they may take."""

LEAST_VIEWS, MOST_COLUMNS = 64, 2**18
"""Projections that the axis is found from at least; no detector is wider, and the search would not end."""

MOST_VIEWS = 32
"""Projections looked at for usable values where the axis is given: the whole scan may be slow to read."""

FOLD_FROM = 0.05
"""A full turn is folded if its axis lies this part of the detector's width, or more, off the middle."""


def open_scan(settings: ReconSettings) -> io.Scan:
    """The scan, cropped, binned and without the frames to leave out.

    Raises
    ------
    UserError
        As `dtomo.open`; frames that do not exist; no flats; phase retrieval without what it needs.
    """
    if settings.filter not in FILTERS:
        raise UserError(f"--filter {shown(settings.filter)} is not known; choose one of {', '.join(FILTERS)}")
    files = settings.plain()  # absolute paths: a worker may run in another folder
    scan = io.open(
        files["scan"],
        dataset=settings.dataset,
        angles=files["angles"],
        angle_unit=settings.angle_unit,
        flats=files["flats"],
        darks=files["darks"],
        values=settings.values,
        skip_flats=settings.skip_flats,
        skip_darks=settings.skip_darks,
        pixel_size=settings.pixel_size,
        energy=settings.energy,
        sample_detector_distance=settings.distance,
    )
    if scan.flat_source is None and scan.values == "counts":
        raise UserError(
            f"{settings.scan} has no flats: give them with --flats, or say --normalized if its values are "
            "transmissions already, or --values integrals if they are line integrals"
        )
    _check_values(scan, settings)
    io.volumes.check_levels(settings.output, settings.levels)
    io.volumes.check_compression(settings.output, settings.compression)
    if settings.exclude_frames:
        scan = scan.select(_kept(len(scan.angles), settings))
    scan = aligned_as_asked(scan, settings)
    scan = scan.crop(slice(*(settings.rows or ())) if settings.rows else slice(None), _columns(settings))
    scan = scan.bin(settings.bin)
    _check_phase(scan, settings)
    if np.ptp(scan.angles) == 0:
        note = f"all {len(scan.angles)} projections have one angle, {scan.angles[0]:g}, which says little about slices"
        scan = scan.replace(warnings=(*scan.warnings, note))
    return scan


def _check_values(scan: io.Scan, settings: ReconSettings) -> None:
    """Refuse what line integrals, or complex numbers, cannot be put through."""
    if scan.values == "integrals":
        for name, given in (("--delta-beta", settings.delta_beta), ("--zingers", settings.zingers)):
            if given:
                raise UserError(f"{name} works on counts and transmissions, but {scan.path} holds line integrals")
    if scan.is_complex:
        if settings.nonnegative:
            raise UserError(f"--nonnegative needs real numbers, but {scan.path} holds complex ones")
        io.volumes.stored_dtype(settings.output, volume_dtype(scan))


def _kept(count: int, settings: ReconSettings) -> np.ndarray:
    gone = set(settings.exclude_frames)
    if max(gone) >= count:
        raise UserError(f"--exclude-frames {max(gone)}: {settings.scan} has projections 0 to {count - 1}")
    kept = np.array([number for number in range(count) if number not in gone])
    if not kept.size:
        raise UserError(f"--exclude-frames leaves none of the {count} projections of {settings.scan}")
    return kept


def _columns(settings: ReconSettings) -> slice:
    return slice(*settings.columns) if settings.columns else slice(None)


def _check_phase(scan: io.Scan, settings: ReconSettings) -> None:
    if settings.delta_beta is None:
        return
    needed = {
        "--pixel-size": scan.pixel_size,
        "--energy": scan.energy,
        "--distance": scan.sample_detector_distance,
    }
    missing = [name for name, value in needed.items() if value is None]
    if missing:
        raise UserError(f"phase retrieval (--delta-beta) of {scan.path} also needs {' and '.join(missing)}")


def to_scan(center: float, settings: ReconSettings) -> float:
    """A detector column in pixels of the cropped and binned scan."""
    first = (settings.columns or (0, None))[0] or 0
    return (center - first - (settings.bin - 1) / 2) / settings.bin


def to_detector(center: float, settings: ReconSettings) -> float:
    """A column of the cropped and binned scan in pixels of the detector."""
    first = (settings.columns or (0, None))[0] or 0
    return center * settings.bin + (settings.bin - 1) / 2 + first


@dataclasses.dataclass(frozen=True)
class Axis:
    """Where the axis is, and how that is known.

    Attributes
    ----------
    column
        In pixels of the cropped and binned scan.
    detector_column
        In pixels of the detector as the file has it.
    how
        In words.
    """

    column: float
    detector_column: float
    how: str

    @classmethod
    def on_detector(cls, column: float, settings: ReconSettings, how: str) -> "Axis":
        """From a column of the detector as the file has it."""
        return cls(to_scan(column, settings), column, how)


def given_axis(scan: io.Scan, settings: ReconSettings) -> Axis | None:
    """The axis that the user states; None if it is to be found.

    Raises
    ------
    UserError
        A column that is not on the detector.
    """
    if settings.center == "auto":
        if settings.alignment is None or scan.center is None:
            return None
        return Axis(scan.center, to_detector(scan.center, settings), "as the alignment says")
    axis = Axis.on_detector(float(settings.center), settings, "as given")
    if not -0.5 <= axis.column <= scan.shape[2] - 0.5:
        raise UserError(
            f"--center {settings.center:g} is not on the detector, which has columns "
            f"{to_detector(0, settings):g} to {to_detector(scan.shape[2] - 1, settings):g} here"
        )
    return axis


def rows_searched(scan: io.Scan) -> int:
    """How many rows the axis is found from: 5, or fewer of a large scan, so that memory stays small."""
    angles, rows, columns = scan.shape
    return max(1, min(MOST_ROWS, rows, SEARCH_BYTES // (angles * columns * 4)))


def views_searched(scan: io.Scan) -> slice:
    """Which projections the axis is found from: all, or every so many where a single row of all is large.

    A number that divides theirs is preferred, so that an even turn stays even.
    """
    angles, _, columns = scan.shape
    most = max(LEAST_VIEWS, SEARCH_BYTES // (columns * 4))
    least = -(-angles // most)
    return slice(None, None, next((step for step in range(least, 2 * least) if angles % step == 0), least))


def estimate_axis(scan: io.Scan, settings: ReconSettings) -> prep.CenterEstimate:
    """What the data say about the axis, from a handful of rows; columns are those of `scan`.

    Raises
    ------
    UserError
        Rows without a single usable value, or wider than any detector.
    """
    if scan.shape[2] > MOST_COLUMNS:
        raise UserError(
            f"{scan.path} has {scan.shape[2]} columns, too many to find the axis of rotation; give it with --center PX"
        )
    plain = settings.model_copy(update={"delta_beta": None})
    scan = scan.select(views_searched(scan))
    chosen = prep.rows_for_center(scan.shape, rows_searched(scan))
    rows = [_single_row(scan, plain, int(row)) for row in chosen]
    if not any(usable for _, usable in rows):
        raise _unusable(scan, chosen)
    data = np.concatenate([values for values, _ in rows], axis=1)
    if scan.values == "integrals":
        data = prep.main_part(data)
        data /= float(np.abs(data).max()) or 1.0  # of an unknown unit; the search knows attenuation, which is about 1
    return prep.find_center(data, scan.angles)


def check_usable(scan: io.Scan, settings: ReconSettings) -> None:
    """Look at the middle row of some projections, and at other rows if it holds nothing.

    Raises
    ------
    UserError
        Rows without a single usable value.
    """
    plain = settings.model_copy(update={"delta_beta": None, "zingers": 0.0, "stripes": "none"})
    count = len(scan.angles)
    some = scan.select(np.unique(np.linspace(0, count - 1, min(count, MOST_VIEWS)).round().astype(int)))
    chosen = prep.rows_for_center(scan.shape, MOST_ROWS)
    middle_first = sorted(chosen, key=lambda row: abs(int(row) - scan.shape[1] // 2))
    if not any(_single_row(some, plain, int(row))[1] for row in middle_first):
        raise _unusable(scan, chosen)


def check_counted(scan: io.Scan, settings: ReconSettings) -> None:
    """Refuse algorithms of emission where the scan is not one.

    Raises
    ------
    UserError
        Projections that are counts or transmissions of a beam, or complex.
    """
    if settings.algorithm in COUNTED and (scan.values != "integrals" or scan.is_complex):
        raise UserError(
            f"--algorithm {settings.algorithm} is for emission: real sums of what the object sends out "
            f"(--values integrals), which {scan.path} does not hold; take sirt, os-sart or tv"
        )


def _single_row(scan: io.Scan, settings: ReconSettings, row: int) -> tuple[np.ndarray, bool]:
    """Line integrals (angle, 1, column) of a row, and whether it has a usable value."""
    values, report = line_integrals(scan, settings, slice(row, row + 1))
    return values, report.empty_lines < len(scan.angles)


def _unusable(scan: io.Scan, rows: np.ndarray) -> UserError:
    first = (scan.window or (0, 0, 0, 0))[0]
    named = ", ".join(str(first + int(row) * scan.binning) for row in rows)
    return UserError(
        f"{scan.path} holds no usable value in the detector rows looked at ({named}): all are not finite, not above "
        "the dark, or of pixels whose flat is not above their dark; check its projections, flats and darks"
    )


def find_axis(scan: io.Scan, settings: ReconSettings) -> Axis:
    """The axis from the data, or where they cannot tell, from the file.

    Raises
    ------
    UserError
        Neither the data nor the file can tell.
    """
    estimate = estimate_axis(scan, settings)
    if estimate.reliable:
        column = to_detector(estimate.center, settings)
        methods = ", ".join(name for name, method in estimate.methods.items() if not method.rejected)
        how = f"± {estimate.uncertainty * settings.bin:.2f}, found by {methods}"
        return Axis(estimate.center, column, how)
    if scan.center is not None:
        return Axis(scan.center, to_detector(scan.center, settings), f"as {scan.found.get('center', 'the file')} says")
    raise UserError(f"{scan.path}: {estimate.message}; give it with --center PX, or look at dtomo center --try")


def is_folded(scan: io.Scan, center: float, settings: ReconSettings) -> bool:
    """Whether views half a turn apart are to be joined.

    Raises
    ------
    UserError
        Folding is asked for and the angles are not a full turn.
    """
    full = settings.fold != "no" and prep.is_full_turn(scan.angles)
    if settings.fold == "yes" and not full:
        raise UserError(f"--fold yes: the angles of {scan.path} are not an even full turn")
    columns = scan.shape[2]
    off = abs(center - (columns - 1) / 2)
    return full and (settings.fold == "yes" or off >= FOLD_FROM * columns)


def geometry_of(scan: io.Scan, center: float, folded: bool) -> ParallelBeam:
    """The beam that the prepared projections of a scan have."""
    if not folded:
        return ParallelBeam(scan.angles, scan.shape[2], center)
    row = np.zeros((len(scan.angles), 1, scan.shape[2]), np.float32)
    wide, angles, middle = prep.fold_360(row, scan.angles, center)
    return ParallelBeam(angles, wide.shape[2], middle)


def scale_of(scan: io.Scan) -> tuple[float, str]:
    """Factor from values per pixel to the unit of the output, and that unit.

    Attenuation has no unit along a ray, and 1/cm (1/pixel) at a point. What line integrals are of is not known: the
    volume holds that "per cm" ("per pixel").
    """
    kind = "per " if scan.values == "integrals" else "1/"
    return (1.0, kind + "pixel") if scan.pixel_size is None else (1e4 / scan.pixel_size, kind + "cm")


def volume_dtype(scan: io.Scan) -> np.dtype[Any]:
    """dtype of the slices of a scan: float32, or complex64 of a complex one."""
    return np.dtype(np.complex64 if scan.is_complex else np.float32)


def origin_of(scan: io.Scan, geometry: ParallelBeam) -> tuple[float, float, float]:
    """Middle (z, y, x) in µm of the volume's first voxel; zeros without a pixel size.

    z counts from the middle of the detector's first row. In y and x the axis of rotation has one place, the middle
    of a slice as wide as the whole detector, so that cropped, binned and folded volumes of a scan lie on each other.
    """
    if scan.pixel_size is None:
        return 0.0, 0.0, 0.0
    pixel = scan.pixel_size / scan.binning
    first = (scan.window or (0, 0, 0, 0))[0] + (scan.binning - 1) / 2
    axis = (scan.projection_source.shape[2] - 1) / 2
    y, x = (axis * pixel - (size - 1) / 2 * scan.pixel_size for size in (geometry.height, geometry.width))
    return first * pixel, y, x
