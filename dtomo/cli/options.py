"""Options that several commands share; one that is not given is None, and the settings' default holds."""

import functools
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from dtomo.errors import UserError

if TYPE_CHECKING:
    from dtomo.settings import RunSettings

Settings = TypeVar("Settings", bound="RunSettings")

_SCAN = "The scan"
PREPARATION = "Preparation"
_RUN = "Where it runs"

Dataset = Annotated[
    str | None,
    typer.Option(help="Dataset of the projections, where an HDF5 file leaves it open.", rich_help_panel=_SCAN),
]
Angles = Annotated[
    str | None,
    typer.Option(help="File of angles, one per projection, or a part of it: FILE[10:101].", rich_help_panel=_SCAN),
]
AngleUnit = Annotated[
    str | None,
    typer.Option(help="Unit of the angles: degrees or radians; default: what the file says.", rich_help_panel=_SCAN),
]
Flats = Annotated[str | None, typer.Option(help="Flats: file, folder or FILE.h5:/dataset.", rich_help_panel=_SCAN)]
Darks = Annotated[str | None, typer.Option(help="Darks: file, folder or FILE.h5:/dataset.", rich_help_panel=_SCAN)]
Normalized = Annotated[
    bool | None,
    typer.Option(
        "--normalized/--raw",
        help="Short for --values transmission, and --values counts.",
        rich_help_panel=_SCAN,
        show_default=False,
    ),
]
Values = Annotated[
    str | None,
    typer.Option(
        help="What projections hold: counts (default), transmission, or integrals (line integrals, real or complex).",
        rich_help_panel=_SCAN,
    ),
]
SkipFlats = Annotated[str | None, typer.Option(help="Flats to leave out, counted from 0.", rich_help_panel=_SCAN)]
SkipDarks = Annotated[str | None, typer.Option(help="Darks to leave out, counted from 0.", rich_help_panel=_SCAN)]
ExcludeFrames = Annotated[
    str | None,
    typer.Option(help="Projections to leave out, counted from 0, such as 3,17,40:44.", rich_help_panel=_SCAN),
]
Rows = Annotated[
    str | None, typer.Option(help="Detector rows A:B (from A up to but not with B).", rich_help_panel=_SCAN)
]
Columns = Annotated[str | None, typer.Option(help="Detector columns A:B.", rich_help_panel=_SCAN)]
Bin = Annotated[int | None, typer.Option(help="Average B × B pixels.", rich_help_panel=_SCAN)]
PixelSize = Annotated[float | None, typer.Option(help="Detector pixel in µm.", rich_help_panel=_SCAN)]
Energy = Annotated[float | None, typer.Option(help="Photon energy in keV.", rich_help_panel=_SCAN)]
Distance = Annotated[float | None, typer.Option(help="Sample to detector in mm.", rich_help_panel=_SCAN)]
Zingers = Annotated[
    float | None,
    typer.Option(
        help="Replace single values whose transmission sticks out by this much; 0.2 by default, 0 for never.",
        rich_help_panel=PREPARATION,
    ),
]
Stripes = Annotated[
    str | None,
    typer.Option(
        help="Stripe (ring) removal: combined (default; not of complex scans) or none.", rich_help_panel=PREPARATION
    ),
]

