"""Settings of a run: checked once, written beside the output as YAML, and read again to repeat it."""

import math
import os
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from dtomo.errors import UserError, shown

ITERATIONS = 20
ZINGERS = 0.2
"""Transmission by which a single value must stick out of its neighbours to be replaced, by default; 0: never."""

CHECKPOINT_EVERY = "10"
"""Minutes between two checkpoints of a slab that is being solved."""

MOST_FRAMES = 10_000_000

DEVICES = ("devices", "workers_per_device", "device_memory")
"""Settings that say which worker owns which CUDA device."""

BATCH = ("queue", "account", "walltime", "interface", "workers_per_job", "slurm_extra")
"""Settings that only batch systems know."""


def parse_span(value: Any) -> tuple[int | None, int | None] | None:
    """First and last + 1 from ``"A:B"``, ``"A:"``, ``":B"`` or a pair; None for everything.

    Raises
    ------
    ValueError
        Not two numbers with a colon, negative ones, or an empty span.
    """
    if value is None:
        return None
    parts = value.split(":") if isinstance(value, str) else list(value) if isinstance(value, (tuple, list)) else []
    try:
        first, last = (None if part in ("", None) else int(part) for part in parts)
    except (ValueError, TypeError) as error:
        raise ValueError("must be A:B, from A up to but not with B, counted from 0") from error
    if (first or 0) < 0 or (last is not None and last <= (first or 0)):
        raise ValueError("holds nothing, must be A:B with 0 <= A < B")
    return first, last


def _span_text(value: tuple[int | None, int | None] | None) -> str | None:
    return None if value is None else ":".join("" if part is None else str(part) for part in value)


Span = Annotated[tuple[int | None, int | None] | None, BeforeValidator(parse_span), PlainSerializer(_span_text)]


def parse_frames(value: Any) -> Any:
    """Frame numbers from ``"3,17,40:44"``; other values pass.

    Raises
    ------
    ValueError
        Not numbers and spans.
    """
    if not isinstance(value, str):
        return value
    frames: list[int] = []
    for part in value.split(","):
        first, _, last = part.strip().partition(":")
        try:
            span = range(int(first), int(last) if last else int(first) + 1)
        except ValueError as error:
            raise ValueError("must be numbers and spans such as 3,17,40:44") from error
        if len(span) > MOST_FRAMES:
            raise ValueError(f"a span of more than {MOST_FRAMES} frames leaves out a whole scan")
        frames.extend(span)
    return frames


def checkpoint_interval(text: str) -> tuple[float | None, int | None]:
    """Minutes, or iterations, between two checkpoints, from ``"10"``, ``"20it"`` or ``"never"``; one is None, or both.

    Raises
    ------
    ValueError
        None of these.
    """
    if text == "never":
        return None, None
    try:
        count = int(text[:-2]) if text.endswith("it") else float(text)
    except ValueError:
        count = 0
    if not 0 < count < math.inf:
        raise ValueError("must be minutes such as 10, iterations such as 20it, or never")
    return (None, int(count)) if text.endswith("it") else (float(count), None)


