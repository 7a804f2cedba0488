"""``dtomo recon``: from a raw scan to a volume."""

from pathlib import Path
from typing import Annotated, Any

import typer

from dtomo.cli import options
from dtomo.cli.report import after_run

FORKED_WITH = ("dtomo.recon.slab", "dtomo.recon.loaded")
"""What workers need, imported while this process checks the scan."""

_RESULT = "The reconstruction"
_FILTERED, _SOLVED = "Filtered back projection", "Iterative algorithms"
_STOPPED = "When iterations end"


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
        options.of(
            _RESULT,
            help="fbp (default), sirt, os-sart, cgls, lsqr, tv, fista, mlem, osem; fdk for scans with a geometry.",
        ),
    ] = None,
    center: Annotated[str | None, options.of(_RESULT, help="Column of the rotation axis, or auto (default).")] = None,
    fold: Annotated[
        str | None, options.of(_RESULT, help="360-degree scan with an offset axis: auto (default), yes, no.")
    ] = None,
    nonnegative: Annotated[
        bool | None, options.of(_RESULT, "--nonnegative/--signed", help="Nothing below zero; not of cgls and lsqr.")
    ] = None,
    filter: Annotated[
        str | None, options.of(_FILTERED, help="ramp (default), shepp-logan, cosine, hamming, hann …")
    ] = None,
    method: Annotated[str | None, options.of(_FILTERED, help="auto (default), backprojection or nufft.")] = None,
    padding: Annotated[str | None, options.of(_FILTERED, help="edge (default) for wide objects, or zero.")] = None,
    iterations: Annotated[
        int | None, options.of(_SOLVED, help="Default 20; of os-sart and osem 10, mlem 50, fista 100, tv 200.")
    ] = None,
    start: Annotated[
        str | None,
        options.of(
            _SOLVED,
            help="Where to begin: zero (default), fbp, coarse (voxels 4 and 2 times as large first), or a volume.",
        ),
    ] = None,
    subsets: Annotated[int | None, options.of(_SOLVED, help="For os-sart and osem: of the views; default 10.")] = None,
    prior: Annotated[
        str | None, options.of(_SOLVED, help="For fista: none (default), tv, wavelets, or nuclear (of all slices).")
    ] = None,
    strength: Annotated[
        float | None,
        options.of(_SOLVED, help="For tv and fista: what the prior counts, in line integrals times pixels."),
    ] = None,
    coupled: Annotated[
        bool | None,
        options.of(
            _SOLVED,
            "--coupled/--slicewise",
            help="For tv and wavelets: of the volume (wavelets: it must fit one worker), or of each slice (default).",
        ),
    ] = None,
    data_term: Annotated[
        str | None,
        options.of(
            _SOLVED,
            help="For fista and tv: least-squares (default), or huber:WIDTH against outliers; fista: student-t:SCALE.",
        ),
    ] = None,
    weights: Annotated[
        str | None,
        options.of(_SOLVED, help="none (default), or photons: rays count as much as came through."),
    ] = None,
    mask: Annotated[
        str | None,
        options.of(_SOLVED, help="Where there may be something: circle, or a volume (or one slice) above 0 there."),
    ] = None,
    lower: Annotated[float | None, options.of(_SOLVED, help="Least value of the volume, in its unit.")] = None,
    upper: Annotated[float | None, options.of(_SOLVED, help="Largest value of the volume, in its unit.")] = None,
    relaxation: Annotated[
        float | None, options.of(_SOLVED, help="For sirt and os-sart: length of a step, 0 to 2; default 1.")
    ] = None,
    damping: Annotated[
        float | None, options.of(_SOLVED, help="For cgls and lsqr: weight of the volume's norm; default 0.")
    ] = None,
    tolerance: Annotated[
        float | None, options.of(_STOPPED, help="A slice stops at this fraction of its first residual.")
    ] = None,
    noise: Annotated[
        float | None,
        options.of(_STOPPED, help="A slice stops where this standard deviation of line integrals is met."),
    ] = None,
    held_out: Annotated[
        float | None,
        options.of(_STOPPED, help="Leave out this share of the views; a slice stops where they are met no better."),
    ] = None,
    delta_beta: Annotated[
        float | None, options.of(options.PREPARATION, help="Phase retrieval (Paganin) with this δ/β.")
    ] = None,
    alignment: Annotated[
        Path | None, options.of(_RESULT, help="Of the views, by dtomo align: alignment.yaml, or an .xf file of IMOD.")
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
    report: options.Report = True,
) -> None:
    """Reconstruct SCAN into OUT, slab by slab from disk to disk."""
    given: dict[str, Any] = dict(locals())
    for name in ("config", "plan", "resume", "overwrite", "quiet", "performance_report", "report"):
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
    after_run(settings.output, report and not plan, quiet)
