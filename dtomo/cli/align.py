"""``dtomo align``: from a series of views that have moved to where each of them belongs."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from dtomo.cli import options
from dtomo.cli.options import of as _of
from dtomo.cli.report import after_run

_FOUND = "The alignment"
_RUN = "Where it runs"


@options.on_workers
def align(
    scan: Annotated[
        Path | None,
        typer.Argument(metavar="SERIES", help="Tilt series (MRC) or scan of a parallel beam.", show_default=False),
    ] = None,
    output: Annotated[
        Path | None, typer.Argument(metavar="OUT", help="Folder of the results.", show_default=False)
    ] = None,
    axis: Annotated[
        str | None,
        _of(
            _FOUND,
            help="Its direction: search (default of tilt series), refine (default where it is stated), or keep.",
        ),
    ] = None,
    axis_angle: Annotated[
        float | None,
        _of(_FOUND, help="Where it lies: degrees from the rows' direction towards the columns' (IMOD's, negated)."),
    ] = None,
    start: Annotated[
        str | None, _of(_FOUND, help="auto (default: what fits best), correlation, mass (center of), or none.")
    ] = None,
    begin: Annotated[
        Path | None, _of(_FOUND, help="An alignment to begin with: alignment.yaml, or an .xf file of IMOD.")
    ] = None,
    rounds: Annotated[
        int | None, _of(_FOUND, help="Of reprojection at each binning, at most (default 30); 0: the start alone.")
    ] = None,
    finest: Annotated[int | None, _of(_FOUND, help="Binning of the last rounds; default 1.")] = None,
    iterations: Annotated[
        int | None, _of(_FOUND, help="Of the reconstruction in a round; default 20 (8 if signed).")
    ] = None,
    signed: Annotated[
        bool | None,
        _of(_FOUND, "--signed/--positive", help="Samples with values below empty space; default: as views look."),
    ] = None,
    stretch: Annotated[
        bool | None,
        _of(_FOUND, "--stretch/--no-stretch", help="Flat specimen: stretch views by the tilt to correlate them."),
    ] = None,
    thickness: Annotated[
        int | None, _of(_FOUND, help="Of the specimen, in pixels; default: as wide as the views.")
    ] = None,
    level: Annotated[
        str | None, _of(_FOUND, help="Value of empty space; auto (default): found in views of a tilt series, else 0.")
    ] = None,
    views: Annotated[str | None, _of(_FOUND, help="Write aligned views as mrc (default), zarr, or none.")] = None,
    dataset: options.Dataset = None,
    angles: options.Angles = None,
    angle_unit: options.AngleUnit = None,
    flats: options.Flats = None,
    darks: options.Darks = None,
    values: options.Values = None,
    normalized: options.Normalized = None,
    skip_flats: options.SkipFlats = None,
    skip_darks: options.SkipDarks = None,
    exclude_frames: options.ExcludeFrames = None,
    pixel_size: options.PixelSize = None,
    zingers: options.Zingers = None,
    where: Any = None,
    checkpoint_every: Annotated[
        str | None, _of(_RUN, help="Minutes (default 10) or rounds (2it) between two checkpoints, or never.")
    ] = None,
    config: options.Config = None,
    plan: Annotated[bool, _of(_RUN, "--plan", help="Print memory, bytes and time; then stop.")] = False,
    resume: Annotated[bool, _of(_RUN, "--resume", help="Go on with a run that was interrupted.")] = False,
    pictures: Annotated[
        bool, _of(_FOUND, "--pictures/--no-pictures", help="Draw shifts, views and slices; default: yes.")
    ] = True,
    overwrite: options.Overwrite = False,
    quiet: options.Quiet = False,
    report: options.Report = True,
) -> None:
    """Find how the views of SERIES have moved, and where their axis lies, by reprojection; results go into OUT."""
    given: dict[str, Any] = dict(locals())
    for name in ("config", "plan", "resume", "overwrite", "quiet", "report", "pictures"):
        del given[name]
    from dtomo.settings import AlignmentSettings

    settings = options.settings_of(AlignmentSettings, "align:SERIES and OUT", config, given, "scan", "output")
    from dtomo.align.job import run

    done = run(settings, plan_only=plan, resume=resume, overwrite=overwrite, quiet=quiet, pictures=pictures)
    if done.before is not None and done.after is not None and done.begin is not None and done.alignment is not None:
        from dtomo.report.align_pictures import write_align_pictures

        drawn = write_align_pictures(done.output, done.begin, done.alignment, done.before, done.after)
        if not quiet:
            print(f"pictures in {', '.join(str(path) for path in drawn)}", file=sys.stderr)
    after_run(settings.output, report and not plan, quiet)
