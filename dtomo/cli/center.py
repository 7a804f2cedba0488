"""``dtomo center``: find the axis of rotation, or look at slices about it."""

from pathlib import Path
from typing import Annotated, Any

import typer

from dtomo.cli import options
from dtomo.errors import UserError

TRIALS = 9


def center(
    scan: Annotated[Path, typer.Argument(help="Raw scan.", show_default=False)],
    try_: Annotated[bool, typer.Option("--try", help="Write labelled trial slices as PNG.")] = False,
    around: Annotated[float | None, typer.Option(help="Middle of the trial slices; default: what is found.")] = None,
    step: Annotated[float | None, typer.Option(help="Columns between trial slices; default 1.")] = None,
    row: Annotated[int | None, typer.Option(help="Detector row of the trial slices; default: the middle.")] = None,
    output: Annotated[
        Path | None, typer.Option(help="Folder for the pictures; default: SCAN_center beside the scan.")
    ] = None,
    rows: options.Rows = None,
    columns: options.Columns = None,
    bin: options.Bin = None,
    stripes: options.Stripes = None,
    zingers: options.Zingers = None,
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
) -> None:
    """Find the column of the rotation axis, with how sure it is; exit code 2 if the data cannot tell."""
    given: dict[str, Any] = {
        name: value
        for name, value in locals().items()
        if value is not None and name not in ("try_", "around", "step", "row", "output")
    }
    from dtomo.recon.scans import estimate_axis, open_scan, to_detector
    from dtomo.settings import ReconSettings

    settings = ReconSettings(output="unused.zarr", **given)
    opened = open_scan(settings)
    estimate = estimate_axis(opened, settings)
    if estimate.reliable:
        print(f"{to_detector(estimate.center, settings):.2f}")
        sure = f"± {estimate.uncertainty * settings.bin:.2f} columns, confidence {estimate.confidence:.2f}"
        typer.echo(sure, err=True)
    for name, method in estimate.methods.items():
        column = to_detector(method.center, settings)
        typer.echo(f"  {name:<10}{column:9.2f}" + (f"  ({method.rejected})" if method.rejected else ""), err=True)
    if try_:
        found = to_detector(estimate.center, settings) if estimate.reliable else None
        _trials(opened, settings, around if around is not None else found, step, row, output)
    elif not estimate.reliable:
        raise UserError(f"{scan}: {estimate.message}; look at dtomo center --try, then give --center PX to dtomo recon")


def _trials(
    scan: Any,
    settings: Any,
    middle: float | None,
    step: float | None,
    row: int | None,
    folder: Path | None,
) -> None:
    """Reconstruct one row about several columns and write pictures."""
    from dtomo import report
    from dtomo.recon.scans import to_detector
    from dtomo.recon.trials import trial_slices

    columns = scan.shape[2]
    best = middle
    if middle is None:
        middle = to_detector((columns - 1) / 2, settings)
        step = step or max(1.0, columns / 20) * settings.bin
    step = step if step is not None else float(settings.bin)
    if step <= 0:
        raise UserError(f"--step is a positive number of columns; got {step:g}")
    centers = [middle + (number - TRIALS // 2) * step for number in range(TRIALS)]
    trials = trial_slices(scan, settings, centers, row)
    where = folder or scan.path.with_name(scan.path.stem + "_center")
    written = report.trial_slices(trials, where, best=best, pixel_size=scan.pixel_size, title=scan.path.name)
    typer.echo(f"{len(written) - 1} trial slices in {where}, all of them in {written[0].name}", err=True)
