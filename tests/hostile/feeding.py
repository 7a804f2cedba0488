"""Feeds hostile files to commands in this process, and keeps what came of it."""

import contextlib
import dataclasses
import io
import os
import time
from pathlib import Path

from dtomo.cli import main
from tests.hostile import inputs, lists, ptycho
from tests.hostile.inputs import ANGLES, LISTS, PTYCHO, SCANS, SECRET, VOLUMES, Maker

assert lists
assert ptycho
KINDS = {"scan": SCANS, "volume": VOLUMES, "list": LISTS, "ptycho": PTYCHO}
COMMANDS: dict[str, list[str]] = {
    "scan": ["info IN --angles a.txt", "recon IN out.zarr --center 3.5 --workers 1 --plan"],
    "volume": ["info IN", "convert IN out.mrc"],
    "list": ["info IN", "subtomo align IN out --particle-diameter 100 --workers 1", "subtomo convert IN out.star"],
    "ptycho": ["info IN", "ptycho IN out.h5 --workers 1", "ptychotomo IN out.zarr --workers 1"],
}
"""A few words for each kind of file; `a.txt` lists the angles of a scan."""
MORE: dict[str, list[str]] = {
    "scan": ["center IN", "align IN out", "slurm-script IN out.zarr"],
    "volume": ["subtomo fsc IN IN --pixel-size 1", "align IN out"],
    "list": ["subtomo extract IN out --tomograms IN --box 8", "subtomo average IN out --particle-diameter 100"],
    "ptycho": ["recon IN out.zarr"],
}
"""Commands that share their readers with others."""


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What a command made of a file.

    `said` has no names of folders; `left` are files that were not there before.
    """

    command: str
    fed: str
    code: int
    said: str
    printed: str
    left: tuple[str, ...]
    seconds: float

    @property
    def sentence(self) -> str:
        """What follows ``dtomo:``."""
        return next((line[7:] for line in self.said.splitlines() if line.startswith("dtomo: ")), "")

    def faults(self) -> list[str]:
        """What must never be."""
        sentences = [line for line in self.said.splitlines() if line.startswith("dtomo: ")]
        wrong = {
            f"exit code {self.code}": self.code not in (0, 2, 3),
            "a traceback": "Traceback" in self.said or "Traceback" in self.printed,
            f"{len(sentences)} sentences": len(sentences) != (self.code != 0),
            "a long story": len(self.sentence) > 700,
            "output of a refused command": self.code == 2 and bool(self.left or self.printed),
            "something was executed": "executed" in self.left,
            "a secret": "stands outside" in self.said + self.printed,
            "output that looks whole": self.code == 3 and any(name in ("out.mrc", "out.star") for name in self.left),
        }
        return [what for what, so in wrong.items() if so]


def fed(command: str, make: Maker, top: Path) -> Outcome:
    """Run a command on a file that is made for it, in a folder of its own in `top`."""
    folder = top / "fed"
    folder.mkdir()
    with contextlib.chdir(folder):
        path = make(folder)
        (folder / "a.txt").write_text("\n".join(map(str, ANGLES)))
        if path.suffix == ".h5":
            command = command.replace(" --angles a.txt", "")
        elif command.startswith(("recon", "center")):
            command += " --angles a.txt"
        before = _all(top)
        out, err = io.StringIO(), io.StringIO()
        began = time.perf_counter()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main([str(path) if word == "IN" else word for word in command.split()])
        seconds = time.perf_counter() - began
    said, printed = (text.getvalue().replace(f"{folder}{os.sep}", "").strip() for text in (err, out))
    left = tuple(sorted(Path(name).name for name in _all(top) - before))
    return Outcome(command, (make.__doc__ or "").rstrip("."), code, said, printed, left, seconds)


def _all(top: Path) -> set[str]:
    return {str(item) for item in top.rglob("*")}


__all__ = ["COMMANDS", "KINDS", "MORE", "SECRET", "Outcome", "fed", "inputs"]
