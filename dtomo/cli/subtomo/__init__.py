"""``dtomo subtomo``: one module for each of its commands."""

import typer

from dtomo.cli.subtomo.convert import convert

app = typer.Typer(no_args_is_help=True, help="Subtomograms: particle lists, alignment, averages.")


@app.callback()
def _group() -> None:
    pass


app.command()(convert)
