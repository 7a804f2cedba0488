"""``dtomo ptychotomo`` from the command line: results whole or not at all, resumed, refused in one sentence."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from dtomo.errors import UserError
from dtomo.io import open_volume
from dtomo.simulate.ptychotomo import simulate_ptychotomo
from tests.cli.conftest import Command

FEW = ("--epochs", "3", "--workers", "1", "--no-pictures", "--no-report")


def dtomo(*words: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "dtomo", *map(str, words)], capture_output=True, text=True, timeout=120
    )


@pytest.fixture(scope="module")
def scan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("joint") / "scan.h5"
    simulate_ptychotomo(path, 32, angles=8, frame=16, step=5)
    return path


def bits(output: Path) -> dict[str, bytes]:
    found = {name: np.asarray(open_volume(output / f"{name}.zarr").array).tobytes() for name in ("delta", "beta")}
    return found | {"probe": np.asarray(zarr.open_group(output)["probe"]).tobytes()}


def test_a_run_with_everything(scan: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.zarr"
    done = dtomo("ptychotomo", scan, out, "--epochs", "4", "--halves", "--workers", "1", "--refine", "probe,shifts")
    assert done.returncode == 0, done.stderr
    volume = open_volume(out / "delta.zarr")
    assert volume.shape == (32, 32, 32)
    assert volume.isotropic_voxel_size() == pytest.approx(0.01)
    assert float(np.asarray(volume.array).min()) >= 0
    group = zarr.open_group(out)
    assert group["shifts"].shape == (8, 2)
    assert group["loss_history"].shape == (4,)
    assert group["fsc"].shape[0] == 3
    assert not (out / ".dtomo").exists()
    summary = json.loads((tmp_path / "out.zarr.summary.json").read_text())
    assert summary["losses"][-1] < summary["losses"][0]
    page = (tmp_path / "out.zarr.report.html").read_text("utf-8")
    assert all(words in page for words in ("δ", "Correlation of two halves", "shifts of the images", "Convergence"))
    assert {item.name for item in (tmp_path / "out.zarr.pictures").iterdir()} == {
        "overview.png",
        "delta.png",
        "beta.png",
    }
    again = dtomo("ptychotomo", scan, out)
    assert again.returncode == 2
    assert "exists" in again.stderr
    follow = dtomo("ptychotomo", scan, tmp_path / "more.zarr", "--start", out, *FEW)
    assert follow.returncode == 0, follow.stderr
    first = json.loads((tmp_path / "more.zarr.summary.json").read_text())["losses"][0]
    assert first < summary["losses"][0] / 2


@pytest.mark.slow
def test_workers_and_slabs_leave_the_bits_alone(scan: Path, tmp_path: Path) -> None:
    asked = ("--slab-rows", "16", "--epochs", "2", "--no-pictures", "--quiet")
    for name, workers in (("one", 1), ("two", 2)):
        done = dtomo("ptychotomo", scan, tmp_path / f"{name}.zarr", *asked, "--workers", workers)
        assert done.returncode == 0, done.stderr
    assert bits(tmp_path / "one.zarr") == bits(tmp_path / "two.zarr")


@pytest.mark.parametrize("more", [pytest.param((), marks=pytest.mark.slow), ("--coarse", "2", "--coarse-epochs", "10")])
@pytest.mark.slow
def test_a_killed_run_is_resumed_with_the_same_bits(scan: Path, tmp_path: Path, more: tuple[str, ...]) -> None:
    asked = ("--epochs", "40", "--checkpoint-every", "1it", "--workers", "1", "--no-pictures", *more)
    whole = dtomo("ptychotomo", scan, tmp_path / "whole.zarr", *asked)
    assert whole.returncode == 0, whole.stderr
    out = tmp_path / "out.zarr"
    words = [sys.executable, "-m", "dtomo", "ptychotomo", str(scan), str(out), *asked]
    process = subprocess.Popen(words, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not list(out.glob(".dtomo/checkpoints-0-0/epoch-*/common")):
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert (out / ".dtomo").exists()
    refused = dtomo("ptychotomo", scan, out, *asked)
    assert refused.returncode == 2
    assert "--resume" in refused.stderr
    resumed = dtomo("ptychotomo", scan, out, *asked, "--resume")
    assert resumed.returncode == 0, resumed.stderr
    assert bits(out) == bits(tmp_path / "whole.zarr")


def test_a_disk_that_is_too_small_is_refused_before_anything_is_written(
    scan: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dtomo.ptychotomo.job import run
    from dtomo.settings import JointSettings

    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=500_000))
    with pytest.raises(UserError, match=r"free some space"):
        run(JointSettings(scan=scan, output=tmp_path / "out.zarr", workers=1, epochs=1), quiet=True)
    assert not list(tmp_path.iterdir())
    none = JointSettings(scan=scan, output=tmp_path / "out.zarr", workers=1, epochs=1, checkpoint_every="never")
    assert run(none, quiet=True).summary["epochs"] == 1


def test_a_plan_touches_nothing(here: Command, scan: Path, tmp_path: Path) -> None:
    done = here("ptychotomo", scan, tmp_path / "out.zarr", "--plan", "--workers", "2")
    assert done.returncode == 0, done.stderr
    for word in ("volume: 32 × 32 × 32", "slabs: 2 of 16 rows", "memory per worker", "between workers"):
        assert word in done.stdout
    assert not (tmp_path / "out.zarr").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("out.h5",), "ends with .zarr"),
        (("out.zarr", "--engine", "sirt"), "--engine"),
        (("out.zarr", "--epochs", "0"), "--epochs"),
        (("out.zarr", "--refine", "object"), "--refine"),
        (("out.zarr", "--engine", "cg", "--subsets", "3"), "--subsets"),
        (("out.zarr", "--engine", "cg", "--refine", "shifts"), "adam"),
        (("out.zarr", "--option", "speed=3"), "no option speed"),
        (("out.zarr", "--option", "damping=nan"), "damping"),
        (("out.zarr", "--center", "32"), "outside of images of 32 columns"),
        (("out.zarr", "--coarse", "2,4"), "coarsest first"),
        (("out.zarr", "--coarse", "9"), "smaller factor"),
        (("out.zarr", "--slab-rows", "3"), "at least as high"),
        (("out.zarr", "--slab-rows", "few"), "--slab-rows"),
        (("out.zarr", "--start", "nothing.zarr"), "--start"),
        (("out.zarr", "--probe", "gone.npy"), "gone.npy"),
        (("out.zarr", "--support", "nan"), "--support"),
        (("out.zarr", "--subsets", "9"), "from 1 to 8 subsets"),
        (("out.zarr", "--cluster", "cuda"), "--cluster cuda"),
    ],
)
def test_wrong_requests_are_one_sentence(
    here: Command, scan: Path, tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    done = here("ptychotomo", scan, tmp_path / words[0], *words[1:], "--workers", "1", "--quiet")
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / words[0]).exists()


def test_info_of_scans_and_results(here: Command, scan: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.zarr"
    assert here("ptychotomo", scan, out, *FEW).returncode == 0
    done = here("info", scan, out)
    assert done.returncode == 0, done.stderr
    for part in (
        "86 × 16 × 16",
        "32 × 32 × 32 voxels",
        "9 to 16",
        "10 nm",
        "(z, y, x) float32 in beta.zarr",
        "1 × 16 × 16",
    ):
        assert part in done.stdout
    assert "delta.zarr" in here("convert", out, tmp_path / "out.mrc").stderr
    (out / ".dtomo").mkdir()
    for words in (("info", out), ("ptychotomo", scan, tmp_path / "next.zarr", "--start", out)):
        refused = here(*words)
        assert refused.returncode == 2
        assert "is unfinished" in refused.stderr
        assert "Traceback" not in refused.stderr
