"""The scripts of the gallery draw what the pages show."""

import importlib
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.docs.pages import ROOT

PICTURES = ROOT / "docs" / "pictures"
SCRIPTS = sorted(path.stem for path in (ROOT / "examples").glob("gallery_*.py"))
QUICK = {"gallery_conventions"}
BLOCK = 8
"""Pixels along a side of the blocks whose means are compared: letters of another font are no difference."""
TOLERANCE = 12
"""Of 255, in nearly all blocks."""


def blocks(path: Path) -> np.ndarray:
    """Mean gray values of the blocks of a picture."""
    gray = np.asarray(Image.open(path).convert("L"), float)
    rows, columns = (size // BLOCK for size in gray.shape)
    cut = gray[: rows * BLOCK, : columns * BLOCK].reshape(rows, BLOCK, columns, BLOCK)
    return cut.mean(axis=(1, 3))


def alike(first: Path, second: Path) -> bool:
    """Whether two pictures show the same, but for letters and rounding."""
    one, other = blocks(first), blocks(second)
    return one.shape == other.shape and bool(np.mean(np.abs(one - other) > TOLERANCE) < 0.03)


@pytest.mark.parametrize("name", [pytest.param(n, marks=[] if n in QUICK else pytest.mark.slow) for n in SCRIPTS])
def test_scripts_draw_the_pictures_of_the_pages(name, tmp_path):
    made = importlib.import_module(f"examples.{name}").main(tmp_path)
    for path in made if isinstance(made, list) else [made]:
        assert alike(path, PICTURES / path.name), f"{path.name} is not what docs/pictures has"


def test_every_picture_is_shown_and_small():
    text = "".join(page.read_text("utf-8") for page in (ROOT / "docs").rglob("*.md"))
    assert set(re.findall(r"pictures/([\w-]+\.\w+)\)", text)) == {path.name for path in PICTURES.iterdir()}
    assert all(path.stat().st_size < 100_000 for path in PICTURES.iterdir())


def test_another_picture_is_seen(tmp_path):
    picture = PICTURES / "gallery-axis.webp"
    Image.open(picture).transpose(Image.Transpose.FLIP_LEFT_RIGHT).save(tmp_path / "turned.webp")
    assert alike(picture, picture)
    assert not alike(picture, tmp_path / "turned.webp")
