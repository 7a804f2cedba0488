"""What `dtomo recon` must refuse: exit code 2, one clear sentence, nothing touched."""

import os
import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest


def _sentence(done) -> str:
    """The one line of the refusal."""
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    last = [line for line in done.stderr.splitlines() if line.startswith("dtomo: ")]
    assert len(last) == 1, done.stderr
    return last[0]


def _nothing_written(folder: Path) -> bool:
    return not [path for path in folder.iterdir() if path.name.startswith("out")]


def _copy(scan: Path, folder: Path) -> Path:
    return Path(shutil.copy(scan, folder / "broken.h5"))


def _no_angles(path: Path) -> None:
    with h5py.File(path, "r+") as file:
        del file["exchange/theta"]


def _one_angle_short(path: Path) -> None:
    with h5py.File(path, "r+") as file:
        angles = file["exchange/theta"][:-1]
        unit = dict(file["exchange/theta"].attrs)
        del file["exchange/theta"]
        file["exchange/theta"] = angles
        file["exchange/theta"].attrs.update(unit)


def _nan_angle(path: Path) -> None:
    with h5py.File(path, "r+") as file:
        file["exchange/theta"][3] = np.nan


def _zero_flats(path: Path) -> None:
    with h5py.File(path, "r+") as file:
        file["exchange/data_white"][...] = 0


def _flats_as_darks(path: Path) -> None:
    with h5py.File(path, "r+") as file:
        file["exchange/data_dark"][...] = file["exchange/data_white"][0]
        file["exchange/data_white"][...] = file["exchange/data_white"][0]


def _zero_projections(path: Path) -> None:
    with h5py.File(path, "r+") as file:
        file["exchange/data"][...] = 0


def _nan_projections(path: Path) -> None:
    with h5py.File(path, "r+") as file:
        shape = file["exchange/data"].shape
        del file["exchange/data"]
        file["exchange/data"] = np.full(shape, np.nan, np.float32)


def _no_flats(path: Path) -> None:
    with h5py.File(path, "r+") as file:
        del file["exchange/data_white"]


def _empty_dataset(path: Path) -> None:
    with h5py.File(path, "r+") as file:
        del file["exchange/data"]
        file["exchange/data"] = np.zeros((0, 64, 74), np.uint16)


def _no_dataset(path: Path) -> None:
    with h5py.File(path, "r+") as file:
        del file["exchange/data"]


def _empty_file(path: Path) -> None:
    path.write_bytes(b"")


def _not_hdf5(path: Path) -> None:
    path.write_bytes(os.urandom(5000))


def _truncated(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size // 2)


def _gone(path: Path) -> None:
    path.unlink()


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (_no_angles, "angles"),
        (_one_angle_short, "89"),
        (_nan_angle, "angle"),
        (_zero_flats, "flat"),
        (_no_flats, "flats"),
        (_empty_dataset, "/exchange/data"),
        (_no_dataset, "broken.h5"),
        (_empty_file, "broken.h5"),
        (_not_hdf5, "broken.h5"),
        (_truncated, "broken.h5"),
        (_gone, "broken.h5"),
    ],
)
def test_bad_scans(here, scan, tmp_path, spoil, words):
    broken = _copy(scan, tmp_path)
    spoil(broken)
    sentence = _sentence(here("recon", broken, "out.zarr", "--center", 38.5))
    assert words in sentence
    assert "broken.h5" in sentence
    assert _nothing_written(tmp_path)


@pytest.mark.parametrize("spoil", [_flats_as_darks, _zero_projections, _nan_projections])
@pytest.mark.parametrize("axis", [[], ["--center", 38.5]])
def test_scans_without_a_usable_value(here, scan, tmp_path, spoil, axis):
    broken = _copy(scan, tmp_path)
    spoil(broken)
    sentence = _sentence(here("recon", broken, "out.zarr", *axis))
    assert "broken.h5" in sentence
    assert "no usable value" in sentence or "as bright as" in sentence
    assert _nothing_written(tmp_path)


