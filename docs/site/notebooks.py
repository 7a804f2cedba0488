"""Write the notebooks of `examples/notebooks` from their plain sources: ``python docs/site/notebooks.py``.

A source is a Python script. Its cells begin with ``# %%``, cells of text with ``# %% [markdown]``, whose lines are
comments; Jupytext and editors know this form. A notebook holds the same cells and no outputs.
"""

import json
import re
import sys
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "notebooks"
_CELL = re.compile(r"^# %%( \[markdown\])?\n", re.MULTILINE)


def cells(source: str) -> list[tuple[str, str]]:
    """The cells of a source, ``("markdown" or "code", text)`` each.

    Raises
    ------
    ValueError
        Something stands before the first cell, or a line of a cell of text is no comment.
    """
    before, *parts = _CELL.split(source)
    if before.strip():
        raise ValueError("a source begins with a cell, # %%")
    found = []
    for mark, text in zip(parts[::2], parts[1::2]):
        if mark:
            lines = text.strip().splitlines()
            if not all(line.startswith("# ") or line == "#" for line in lines):
                raise ValueError(f"not all lines of this text are comments:\n{text}")
            text = "\n".join(line[2:] for line in lines)
        found.append(("markdown" if mark else "code", text.strip()))
    return found


def notebook(source: str) -> dict[str, Any]:
    """The notebook of a source, in the format of Jupyter, version 4.5 (nbformat.readthedocs.io)."""
    made = []
    for number, (kind, text) in enumerate(cells(source)):
        cell: dict[str, Any] = {"cell_type": kind, "id": f"cell-{number}", "metadata": {}}
        cell |= {"source": text.splitlines(keepends=True)}
        made.append(cell | ({"execution_count": None, "outputs": []} if kind == "code" else {}))
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    return {"cells": made, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}


def text_of(source: Path) -> str:
    """What the notebook of a source is as a file."""
    return json.dumps(notebook(source.read_text("utf-8")), indent=1, ensure_ascii=False) + "\n"


def main(folder: Path) -> int:
    """Write the notebook of each source in a folder beside it."""
    for source in sorted(folder.glob("*.py")):
        source.with_suffix(".ipynb").write_text(text_of(source), "utf-8")
        print(source.with_suffix(".ipynb"))
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER))