Cluster = Annotated[
    str | None,
    typer.Option(help="local (default), cuda, slurm, a scheduler's address, or a YAML file.", rich_help_panel=_RUN),
]
Workers = Annotated[int | None, typer.Option(help="Processes; default: as the cores allow.", rich_help_panel=_RUN)]
Memory = Annotated[str | None, typer.Option(help="Limit of each worker, such as 4GB.", rich_help_panel=_RUN)]
Devices = Annotated[
    str | None,
    typer.Option(
        help="CUDA devices that workers own, by index, GPU-… or MIG-…, such as 0,1; '' for the CPU.",
        rich_help_panel=_RUN,
    ),
]
WorkersPerDevice = Annotated[
    int | None, typer.Option(help="Workers that share each device; default 1.", rich_help_panel=_RUN)
]
DeviceMemory = Annotated[
    str | None,
    typer.Option(help="Memory of each device that its workers share, such as 20GB.", rich_help_panel=_RUN),
]
CheckpointEvery = Annotated[
    str | None,
    typer.Option(
        help="For iterative algorithms: minutes (default 10) or iterations (20it) between two checkpoints, or never.",
        rich_help_panel=_RUN,
    ),
]
Stage = Annotated[
    str | None,
    typer.Option(
        help="Frames compressed whole: bring them into slab order first: auto (default), yes, no.", rich_help_panel=_RUN
    ),
]
Scratch = Annotated[
    Path | None,
    typer.Option(help="Folder for staged frames, which all workers see; default: in OUT.", rich_help_panel=_RUN),
]
_BATCH = "Slurm and other batch systems"
Queue = Annotated[str | None, typer.Option(help="Partition (queue) for the jobs.", rich_help_panel=_BATCH)]
Account = Annotated[str | None, typer.Option(help="Account that pays for the jobs.", rich_help_panel=_BATCH)]
Walltime = Annotated[
    str | None, typer.Option(help="Longest time of a job: 02:00:00, 1-12:00:00, 90 (minutes).", rich_help_panel=_BATCH)
]
Interface = Annotated[
    str | None, typer.Option(help="Network that workers reach this machine by, such as ib0.", rich_help_panel=_BATCH)
]
WorkersPerJob = Annotated[int | None, typer.Option(help="Workers in one job; default 1.", rich_help_panel=_BATCH)]
SlurmExtra = Annotated[
    list[str] | None,
    typer.Option(help="More directives, such as --slurm-extra=--qos=long; may be repeated.", rich_help_panel=_BATCH),
]
Threads = Annotated[int | None, typer.Option(help="Compute threads of each worker.", rich_help_panel=_RUN)]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace output that exists.", rich_help_panel=_RUN)]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print only errors.", rich_help_panel=_RUN)]
Report = Annotated[
    bool,
    typer.Option("--report/--no-report", help="Write OUT.report.html after the run (default).", rich_help_panel=_RUN),
]
Config = Annotated[
    Path | None, typer.Option(help="Settings from a run.yaml; options given here win.", rich_help_panel=_RUN)
]

_WHERE: dict[str, Any] = {
    "cluster": Cluster, "workers": Workers, "threads": Threads, "memory": Memory, "devices": Devices,
    "workers_per_device": WorkersPerDevice, "device_memory": DeviceMemory, "queue": Queue, "account": Account,
    "walltime": Walltime, "interface": Interface, "workers_per_job": WorkersPerJob, "slurm_extra": SlurmExtra,
}  # fmt: skip
"""Options of every command whose work is spread over workers."""


def of(panel: str, *names: str, help: str) -> Any:
    """An option of a command alone, in a panel of its help."""
    return typer.Option(*names, help=help, rich_help_panel=panel, show_default=False)


def on_workers(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options that say where it runs, in place of its parameter `where`: a dict of those given."""
    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(command).parameters.values():
        if parameter.name != "where":
            parameters.append(parameter)
            continue
        parameters += [parameter.replace(name=name, annotation=kind, default=None) for name, kind in _WHERE.items()]

    @functools.wraps(command)
    def spread(**values: Any) -> None:
        where = {name: values.pop(name) for name in _WHERE}
        command(**values, where=where)

    spread.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    spread.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return spread


def settings_of(
    kind: type[Settings], command: str, config: Path | None, values: Mapping[str, Any], *needed: str
) -> Settings:
    """Settings from the options of a command that were given, and from a file that holds the others.

    Parameters
    ----------
    kind
        Of the settings.
    command
        Its name, and what its arguments are called: "recon:SCAN and OUT".
    config
        The file; None: there is none.
    values
        By name; None and empty lists were not given. `where` is from `on_workers`.
    needed
        Names of what must be given where there is no file.

    Raises
    ------
    UserError
        One of these is missing; what settings do not take.
    """
    flat = {**values, **values.get("where", {})}
    given = {name: value for name, value in flat.items() if name != "where" and value not in (None, [])}
    if config is None and not set(needed) <= given.keys():
        name, _, arguments = command.partition(":")
        raise UserError(
            f"dtomo {name} takes {arguments}, or --config with {'all three' if len(needed) > 2 else 'both'}; "
            f"see dtomo {name} --help"
        )
    return kind.read(config, **given) if config else kind(**given)
