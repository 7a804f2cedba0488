"""The commands put together, and errors turned into sentences and exit codes."""

import errno
import os
import sys
import traceback
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from dtomo import __version__
from dtomo.cli.align import align
from dtomo.cli.center import center
from dtomo.cli.convert import convert
from dtomo.cli.demo import demo
from dtomo.cli.fit import fit
from dtomo.cli.info import info
from dtomo.cli.ptycho import ptycho
from dtomo.cli.ptychotomo import ptychotomo
from dtomo.cli.recon import recon
from dtomo.cli.report import report
from dtomo.cli.simulate import app as simulate
from dtomo.cli.slurm_script import slurm_script
from dtomo.cli.subtomo import app as subtomo
from dtomo.cli.view import view
from dtomo.errors import DtomoError, shown

_PART_WAY = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""Failures of the system that meet a run in its midst."""


class Commands(TyperGroup):
    """Runs a command; what it raises on purpose becomes one sentence on stderr and an exit code."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except DtomoError as error:
            if os.environ.get("DTOMO_DEBUG"):
                traceback.print_exc()
            print(f"dtomo: {error}", file=sys.stderr)
            raise typer.Exit(error.exit_code) from error
        except MemoryError as error:
            if os.environ.get("DTOMO_DEBUG"):
                traceback.print_exc()
            print("dtomo: this needs more memory than there is; ask for something smaller", file=sys.stderr)
            raise typer.Exit(2) from error
        except OSError as error:
            if error.errno == errno.EPIPE:  # whoever read the output has gone
                raise
            if os.environ.get("DTOMO_DEBUG"):
                traceback.print_exc()
            named = "" if error.filename is None else f"{shown(error.filename, 200)}: "
            print(f"dtomo: {named}{error.strerror or error}", file=sys.stderr)
            raise typer.Exit(3 if error.errno in _PART_WAY else 2) from error
        except KeyboardInterrupt as error:
            print("dtomo: interrupted", file=sys.stderr)
            raise typer.Exit(130) from error


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Reconstruct tomograms too large for one device.",
    epilog="Exit codes: 0 done; 2 bad input or refused, nothing touched; 3 stopped part-way, resumable; "
    "130 interrupted. With --debug tracebacks are shown.",
)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"dtomo {__version__}")
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    pass


app.command()(demo)
app.command()(info)
app.command()(center)
app.command()(recon)
app.command()(align)
app.command()(ptycho)
app.command()(ptychotomo)
app.command()(fit)
app.command()(convert)
app.command()(report)
app.command()(view)
app.command("slurm-script")(slurm_script)
app.add_typer(subtomo, name="subtomo")
app.add_typer(simulate, name="simulate")
