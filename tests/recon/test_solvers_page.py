"""docs/solvers.md: its program runs, and its commands and options are there."""

import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np

from dtomo.cli.recon import recon as command
from dtomo.geometry import ParallelBeam
from dtomo.operators import ParallelProjector
from dtomo.settings import ReconSettings
from tests import laws

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "solvers.md").read_text("utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


def test_the_program_runs():
    geometry = ParallelBeam(np.arange(8) * 22.5, 16)
    names: dict[str, Any] = {
        "geometry": geometry,
        "projections": abs(laws.draw(ParallelProjector(geometry, 2).shape_out)),
    }
    for block in blocks("python"):
        exec(block, names)
    assert names["volume"].shape == (2, 16, 16)
    assert names["volume"].min() >= 0


def test_commands_are_settings_that_go_together():
    """Each line of the page, as the settings that it stands for; and the options of its tables are options."""
    lines = [shlex.split(line)[2:] for block in blocks("bash") for line in block.splitlines()]
    assert len(lines) >= 4
    for scan, output, *words in lines:
        given: dict[str, Any] = {"scan": scan, "output": output}
        for place, word in enumerate(words):
            if word.startswith("--") and word != "--plan":
                following = words[place + 1] if place + 1 < len(words) else "--"
                given[word[2:].replace("-", "_")] = True if following.startswith("--") else following
        ReconSettings(**given)
    known = set(command.__annotations__)
    named = set(re.findall(r"`--([a-z-]+)", PAGE))
    assert {"held-out", "mask", "weights"} <= named
    assert not [name for name in named if name.replace("-", "_") not in known]
