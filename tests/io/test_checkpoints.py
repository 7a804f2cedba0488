"""Checkpoints on a real disk: what goes in comes out, whole or not at all; damage, full disks, killed processes."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dtomo.errors import StoppedError, UserError
from dtomo.io import Checkpoints, Schedule
from dtomo.io import checkpoints as module
from tests import laws

ROOT = Path(__file__).resolve().parents[2]


def generations(folder: Path) -> list[Path]:
    return sorted(folder.glob("state-*"))


def state(value: float) -> dict:
    return {"solution": np.full((3, 4, 5), value, np.float32), "steps": np.int64(value)}


@pytest.mark.parametrize(
    "dtype", [np.float32, np.float64, np.complex64, np.complex128, np.int16, np.uint64, bool, ">f4", ">c16", np.float16]
)
def test_every_dtype_and_layout_comes_back_bit_for_bit(tmp_path, dtype):
    values = (100 * laws.draw((5, 6, 7), np.complex128)).astype(np.complex128)
    values = values.astype(dtype) if np.dtype(dtype).kind == "c" else values.real.astype(dtype)
    kept = {f"part{number}": same for number, (_, same) in enumerate(laws.layouts(values))}
    Checkpoints(tmp_path / "state").save(kept)
    found = Checkpoints(tmp_path / "state").load().state
    assert list(found) == list(kept)
    for name, array in kept.items():
        assert found[name].dtype == array.dtype.newbyteorder("=")
        assert np.array_equal(found[name], array), name
        assert found[name].flags.writeable


def test_layout_is_kept_and_memory_is_aligned(tmp_path):
    inside = np.moveaxis(np.arange(24, dtype=np.float32).reshape(2, 3, 4), -1, 0)
    Checkpoints(tmp_path).save({"volume": inside, "projections": np.swapaxes(inside, 0, 1)})
    found = Checkpoints(tmp_path).load().state
    assert found["volume"].strides == inside.strides
    assert found["projections"].strides == np.swapaxes(inside, 0, 1).strides
    assert all(array.ctypes.data % 64 == 0 for array in found.values())


def test_not_finite_negative_zero_and_denormal_values(tmp_path):
    odd = np.array([np.nan, np.inf, -np.inf, -0.0, 1e-45, 0], np.float32)
    Checkpoints(tmp_path).save({"odd": odd, "zeros": np.zeros((3, 3))})
    found = Checkpoints(tmp_path).load().state
    assert found["odd"].tobytes() == odd.tobytes()
    assert not found["zeros"].any()


def test_many_pieces(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "PIECE", 1000)
    values = laws.draw((33, 7, 11), np.complex64)
    path = Checkpoints(tmp_path).save({"values": values, "flat": values.ravel(), "nothing": values[:0]})
    assert len(list((path / "values" / "c").rglob("*"))) > 20
    found = Checkpoints(tmp_path).load().state
    assert np.array_equal(found["values"], values)
    assert np.array_equal(found["flat"], values.ravel())
    assert found["nothing"].shape == (0, 7, 11)


def test_numbers_history_and_info(tmp_path):
    info = {"reason": "time", "nested": {"values": [1, 2.5, None, True, "ü"]}, "large": 2**100}
    Checkpoints(tmp_path).save({"a": 0.1, "b": 3, "c": 2 + 1j, "d": np.float32(0.1), "e": np.bool_(True)}, info)
    found = Checkpoints(tmp_path).load()
    assert found.info == info
    assert found.state == {"a": 0.1, "b": 3, "c": 2 + 1j, "d": np.float32(0.1), "e": True}
    assert [type(found.state[name]) for name in "abcde"] == [float, int, complex, np.float32, np.bool_]


def test_numbers_of_python_stay_such(tmp_path):
    """NumPy's would change the dtype of arrays they multiply."""
    numbers = {"a": float("inf"), "b": -(2**70), "c": complex("-0-infj"), "d": False, "e": True, "f": 1 / 3, "g": -0.0}
    Checkpoints(tmp_path).save(numbers)
    found = Checkpoints(tmp_path).load().state
    assert {name: repr(value) for name, value in found.items()} == {n: repr(v) for n, v in numbers.items()}
    assert {name: type(value) for name, value in found.items()} == {n: type(v) for n, v in numbers.items()}


