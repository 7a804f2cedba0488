"""Settings: checked, in one sentence; written and read again unchanged."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from dtomo.errors import UserError
from dtomo.settings import ReconSettings


def _settings(**changes: Any) -> ReconSettings:
    return ReconSettings(**{"scan": "scan.h5", "output": "out.zarr", **changes})


def test_round_trip_through_yaml(tmp_path: Path) -> None:
    before = _settings(
        scan=tmp_path / "scan.h5",
        output=tmp_path / "out.zarr",
        angles=f"{tmp_path}/angles.txt[10:20]",
        algorithm="sirt",
        iterations=7,
        center="12.5",
        rows="3:9",
        columns=":40",
        exclude_frames="3,7:9",
        pixel_size=1.5,
    )
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump({"settings": before.plain(), "versions": {"dtomo": "0"}}))
    assert ReconSettings.read(path) == before
    assert before.exclude_frames == (3, 7, 8)
    assert before.rows == (3, 9)
    assert before.columns == (None, 40)


def test_paths_are_written_so_that_they_hold_from_another_folder() -> None:
    plain = _settings(flats="flats.h5:/exchange/data_white").plain()
    assert plain["scan"] == str(Path.cwd() / "scan.h5")
    assert plain["flats"] == str(Path.cwd() / "flats.h5:/exchange/data_white")


def test_command_line_wins_over_the_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("scan: scan.h5\noutput: out.zarr\nalgorithm: cgls\niterations: 5\n")
    found = ReconSettings.read(path, iterations=9, output=None)
    assert (found.algorithm, found.iterations, found.output) == ("cgls", 9, Path("out.zarr"))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rows": "9:3"}, "--rows: holds nothing"),
        ({"rows": "a"}, "--rows: must be A:B"),
        ({"rows": "1:2:3"}, "--rows: must be A:B"),
        ({"columns": "-4:9"}, "--columns: holds nothing"),
        ({"center": "nan"}, "--center: must be auto or a column"),
        ({"center": "middle"}, "--center: must be auto or a column"),
        ({"center": float("inf")}, "--center"),
        ({"iterations": 0}, "--iterations"),
        ({"iterations": "many"}, "--iterations"),
        ({"algorithm": "art"}, "--algorithm.*fbp"),
        ({"bin": 0}, "--bin"),
        ({"pixel_size": -1}, "--pixel-size"),
        ({"pixel_size": float("nan")}, "--pixel-size: must be a finite number"),
        ({"exclude_frames": "3,x"}, "--exclude-frames: must be numbers"),
        ({"exclude_frames": "-3"}, "--exclude-frames"),
        ({"exclude_frames": "0:99999999999"}, "--exclude-frames"),
        ({"stripes": "some"}, "--stripes"),
        ({"nonnegative": True, "algorithm": "cgls"}, "--nonnegative"),
        ({"colour": 1}, "unknown setting 'colour'"),
        ({"scan": None}, "--scan: must be the name of a file; got None"),
        ({"scan": 5}, "--scan: must be the name of a file; got 5"),
        ({"iterations": "x" * 10_000}, "--iterations: must be a whole number; got 'x{58}…$"),
        ({"iterations": 2.5}, "--iterations: must be a whole number; got 2.5"),
        ({"center": [1, 2]}, "--center: must be auto or a column such as 511.5; got"),
        ({"pixel_size": "wide"}, "--pixel-size: must be a number; got 'wide'"),
        ({"pixel_size": 0}, "--pixel-size: must be greater than 0; got 0"),
        ({"normalized": "perhaps"}, "--normalized: must be true or false; got 'perhaps'"),
        ({"dataset": 3}, "--dataset: must be text; got 3"),
        ({"exclude_frames": 7}, "--exclude-frames: must be numbers and spans such as 3,17,40:44; got 7"),
        ({"exclude_frames": [-1]}, "--exclude-frames: must be 0 or more; got -1"),
        ({"fold": "maybe"}, "--fold: must be 'auto', 'yes' or 'no'; got 'maybe'"),
        ({"y" * 10_000: 1}, "unknown setting 'y{58}…; known are"),
    ],
)
def test_bad_values_are_one_sentence(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words) as caught:
        _settings(**changes)
    assert "\n" not in str(caught.value)
    assert "pydantic" not in str(caught.value)
    assert "<class" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"- 1", "must hold names and values"),
        (b"", "must hold names and values"),
        (b"1: 2", "must hold names and values"),
        (b"{", "not valid YAML"),
        (b"\xff\xfe\x00", "not text"),
        (b"!!python/object/apply:os.system ['true']", "not valid YAML"),
        (b"settings: {scan: a, output: b, colour: 1}", "unknown setting 'colour'"),
        (b"scan: a", "no output given"),
        (b"[" * 5000, "not valid YAML"),
    ],
)
def test_bad_files_are_one_sentence(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "run.yaml"
    path.write_bytes(content)
    with pytest.raises(UserError, match=words):
        ReconSettings.read(path)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot read the settings file"):
        ReconSettings.read(tmp_path / "none.yaml")


def test_where_it_runs_does_not_decide_the_result() -> None:
    one, other = _settings(workers=1, memory="1GB", slab=16), _settings(workers=3, output="elsewhere.mrc")
    assert one.that_decide_the_result() == other.that_decide_the_result()
    assert one.that_decide_the_result() != _settings(bin=2).that_decide_the_result()


def test_options_of_engines_may_be_written_with_an_exponent() -> None:
    from dtomo.settings.ptycho import parse_options

    assert parse_options(["damping=1e-3", "rates={volume: 2e-1}", "first=adam"]) == {
        "damping": 0.001,
        "rates": {"volume": 0.2},
        "first": "adam",
    }
