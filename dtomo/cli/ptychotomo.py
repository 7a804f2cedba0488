"""``dtomo ptychotomo``: from the diffraction frames of all angles to a complex volume."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from dtomo.cli import options
from dtomo.cli.options import of as _of
from dtomo.cli.report import after_run

_RESULT = "The reconstruction"
_MODEL = "The model"
_SCAN = "The scan"
_RUN = "Where it runs"


@options.on_workers
def ptychotomo(
    scan: Annotated[
        Path | None,
        typer.Argument(
            help="Scan: one file with the frames of all angles, or a folder of one for each.", show_default=False
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Argument(metavar="OUT", help="Result: a folder, OUT.zarr.", show_default=False)
    ] = None,
    engine: Annotated[str | None, _of(_RESULT, help="adam (default), cg or admm.")] = None,
    epochs: Annotated[int | None, _of(_RESULT, help="How often each frame is used; default 60, admm 30.")] = None,
    subsets: Annotated[int | None, _of(_RESULT, help="Ordered subsets of the angles, a step each; default 6.")] = None,
    loss: Annotated[str | None, _of(_RESULT, help="amplitude (default), intensity or poisson.")] = None,
    option: Annotated[
        list[str] | None, _of(_RESULT, "--option", help="Of the engine alone, as damping=0.1; may be repeated.")
    ] = None,
    refine: Annotated[
        str | None,
        _of(_RESULT, help="Beside the volume: probe (default), shifts, ramps, scale, background; or none."),
    ] = None,
    refine_from: Annotated[int | None, _of(_RESULT, help="Epoch, from 0, in which these begin to be refined.")] = None,
    start: Annotated[
        str | None, _of(_RESULT, help="zero (default), two-step (each angle alone, then FBP), or a result.")
    ] = None,
    coarse: Annotated[
        str | None, _of(_RESULT, help="Coarse to fine: begin with voxels so many times as large, such as 4,2.")
    ] = None,
    coarse_epochs: Annotated[
        int | None, _of(_RESULT, help="Of each of these levels; default half of --epochs.")
    ] = None,
    total_variation: Annotated[float | None, _of(_RESULT, help="Strength of its penalty on the volume.")] = None,
    signs: Annotated[
        bool | None, _of(_RESULT, "--signs/--no-signs", help="δ and β are not negative (default).")
    ] = None,
    support: Annotated[
        float | None,
        _of(_RESULT, help="Radius in voxels about the axis beyond which there is nothing; 0: no bound."),
    ] = None,
    halves: Annotated[
        bool | None,
        _of(_RESULT, "--halves", help="Reconstruct two halves of the angles as well: shell correlation."),
    ] = None,
    seed: Annotated[int | None, _of(_RESULT, help="Of what is random; default 0.")] = None,
    modes: Annotated[int | None, _of(_MODEL, help="Incoherent modes of the probe; default 1.")] = None,
    own_probes: Annotated[bool | None, _of(_MODEL, "--own-probes", help="Each angle has a probe of its own.")] = None,
    probe: Annotated[
        str | None,
        _of(_MODEL, help="Where it starts: auto (default), file, pattern, aperture, or a file of its own."),
    ] = None,
    aperture: Annotated[float | None, _of(_MODEL, help="For --probe aperture: diameter in object pixels.")] = None,
    defocus: Annotated[float | None, _of(_MODEL, help="From focus to sample, µm, for the first probe.")] = None,
    slices: Annotated[
        int | None, _of(_MODEL, help="Along the beam, for thick samples (multislice); default 1.")
    ] = None,
    angles: Annotated[
        str | None, _of(_SCAN, help="File of angles, one for each file, or frame; default: as the scan says.")
    ] = None,
    angle_unit: Annotated[str | None, _of(_SCAN, help="Of --angles: degrees (default) or radians.")] = None,
    reverse_angles: Annotated[
        bool | None,
        _of(_SCAN, "--reverse-angles", help="The sample turns the other way round: angles are negated."),
    ] = None,
    center: Annotated[float | None, _of(_SCAN, help="Column of the rotation axis; default: the middle.")] = None,
    origin: Annotated[
        str | None,
        _of(_SCAN, help="stage (default: positions of all angles have one origin) or middle (each its own)."),
    ] = None,
    rotation_axis: Annotated[
        str | None,
        _of(_SCAN, help="It runs along the rows (default: columns cross it) or columns of the frames."),
    ] = None,
    sign: Annotated[int | None, _of(_SCAN, help="1 (default): waves exp(+ikz); -1: frames of waves exp(-ikz).")] = None,
    dataset: Annotated[str | None, _of(_SCAN, help="Dataset of the frames, where an HDF5 file leaves it open.")] = None,
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
    crop: Annotated[int | None, _of(_SCAN, help="Rows and columns around the middle of the frames.")] = None,
    mask: Annotated[str | None, _of(_SCAN, help="File of good pixels (true), or FILE.h5:/dataset.")] = None,
    saturation: Annotated[float | None, _of(_SCAN, help="Counts from which a pixel says nothing.")] = None,
    pixel_size: options.PixelSize = None,
    energy: options.Energy = None,
    distance: options.Distance = None,
    where: Any = None,
    slab_rows: Annotated[
        str | None,
        _of(_RUN, help="Rows of the slabs of the volume: auto (default: what memory allows), or a number."),
    ] = None,
    checkpoint_every: Annotated[
        str | None,
        _of(_RUN, help="Epochs (20it) between two checkpoints, or never; minutes mean every fifth epoch."),
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
    """Reconstruct one complex volume from the frames of all angles of SCAN into OUT."""
    given: dict[str, Any] = dict(locals())
    for name in ("config", "plan", "resume", "overwrite", "quiet", "report", "pictures", "option"):
        del given[name]
    if option:
        given["options"] = option
    from dtomo.settings import JointSettings

    settings = options.settings_of(JointSettings, "ptychotomo:SCAN and OUT", config, given, "scan", "output")
    from dtomo.ptychotomo.job import run

    done = run(settings, plan_only=plan, resume=resume, overwrite=overwrite, quiet=quiet)
    if done.summary and pictures:
        from dtomo.report.ptychotomo_pictures import write_pictures

        written = write_pictures(done.output)
        if not quiet:
            print(f"pictures in {written[0].parent}", file=sys.stderr)
    after_run(settings.output, report and not plan, quiet)
