"""The site: built strictly where MkDocs is installed, and its own checks, which must see what they are for."""

import importlib.util
import runpy
from typing import Any

import pytest

from tests.docs.pages import ROOT

BUILD: dict[str, Any] = runpy.run_path(str(ROOT / "docs" / "site" / "build.py"))
COMMANDS: dict[str, Any] = runpy.run_path(str(ROOT / "docs" / "site" / "commands.py"))


@pytest.mark.skipif(not importlib.util.find_spec("mkdocstrings"), reason="needs the extra docs")
def test_the_site_is_built_without_a_warning(tmp_path):
    assert BUILD["main"](tmp_path / "site") == 0
    assert (tmp_path / "site" / "reference" / "recon.html").exists()


def test_links_that_lead_nowhere_are_found(tmp_path):
    (tmp_path / "one.html").write_text(
        '<p id="here"><a href="#here">a</a> <a href="#gone">b</a> <a href="two.html#there">c</a> '
        '<a href="two.html#gone">d</a> <img src="gone.png"> <a href="https://example.org/gone">e</a></p>'
    )
    (tmp_path / "two.html").write_text('<a name="there"></a><a href="one.html">back</a>')
    assert BUILD["broken_links"](tmp_path) == ["one.html: #gone", "one.html: gone.png", "one.html: two.html#gone"]


def test_names_without_documentation_are_found(tmp_path):
    (tmp_path / "reference").mkdir()
    (tmp_path / "reference" / "report.html").write_text('<h2 id="dtomo.report.write_pictures">write_pictures</h2>')
    assert BUILD["undocumented"](tmp_path) == ["dtomo.report.trial_slices"]


def test_the_page_of_commands_has_all_options():
    page = COMMANDS["page"]()
    assert "## dtomo subtomo align" in page
    section = page[page.index("## dtomo recon") :].split("\n## ")[0]
    assert "| `--algorithm` | fbp (default)" in section
    assert "| `--nonnegative`, `--signed` |" in section
    assert "| `SCAN` | Raw scan" in section
