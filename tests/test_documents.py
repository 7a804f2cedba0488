"""README and docs: the two commands, links that lead somewhere, and examples that run."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from dtomo.simulate import simulate_scan

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")])


def blocks(page: Path, language: str) -> list[str]:
    """The code blocks of a page."""
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text("utf-8"), re.DOTALL | re.MULTILINE)


def test_the_readme_starts_with_the_two_commands():
    first, second = blocks(ROOT / "README.md", "bash")[:2]
    assert first == "python -m pip install . && dtomo demo\n"
    assert second == "python -m pip install '.[test]' && python -m pytest\n"


def test_ci_runs_the_second_command_of_the_readme():
    text = (ROOT / ".ci" / "run").read_text("utf-8")
    found = re.search(r"^install_and_test=\$\((.*)\)$", text, re.MULTILINE)
    assert found
    assert 'eval "$install_and_test"' in text
    taken = subprocess.run(["bash", "-c", found[1]], cwd=ROOT, capture_output=True, text=True, check=True)
    assert taken.stdout == blocks(ROOT / "README.md", "bash")[1]
    subprocess.run(["bash", "-n", ".ci/run"], cwd=ROOT, check=True)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    targets = re.findall(r"\]\((?!https?://)([^)#]+)", page.read_text("utf-8"))
    missing = [target for target in targets if not (page.parent / target).exists()]
    assert not missing


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_pages_name_only_tests_and_modules_that_exist(page):
    text = page.read_text("utf-8")
    named = re.findall(r"`((?:tests|docs|benchmarks|dtomo)/[\w/]+(?:\.\w+)?/?)`", text)
    assert not [name for name in named if not (ROOT / name).exists()]
    modules = re.findall(r"python -m benchmarks\.(\w+)", text)
    assert not [name for name in modules if not (ROOT / "benchmarks" / f"{name}.py").exists()]


def test_the_python_tour_of_the_readme_runs(tmp_path):
    (tour,) = blocks(ROOT / "README.md", "python")
    simulate_scan(tmp_path / "scan.h5", size=32, rows=4)
    program = f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{tour}\nassert volume.shape == (8, 300, 300)\n"
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_command_line_tour_names_commands_and_options_that_exist():
    lines = blocks(ROOT / "README.md", "bash")[2].splitlines()
    commands = {tuple(re.match(r"dtomo (simulate \w+|\w+)", line)[1].split()): line for line in lines}
    for command, line in commands.items():
        program = "from dtomo.cli import main; main()"
        shown = subprocess.run(
            [sys.executable, "-c", program, *command, "--help"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        assert shown.returncode == 0, shown.stderr
        for option in re.findall(r"--[a-z-]+", line.split("#")[0]):
            assert option in shown.stdout, f"dtomo {' '.join(command)} has no {option}"
