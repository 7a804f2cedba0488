"""``dtomo report``: one HTML page of an output; and the same page after each run."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from dtomo.cli import options


def report(
    output: Annotated[Path, typer.Argument(metavar="OUT", help="What a run made; or any volume.")],
    to: Annotated[
        Path | None, typer.Option(help="The HTML file; default: OUT.report.html.", show_default=False)
    ] = None,
    quiet: options.Quiet = False,
) -> None:
    """Write one HTML page about OUT: slices, curves, time, memory, settings. It needs nothing but a browser."""
    from dtomo.report.page import write_report

    written = write_report(output, to)
    if not quiet:
        print(written)


def after_run(output: Path, wanted: bool, quiet: bool) -> None:
    """Write the page beside the output of a run that is done; if it cannot be written, one sentence says so."""
    if not wanted:
        return
    try:
        from dtomo.report.page import write_report

        written = write_report(output)
    except Exception as error:  # noqa: BLE001 - the run is done, and no page is worth its exit code
        reason = str(error).split("\n")[0] or type(error).__name__
        print(f"warning: the report of {output} could not be written: {reason}", file=sys.stderr)
        return
    if not quiet:
        print(f"report in {written}", file=sys.stderr)
