"""docs/geometries.md: its blocks run one after the other as they stand; its pictures are of what it makes."""

import re
from pathlib import Path
from typing import Any

import pytest

from examples.draw_geometries import geometries

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "geometries.md").read_text("utf-8")


@pytest.mark.slow
def test_every_block_runs(here, cluster, tmp_path):
    names: dict[str, Any] = {}
    seen = set()
    for language, block in re.findall(r"^```(\w+)\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE):
        seen.add(language)
        if language == "python":
            exec(block, names)
            continue
        for line in block.splitlines():
            words = line.split()[1:]
            done = here(*words, *(("--cluster", cluster) if words[0] == "recon" else ()))
            assert done.returncode == 0, done.stderr
    assert seen == {"python", "bash"}
    assert (tmp_path / "cone.png").stat().st_size > 10_000
    assert names["better"].shape == names["again"].shape == (40, 56, 56)
    drawn = geometries()
    made = {"cone": "geometry", "helix": "helix", "fan": "fan", "laminography": "flat", "tilt-series": "tilted"}
    assert all(names[name] == drawn[picture] for picture, name in made.items())
    assert names["scan"].geometry.beam == "cone"


def test_pictures_are_there():
    shown = set(re.findall(r"\(pictures/geometry-([\w-]+)\.png\)", PAGE))
    assert shown == set(geometries())
    assert all((ROOT / "docs" / "pictures" / f"geometry-{name}.png").stat().st_size < 40_000 for name in shown)
