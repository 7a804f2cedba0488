"""Hostile settings, clusters and alignments in YAML."""

from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from dtomo.cli import main
from dtomo.yaml_text import load_yaml
from tests.hostile.inputs import scan_file

BOMB = "a0: &a0 [ha, ha, ha, ha, ha, ha, ha, ha, ha]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12)
)
YAML = {
    "an object of Python": "!!python/object/apply:os.system ['touch executed']",
    "a module of Python": "algorithm: !!python/name:os.system",
    "aliases that grow": BOMB,
    "aliases that grow, in a setting": BOMB + "algorithm: *a11",
    "a list in itself": "algorithm: &a [*a]",
    "a dict in itself": "&a {settings: *a}",
    "depth": "[" * 100_000,
    "no day of the year": "algorithm: 2024-13-45",
    "an endless number": "algorithm: " + "9" * 5000,
    "an empty number": "algorithm: !!int ''",
    "a merge with a number": "<<: 3",
    "a list as a name": "? [1, 2]\n: 3",
    "bytes": "algorithm: !!binary 'AAAA'",
    "a set": "!!set {algorithm}",
    "nothing": "",
    "zero bytes": "\0\0\0",
    "no YAML": "algorithm: [fbp",
    "a list": "- algorithm",
}
READERS = {
    "settings": "recon scan.h5 out.zarr --center 3.5 --config bad.yaml",
    "cluster": "recon scan.h5 out.zarr --center 3.5 --cluster bad.yaml",
    "alignment": "recon scan.h5 out.zarr --center 3.5 --alignment bad.yaml",
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    scan_file(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _sentence(command: list[str], capfd: pytest.CaptureFixture[str], code: int = 2) -> str:
    capfd.readouterr()
    assert main(command) == code
    said = capfd.readouterr()
    assert "Traceback" not in said.err
    (sentence,) = [line for line in said.err.splitlines() if line.startswith("dtomo: ")]
    assert len(sentence) < 700
    return sentence


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("kind", YAML)
def test_yaml_is_plain_values_alone(folder, capfd, reader, kind):
    (folder / "bad.yaml").write_text(YAML[kind])
    assert _sentence(READERS[reader].split(), capfd)
    assert sorted(item.name for item in folder.iterdir()) == ["bad.yaml", "scan.h5"]


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=80) | st.text(alphabet="[]{}:-?!&*|>'\"\n #%@`a1.~<", max_size=60))
def test_any_text_is_values_or_a_fault_of_yaml(text):
    try:
        found = load_yaml(text)
    except yaml.YAMLError:
        return
    assert len(repr(found)) < 1000 + 100 * len(text)


def test_what_is_written_is_read_again():
    shared = [1.5, "é", None, True, {"a": [1, 2]}]
    content = {"one": shared, "two": shared, "three": [shared] * 3}
    assert load_yaml(yaml.safe_dump(content, allow_unicode=True)) == content
