"""``dtomo ptycho``: from diffraction frames to object and probe."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from dtomo.cli import options
from dtomo.cli.options import of as _of
from dtomo.cli.report import after_run

FORKED_WITH = ("dtomo.ptycho.cluster_driver", "dtomo.ptycho.setup")
"""What workers need, imported while this process checks the scan."""

_RESULT = "The reconstruction"
_MODEL = "The model"
_SCAN = "The scan"
_RUN = "Where it runs"


@options.on_workers
def ptycho(
    scan: Annotated[
        Path | None, typer.Argument(help="Scan: CXI, ptypy .ptyd, or HDF5 with positions.", show_default=False)
    ] = None,
    output: Annotated[
        Path | None, typer.Argument(metavar="OUT", help="Result: .h5 or .zarr.", show_default=False)
    ] = None,
    engine: Annotated[str | None, _of(_RESULT, help="lsqml (default), epie, rpie, dm, raar, adam or cg.")] = None,
    epochs: Annotated[int | None, _of(_RESULT, help="How often each frame is used; default 100.")] = None,
    batch: Annotated[int | None, _of(_RESULT, help="Frames of a step; default: what suits the engine.")] = None,
    loss: Annotated[str | None, _of(_RESULT, help="amplitude (default), intensity or poisson.")] = None,
    option: Annotated[
        list[str] | None, _of(_RESULT, "--option", help="Of the engine alone, as beta=0.9; may be repeated.")
    ] = None,
    refine: Annotated[
        str | None, _of(_RESULT, help="Beside object and probe: positions, background, scale, distance.")
    ] = None,
    refine_from: Annotated[int | None, _of(_RESULT, help="Epoch, from 0, in which these begin to be refined.")] = None,
    total_variation: Annotated[float | None, _of(_RESULT, help="Strength of its penalty on the object.")] = None,
    smoothness: Annotated[
        float | None, _of(_RESULT, help="Strength of the penalty on differences of neighbouring pixels.")
    ] = None,
    amplitude_limit: Annotated[float | None, _of(_RESULT, help="Largest modulus of the object.")] = None,
    phase_only: Annotated[bool | None, _of(_RESULT, "--phase-only", help="The object has modulus 1.")] = None,
    frc: Annotated[
        bool | None,
        _of(_RESULT, "--frc", help="Reconstruct two half-scans as well: resolution by ring correlation."),
    ] = None,
    seed: Annotated[int | None, _of(_RESULT, help="Of what is random: batches and first guesses; default 0.")] = None,
    modes: Annotated[int | None, _of(_MODEL, help="Incoherent modes of the probe; default 1.")] = None,
    object_modes: Annotated[int | None, _of(_MODEL, help="Incoherent modes of the object; default 1.")] = None,
    opr: Annotated[
        int | None, _of(_MODEL, help="Variable probes (orthogonal probe relaxation): how many; default 0.")
    ] = None,
    slices: Annotated[int | None, _of(_MODEL, help="Slices of a thick object; default 1.")] = None,
    slice_distance: Annotated[float | None, _of(_MODEL, help="From one slice to the next, in µm.")] = None,
    exponential: Annotated[
        bool | None, _of(_MODEL, "--exponential", help="Reconstruct u of exp(iu) in place of the transmission.")
    ] = None,
    near_field: Annotated[
        bool | None, _of(_MODEL, "--near-field/--far-field", help="Where the detector is; default: far field.")
    ] = None,
    magnification: Annotated[float | None, _of(_MODEL, help="Of the near field by a diverging beam.")] = None,
    oversampling: Annotated[int | None, _of(_MODEL, help="Samples of the wave in a detector pixel.")] = None,
    subpixel: Annotated[
        bool | None,
        _of(_MODEL, "--subpixel/--whole-pixels", help="Positions as they are (default), or rounded, which is faster."),
    ] = None,
    probe: Annotated[
        str | None,
        _of(_MODEL, help="Where it starts: auto (default), file, pattern, aperture, or a file of its own."),
    ] = None,
    aperture: Annotated[float | None, _of(_MODEL, help="For --probe aperture: diameter in object pixels.")] = None,
    defocus: Annotated[float | None, _of(_MODEL, help="From focus to sample, µm, for the first probe.")] = None,
    support: Annotated[float | None, _of(_MODEL, help="Radius in object pixels beyond which the probe is 0.")] = None,
    fourier_support: Annotated[
        float | None, _of(_MODEL, help="Radius in pixels of the far field beyond which that of the probe is 0.")
    ] = None,
    probe_power: Annotated[float | None, _of(_MODEL, help="Counts of the probe in a frame, if known.")] = None,
    start: Annotated[str | None, _of(_MODEL, help="Of the object: flat (default) or rough.")] = None,
    padding: Annotated[int | None, _of(_MODEL, help="Pixels around what the probes cover.")] = None,
    dataset: Annotated[str | None, _of(_SCAN, help="Dataset of the frames, where an HDF5 file leaves it open.")] = None,
    positions: Annotated[
        str | None, _of(_SCAN, help="File of positions, or FILE.h5:/dataset, where the scan has none.")
    ] = None,
    position_unit: Annotated[str | None, _of(_SCAN, help="m, mm, um, nm or pixels.")] = None,
    motion: Annotated[
        str | None, _of(_SCAN, help="What the positions are of: sample or probe; default: as the format says.")
    ] = None,
    swap_axes: Annotated[bool | None, _of(_SCAN, "--swap-axes", help="Positions are (column, row).")] = None,
    flip_rows: Annotated[bool | None, _of(_SCAN, "--flip-rows", help="Positions along rows run the other way.")] = None,
    flip_columns: Annotated[
        bool | None, _of(_SCAN, "--flip-columns", help="Positions along columns run the other way.")
    ] = None,
    flip_frames: Annotated[
        str | None, _of(_SCAN, help="Turn frames over: rows, columns, both, transpose, transpose-rows …")
    ] = None,
    center: Annotated[
        str | None,
        _of(_SCAN, help="Frequency zero in the frames: middle, corner, or ROW,COLUMN; default: middle."),
    ] = None,
    check_orientation: Annotated[
        bool | None,
        _of(_SCAN, "--check-orientation", help="Try the ways round first; stop if another fits better."),
    ] = None,
    mask: Annotated[str | None, _of(_SCAN, help="File of good pixels (true), or FILE.h5:/dataset.")] = None,
    dark: Annotated[str | None, _of(_SCAN, help="File of dark counts, or FILE.h5:/dataset.")] = None,
    saturation: Annotated[float | None, _of(_SCAN, help="Counts from which a pixel says nothing.")] = None,
    crop: Annotated[int | None, _of(_SCAN, help="Rows and columns around the middle of the frames.")] = None,
    exclude_frames: Annotated[str | None, _of(_SCAN, help="Frames to leave out, from 0, such as 3,17,40:44.")] = None,
    pixel_size: options.PixelSize = None,
    energy: options.Energy = None,
    distance: options.Distance = None,
    where: Any = None,
    tile: Annotated[
        str | None, _of(_RUN, help="Rows of the tiles of a large object: auto (default), no, or a number.")
    ] = None,
    checkpoint_every: Annotated[
        str | None, _of(_RUN, help="Minutes (default 10) or epochs (20it) between two checkpoints, or never.")
    ] = None,
    config: options.Config = None,
    plan: Annotated[bool, _of(_RUN, "--plan", help="Print memory, bytes and time; then stop.")] = False,
    resume: Annotated[bool, _of(_RUN, "--resume", help="Go on with a run that was interrupted.")] = False,
    pictures: Annotated[
        bool, _of(_RESULT, "--pictures/--no-pictures", help="Write pictures beside the result; default: yes.")
    ] = True,
    overwrite: options.Overwrite = False,
    quiet: options.Quiet = False,
    report: options.Report = True,
) -> None:
    """Reconstruct object and probe from the frames of SCAN into OUT."""
    given: dict[str, Any] = dict(locals())
    for name in ("config", "plan", "resume", "overwrite", "quiet", "report", "pictures", "option"):
        del given[name]
    if option:
        given["options"] = option
    from dtomo.settings import PtychoSettings

    settings = options.settings_of(PtychoSettings, "ptycho:SCAN and OUT", config, given, "scan", "output")
    _begin_workers(settings, plan)
    from dtomo.ptycho.job import run

    done = run(settings, plan_only=plan, resume=resume, overwrite=overwrite, quiet=quiet)
    if done.result is not None and pictures:
        _draw(done.result, settings.output, quiet)
    after_run(settings.output, report and not plan, quiet)


def _begin_workers(settings: Any, plan: bool) -> None:
    """Where there will be workers, what they need is loaded while this process checks the scan.

    How many there are by default depends on the scan: then the run does so itself.
    """
    if plan or (settings.cluster == "local" and settings.workers in (None, 1) and settings.devices is None):
        return
    from dtomo.distributed.forkserver import start_forkserver

    start_forkserver(FORKED_WITH)


def _draw(result: Any, output: Path, quiet: bool) -> None:
    from dtomo.report.ptycho_pictures import write_pictures

    written = write_pictures(result, output)
    if not quiet:
        print(f"pictures in {written[0].parent}", file=sys.stderr)