@pytest.mark.parametrize("which", ["mean", "first", "last"])
def test_no_axis_in_a_scan_without_an_object(here, scan, tmp_path, which):
    empty = _copy(scan, tmp_path)
    with h5py.File(empty, "r+") as file:
        flats = file["exchange/data_white"][:]
        chosen = {"mean": flats.mean(axis=0).round(), "first": flats[0], "last": flats[-1]}[which]
        file["exchange/data"][...] = chosen.astype(np.uint16)
    assert "--center" in _sentence(here("center", empty))


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["--rows", "60:70"], "rows"),
        (["--rows", "9:3"], "--rows"),
        (["--columns", "0:9000"], "columns"),
        (["--bin", "100"], "bin"),
        (["--bin", "0"], "--bin"),
        (["--center", "900"], "--center"),
        (["--center", "-4"], "--center"),
        (["--center", "left"], "--center"),
        (["--algorithm", "magic"], "--algorithm"),
        (["--filter", "magic"], "magic"),
        (["--iterations", "0"], "--iterations"),
        (["--exclude-frames", "90"], "--exclude-frames"),
        (["--exclude-frames", "0:90"], "--exclude-frames"),
        (["--angles", "none.txt"], "none.txt"),
        (["--flats", "none.tif"], "none.tif"),
        (["--delta-beta", "100"], "--distance"),
        (["--fold", "yes"], "--fold"),
        (["--memory", "lots"], "--memory"),
        (["--memory", "100MB"], "--memory"),
        (["--workers", "0"], "--workers"),
        (["--workers", "5000"], "or fewer"),
        (["--slab", "0"], "--slab"),
        (["--cluster", "none.yaml"], "none.yaml"),
        (["--config", "none.yaml"], "none.yaml"),
        (["--pixel-size", "-2"], "--pixel-size"),
        (["--pixel-size", "nan"], "--pixel-size"),
    ],
)
def test_bad_options(here, scan, tmp_path, words, part):
    options = words if "--center" in words else ["--center", "38.5", *words]
    assert part in _sentence(here("recon", scan, "out.zarr", *options))
    assert _nothing_written(tmp_path)


@pytest.mark.parametrize("command", ["recon", "center"])
def test_an_axis_that_cannot_be_found_is_asked_for(here, scan, tmp_path, command):
    """Noise without an object: no method can tell."""
    empty = _copy(scan, tmp_path)
    with h5py.File(empty, "r+") as file:
        rng = np.random.default_rng(0)
        shape = file["exchange/data"].shape
        file["exchange/data"][...] = rng.normal(10000, 300, shape).astype(np.uint16)
        file["exchange/data_white"][...] = 10000
        file["exchange/data_dark"][...] = 0
    done = here(command, empty, *(["out.zarr"] if command == "recon" else []))
    assert "--center" in _sentence(done)
    assert done.stdout == ""
    assert _nothing_written(tmp_path)


@pytest.mark.parametrize(
    ("output", "part"),
    [
        ("out.xyz", "out.xyz"),
        ("missing/out.zarr", "missing"),
        ("/proc/out.zarr", "out.zarr"),
        ("", "output"),
        ("out", "out"),
    ],
)
def test_outputs_that_cannot_be(here, scan, tmp_path, output, part):
    assert part in _sentence(here("recon", scan, output, "--center", 38.5))
    assert _nothing_written(tmp_path)


def test_output_that_exists_is_left_alone(here, scan, tmp_path):
    (tmp_path / "out.mrc").write_bytes(b"precious")
    sentence = _sentence(here("recon", scan, "out.mrc", "--center", 38.5))
    assert "--overwrite" in sentence
    assert (tmp_path / "out.mrc").read_bytes() == b"precious"
    sentence = _sentence(here("recon", scan, "out.mrc", "--center", 38.5, "--overwrite"))
    assert "did not write" in sentence
    assert (tmp_path / "out.mrc").read_bytes() == b"precious"


def test_a_folder_of_the_user_is_never_overwritten(here, scan, tmp_path):
    (tmp_path / "out.zarr").mkdir()
    (tmp_path / "out.zarr" / "thesis.txt").write_text("precious")
    assert "did not write" in _sentence(here("recon", scan, "out.zarr", "--center", 38.5, "--overwrite"))
    assert (tmp_path / "out.zarr" / "thesis.txt").read_text() == "precious"


def test_input_is_not_written_over(here, scan, tmp_path):
    copy = Path(shutil.copy(scan, tmp_path / "scan.mrc"))
    before = copy.read_bytes()
    assert "input" in _sentence(here("recon", copy, copy, "--center", 38.5, "--overwrite"))
    assert copy.read_bytes() == before


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_no_write_permission(here, scan, tmp_path):
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o500)
    assert "locked" in _sentence(here("recon", scan, locked / "out.zarr", "--center", 38.5))


def test_nothing_to_resume_in_a_finished_output(here, scan, tmp_path):
    words = ["recon", scan, "out.mrc", "--center", 38.5, "--rows", "0:4", "--quiet"]
    assert here(*words).returncode == 0
    before = (tmp_path / "out.mrc").read_bytes()
    assert "exists" in _sentence(here(*words, "--resume"))
    assert (tmp_path / "out.mrc").read_bytes() == before
