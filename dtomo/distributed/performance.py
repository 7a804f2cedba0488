"""Dask's performance report: one HTML page of what every worker did when, written where the user asks for it."""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from dtomo.errors import DtomoError, UserError


def check_report(path: Path, overwrite: bool = False) -> None:
    """Refuse a place where the report cannot be written.

    Raises
    ------
    UserError
        Not an HTML file, a folder that is not there or not writable, or a file that exists.
    """
    if path.suffix.lower() not in (".html", ".htm"):
        raise UserError(f"--performance-report is an HTML file such as report.html; got {path}")
    if not path.parent.is_dir():
        raise UserError(f"the folder of the performance report {path} does not exist; make it or name another")
    if path.is_dir():
        raise UserError(f"the performance report {path} is a folder; name a file")
    if path.exists() and not overwrite:
        raise UserError(f"the performance report {path} exists; name another file or give --overwrite")
    if not os.access(path.parent, os.W_OK):
        raise UserError(f"the performance report {path} cannot be written: its folder is read-only")
    try:
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise UserError(f"the performance report {path} cannot be written: {error.strerror}") from error


class Report:
    """A report to be written to `path`; None: none.

    Raises
    ------
    UserError
        As for `check_report`.
    """

    def __init__(self, path: Path | None, overwrite: bool = False) -> None:
        if path is not None:
            check_report(path, overwrite)
        self.path = path
        self._page: str | None = None

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        """Record what the cluster of the present client does meanwhile; nothing is kept if the work raises."""
        if self.path is None:
            yield
            return
        from distributed import performance_report

        with tempfile.TemporaryDirectory(prefix="dtomo-") as folder:
            file = Path(folder, "report.html")  # not `path`, which would be read as an address where it has colons
            report = performance_report(filename=str(file))
            report.__enter__()
            yield
            report.__exit__(None, None, None)
            self._page = file.read_text(encoding="utf-8")

    def save(self) -> None:
        """Write the page, at once or not at all.

        Raises
        ------
        DtomoError
            It cannot be written.
        """
        if self.path is None or self._page is None:
            return
        part = self.path.with_name(f".{self.path.name}.part")
        try:
            part.write_text(self._page, encoding="utf-8")
            os.replace(part, self.path)
        except OSError as error:
            part.unlink(missing_ok=True)
            raise DtomoError(f"the performance report {self.path} cannot be written: {error.strerror}") from error
