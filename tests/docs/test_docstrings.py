"""Docstrings that the API reference can show: NumPy's sections as NumPy's style has them."""

import ast
import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.pages import ROOT

SHOWN = sorted(path for path in (ROOT / "dtomo").rglob("*.py") if "kernels" not in path.parts)
SECTIONS = ("Parameters", "Attributes", "Returns", "Yields", "Raises")


def sections(docstring: str) -> Iterator[tuple[str, list[str]]]:
    """Titles of a docstring's sections with their lines."""
    lines = docstring.splitlines()
    starts = [i for i in range(len(lines) - 1) if lines[i] and lines[i + 1] == "-" * len(lines[i])]
    for start, end in itertools.pairwise([*starts, len(lines)]):
        yield lines[start], [line for line in lines[start + 2 : end] if line]


def faults(docstring: str) -> list[str]:
    """What the API reference would show wrongly.

    Each entry of a section is a line (a name or a type) with an indented text below; of what is returned a short type
    may stand alone.
    """
    wrong = [f"a role of Sphinx: {docstring}"] if ":func:" in docstring or ":class:" in docstring else []
    for title, lines in sections(docstring):
        if title not in SECTIONS:
            continue
        for line, after in itertools.zip_longest(lines, lines[1:], fillvalue=""):
            alone = not line.startswith(" ") and not after.startswith(" ")
            if alone and (title not in ("Returns", "Yields") or len(line.split()) > 2):
                wrong.append(f"{title}: {line}")
    return wrong


@pytest.mark.parametrize("path", SHOWN, ids=lambda path: str(path.relative_to(ROOT / "dtomo")))
def test_docstrings_can_be_shown(path: Path) -> None:
    wrong = []
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            wrong += [f"{node.name}: {fault}" for fault in faults(ast.get_docstring(node) or "")]
    assert not wrong, "; ".join(wrong)


def test_faults_are_seen() -> None:
    assert faults("A.\n\nReturns\n-------\nThe list, as it was.") == ["Returns: The list, as it was."]
    assert faults("A.\n\nReturns\n-------\nint\n    How many.") == []
    assert faults("A.\n\nReturns\n-------\nResult") == []
    assert faults("A.\n\nAttributes\n----------\na\n    One.\nMore text.") == ["Attributes: More text."]
    assert faults("See :func:`a`.")
