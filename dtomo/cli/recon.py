"""``dtomo recon``: from a raw scan to a volume."""

from pathlib import Path
from typing import Annotated, Any

import typer

from dtomo.cli import options

FORKED_WITH = ("dtomo.recon.slab", "dtomo.recon.loaded")
"""What workers need, imported while this process checks the scan."""

_RESULT = "The reconstruction"


@options.on_workers
def recon(
    scan: Annotated[
        Path | None, typer.Argument(help="Raw scan: HDF5, NeXus, TIFF folder, Zarr.", show_default=False)
    ] = None,
    output: Annotated[
        Path | None,
        typer.Argument(metavar="OUT", help="Volume: .zarr (OME-Zarr), .mrc, .tif.", show_default=False),
    ] = None,
    algorithm: Annotated[
        str | None,
        typer.Option(
            help="fbp (default), sirt, os-sart, cgls, lsqr, tv, mlem, osem; fdk for scans with a geometry.",
            rich_help_panel=_RESULT,
        ),
    ] = None,
    iterations: Annotated[
        int | None,
        typer.Option(help="Default 20; of os-sart and osem 10, mlem 50, tv 200.", rich_help_panel=_RESULT),
    ] = None,
    strength: Annotated[
        float | None,
        typer.Option(help="For tv: of the variation, in line integrals times pixels.", rich_help_panel=_RESULT),
    ] = None,
    subsets: Annotated[
        int | None, typer.Option(help="For os-sart and osem: of the views; default 10.", rich_help_panel=_RESULT)
    ] = None,
    filter: Annotated[
        str | None,
        typer.Option(help="For fbp: ramp (default), shepp-logan, cosine, hamming, hann …", rich_help_panel=_RESULT),
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(help="For fbp: auto (default), backprojection or nufft.", rich_help_panel=_RESULT),
    ] = None,
    padding: Annotated[
        str | None,
        typer.Option(help="For fbp: edge (default) for wide objects, or zero.", rich_help_panel=_RESULT),
    ] = None,
    nonnegative: Annotated[
        bool | None,
        typer.Option("--nonnegative/--signed", help="Clip values below zero.", rich_help_panel=_RESULT),
    ] = None,
    center: Annotated[
        str | None,
        typer.Option(help="Column of the rotation axis, or auto (default).", rich_help_panel=_RESULT),
    ] = None,
    fold: Annotated[
        str | None,
        typer.Option(help="360-degree scan with an offset axis: auto (default), yes, no.", rich_help_panel=_RESULT),
    ] = None,
    delta_beta: Annotated[
        float | None, typer.Option(help="Phase retrieval (Paganin) with this δ/β.", rich_help_panel=_RESULT)
    ] = None,
    stripes: options.Stripes = None,
    zingers: options.Zingers = None,
    rows: options.Rows = None,
    columns: options.Columns = None,
    bin: options.Bin = None,
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
    energy: options.Energy = None,
    distance: options.Distance = None,
    where: Any = None,
    levels: Annotated[
        int | None,
        typer.Option(help="Levels of OME-Zarr; default: to 256 voxels, 1: no pyramid.", rich_help_panel=_RESULT),
    ] = None,
    compression: Annotated[
        str | None,
        typer.Option(help="Of OME-Zarr, without loss: fast (default), small or none.", rich_help_panel=_RESULT),
    ] = None,
    slab: Annotated[int | None, typer.Option(help="Slices per task.", rich_help_panel="Where it runs")] = None,
    checkpoint_every: options.CheckpointEvery = None,
    stage: options.Stage = None,
    scratch: options.Scratch = None,
    config: options.Config = None,
    plan: Annotated[
        bool,
        typer.Option("--plan", help="Print memory, bytes, tasks and time; then stop.", rich_help_panel="Where it runs"),
    ] = False,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Finish output that was interrupted.", rich_help_panel="Where it runs"),
    ] = False,
    performance_report: Annotated[
        Path | None,
        typer.Option(help="Write Dask's report of the run to this HTML file.", rich_help_panel="Where it runs"),
    ] = None,
    overwrite: options.Overwrite = False,
    quiet: options.Quiet = False,
) -> None:
    """Reconstruct SCAN into OUT, slab by slab from disk to disk."""
    given: dict[str, Any] = dict(locals())
    for name in ("config", "plan", "resume", "overwrite", "quiet", "performance_report"):
        del given[name]
    if not plan:
        from dtomo.distributed.forkserver import start_forkserver

        start_forkserver(FORKED_WITH)
    from dtomo.recon import run
    from dtomo.settings import ReconSettings

    settings = options.settings_of(ReconSettings, "recon:SCAN and OUT", config, given, "scan", "output")
    run(
        settings,
        plan_only=plan,
        resume=resume,
        overwrite=overwrite,
        quiet=quiet,
        performance_report=performance_report,
    )
