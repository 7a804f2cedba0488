"""``dtomo subtomo``: one module for each of its commands."""

import typer

from dtomo.cli.subtomo.align import align
from dtomo.cli.subtomo.average import average, fsc
from dtomo.cli.subtomo.convert import convert
from dtomo.cli.subtomo.extract import extract

app = typer.Typer(no_args_is_help=True, help="Subtomograms: particle lists, alignment, averages.")


@app.callback()
def _group() -> None:
    pass


app.command()(extract)
app.command()(align)
app.command()(average)
app.command()(fsc)
app.command()(convert)
