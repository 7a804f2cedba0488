"""Breaks of one line (`benchmarks.mutants`): their list fits the source, and those found by themselves are sound."""

import ast
from pathlib import Path

import pytest

from benchmarks import mutants_table
from benchmarks.mutants_found import candidates, chosen

ROOT = Path(__file__).parents[1]
MODULES = mutants_table.read(ROOT)


@pytest.mark.parametrize("name", MODULES)
def test_the_list_fits_the_source(name):
    module = MODULES[name]
    assert all((ROOT / test).exists() for test in module.tests)
    lines = [line.strip() for line in (ROOT / name).read_text().splitlines()]
    assert all(before in lines for before, _ in module.equivalent)
    assert all(broken.before != broken.after for broken in mutants_table.by_hand(ROOT, name, module))


@pytest.mark.parametrize(
    "name", ["dtomo/kernels/detection.py", "dtomo/operators/slabs.py", "dtomo/distributed/sums.py"]
)
def test_what_is_found_is_python_and_one_line(name):
    lines = (ROOT / name).read_text().splitlines()
    found = candidates(ROOT, name)
    assert len(found) > 50
    for broken in found[::7]:
        assert lines[broken.line - 1] == broken.before != broken.after
        ast.parse("\n".join([*lines[: broken.line - 1], broken.after, *lines[broken.line :]]))
    assert chosen(ROOT, name, 5, 1) == chosen(ROOT, name, 5, 1) != chosen(ROOT, name, 5, 2)


def test_what_only_devices_run_is_left_alone():
    lines = {broken.line for broken in candidates(ROOT, "dtomo/kernels/exit_waves.py")}
    text = (ROOT / "dtomo/kernels/exit_waves.py").read_text().splitlines()
    assert not [text[line - 1] for line in lines if "device." in text[line - 1]]
    assert any("np.conj(p[c]) * change[c]" in text[line - 1] for line in lines)
