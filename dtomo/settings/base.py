"""What the settings of all runs have in common: names of files, the cluster, how they are read and complained of."""

import math
import os
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, ValidationError

from dtomo.errors import UserError, shown
from dtomo.yaml_text import load_yaml

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


def finite(value: Any) -> Any:
    """A number that is neither infinite nor NaN; other values pass."""
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("must be a finite number")
    return value


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
Positive = Annotated[float, BeforeValidator(finite), Field(gt=0, allow_inf_nan=False)]


class RunSettings(BaseModel):
    """What every run from disk to disk has; each kind of run adds its own.

    Attributes
    ----------
    where
        Names of settings that leave the bits of the result alone.
    asked
        What is asked for instead of the usual words, by name of the setting.
    spelled
        Options of the command line that are not the name of their setting with dashes.

    Raises
    ------
    UserError
        An unknown name or a value that does not fit, in one sentence.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    where: ClassVar[tuple[str, ...]] = (
        "output",
        "cluster",
        "workers",
        "threads",
        "memory",
        *DEVICES,
        "checkpoint_every",
    )
    asked: ClassVar[dict[str, str]] = {}
    spelled: ClassVar[dict[str, str]] = {}

    scan: AbsolutePath
    output: AbsolutePath
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
    checkpoint_every: Annotated[str, BeforeValidator(_checkpoint_text)] = CHECKPOINT_EVERY

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**self.translated(values))
        except ValidationError as error:
            raise UserError(_sentence(error, type(self))) from error

    @classmethod
    def translated(cls, given: dict[str, Any]) -> dict[str, Any]:
        """Names and values with other spellings put as these."""
        return given

    @classmethod
    def read(cls, path: Path, **changes: Any) -> Self:
        """Settings from a YAML file, with `changes` over them (None: not given).

        The file is a ``run.yaml`` that a run wrote (its part ``settings`` is taken) or just names and values.
        """
        given = {name: value for name, value in changes.items() if value is not None}
        return cls(**{**cls.translated(read_settings(path)), **cls.translated(given)})

    def plain(self) -> dict[str, Any]:
        """As numbers, texts and lists, for YAML, JSON and attributes; paths are made absolute."""
        return self.model_dump(mode="json")

    def that_decide_the_result(self) -> dict[str, Any]:
        """`plain` without what leaves the bits alone: where and on how much it runs."""
        return {name: value for name, value in self.plain().items() if name not in (*self.where, *BATCH)}

    def batch_options(self) -> dict[str, Any]:
        """What is asked of a batch system, by the names of `dtomo.distributed.batch.BatchRequest`."""
        given = {name.removeprefix("slurm_"): getattr(self, name) for name in BATCH}
        return {name: value for name, value in given.items() if value not in (None, ())}


def read_settings(path: Path) -> dict[str, Any]:
    """Names and values in a settings file.

    Raises
    ------
    UserError
        A file that cannot be read, is not YAML, or does not hold names and values.
    """
    try:
        read = load_yaml(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        raise UserError(f"the settings file {path} is not text") from error
    except OSError as error:
        raise UserError(f"cannot read the settings file {path}: {error.strerror}") from error
    except yaml.YAMLError as error:
        raise UserError(f"the settings file {path} is not valid YAML") from error
    settings = read.get("settings", read) if isinstance(read, dict) else read
    if not isinstance(settings, dict) or not all(isinstance(name, str) for name in settings):
        raise UserError(f"the settings file {path} must hold names and values, such as 'algorithm: sirt'")
    return settings


def _sentence(error: ValidationError, kind: type[RunSettings]) -> str:
    """The first complaint of pydantic, in words of the command line."""
    first = error.errors(include_url=False)[0]
    names = [str(part) for part in first["loc"] if isinstance(part, str) and part in kind.model_fields]
    where = kind.spelled.get(names[0], "--" + names[0].replace("_", "-")) if names else "the settings"
    if first["type"] == "extra_forbidden":
        known = ", ".join(kind.model_fields)
        return f"unknown setting {shown(repr(first['loc'][0]))}; known are {known}"
    if first["type"] == "missing":
        return f"no {first['loc'][0]} given"
    if not names:
        return _complaint(first)
    needed = kind.asked.get(names[0]) or _complaint(first)
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
    "less_than_equal": "must be {le} or less",
    "less_than": "must be less than {lt}",
}
"""What is asked for instead of what pydantic says, by the beginning of its type of error."""


def _complaint(error: Any) -> str:
    for kind, needed in _NEEDED.items():
        if error["type"].startswith(kind):
            return needed.format(**error.get("ctx", {}))
    if error["type"] == "value_error":
        return str(error["ctx"]["error"])
    return "does not fit"
