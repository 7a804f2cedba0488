"""What a run of subtomogram alignment does."""

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, PlainSerializer, model_validator

from dtomo.settings.base import AbsolutePath, FilePart, Positive, RunSettings
from dtomo.settings.ptycho import Count, parse_names

SHELLS = 3
START = 60.0
"""Ångström that a start reference is low-passed to."""

References = Annotated[tuple[FilePart, ...], BeforeValidator(lambda value: parse_names(value)), PlainSerializer(list)]


Width = Annotated[float, Field(ge=1e-3, allow_inf_nan=False)]


def _tilts(value: Any) -> Any:
    """First and last tilt from ``"-60:60"`` or a pair."""
    if value is None:
        return None
    parts = value.split(":") if isinstance(value, str) else value
    try:
        first, last = (float(part) for part in parts)
    except (TypeError, ValueError) as error:
        raise ValueError("must be the first and last tilt in degrees, such as -60:60") from error
    if not -90 <= first < last <= 90:
        raise ValueError("must be the first and last tilt in degrees, such as -60:60")
    return first, last


class AlignSettings(RunSettings):
    """Everything that decides what `dtomo.subtomo.job.run` does.

    `scan` is the particle list (also given as `particle_list`), `output` a folder. `reference`: volumes to begin with,
    several for as many classes; none: the average of the list. It is low-passed to `low_pass` Å. `mask`: a volume from
    0 to 1; none: a sphere of `particle_diameter` Å with a soft edge. `pixel_size` Å; none: as the list or files say.

    Each of at most `iterations` tries rotations about each particle's own: `angle_shells` of them, `angle_increment`
    degrees apart (`rotation_set`: an even one about the particle's axis, or GLocal's); the first `global_iterations`
    try all rotations, `global_increment` apart. Increments become finer with the resolution unless `adaptive` is off.
    Shifts are searched up to `max_shift` voxels from the middle of the box. `high_pass` and `finest` Å bound what is
    compared. `binning`: of what is compared; shifts are of the whole size. `symmetry`: a point group.

    `score`: "flcf", divided by the deviation of the particle where the mask lies, or "nxcf", by that of the whole box.
    `shift_prior` (voxels) and `rotation_prior` (degrees) are standard deviations of Gaussians about the poses of the
    list: scores are multiplied by them where the best is chosen.

    `halves`: of the list where it has them, else by "random" numbers from `seed` or by "parity" of the index; they
    stay. `tilts`: first and last tilt, degrees, for particles whose wedge the list does not say; `weighting` lets
    particles count by exp(score - 1). `settle` ends the run when neither resolution nor orientations move.
    `tomograms`, `box`: boxes are cut from there about the positions, else the list names a file for each.

    Raises
    ------
    UserError
        See `RunSettings`.
    """

    asked: ClassVar[dict[str, str]] = {"scan": "must be the name of a particle list"}
    spelled: ClassVar[dict[str, str]] = {"scan": "--particle-list"}

    reference: References = ()
    mask: FilePart | None = None
    pixel_size: Positive | None = None
    particle_diameter: Positive | None = None
    iterations: Count = 10
    angle_shells: Count = SHELLS
    angle_increment: Positive = 3.0
    rotation_set: Literal["even", "glocal"] = "even"
    global_iterations: Annotated[int, Field(ge=0)] = 0
    global_increment: Positive = 15.0
    adaptive: bool = True
    settle: bool = True
    max_shift: Positive | None = None
    binning: Count = 1
    low_pass: Positive = START
    score: Literal["flcf", "nxcf"] = "flcf"
    shift_prior: Width | None = None
    rotation_prior: Width | None = None
    high_pass: Positive | None = None
    finest: Positive | None = None
    symmetry: str = "C1"
    halves: Literal["random", "parity"] = "random"
    weighting: bool = False
    tilts: Annotated[tuple[float, float] | None, BeforeValidator(_tilts)] = None
    tomograms: AbsolutePath | None = None
    box: Count | None = None
    seed: Annotated[int, Field(ge=0)] = 0

    def __init__(self, **values: Any) -> None:
        super().__init__(**values)

    @classmethod
    def translated(cls, given: dict[str, Any]) -> dict[str, Any]:
        """`particle_list` is `scan`."""
        found = dict(given)
        if "particle_list" in found:
            found.setdefault("scan", found["particle_list"])
            del found["particle_list"]
        return found

    @model_validator(mode="after")
    def _what_belongs_together(self) -> Self:
        if (self.tomograms is None) != (self.box is None):
            raise ValueError("--tomograms, which boxes are cut from, and --box, their side in voxels, go together")
        if self.mask is None and self.particle_diameter is None:
            raise ValueError("give --mask, a volume from 0 to 1, or --particle-diameter in Å for a sphere")
        if self.adaptive and self.particle_diameter is None:
            raise ValueError("--particle-diameter, in Å, is needed to make increments finer; or give --no-adaptive")
        if self.global_iterations > self.iterations:
            raise ValueError("--global-iterations are some of --iterations")
        if self.high_pass is not None and self.finest is not None and self.high_pass <= self.finest:
            raise ValueError("--high-pass is coarser (more Å) than --finest")
        if self.settle and len(self.reference) > 1 and self.iterations < 2:
            raise ValueError("classes take two iterations at least")
        return self
