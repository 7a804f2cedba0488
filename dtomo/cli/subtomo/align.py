"""``dtomo subtomo align``: from a particle list to averages, their resolution, and a refined list."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from dtomo.cli import options
from dtomo.cli.options import of as _of
from dtomo.cli.report import after_run
from dtomo.errors import UserError

_PARTICLES = "The particles"
_SEARCH = "The search"
_RESULT = "The averages"
_RUN = "Where it runs"


@options.on_workers
def align(
    scan: Annotated[
        Path | None,
        typer.Argument(metavar="LIST", help="Particle list: PyTom XML, STAR, .tbl, MOTL .em.", show_default=False),
    ] = None,
    output: Annotated[
        Path | None, typer.Argument(metavar="OUT", help="Folder of the results.", show_default=False)
    ] = None,
    particle_list: Annotated[Path | None, _of(_PARTICLES, help="The list, in place of LIST.")] = None,
    mask: Annotated[
        str | None, _of(_PARTICLES, help="Volume from 0 to 1; default: a sphere of --particle-diameter.")
    ] = None,
    reference: Annotated[
        list[str] | None,
        _of(_PARTICLES, help="Volume to begin with; repeated: as many classes. Default: the average of the list."),
    ] = None,
    pixel_size: Annotated[float | None, _of(_PARTICLES, help="Å; default: as the list or the boxes say.")] = None,
    particle_diameter: Annotated[float | None, _of(_PARTICLES, help="Å.")] = None,
    tilts: Annotated[
        str | None, _of(_PARTICLES, help="First and last tilt, such as -60:60, where the list says no wedge.")
    ] = None,
    tomograms: Annotated[
        Path | None, _of(_PARTICLES, help="Cut boxes from here: a volume, or a YAML table of names and volumes.")
    ] = None,
    box: Annotated[int | None, _of(_PARTICLES, help="Side of these boxes, voxels.")] = None,
    iterations: Annotated[int | None, _of(_SEARCH, help="At most; default 10.")] = None,
    angle_shells: Annotated[
        int | None, _of(_SEARCH, help="Of rotations around each particle's own; default 3.")
    ] = None,
    angle_increment: Annotated[float | None, _of(_SEARCH, help="Degrees between them, at first; default 3.")] = None,
    rotation_set: Annotated[
        str | None, _of(_SEARCH, help="even (default: about the particle's axis) or glocal (PyTom's).")
    ] = None,
    global_iterations: Annotated[
        int | None, _of(_SEARCH, help="So many first iterations try all rotations; default 0.")
    ] = None,
    global_increment: Annotated[float | None, _of(_SEARCH, help="Degrees between these; default 15.")] = None,
    adaptive: Annotated[
        bool | None,
        _of(_SEARCH, "--adaptive/--no-adaptive", help="Finer increments as the resolution grows (default)."),
    ] = None,
    settle: Annotated[
        bool | None, _of(_SEARCH, "--settle/--no-settle", help="End when nothing moves any more (default).")
    ] = None,
    max_shift: Annotated[
        float | None, _of(_SEARCH, help="Voxels from the middle of the box; default: a quarter of the box.")
    ] = None,
    binning: Annotated[int | None, _of(_SEARCH, help="Of what is compared; averages and shifts are whole.")] = None,
    score: Annotated[
        str | None, _of(_SEARCH, help="flcf (default), or nxcf: over the deviation of the whole box.")
    ] = None,
    shift_prior: Annotated[
        float | None,
        _of(_SEARCH, help="Voxels; shifts that differ from the list's by more count less; default: none."),
    ] = None,
    rotation_prior: Annotated[float | None, _of(_SEARCH, help="Degrees; the same of rotations; default: none.")] = None,
    low_pass: Annotated[float | None, _of(_SEARCH, help="Å; of what the run begins with; default 60.")] = None,
    high_pass: Annotated[float | None, _of(_SEARCH, help="Å; coarser features are not compared.")] = None,
    finest: Annotated[float | None, _of(_SEARCH, help="Å; finer features are not compared.")] = None,
    symmetry: Annotated[str | None, _of(_RESULT, help="C1 (default), C2 …, D2 …, T, O or I.")] = None,
    halves: Annotated[
        str | None, _of(_RESULT, help="Of a list that has none: random (default), or parity of the index.")
    ] = None,
    weighting: Annotated[
        bool | None, _of(_RESULT, "--weighting", help="Particles count by exp(score - 1) in averages.")
    ] = None,
    seed: Annotated[int | None, _of(_RESULT, help="Of what is random; default 0.")] = None,
    where: Any = None,
    config: options.Config = None,
    plan: Annotated[bool, _of(_RUN, "--plan", help="Print memory, tasks and time; then stop.")] = False,
    resume: Annotated[bool, _of(_RUN, "--resume", help="Go on after the last iteration that is whole.")] = False,
    pictures: Annotated[
        bool, _of(_RESULT, "--pictures/--no-pictures", help="Write pictures beside the results; default: yes.")
    ] = True,
    overwrite: options.Overwrite = False,
    quiet: options.Quiet = False,
    report: options.Report = True,
) -> None:
    """Align the particles of LIST to a reference and average them, in two halves that stay apart, into OUT."""
    given: dict[str, Any] = dict(locals())
    for name in ("config", "plan", "resume", "overwrite", "quiet", "report", "pictures", "particle_list"):
        del given[name]
    if particle_list is not None:
        if scan is not None and output is None:
            given["output"], given["scan"] = scan, None
        elif scan is not None:
            raise UserError("give the particle list once: as LIST, or with --particle-list")
        given["scan"] = particle_list
    from dtomo.settings import AlignSettings

    settings = options.settings_of(AlignSettings, "subtomo align:LIST and OUT", config, given, "scan", "output")
    from dtomo.subtomo.job import run

    done = run(settings, plan_only=plan, resume=resume, overwrite=overwrite, quiet=quiet)
    if done.summary and pictures:
        from dtomo.report.subtomo_pictures import write_pictures

        written = write_pictures(done.output)
        if not quiet:
            print(f"pictures in {written[0].parent}", file=sys.stderr)
    after_run(settings.output, report and not plan, quiet)
