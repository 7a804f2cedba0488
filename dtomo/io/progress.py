"""What is done of an unfinished output: a folder with its settings and one small file per slab.

Each worker writes the file of its own slab, under a temporary name and renamed, after the slab's data:
nothing is shared between workers, and a slab counts only when its file is whole.
"""

import dataclasses
import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

from dtomo.errors import UserError
from dtomo.io.lock import take_lock

_SLAB = re.compile(r"slab-(\d+)-(\d+)\.json")


@dataclasses.dataclass(frozen=True)
class Progress:
    """The progress folder of one output."""

    folder: Path

    def start(self, output: Path) -> None:
        """Make the folder: from here on `output` counts as unfinished, and as written by this process.

        Raises
        ------
        UserError
            Another process writes it.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        take_lock(self.folder, output)

    def save_settings(self, settings: dict[str, Any]) -> None:
        """Written last when an output is created: without it nothing is done yet."""
        _write_whole(self.folder / "settings.json", settings)

    def settings(self) -> dict[str, Any] | None:
        """What the output was created with; None if its creation was interrupted."""
        try:
            found = json.loads((self.folder / "settings.json").read_text())
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise UserError(
                f"{self.folder}/settings.json cannot be read ({error}); start again with --overwrite"
            ) from error
        if not isinstance(found, dict):
            raise UserError(f"{self.folder}/settings.json is not what dtomo wrote; start again with --overwrite")
        return found

    def mark(self, start: int, stop: int, notes: dict[str, Any]) -> None:
        """Slices `start` to `stop` are whole on disk."""
        _write_whole(self.folder / f"slab-{start:08d}-{stop:08d}.json", notes)

    def slabs(self) -> list[tuple[int, int]]:
        """(first slice, end) of what is done, in order."""
        found = (_SLAB.fullmatch(item.name) for item in self.folder.iterdir()) if self.folder.is_dir() else ()
        return sorted((int(match[1]), int(match[2])) for match in found if match)

    def notes(self) -> list[dict[str, Any]]:
        """What was noted with each slab, in the order of `slabs`."""
        return [json.loads((self.folder / f"slab-{a:08d}-{b:08d}.json").read_text()) for a, b in self.slabs()]

    def missing(self, slices: int) -> list[tuple[int, int]]:
        """(first slice, end) of what is not done."""
        gaps, at = [], 0
        for start, stop in self.slabs():
            if start > at:
                gaps.append((at, start))
            at = max(at, stop)
        return [*gaps, (at, slices)] if at < slices else gaps

    def remove(self) -> None:
        """Forget the folder: the output is complete.

        It loses its name first, so that a worker thought dead that still writes there cannot keep it.
        """
        gone = self.folder.with_name(f"{self.folder.name}.done-{os.getpid()}")
        os.rename(self.folder, gone)
        shutil.rmtree(gone)


def _write_whole(path: Path, content: dict[str, Any]) -> None:
    part = path.with_name(f".{path.name}.{os.getpid()}")
    part.write_text(json.dumps(content))
    os.replace(part, path)
