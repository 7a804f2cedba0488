"""Settings of `dtomo ptychotomo`."""

import math
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, PlainSerializer, model_validator

from dtomo.settings.base import FilePart, Positive, RunSettings, finite
from dtomo.settings.ptycho import Count, Loss, Number, Options, Probe, PtychoSettings, parse_names

READING = ("dataset", "position_unit", "motion", "swap_axes", "flip_rows", "flip_columns", "flip_frames", "crop")
"""Settings that say how ptychographic files are read."""

JOINT_EPOCHS = {"adam": 60, "cg": 60, "admm": 30}
"""Where no number is given, by engine."""

JointEngineName = Literal["adam", "cg", "admm"]
JointRefined = Literal["probe", "shifts", "ramps", "scale", "background"]
Names = Annotated[tuple[JointRefined, ...], BeforeValidator(parse_names), PlainSerializer(list)]


def _rows(value: Any) -> Any:
    """A number of rows, or auto."""
    if value == "auto":
        return value
    try:
        rows = int(value) if isinstance(value, str) else value
    except ValueError as error:
        raise ValueError("must be auto or a number of rows") from error
    if isinstance(rows, bool) or not isinstance(rows, int) or rows < 1:
        raise ValueError("must be auto or a number of rows")
    return rows


def _factors(value: Any) -> Any:
    """Factors from ``"4,2"``, a number, or a list."""
    if value is None or value == "none":
        return ()
    parts = value.split(",") if isinstance(value, str) else value if isinstance(value, list | tuple) else [value]
    try:
        factors = tuple(float(part) for part in parts)
    except (TypeError, ValueError) as error:
        raise ValueError("must be factors such as 4,2") from error
    if not all(1 < factor < math.inf for factor in factors) or list(factors) != sorted(set(factors), reverse=True):
        raise ValueError("must be factors above 1, the coarsest first, such as 4,2")
    return factors


