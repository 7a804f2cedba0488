"""Settings of `dtomo ptycho`."""

import contextlib
import os
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

import yaml
from pydantic import BeforeValidator, Field, PlainSerializer, model_validator

from dtomo.settings.base import FilePart, Frames, Positive, RunSettings, finite
from dtomo.yaml_text import load_yaml

EPOCHS = 100
"""Passes over all frames, where none are given."""

ENGINES = ("lsqml", "epie", "rpie", "dm", "raar", "adam", "cg")
"""Names of solvers."""

PROBES = ("auto", "file", "pattern", "aperture")
"""Where a probe starts, if not from a file of its own."""

Engine = Literal["lsqml", "epie", "rpie", "dm", "raar", "adam", "cg"]
Loss = Literal["amplitude", "intensity", "poisson"]
Refined = Literal["positions", "background", "scale", "distance"]
Count = Annotated[int, Field(ge=1)]
Number = Annotated[float, BeforeValidator(finite), Field(allow_inf_nan=False)]


def parse_names(value: Any) -> Any:
    """Names from ``"positions,background"``, or a list of such; ``"none"`` is no name."""
    parts = [value] if isinstance(value, str) else value
    if not isinstance(parts, list | tuple) or not all(isinstance(part, str) for part in parts):
        return value
    names = [name.strip() for part in parts for name in part.split(",")]
    return tuple(name for name in names if name and name != "none")


def parse_options(value: Any) -> Any:
    """Options from lines such as ``"beta=0.9"``, or a dict of them.

    Raises
    ------
    ValueError
        A line without a name and a value.
    """
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, list | tuple):
        return value
    found: dict[str, Any] = {}
    for line in value:
        name, equals, text = str(line).partition("=")
        if not equals or not name.strip():
            raise ValueError("must be names and values such as beta=0.9")
        try:
            found[name.strip().replace("-", "_")] = _number_or(load_yaml(text))
        except yaml.YAMLError as error:
            raise ValueError("must be names and values such as beta=0.9") from error
    return found


def _number_or(value: Any) -> Any:
    """The number that a text is, such as 1e-3, which YAML 1.1 takes for a word; else what it was."""
    if isinstance(value, dict):
        return {name: _number_or(one) for name, one in value.items()}
    if isinstance(value, str):
        with contextlib.suppress(ValueError):
            return float(value)
    return value


def _tile(value: Any) -> Any:
    """Rows, auto or no; YAML reads the latter as false."""
    if value is False:
        return "no"
    try:
        rows = int(value) if isinstance(value, str) and value not in ("auto", "no") else value
    except ValueError as error:
        raise ValueError("must be auto, no, or a number of rows") from error
    if not isinstance(rows, str) and (isinstance(rows, bool) or not isinstance(rows, int) or rows < 1):
        raise ValueError("must be auto, no, or a number of rows")
    return rows


def _middle(value: Any) -> Any:
    """A word, or row and column from ``"127,130"``."""
    if not isinstance(value, str) or value in ("middle", "corner"):
        return value
    try:
        row, column = (int(part) for part in value.split(","))
    except ValueError as error:
        raise ValueError("must be middle, corner, or a row and a column such as 127,130") from error
    return row, column


def _probe_text(value: str) -> str:
    return value if value in PROBES else os.path.abspath(value)


Probe = Annotated[
    str,
    BeforeValidator(lambda value: str(value) if isinstance(value, Path) else value),
    PlainSerializer(_probe_text),
]
Names = Annotated[tuple[Refined, ...], BeforeValidator(parse_names), PlainSerializer(list)]
Options = Annotated[dict[str, Any], BeforeValidator(parse_options)]


