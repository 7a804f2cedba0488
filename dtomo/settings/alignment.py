"""What a run of `dtomo align` does."""

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from dtomo.settings.base import AbsolutePath, FilePart, Frames, Positive, RunSettings, finite
from dtomo.settings.recon import ReconSettings

SHARED = (
    *("dataset", "angles", "angle_unit", "flats", "darks", "values", "exclude_frames", "skip_flats", "skip_darks"),
    *("pixel_size", "zingers"),
)
"""Settings of the scan, as of `ReconSettings`."""


def _level(value: Any) -> Any:
    """A number or ``auto``; YAML and the command line both give text."""
    if isinstance(value, str) and value.strip().lower() != "auto":
        try:
            return finite(float(value))
        except ValueError as error:
            raise ValueError("must be auto or a number") from error
    return "auto" if isinstance(value, str) else finite(value)


class AlignmentSettings(RunSettings):
    """Everything that decides what `dtomo.align.job.run` does.

    `output` is a folder. `start`, `rounds`, `finest`, `iterations`, `stretch`, `thickness` and `signed` are those of
    `dtomo.align.Options`. `axis` too; None: "search" for tilt series that do not say where their axis lies, "refine"
    where they do, "keep" for other scans. `axis_angle`: degrees from the rows' direction towards the columns' at which
    the axis is taken to lie; None: as the scan says, or 0. `begin`: a file of an alignment to begin with. `level`: the
    value of empty space; "auto": found in each view of a tilt series, 0 for other scans. `views`: how aligned views are
    written. The rest is that of `ReconSettings`.

    Raises
    ------
    UserError
        See `RunSettings`.
    """

    asked: ClassVar[dict[str, str]] = {"level": "must be auto or a number"}
    spelled: ClassVar[dict[str, str]] = {"scan": "SERIES"}
    where: ClassVar[tuple[str, ...]] = (*RunSettings.where, "views")

    start: Literal["auto", "correlation", "mass", "none"] | None = None
    begin: AbsolutePath | None = None
    rounds: Annotated[int, Field(ge=0)] = 30
    finest: Annotated[int, Field(ge=1)] = 1
    iterations: Annotated[int, Field(ge=1)] | None = None
    axis: Literal["search", "refine", "keep"] | None = None
    axis_angle: Annotated[float, BeforeValidator(finite)] | None = None
    stretch: bool = False
    thickness: Annotated[int, Field(ge=1)] | None = None
    signed: bool | None = None
    level: Annotated[float | Literal["auto"], BeforeValidator(_level)] = "auto"
    views: Literal["mrc", "zarr", "none"] = "mrc"
    dataset: str | None = None
    angles: FilePart | None = None
    angle_unit: Literal["degrees", "radians"] | None = None
    flats: FilePart | None = None
    darks: FilePart | None = None
    values: Literal["counts", "transmission", "integrals"] | None = None
    exclude_frames: Frames = ()
    skip_flats: Frames = ()
    skip_darks: Frames = ()
    pixel_size: Positive | None = None
    zingers: Annotated[float, BeforeValidator(finite), Field(ge=0)] | None = None

    @model_validator(mode="after")
    def _one_beginning(self) -> Self:
        if self.begin is not None and self.axis_angle is not None:
            raise ValueError("--begin says where the axis lies; leave --axis-angle out")
        if self.begin is not None and self.axis == "search":
            raise ValueError("--axis search looks everywhere, so --begin is lost; give --axis refine or keep")
        return self

    @classmethod
    def translated(cls, given: dict[str, Any]) -> dict[str, Any]:
        """``normalized`` put as ``values``."""
        return ReconSettings.translated(given)

    def of_the_scan(self) -> ReconSettings:
        """The same scan for `dtomo.recon`, with no stripe removal."""
        shared = {name: getattr(self, name) for name in SHARED}
        return ReconSettings(scan=self.scan, output=self.output / "volume.zarr", stripes="none", **shared)
