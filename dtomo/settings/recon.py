"""Settings of `dtomo recon`."""

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, TypeAdapter, ValidationError, model_validator

from dtomo.errors import UserError, shown
from dtomo.settings.base import AbsolutePath, FilePart, Frames, Positive, RunSettings, Span, finite
from dtomo.settings.solving import ITERATIONS, SolverSettings, together

ZINGERS = 0.2
"""Transmission by which a single value must stick out of its neighbours to be replaced, by default; 0: never."""


def _center(value: Any) -> Any:
    """A number or ``auto``; YAML and the command line both give text."""
    if isinstance(value, str) and value.strip().lower() != "auto":
        try:
            return finite(float(value))
        except ValueError as error:
            raise ValueError("must be auto or a column such as 511.5") from error
    return "auto" if isinstance(value, str) else finite(value)


class ReconSettings(SolverSettings):
    """Everything that decides what `dtomo.recon.run` does.

    Lengths: `pixel_size` in µm, `distance` (sample to detector) in mm, `energy` in keV. `rows`, `columns` and
    `center` are in pixels of the detector as the file has it, before cropping and binning. `values` says what the
    projections hold; None: what the scan says, or counts. ``normalized`` (true or false) may be given in its stead, for
    "transmission" and "counts". `zingers` and `stripes` that are None depend on the scan: see
    `dtomo.recon.prepare`. `levels` of OME-Zarr; None: until no side exceeds 256.
    `alignment`: a file that says how views are turned and moved before; rows, columns and `center` then are those of
    the aligned views. `compression` of OME-Zarr, without loss; None: fast. `iterations` by default as in `ITERATIONS`;
    more options of iterative algorithms are those of `SolverSettings`.

    Raises
    ------
    UserError
        An unknown name or a value that does not fit, in one sentence.
    """

    where: ClassVar[tuple[str, ...]] = (*RunSettings.where, "compression", "slab", "stage", "scratch")
    asked: ClassVar[dict[str, str]] = {"center": "must be auto or a column such as 511.5"}

    algorithm: Literal["fbp", "fdk", "sirt", "cgls", "lsqr", "os-sart", "tv", "fista", "mlem", "osem"] = "fbp"
    iterations: Annotated[int, Field(ge=1)] = 20
    filter: str = "ramp"
    method: Literal["auto", "backprojection", "nufft"] = "auto"
    padding: Literal["edge", "zero"] = "edge"
    center: Annotated[float | Literal["auto"], BeforeValidator(_center)] = "auto"
    rows: Span = None
    columns: Span = None
    bin: Annotated[int, Field(ge=1)] = 1
    dataset: str | None = None
    angles: FilePart | None = None
    angle_unit: Literal["degrees", "radians"] | None = None
    alignment: AbsolutePath | None = None
    flats: FilePart | None = None
    darks: FilePart | None = None
    values: Literal["counts", "transmission", "integrals"] | None = None
    exclude_frames: Frames = ()
    skip_flats: Frames = ()
    skip_darks: Frames = ()
    pixel_size: Positive | None = None
    energy: Positive | None = None
    distance: Positive | None = None
    delta_beta: Positive | None = None
    zingers: Annotated[float, BeforeValidator(finite), Field(ge=0)] | None = None
    stripes: Literal["combined", "none"] | None = None
    fold: Literal["auto", "yes", "no"] = "auto"
    levels: Annotated[int, Field(ge=1)] | None = None
    compression: Literal["none", "fast", "small"] | None = None
    slab: Annotated[int, Field(ge=1)] | None = None
    stage: Literal["auto", "yes", "no"] = "auto"
    scratch: AbsolutePath | None = None

    @model_validator(mode="after")
    def _options_of_solvers(self) -> Self:
        together(self, self.algorithm, self.values)
        if self.joins_slices and not self.exchanges_planes and self.slab is not None:
            raise ValueError("--slab cuts the volume, but this prior joins all of its slices; leave it out")
        return self

    @model_validator(mode="after")
    def _integrals_need_no_preparation(self) -> Self:
        if self.values == "integrals":
            for name, given in (("flats", self.flats), ("darks", self.darks), ("delta-beta", self.delta_beta)):
                if given is not None:
                    raise ValueError(f"--{name} works on counts and transmissions, not on --values integrals")
            if self.zingers:
                raise ValueError("--zingers works on counts and transmissions, not on --values integrals")
        return self

    @model_validator(mode="after")
    def _aligned_views(self) -> Self:
        if self.alignment is not None and self.delta_beta is not None:
            raise ValueError("--delta-beta filters views as they were taken; leave it out with --alignment")
        return self

    @property
    def joins_slices(self) -> bool:
        """Whether the volume is one problem, not one for each slice."""
        return self.coupled or self.prior == "nuclear"

    @property
    def exchanges_planes(self) -> bool:
        """Whether slabs of a parallel beam are solved at once and exchange planes: total variation joins them."""
        return self.coupled and (self.algorithm == "tv" or self.prior == "tv") and self.start != "coarse"

    def __init__(self, **values: Any) -> None:
        algorithm = values.get("algorithm")
        if values.get("iterations") is None and isinstance(algorithm, str) and algorithm in ITERATIONS:
            values = {**values, "iterations": ITERATIONS[algorithm]}
        super().__init__(**values)

    @classmethod
    def translated(cls, given: dict[str, Any]) -> dict[str, Any]:
        """``normalized`` put as ``values``."""
        return _with_values(given)


def _with_values(given: dict[str, Any]) -> dict[str, Any]:
    """Settings with ``normalized`` (transmissions) put as ``values``.

    Raises
    ------
    UserError
        Neither true nor false, or a contradiction.
    """
    if "normalized" not in given:
        return given
    rest = {name: value for name, value in given.items() if name != "normalized"}
    try:
        normalized: bool | None = TypeAdapter(bool | None).validate_python(given["normalized"])
    except ValidationError as error:
        raise UserError(f"--normalized: must be true or false; got {shown(repr(given['normalized']))}") from error
    if normalized is None:
        return rest
    values = "transmission" if normalized else "counts"
    if rest.get("values") not in (None, values):
        flag = "--normalized" if normalized else "--raw"
        raise UserError(f"--values {shown(str(rest['values']))} and {flag} contradict each other; give one of them")
    return {**rest, "values": values}
