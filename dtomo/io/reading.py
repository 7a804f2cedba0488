"""What a reader of one format hands over before the user's word is put on top and all is checked."""

import dataclasses
from pathlib import Path

from dtomo.geometry import VectorGeometry
from dtomo.io.angles import AngleTable
from dtomo.io.sources import Source


@dataclasses.dataclass
class Reading:
    """Sources and metadata as found in the files; lengths already in µm (pixels) and mm (distances), energy
    keV.

    ``angles`` has one entry per projection, in the unit the file states. ``found`` says where each value
    was found, ``inputs`` lists the files it came from. ``tilt_series`` and ``tilt_axis`` are those of `Scan`.
    """

    path: Path
    format: str
    projections: Source
    flats: Source | None = None
    darks: Source | None = None
    angles: AngleTable | None = None
    center: float | None = None
    pixel_size: float | None = None
    energy: float | None = None
    sample_detector_distance: float | None = None
    source_sample_distance: float | None = None
    geometry: VectorGeometry | None = None
    tilt_series: bool = False
    tilt_axis: float | None = None
    found: dict[str, str] = dataclasses.field(default_factory=dict)
    warnings: list[str] = dataclasses.field(default_factory=list)
    inputs: list[Path] = dataclasses.field(default_factory=list)
