"""The notebooks hold what their sources hold, and their cells run."""

import json
import os
import runpy
import subprocess
import sys
from typing import Any

import pytest

from tests.docs.pages import ROOT

MAKE: dict[str, Any] = runpy.run_path(str(ROOT / "docs" / "site" / "notebooks.py"))
SOURCES = sorted(MAKE["FOLDER"].glob("*.py"))
QUICK = {"own_model"}
TO_RUN = """
import json, sys
names = {"__name__": "__main__"}
for cell in json.load(open(sys.argv[1], encoding="utf-8"))["cells"]:
    if cell["cell_type"] == "code":
        exec(compile("".join(cell["source"]), cell["id"], "exec"), names)
print(len(names["plt"].get_fignums()), "figures")
"""
"""Does with a notebook what a kernel does: its cells, one after another, in one namespace."""


def test_there_is_one_for_each_start():
    starts = {path.stem.replace("-", "_") for path in (ROOT / "docs" / "start").glob("*.md")} - {"index"}
    assert {source.stem for source in SOURCES} == starts


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.stem)
def test_notebooks_are_those_of_their_sources(source):
    written = source.with_suffix(".ipynb").read_text("utf-8")
    assert written == MAKE["text_of"](source), "run python docs/site/notebooks.py"
    assert not [cell for cell in json.loads(written)["cells"] if cell.get("outputs")]


@pytest.mark.parametrize(
    "source",
    [pytest.param(path, id=path.stem, marks=[] if path.stem in QUICK else pytest.mark.slow) for path in SOURCES],
)
def test_all_cells_run(source, tmp_path):
    own = {"MPLBACKEND": "Agg", "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-W", "ignore", "-c", TO_RUN, str(source.with_suffix(".ipynb"))]
    done = subprocess.run(
        command, cwd=tmp_path, env=os.environ | own, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(done.stdout.split()[-2]) >= 1


def test_cells_of_a_source():
    source = "# %% [markdown]\n# # Title\n#\n# text\n\n# %%\nx = 1\n\n\ny = 2\n"
    assert MAKE["cells"](source) == [("markdown", "# Title\n\ntext"), ("code", "x = 1\n\n\ny = 2")]
    with pytest.raises(ValueError, match="begins with a cell"):
        MAKE["cells"]("import numpy\n# %%\n")
    with pytest.raises(ValueError, match="comments"):
        MAKE["cells"]("# %% [markdown]\nplain\n")
