"""``dtomo report``: from an output and what lies beside it to one HTML file."""

import os
from collections.abc import Callable
from pathlib import Path

from dtomo import __version__
from dtomo.errors import UserError
from dtomo.io.output import progress_folder
from dtomo.report.page import folder_page, ptycho_page
from dtomo.report.page.html import Page
from dtomo.report.page.volume_page import volume_page

_KINDS: tuple[tuple[Callable[[Path], bool], Callable[[Path, str], Page]], ...] = (
    (ptycho_page.is_ptycho, ptycho_page.ptycho_page),
    (ptycho_page.is_joint, ptycho_page.joint_page),
    (folder_page.is_alignment, folder_page.alignment_page),
    (folder_page.is_subtomo, folder_page.subtomo_page),
    (folder_page.is_fit, folder_page.fit_page),
)
"""How outputs that are not plain volumes are known, and what makes their page."""


def report_file(output: Path) -> Path:
    """``volume.zarr.report.html`` beside ``volume.zarr``."""
    return output.with_name(output.name + ".report.html")


def write_report(output: Path | str, to: Path | None = None) -> Path:
    """Write the page of an output; the old one is replaced.

    Parameters
    ----------
    output
        What a run of dtomo made; or any volume, whose page then has pictures and a histogram alone.
    to
        The HTML file; None: `report_file`.

    Raises
    ------
    UserError
        There is nothing finished at `output`, or the file cannot be written.
    """
    output = Path(os.path.abspath(output))
    target = report_file(output) if to is None else Path(to)
    if target.exists() and os.path.samefile(target, output) if output.exists() else False:
        raise UserError(f"{target} is the output itself; give the page another name with --to")
    page = page_of(output).html()
    part = target.with_name(target.name + ".part")
    try:
        part.write_text(page, encoding="utf-8")
        part.replace(target)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise UserError(f"the report {target} cannot be written: {error.strerror or error}") from error
    return target


def page_of(output: Path) -> Page:
    """What the page of an output says.

    Raises
    ------
    UserError
        There is nothing finished at `output`.
    """
    if not output.exists():
        raise UserError(f"there is no file or folder {output}")
    if progress_folder(output).is_dir():
        raise UserError(f"{output} is unfinished; finish it with --resume, then ask for its report")
    foot = f"Written by dtomo {__version__}."
    for is_this, page in _KINDS:
        if is_this(output):
            return page(output, foot)
    return volume_page(output, foot)