class PtychoSettings(RunSettings):
    """Everything that decides what `dtomo.ptycho.run` does.

    `epochs` is how often each frame is used. `batch`: frames of a step, None: what suits the solver. `options` are
    those of the solver alone, by the names of its attributes. `modes` of the probe and `object_modes` are incoherent;
    `opr`: how many variable probes are added to it (orthogonal probe relaxation); `slices` of the object lie
    `slice_distance` µm apart. `refine` names what is refined beside object and probe, from epoch `refine_from` on.

    `subpixel`: probes are shifted by the fractions of positions; else these are rounded, which is faster.

    Lengths: `pixel_size` of the detector and `defocus` of the probe in µm, `distance` (sample to detector) in mm,
    `energy` in keV; None: what the file says. `near_field`: the detector sees the exit wave `distance` behind the
    sample, magnified by `magnification`. `motion` says what the positions are of, `swap_axes`, `flip_rows` and
    `flip_columns` how they lie; `flip_frames` how the detector does, `center` where its frequency zero is.

    `probe` is where the probe starts: the scan's own ("file"), from the mean pattern ("pattern"), a round aperture of
    `aperture` object pixels ("aperture"), or a file (NumPy, or HDF5 with its dataset); "auto": the scan's own if it has
    one, or else the pattern. `start` of the object: "flat", or "rough" with weak random phases. `padding`: pixels
    around what the probes cover. `support`: radius in object pixels beyond which the probe is zero, `fourier_support`:
    the same in pixels of its far field; `probe_power`: counts of all its modes together. `phase_only`,
    `amplitude_limit`, `total_variation` and `smoothness` (strengths, in units of the loss) are of the object.
    `saturation`: counts from which a pixel says nothing, 0 for none. `frc` reconstructs two half-scans as well. `tile`:
    rows of the tiles that the object is cut into; auto: only where it does not fit the workers.

    Raises
    ------
    UserError
        An unknown name or a value that does not fit, in one sentence.
    """

    asked: ClassVar[dict[str, str]] = {
        "exclude_frames": "must be numbers and spans such as 3,17,40:44",
        "center": "must be middle, corner, or a row and a column such as 127,130",
        "tile": "must be auto, no, or a number of rows",
        "refine": "must be names of positions, background, scale and distance, such as positions,background",
        "options": "must be names and values such as beta=0.9",
    }
    spelled: ClassVar[dict[str, str]] = {"options": "--option", "subpixel": "--subpixel/--whole-pixels"}

    engine: Engine = "lsqml"
    epochs: Count = EPOCHS
    batch: Count | None = None
    loss: Loss = "amplitude"
    options: Options = Field(default_factory=dict)
    modes: Count = 1
    object_modes: Count = 1
    opr: Annotated[int, Field(ge=0)] = 0
    slices: Count = 1
    slice_distance: Positive | None = None
    exponential: bool = False
    refine: Names = ()
    refine_from: Annotated[int, Field(ge=0)] = 0
    probe: Probe = "auto"
    aperture: Positive | None = None
    defocus: Number | None = None
    start: Literal["flat", "rough"] = "flat"
    padding: Annotated[int, Field(ge=0)] | None = None
    support: Positive | None = None
    fourier_support: Positive | None = None
    probe_power: Positive | None = None
    phase_only: bool = False
    amplitude_limit: Positive | None = None
    total_variation: Positive | None = None
    smoothness: Positive | None = None
    oversampling: Count = 1
    subpixel: bool = True
    near_field: bool | None = None
    magnification: Positive | None = None
    dataset: str | None = None
    positions: FilePart | None = None
    position_unit: Literal["m", "mm", "um", "nm", "pixels"] | None = None
    motion: Literal["sample", "probe"] | None = None
    swap_axes: bool = False
    flip_rows: bool = False
    flip_columns: bool = False
    flip_frames: str | None = None
    center: Annotated[str | tuple[int, int] | None, BeforeValidator(_middle)] = None
    mask: FilePart | None = None
    dark: FilePart | None = None
    saturation: Annotated[float, BeforeValidator(finite), Field(ge=0, allow_inf_nan=False)] | None = None
    crop: Count | None = None
    exclude_frames: Frames = ()
    pixel_size: Positive | None = None
    energy: Positive | None = None
    distance: Positive | None = None
    check_orientation: bool = False
    frc: bool = False
    seed: Annotated[int, Field(ge=0)] = 0
    tile: Annotated[int | Literal["auto", "no"], BeforeValidator(_tile)] = "auto"

    def __init__(self, **values: Any) -> None:
        super().__init__(**values)

    @model_validator(mode="after")
    def _slices_are_apart(self) -> Self:
        if self.slices > 1 and self.slice_distance is None:
            raise ValueError("--slices takes --slice-distance, in µm from one slice to the next")
        if self.slices == 1 and self.slice_distance is not None:
            raise ValueError("--slice-distance is between slices; give --slices 2 or more")
        return self

    @model_validator(mode="after")
    def _what_does_nothing(self) -> Self:
        if self.refine_from and not self.refine:
            raise ValueError("--refine-from is of what --refine names; give that as well")
        if self.refine_from >= self.epochs:
            raise ValueError(f"--refine-from {self.refine_from} is after the last of {self.epochs} epochs, from 0")
        if self.phase_only and self.amplitude_limit is not None:
            raise ValueError("--phase-only makes all amplitudes 1; leave out --amplitude-limit")
        if self.defocus is not None and self.probe not in ("auto", "pattern"):
            raise ValueError("--defocus is of a probe from the pattern; leave it out, or give --probe pattern")
        if self.defocus is not None and self.near_field:
            raise ValueError("--defocus is of far fields; leave it out with --near-field")
        return self

    @model_validator(mode="after")
    def _what_belongs_together(self) -> Self:
        for name, given in (("magnification", self.magnification is not None), ("refine", "distance" in self.refine)):
            if given and self.near_field is False:
                shown = "--refine distance" if name == "refine" else f"--{name}"
                raise ValueError(f"{shown} belongs to --near-field")
        if "positions" in self.refine and not self.subpixel:
            raise ValueError("--refine positions takes positions as they are; leave out --whole-pixels")
        if self.probe == "aperture" and self.aperture is None:
            raise ValueError("--probe aperture takes --aperture, its diameter in pixels of the object")
        if self.probe != "aperture" and self.aperture is not None:
            raise ValueError("--aperture belongs to --probe aperture")
        return self
