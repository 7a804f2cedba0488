"""``dtomo fit``: a model of your own, fitted to data over all devices."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from dtomo.cli import options
from dtomo.cli.options import of as _of
from dtomo.cli.report import after_run

_FIT = "The fit"
_DATA = "The data"
_RUN = "Where it runs"


@options.on_workers
def fit(
    model: Annotated[
        str | None,
        typer.Argument(metavar="MODEL", help="package.module:function, which returns a model.", show_default=False),
    ] = None,
    scan: Annotated[
        Path | None,
        typer.Argument(
            metavar="DATA",
            help="Samples along the first axis: NPY, Zarr, a scan or volume, or a folder of files, each a sample.",
            show_default=False,
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Argument(metavar="OUT", help="Folder of the results.", show_default=False)
    ] = None,
    also: Annotated[
        list[Path] | None, _of(_DATA, help="More data whose samples belong to those of DATA; may be repeated.")
    ] = None,
    validation: Annotated[float | None, _of(_DATA, help="Part of the samples that is held out; default 0.1.")] = None,
    seed: Annotated[int | None, _of(_DATA, help="Of the choice and the order of samples; default 0.")] = None,
    epochs: Annotated[int | None, _of(_FIT, help="How often each sample is used; default 10.")] = None,
    batch: Annotated[str | None, _of(_FIT, help="Samples of a step, or all; default 32.")] = None,
    block: Annotated[
        int | None, _of(_FIT, help="Samples that the model is given at once; default: an eighth of a batch.")
    ] = None,
    optimizer: Annotated[
        str | None, _of(_FIT, help="adam (default), adamw, sgd or lbfgs; of Torch's for a Torch module.")
    ] = None,
    rate: Annotated[float | None, _of(_FIT, help="Of the optimizer.")] = None,
    gradient_clip: Annotated[float | None, _of(_FIT, help="Largest norm of all gradients together.")] = None,
    best: Annotated[
        bool | None,
        _of(_FIT, "--best/--last", help="Parameters of the smallest validation, or the last (default)."),
    ] = None,
    patience: Annotated[
        int | None, _of(_FIT, help="Epochs without a smaller validation after which the fit ends.")
    ] = None,
    where: Any = None,
    checkpoint_every: Annotated[
        str | None, _of(_RUN, help="Minutes (default 10) or epochs (2it) between two checkpoints, or never.")
    ] = None,
    config: options.Config = None,
    plan: Annotated[bool, _of(_RUN, "--plan", help="Print samples, steps and bytes; then stop.")] = False,
    resume: Annotated[bool, _of(_RUN, "--resume", help="Go on with a run that was interrupted.")] = False,
    pictures: Annotated[
        bool, _of(_FIT, "--pictures/--no-pictures", help="Draw losses beside the results; default: yes.")
    ] = True,
    overwrite: options.Overwrite = False,
    quiet: options.Quiet = False,
    report: options.Report = True,
) -> None:
    """Fit the model that MODEL returns to the samples of DATA, with a part of them held out, into OUT."""
    given: dict[str, Any] = dict(locals())
    for name in ("config", "plan", "resume", "overwrite", "quiet", "report", "pictures"):
        del given[name]
    from dtomo.settings import FitSettings

    settings = options.settings_of(FitSettings, "fit:MODEL, DATA and OUT", config, given, "model", "scan", "output")
    from dtomo.fitting.job import run

    done = run(settings, plan_only=plan, resume=resume, overwrite=overwrite, quiet=quiet)
    if done.history is not None and len(done.history) and pictures:
        from dtomo.report.fit_pictures import draw_history

        drawn = draw_history(done.output / "history.png", done.history, done.output.name)
        if not quiet:
            print(f"losses in {drawn}", file=sys.stderr)
    after_run(settings.output, report and not plan, quiet)