def _checkpoint_text(value: Any) -> Any:
    """As text in one spelling; YAML gives numbers."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError("must be minutes such as 10, iterations such as 20it, or never")
    text = str(value).strip().lower().replace(" ", "")
    checkpoint_interval(text)
    return text


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("must be a finite number")
    return value


def _center(value: Any) -> Any:
    """A number or ``auto``; YAML and the command line both give text."""
    if isinstance(value, str) and value.strip().lower() != "auto":
        try:
            return _finite(float(value))
        except ValueError as error:
            raise ValueError("must be auto or a column such as 511.5") from error
    return "auto" if isinstance(value, str) else _finite(value)


def _absolute(path: Any) -> str | None:
    return None if path is None else os.path.abspath(path)


def _listed(value: Any) -> Any:
    """A list of devices as text; YAML gives a number or a list."""
    entries = value if isinstance(value, list | tuple) else [value]
    plain = all(isinstance(entry, str | int) and not isinstance(entry, bool) for entry in entries)
    return ",".join(map(str, entries)) if plain else value


def _lines(value: Any) -> Any:
    """One line, or several."""
    return (value,) if isinstance(value, str) else value


Frames = Annotated[tuple[Annotated[int, Field(ge=0)], ...], BeforeValidator(parse_frames)]
AbsolutePath = Annotated[Path, PlainSerializer(_absolute)]
FilePart = Annotated[
    str,
    BeforeValidator(lambda value: str(value) if isinstance(value, Path) else value),
    PlainSerializer(_absolute),
]
"""A file, perhaps with what is meant in it: ``angles.txt[10:101]``, ``flats.h5:/exchange/data_white``."""
Positive = Annotated[float, BeforeValidator(_finite), Field(gt=0)]


class ReconSettings(BaseModel):
    """Everything that decides what `dtomo.recon.run` does.

    Lengths: `pixel_size` in µm, `distance` (sample to detector) in mm, `energy` in keV. `rows`, `columns` and
    `center` are in pixels of the detector as the file has it, before cropping and binning. `values` says what the
    projections hold; None: what the scan says, or counts. ``normalized`` (true or false) may be given in its stead, for
    "transmission" and "counts". `zingers` and `stripes` that are None depend on the scan: see
    `dtomo.recon.prepare`. `levels` of OME-Zarr; None: until no side exceeds 256.
    `compression` of OME-Zarr, without loss; None: fast.

    Raises
    ------
    UserError
        An unknown name or a value that does not fit, in one sentence.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    scan: AbsolutePath
    output: AbsolutePath
    algorithm: Literal["fbp", "sirt", "cgls"] = "fbp"
    iterations: Annotated[int, Field(ge=1)] = ITERATIONS
    filter: str = "ramp"
    method: Literal["auto", "backprojection", "nufft"] = "auto"
    padding: Literal["edge", "zero"] = "edge"
    nonnegative: bool = False
    center: Annotated[float | Literal["auto"], BeforeValidator(_center)] = "auto"
    rows: Span = None
    columns: Span = None
    bin: Annotated[int, Field(ge=1)] = 1
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
    energy: Positive | None = None
    distance: Positive | None = None
    delta_beta: Positive | None = None
    zingers: Annotated[float, BeforeValidator(_finite), Field(ge=0)] | None = None
    stripes: Literal["combined", "none"] | None = None
    fold: Literal["auto", "yes", "no"] = "auto"
    levels: Annotated[int, Field(ge=1)] | None = None
    compression: Literal["none", "fast", "small"] | None = None
    cluster: str = "local"
    workers: Annotated[int, Field(ge=1)] | None = None
    threads: Annotated[int, Field(ge=1)] | None = None
    memory: str | None = None
    devices: Annotated[str | None, BeforeValidator(_listed)] = None
    workers_per_device: Annotated[int, Field(ge=1)] | None = None
    device_memory: str | None = None
    queue: str | None = None
    account: str | None = None
    walltime: str | None = None
    interface: str | None = None
    workers_per_job: Annotated[int, Field(ge=1)] | None = None
    slurm_extra: Annotated[tuple[str, ...], BeforeValidator(_lines)] = ()
    slab: Annotated[int, Field(ge=1)] | None = None
    stage: Literal["auto", "yes", "no"] = "auto"
    scratch: AbsolutePath | None = None
    checkpoint_every: Annotated[str, BeforeValidator(_checkpoint_text)] = CHECKPOINT_EVERY

    @model_validator(mode="after")
    def _bounds_need_an_algorithm_that_keeps_them(self) -> Self:
        if self.nonnegative and self.algorithm == "cgls":
            raise ValueError("--nonnegative works with fbp and sirt; conjugate gradients know no bounds")
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

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**_with_values(values))
        except ValidationError as error:
            raise UserError(_sentence(error)) from error

    @classmethod
    def read(cls, path: Path, **changes: Any) -> Self:
        """Settings from a YAML file, with `changes` over them (None: not given).

        The file is a ``run.yaml`` that a run wrote (its part ``settings`` is taken) or just names and values.
        """
        given = {name: value for name, value in changes.items() if value is not None}
        return cls(**{**_with_values(read_settings(path)), **_with_values(given)})

    def plain(self) -> dict[str, Any]:
        """As numbers, texts and lists, for YAML, JSON and attributes; paths are made absolute."""
        return self.model_dump(mode="json")

    def that_decide_the_result(self) -> dict[str, Any]:
        """`plain` without what leaves the bits alone: where and on how much it runs."""
        where = (
            "output",
            "compression",
            "cluster",
            "workers",
            "threads",
            "memory",
            *DEVICES,
            "slab",
            "checkpoint_every",
            "stage",
            "scratch",
        )
        return {name: value for name, value in self.plain().items() if name not in (*where, *BATCH)}

    def batch_options(self) -> dict[str, Any]:
        """What is asked of a batch system, by the names of `dtomo.distributed.batch.BatchRequest`."""
        given = {name.removeprefix("slurm_"): getattr(self, name) for name in BATCH}
        return {name: value for name, value in given.items() if value not in (None, ())}


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


def read_settings(path: Path) -> dict[str, Any]:
    """Names and values in a settings file.

    Raises
    ------
    UserError
        A file that cannot be read, is not YAML, or does not hold names and values.
    """
    try:
        read = yaml.safe_load(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        raise UserError(f"the settings file {path} is not text") from error
    except OSError as error:
        raise UserError(f"cannot read the settings file {path}: {error.strerror}") from error
    except (yaml.YAMLError, RecursionError) as error:
        raise UserError(f"the settings file {path} is not valid YAML") from error
    settings = read.get("settings", read) if isinstance(read, dict) else read
    if not isinstance(settings, dict) or not all(isinstance(name, str) for name in settings):
        raise UserError(f"the settings file {path} must hold names and values, such as 'algorithm: sirt'")
    return settings


def _sentence(error: ValidationError) -> str:
    """The first complaint of pydantic, in words of the command line."""
    first = error.errors(include_url=False)[0]
    names = [str(part) for part in first["loc"] if isinstance(part, str) and part in ReconSettings.model_fields]
    where = "--" + names[0].replace("_", "-") if names else "the settings"
    if first["type"] == "extra_forbidden":
        known = ", ".join(ReconSettings.model_fields)
        return f"unknown setting {shown(repr(first['loc'][0]))}; known are {known}"
    if first["type"] == "missing":
        return f"no {first['loc'][0]} given"
    if not names:
        return _complaint(first)
    needed = "must be auto or a column such as 511.5" if names[0] == "center" else _complaint(first)
    return f"{where}: {needed}; got {shown(repr(first['input']))}"


_NEEDED = {
    "path": "must be the name of a file",
    "string": "must be text",
    "int": "must be a whole number",
    "float": "must be a number",
    "finite": "must be a finite number",
    "bool": "must be true or false",
    "tuple": "must be numbers and spans such as 3,17,40:44",
    "literal": "must be {expected}",
    "greater_than_equal": "must be {ge} or more",
    "greater_than": "must be greater than {gt}",
}
"""What is asked for instead of what pydantic says, by the beginning of its type of error."""


def _complaint(error: Any) -> str:
    for kind, needed in _NEEDED.items():
        if error["type"].startswith(kind):
            return needed.format(**error.get("ctx", {}))
    if error["type"] == "value_error":
        return str(error["ctx"]["error"])
    return "does not fit"