@pytest.mark.parametrize("kind", ["PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64"])
def test_random_generators_go_on(tmp_path, kind):
    rng = np.random.Generator(getattr(np.random, kind)(5))
    rng.standard_normal(7)
    rng.integers(10, dtype=np.int32)  # leaves half of a word for the next call
    Checkpoints(tmp_path).save({"rng": rng})
    again = Checkpoints(tmp_path).load().state["rng"]
    assert np.array_equal(again.integers(10, size=9, dtype=np.int32), rng.integers(10, size=9, dtype=np.int32))
    assert np.array_equal(again.standard_normal(1000), rng.standard_normal(1000))


def test_nothing_there_is_nothing(tmp_path):
    assert Checkpoints(tmp_path / "none").load() is None
    assert not (tmp_path / "none").exists()


def test_the_last_two_are_kept(tmp_path):
    for value in range(5):
        Checkpoints(tmp_path).save(state(value))
        assert len(generations(tmp_path)) == min(value + 1, 2)
    assert Checkpoints(tmp_path).load().state["steps"] == 4
    shutil.rmtree(generations(tmp_path)[-1])
    assert Checkpoints(tmp_path).load().state["steps"] == 3
    Checkpoints(tmp_path).remove()
    assert not tmp_path.exists()


def _flip(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 16
    path.write_bytes(raw)


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _random(path: Path) -> None:
    path.write_bytes(np.random.default_rng(1).bytes(path.stat().st_size))


@pytest.mark.parametrize("harm", [Path.unlink, _flip, _cut, _random, Path.touch, lambda p: p.write_bytes(b"")])
@pytest.mark.parametrize("which", ["solution/c/0/0/0", "steps/c", "checkpoint.json", "solution/zarr.json"])
def test_a_damaged_generation_is_passed_over_and_said(tmp_path, which, harm):
    for value in (1, 2):
        newest = Checkpoints(tmp_path).save(state(value))
    assert (newest / which).is_file()
    if harm is _flip and which == "solution/zarr.json":
        pytest.skip("white space may be flipped, which is no damage")
    harm(newest / which)
    store = Checkpoints(tmp_path)
    found = store.load()
    if harm is Path.touch:
        assert found.state["steps"] == 2
        return
    assert np.array_equal(found.state["solution"], state(1)["solution"])
    assert found.state["steps"] == 1
    assert len(store.notes) == 1
    assert str(newest) in store.notes[0]
    assert "damaged" in store.notes[0]
    # and goes on: the damaged one is not what is kept
    store.save(state(3))
    assert Checkpoints(tmp_path).load().state["steps"] == 3


def test_all_generations_damaged_is_a_new_beginning(tmp_path):
    for value in (1, 2):
        Checkpoints(tmp_path).save(state(value))
    for path in generations(tmp_path):
        _cut(path / "checkpoint.json")
    store = Checkpoints(tmp_path)
    assert store.load() is None
    assert len(store.notes) == 2


def test_a_manifest_that_asks_for_more_memory_than_the_disk_holds(tmp_path):
    path = Checkpoints(tmp_path).save(state(1)) / "checkpoint.json"
    content = module._read_manifest(path)
    content["arrays"]["solution"]["shape"] = [10**6, 10**6, 10**6]
    module._write_manifest(path, content)
    store = Checkpoints(tmp_path)
    assert store.load() is None
    assert "bytes are stated" in store.notes[0]


def test_strange_manifests_are_damage(tmp_path):
    path = Checkpoints(tmp_path).save(state(1)) / "checkpoint.json"
    good = json.loads(path.read_text())
    for content in ([], {}, 3, None, {"content": 3, "crc32": 0}, good | {"crc32": "x"}, good | {"content": "{}"}):
        path.write_text(json.dumps(content))
        store = Checkpoints(tmp_path)
        assert store.load() is None
        assert store.notes


def test_other_settings_are_refused_by_name(tmp_path):
    Checkpoints(tmp_path, made_with={"algorithm": "sirt", "iterations": 20, "rows": (0, 8)}).save(state(1))
    same = Checkpoints(tmp_path, made_with={"iterations": 20, "rows": [0, 8], "algorithm": "sirt"})
    assert same.load().state["steps"] == 1
    with pytest.raises(UserError, match=r"made with iterations 20 and not 30.*remove") as caught:
        Checkpoints(tmp_path, made_with={"algorithm": "sirt", "iterations": 30, "rows": [0, 8]}).load()
    assert "\n" not in str(caught.value)
    with pytest.raises(UserError, match="damping None and not 1"):
        Checkpoints(tmp_path, made_with={"algorithm": "sirt", "iterations": 20, "rows": [0, 8], "damping": 1}).load()


@pytest.mark.parametrize(
    ("parts", "info"),
    [
        ({"a": np.array(["text"])}, {}), ({"a": np.array([object()])}, {}), ({"a": None}, {}), ({"a/b": 1}, {}),
        ({"..": 1}, {}), ({"": 1}, {}), ({"zarr.json": 1}, {}), ({"a": np.longdouble(1)}, {}),
        ({"a": 1}, {"b": {1, 2}}),
    ],
)  # fmt: skip
def test_what_cannot_be_kept_is_refused_and_touches_nothing(tmp_path, parts, info):
    store = Checkpoints(tmp_path)
    store.save(state(1))
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(UserError):
        store.save(parts, info)
    assert sorted(path for path in tmp_path.rglob("*") if ".part-" not in str(path)) == before
    assert store.load().state["steps"] == 1


def test_a_killed_process_leaves_the_generation_before(tmp_path):
    """Killed at any moment, again and again: what is there is whole, and not older than the last one reported."""
    program = (
        "import numpy, sys; from dtomo.io import Checkpoints; store = Checkpoints(sys.argv[1])\n"
        "found = store.load(); assert not store.notes, store.notes\n"
        "at = int(found.state['at']) if found else 0\n"
        "if found: assert (found.state['array'] == at).all()\n"
        "while True:\n"
        "    at += 1; store.save({'array': numpy.full((64, 64, 64), at, 'f4'), 'at': at}); print(at, flush=True)\n"
    )
    rng = np.random.default_rng(3)
    last = 0
    for _ in range(5):
        process = subprocess.Popen(
            [sys.executable, "-c", program, tmp_path],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(rng.integers(1, 6)):
            line = process.stdout.readline()
            assert line, process.stderr.read()
            last = int(line)
        os.kill(process.pid, signal.SIGKILL)
        rest, _ = process.communicate()
        reported = [int(text) for text in rest.split()]
        last = max([last, *reported])
        store = Checkpoints(tmp_path)
        found = store.load()
        assert not store.notes
        assert found.state["at"] in (last, last + 1)
        assert (found.state["array"] == found.state["at"]).all()
        last = int(found.state["at"])
    Checkpoints(tmp_path).save({"at": 0})
    assert len(list(tmp_path.iterdir())) == 2  # what was cut off is cleared away


@pytest.fixture
def small_disk(tmp_path):
    folder = tmp_path / "disk"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", folder], capture_output=True).returncode:
        pytest.skip("mounting a small disk needs privileges that are not there")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


@pytest.mark.parametrize("known", [True, False])
def test_a_full_disk_keeps_what_is_there(small_disk, monkeypatch, known):
    """Seen beforehand, or only while writing: other processes may take the space meanwhile."""
    if not known:
        monkeypatch.setattr(Checkpoints, "_refuse_if_full", lambda self, needed: None)
    store = Checkpoints(small_disk / "state")
    store.save({"array": np.ones(300_000, np.float32), "at": 1})
    store.save({"array": np.ones(300_000, np.float32), "at": 2})
    with pytest.raises(StoppedError, match="no checkpoint could be written"):
        store.save({"array": np.ones(600_000, np.float32), "at": 3})
    assert [path.name for path in generations(small_disk / "state")] == ["state-0000000001", "state-0000000002"]
    assert not list((small_disk / "state").glob(".part-*"))
    found = Checkpoints(small_disk / "state").load()
    assert found.state["at"] == 2
    assert found.state["array"].all()
    assert store.save({"at": 4}).name == "state-0000000003"


def test_schedules():
    now = [100.0]
    schedule = Schedule(minutes=2, clock=lambda: now[0])
    assert not schedule.due(5)
    now[0] += 119
    assert not schedule.due(6)
    now[0] += 1
    assert schedule.due(7)
    schedule.tried()
    assert not schedule.due(8)
    by_number = Schedule(iterations=3)
    assert [n for n in range(1, 10) if by_number.due(n)] == [3, 6, 9]
    never = Schedule(clock=lambda: now[0])
    now[0] += 1e9
    assert not never.due(1)
    for wrong in ({"minutes": 0}, {"minutes": -1}, {"minutes": float("nan")}, {"iterations": 0}):
        with pytest.raises(UserError):
            Schedule(**wrong)
