"""Options that several commands share; one that is not given is None, and the settings' default holds."""

from pathlib import Path
from typing import Annotated

import typer

_SCAN = "The scan"
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
    typer.Option(help="Replace single values whose transmission sticks out by this much; 0.2 by default, 0 for never."),
]
Stripes = Annotated[
    str | None, typer.Option(help="Stripe (ring) removal: combined (default; not of complex scans) or none.")
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
        help="For sirt and cgls: minutes (default 10) or iterations (20it) between two checkpoints, or never.",
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