class JointSettings(RunSettings):
    """Everything that decides what `dtomo.ptychotomo.job.run` does.

    `engine`: adam (ordered `subsets` of the angles, all parameters), cg or admm (volume and probe, all angles at once).
    `epochs`: how often each frame is used; steps of cg and admm take more passes than one. `refine` names what is
    refined beside the volume, from epoch `refine_from` on: probe, shifts (of each angle's images), ramps (of their
    phases), scale (dose of each angle), background. `own_probes`: each angle has a probe of its own. `start`: "zero",
    "two-step" (ptychography of each angle, then filtered back projection), or a volume in a result of this command.

    Of the volume: `total_variation` (strength, in units of the loss), `signs` (δ and β are not negative), `support`
    (radius of the cylinder about the axis outside of which there is nothing, voxels; 0: no such bound; None: the
    largest that all images hold). `slices` along the beam, for thick samples (multislice), None: 1.

    `slab_rows`: rows of the slabs that the volume is cut into; auto: as many as the workers have memory for. `halves`
    reconstructs two halves of the angles as well, for their shell correlation.

    Lengths: `pixel_size` of the detector in µm, `distance` (sample to detector) in mm, `energy` in keV. `angles`: a
    file of them, degrees or `angle_unit`, which `reverse_angles` negates. `origin`: whether positions of all angles
    have one origin ("stage") or the middle of each angle's scan lies on the axis ("middle"). `rotation_axis`: along the
    "rows" or the "columns" of the frames. `dataset`, `position_unit`, `motion`, `swap_axes`, `flip_rows`,
    `flip_columns`, `flip_frames` and `crop` are for ptychographic files, as in `PtychoSettings`.

    Raises
    ------
    UserError
        An unknown name or a value that does not fit, in one sentence.
    """

    asked: ClassVar[dict[str, str]] = {
        "slab_rows": "must be auto or a number of rows",
        "refine": "must be names of probe, shifts, ramps, scale and background, such as probe,shifts",
        "options": "must be names and values such as damping=0.1",
    }
    spelled: ClassVar[dict[str, str]] = {"options": "--option"}

    engine: JointEngineName = "adam"
    epochs: Count | None = None
    subsets: Count | None = None
    loss: Loss = "amplitude"
    options: Options = Field(default_factory=dict)
    modes: Count = 1
    own_probes: bool = False
    probe: Probe = "auto"
    aperture: Positive | None = None
    defocus: Number | None = None
    refine: Names = ("probe",)
    refine_from: Annotated[int, Field(ge=0)] = 0
    start: str = "zero"
    total_variation: Annotated[float, BeforeValidator(finite), Field(ge=0)] = 0.0
    signs: bool = True
    support: Annotated[float, BeforeValidator(finite), Field(ge=0)] | None = None
    slices: Count | None = None
    coarse: Annotated[tuple[float, ...], BeforeValidator(_factors), PlainSerializer(list)] = ()
    coarse_epochs: Count | None = None
    slab_rows: Annotated[int | Literal["auto"], BeforeValidator(_rows)] = "auto"
    halves: bool = False
    angles: FilePart | None = None
    angle_unit: Literal["degrees", "radians"] | None = None
    reverse_angles: bool = False
    center: Number | None = None
    origin: Literal["stage", "middle"] = "stage"
    rotation_axis: Literal["rows", "columns"] = "rows"
    sign: Literal[1, -1] = 1
    dataset: str | None = None
    position_unit: Literal["m", "mm", "um", "nm", "pixels"] | None = None
    motion: Literal["sample", "probe"] | None = None
    swap_axes: bool = False
    flip_rows: bool = False
    flip_columns: bool = False
    flip_frames: str | None = None
    crop: Count | None = None
    mask: FilePart | None = None
    saturation: Annotated[float, BeforeValidator(finite), Field(ge=0)] | None = None
    pixel_size: Positive | None = None
    energy: Positive | None = None
    distance: Positive | None = None
    seed: Annotated[int, Field(ge=0)] = 0

    def __init__(self, **values: Any) -> None:
        super().__init__(**values)

    @model_validator(mode="after")
    def _what_belongs_together(self) -> Self:
        if self.engine != "adam" and self.subsets not in (None, 1):
            raise ValueError(f"--subsets belongs to --engine adam; {self.engine} takes all angles in each step")
        if self.engine != "adam" and set(self.refine) - {"probe"}:
            raise ValueError(
                f"--engine {self.engine} refines the volume and the probe; take adam for " + ", ".join(self.refine)
            )
        if self.engine == "admm" and (self.slices or 1) > 1:
            raise ValueError("--slices takes --engine adam or cg; admm fits the volume to one wave for each angle")
        if self.engine == "admm" and self.loss == "intensity":
            raise ValueError("--engine admm takes --loss amplitude or poisson")
        if (self.probe == "aperture") != (self.aperture is not None):
            raise ValueError("--probe aperture and --aperture, its diameter in pixels, go together")
        if self.angle_unit is not None and self.angles is None:
            raise ValueError("--angle-unit is that of --angles; give both")
        if self.coarse and self.start != "zero":
            raise ValueError("--coarse begins with nothing on the coarsest voxels; leave out --start")
        if self.coarse_epochs is not None and not self.coarse:
            raise ValueError("--coarse-epochs are those of the levels of --coarse; give both")
        if self.refine_from and not self.refine:
            raise ValueError("--refine-from says when --refine begins; give both")
        return self

    @property
    def reading(self) -> dict[str, Any]:
        """What was asked for of `READING`."""
        return {name: getattr(self, name) for name in READING if getattr(self, name) not in (None, False)}

    @property
    def epochs_wanted(self) -> int:
        """Given, or what the engine takes."""
        return self.epochs or JOINT_EPOCHS[self.engine]

    @property
    def coarse_epochs_wanted(self) -> int:
        """Of each level of `coarse`: given, or half of those at the end."""
        return self.coarse_epochs or max(1, self.epochs_wanted // 2)

    def of_one_angle(self) -> PtychoSettings:
        """Ptychography with the same model and first probe."""
        return PtychoSettings(
            scan=self.scan,
            output=self.output,
            loss=self.loss,
            modes=self.modes,
            probe=self.probe,
            aperture=self.aperture,
            defocus=self.defocus,
            seed=self.seed,
        )
