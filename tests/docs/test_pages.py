"""What the pages tell the reader to type is typed, and what they say comes out has to come out."""

from pathlib import Path

import pytest

from tests.docs.pages import ROOT, Block, blocks_of, commands_of, dtomo_commands, missing_line, parse_command, run_page

DOCS = ROOT / "docs"
QUICK = {"start/index.md", "howto/index.md", "howto/from-astra.md"}
"""Pages that take a few seconds."""

RUN = sorted(str(page.relative_to(DOCS)) for folder in ("start", "howto") for page in (DOCS / folder).glob("*.md"))
ALL = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
MARKED = [pytest.param(name, marks=[] if name in QUICK else pytest.mark.slow) for name in RUN]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", MARKED)
def test_every_block_runs_and_prints_what_the_page_says(name, tmp_path):
    folder = tmp_path / "page"
    folder.mkdir()
    page = DOCS / name
    shown = [block for block in blocks_of(page) if block.language in ("console", "python") and not block.title]
    assert run_page(page, folder) == len(shown)


@pytest.mark.parametrize("page", ALL, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_and_options_exist(page):
    for block in blocks_of(page):
        if block.language in ("console", "bash", ""):
            for words in dtomo_commands(block.text):
                parse_command(words)


def test_a_page_that_lies_fails(tmp_path):
    page = tmp_path / "page.md"
    folder = tmp_path / "folder"
    folder.mkdir()
    page.write_text("```python\nprint('7 lines', 1.02)\n```\n```text\n7 lines 1.0\n```\n")
    assert run_page(page, folder) == 1
    for wrong in ("8 lines 1.0", "7 lines", "7 lines 1.0\nmore", "7 lines 1.2"):
        page.write_text(f"```python\nprint('7 lines', 1.02)\n```\n```text\n{wrong}\n```\n")
        with pytest.raises(AssertionError, match=r"expected|printed"):
            run_page(page, folder)
    page.write_text("```console\n$ echo one\none\n$ false\n```\n")
    with pytest.raises(AssertionError, match="exit code 1"):
        run_page(page, folder)


@pytest.mark.parametrize(
    ("expected", "printed", "holds"),
    [
        (["a", "…", "d"], ["a", "b", "c", "d"], True),
        (["a", "…"], ["a"], True),
        (["…", "d"], ["a", "b"], False),
        (["a"], ["a", "b"], False),
        (["in … s, 12 %"], ["in 0.7 s, 12 %"], True),
        (["in … s, 12 %"], ["in 0.7 s, 14 %"], False),
        (["x 1", "x 2"], ["x 2", "x 1"], False),
    ],
)
def test_lines_are_compared_in_order(expected, printed, holds):
    assert (missing_line(expected, printed) is None) == holds


def test_commands_of_a_console_block():
    text = "$ dtomo info \\\n    scan.h5 | head\nscan.h5: raw\n$ ls > list  # what is there\n"
    block = Block("console", "", text, 1)
    assert list(commands_of(block)) == [
        ("dtomo info scan.h5 | head", ["scan.h5: raw"]),
        ("ls > list  # what is there", []),
    ]
    assert list(dtomo_commands(text)) == [["info", "scan.h5"]]
    with pytest.raises(Exception, match="no-such"):
        parse_command(["info", "scan.h5", "--no-such"])
    assert Path(ROOT, "mkdocs.yml").exists()
