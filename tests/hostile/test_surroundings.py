"""Names that are unusual, folders that refuse, disks that are full, commands that are interrupted."""

import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from dtomo.cli import main
from dtomo.io import open_volume
from dtomo.io.volumes import store_volume

ROOT = Path(__file__).parents[2]
WRITING = [
    *("simulate scan OUT.h5 --size 32 --rows 8 --angles 40", "simulate ptycho OUT.h5", "simulate particles OUT"),
    "simulate scan OUT.zarr --complex --size 32 --rows 8 --angles 40",
    *(f"convert in.mrc OUT{suffix}" for suffix in (".zarr", ".mrc", ".tif", ".em")),
    *("subtomo convert list.star OUT.tbl", "subtomo fsc in.mrc in.mrc --output OUT.txt --pixel-size 1"),
]
"""Commands that write without a cluster."""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    volume = np.random.default_rng(0).normal(size=(32, 32, 32)).astype(np.float32)
    store_volume(volume, tmp_path / "in.mrc", voxel_size_um=1e-3)
    columns = "".join(f"_rlnCoordinate{axis} #{n}\n" for n, axis in enumerate("XYZ", 1))
    (tmp_path / "list.star").write_text(f"data_particles\n\nloop_\n{columns}" + "16 16 16\n" * 2000)
    return tmp_path


@pytest.fixture
def disk(here: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A disk of its own, mounted as the test asks."""
    folder = here / "disk"
    folder.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", request.param, "tmpfs", folder], capture_output=True)
    if done.returncode:
        pytest.skip("mounting a small disk needs privileges that are not there")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


def _run(command: str, capfd: pytest.CaptureFixture[str]) -> tuple[int, str]:
    capfd.readouterr()
    code = main(command.split())
    said = capfd.readouterr().err
    assert "Traceback" not in said
    assert code == 0 or len([line for line in said.splitlines() if line.startswith("dtomo: ")]) == 1
    return code, said


@pytest.mark.parametrize("disk", ["ro,size=1m"], indirect=True)
def test_folders_that_refuse(disk, capfd):
    for command in WRITING:
        code, said = _run(command.replace("OUT", "disk/out"), capfd)
        assert code == 2, command
        assert "Read-only" in said


@pytest.mark.parametrize("disk", ["size=8k"], indirect=True)
def test_disks_that_are_full(disk, capfd):
    for command in WRITING[:-1]:
        code, said = _run(command.replace("OUT", "disk/out"), capfd)
        assert code == 2, command
        assert "full" in said or "free" in said
        assert list(disk.iterdir()) == [], command


def test_disks_that_fill_up_while_hdf5_is_written(here, capfd, monkeypatch):
    monkeypatch.setattr("dtomo.io.output._check_space", lambda *known: None)
    folder = here / "disk"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", folder], capture_output=True).returncode:
        pytest.skip("mounting a small disk needs privileges that are not there")
    try:
        for command in (WRITING[0], "convert in.mrc OUT.mrc"):
            code, said = _run(command.replace("OUT", "disk/out"), capfd)
            assert code == (3 if "convert" in command else 2)
            assert "the disk is full" in said
            assert "--resume" not in said
            assert not [item for item in folder.iterdir() if item.suffix in (".h5", ".mrc")]
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def test_files_that_may_not_grow(here, capfd):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    codes = {}
    for number, command in enumerate(WRITING[:-1]):
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))
        try:
            codes[command], said = _run(command.replace("OUT", f"out{number}"), capfd)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert "ulimit -f" in said
    assert codes.pop("convert in.mrc OUT.zarr") == 3
    assert set(codes.values()) == {2}
    assert not list(here.glob("out*.[hmte]*"))
    with pytest.raises(ValueError, match="unfinished"):
        open_volume(next(here.glob("out*.zarr/0")).parent)


@pytest.mark.parametrize("name", ["with space", "é 漢字", "quo'te\"", "-dash", "[1:2]", "new\nline", "a;b&c", "%s{0}"])
def test_names(here, name, capfd):
    shutil.copy("in.mrc", f"{name}.mrc")
    for source, target in ((f"{name}.mrc", f"{name}.zarr"), (f"{name}.zarr", f"{name}.tif")):
        assert main(["convert", f"./{source}", f"./{target}"]) == 0, capfd.readouterr().err
    assert main(["info", f"./{name}.zarr", f"./{name}.tif"]) == 0
    assert f"{name}.zarr" in capfd.readouterr().out


def test_a_name_that_is_no_text_is_refused(here, capfd):
    code, said = _run(f"convert in.mrc {os.fsdecode(bytes([255, 254]))}.zarr", capfd)
    assert code == 2
    assert "not UTF-8" in said
    assert sorted(item.name for item in here.iterdir()) == ["in.mrc", "list.star"]


def test_a_terminal_without_signs_ends_nothing(here):
    line = [sys.executable, "-m", "dtomo", "info", "in.mrc"]
    done = subprocess.run(line, env=_environment() | {"PYTHONIOENCODING": "ascii"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "\\xd7" in done.stdout


def _environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(ROOT)}


@pytest.mark.parametrize("when", [0.0, 0.4, pytest.param(0.8, marks=pytest.mark.slow), "writing"])
def test_an_interrupted_command_says_so_and_leaves_nothing_that_looks_whole(here, when):
    store_volume(np.zeros((256, 256, 256), np.float32), here / "large.mrc")
    line = [sys.executable, "-m", "dtomo", "convert", "large.mrc", "out.mrc"]
    process = subprocess.Popen(line, env=_environment(), stderr=subprocess.PIPE, text=True, start_new_session=True)
    end = time.monotonic() + (60 if when == "writing" else float(when))
    while time.monotonic() < end and not (when == "writing" and (here / "out.mrc.dtomo" / "volume.part").exists()):
        time.sleep(0.002)
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=60)[1]
    finished = process.returncode == 0
    assert finished or process.returncode in (130, -signal.SIGINT), said
    assert finished == (here / "out.mrc").exists()
    if when == "writing":
        assert "Traceback" not in said
    if finished:
        assert open_volume("out.mrc").shape == (256, 256, 256)


def test_two_commands_at_once_into_one_output(here):
    line = [sys.executable, "-m", "dtomo", "convert", "in.mrc", "out.zarr", "--overwrite"]
    both = [subprocess.Popen(line, env=_environment(), stderr=subprocess.PIPE, text=True) for _ in range(2)]
    told = [process.communicate(timeout=60)[1] for process in both]
    assert "Traceback" not in "".join(told)
    codes = [process.returncode for process in both]
    assert 0 in codes
    assert set(codes) <= {0, 2}
    np.testing.assert_array_equal(open_volume("out.zarr").source.read(), open_volume("in.mrc").source.read())
