"""The tour runs: real runs of dtomo, real pages in a browser, pictures of all that the page shows."""

import importlib
import importlib.util
import re
import shutil

import numpy as np
import pytest
from PIL import Image

from tests.docs.pages import ROOT

PAGE = (ROOT / "docs" / "dashboard.md").read_text("utf-8")
SHOWN = set(re.findall(r"pictures/(tour-[\w-]+\.\w+)\)", PAGE))


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(
    not shutil.which("chromedriver") or not importlib.util.find_spec("selenium"),
    reason="needs chromium, chromedriver and selenium",
)
def test_the_tour_takes_all_pictures_of_its_page(tmp_path):
    made = importlib.import_module("examples.tour_dashboard").main(tmp_path)
    assert {path.name for path in made} == SHOWN
    for path in made:
        picture = Image.open(path)
        assert picture.width == (390 if "phone" in path.name else 1280)
        gray = np.asarray(picture.convert("L"), float)
        assert gray.std() > 5, f"{path.name} is empty"


def test_its_pictures_are_those_of_the_page():
    assert {path.name for path in (ROOT / "docs" / "pictures").glob("tour-*")} == SHOWN
