"""The table in docs/cases.md: each case C01 to C30 has tests that carry its number."""

import ast
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
ROWS = {
    int(row[1]): re.findall(r"`([\w/]+\.py)`", row[0])
    for row in re.finditer(r"^\| C(\d\d) \|.*$", (TESTS.parent / "docs" / "cases.md").read_text("utf-8"), re.M)
}


def _functions(file: Path) -> list[ast.FunctionDef]:
    """Tests of a file that always run."""
    tests = [node for node in ast.parse(file.read_text("utf-8")).body if isinstance(node, ast.FunctionDef)]
    return [
        test
        for test in tests
        if test.name.startswith("test_") and not any("slow" in ast.unparse(mark) for mark in test.decorator_list)
    ]


def test_there_are_thirty_cases() -> None:
    assert sorted(ROWS) == list(range(1, 31))


@pytest.mark.parametrize("number", range(1, 31))
def test_the_tests_of_a_case_carry_its_number(number: int) -> None:
    name = f"test_c{number:02}_"
    assert ROWS[number]
    for file in ROWS[number]:
        path = TESTS / file
        assert path.name.startswith(name) or any(test.name.startswith(name) for test in _functions(path)), file
        assert _functions(path), file


def test_no_test_of_a_case_is_left_out_of_the_table() -> None:
    for path in sorted(TESTS.rglob("test_*.py")):
        inside = {test.name for test in _functions(path)} | {path.name}
        for number in {int(found[1]) for text in inside if (found := re.match(r"test_c(\d\d)_", text))}:
            assert path.relative_to(TESTS).as_posix() in ROWS[number]
