"""``dtomo subtomo`` from the command line: results whole or not at all, resumed, refused in one sentence."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import mrcfile
import numpy as np
import pytest
import zarr

from dtomo.io import open_volume
from dtomo.io.particles import Particles, read_particles, write_particles
from tests.cli.conftest import Command
from tests.subtomo.scenes import PIXEL, SIZE, Scene, lump, scene

DIAMETER = ("--particle-diameter", str(PIXEL * SIZE * 0.7))
FEW = (*DIAMETER, "--iterations", "2", "--angle-shells", "1", "--workers", "1")


def dtomo(*words: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "dtomo", "subtomo", *map(str, words)], capture_output=True, text=True, timeout=120
    )


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    return scene(tmp_path_factory.mktemp("cli") / "particles", 12, snr=1.0, off=(4.0, 1.0))


def bits(output: Path) -> dict[str, bytes]:
    """All voxels and poses."""
    found = {path.name: open_volume(path).source.read(slice(None)).tobytes() for path in output.glob("*.mrc")}
    with np.load(sorted(output.glob("iteration-*"))[-1] / "poses.npz") as file:
        return found | {name: file[name].tobytes() for name in file.files}


def test_a_run_and_what_it_leaves(given: Scene, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = dtomo("align", given.path, out, *FEW)
    assert done.returncode == 0, done.stderr
    assert "iteration 2:" in done.stderr
    names = {path.name for path in out.iterdir()}
    assert {"average.mrc", "half-1.mrc", "half-2.mrc", "fsc.txt", "particles.xml", "iteration-001"} <= names
    assert open_volume(out / "average.mrc").voxel_size_um == pytest.approx([PIXEL * 1e-4] * 3)
    refined = read_particles(out / "particles.xml")
    assert refined.files == given.particles.files
    assert np.isfinite(refined.scores).all()
    assert sorted(refined.halves.tolist()) == [1] * 6 + [2] * 6
    summary = json.loads((out / "iteration-002" / "summary.json").read_text())
    assert summary["classes"][0]["particles"] == [6, 6]
    assert (tmp_path / "out.pictures" / "overview.png").stat().st_size > 1000
    page = (tmp_path / "out.report.html").read_text("utf-8")
    assert all(words in page for words in ("FSC of the two halves", "Average", "Score, median", "Convergence"))
    assert dtomo("align", given.path, out, *FEW).returncode == 2
    again = dtomo("align", given.path, out, *FEW, "--overwrite", "--no-pictures", "--quiet")
    assert again.returncode == 0, again.stderr
    assert again.stderr == ""


def test_a_killed_run_is_resumed_with_the_same_bits(given: Scene, tmp_path: Path) -> None:
    asked = (*FEW, "--iterations", "6", "--no-settle", "--no-pictures", "--no-report")
    whole = dtomo("align", given.path, tmp_path / "whole", *asked)
    assert whole.returncode == 0, whole.stderr
    out = tmp_path / "out"
    words = [sys.executable, "-m", "dtomo", "subtomo", "align", str(given.path), str(out), *asked]
    process = subprocess.Popen(words, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not (out / "iteration-002" / "summary.json").exists():
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert not (out / "average.mrc").exists()
    refused = dtomo("align", given.path, out, *asked)
    assert refused.returncode == 2
    assert "--resume" in refused.stderr
    resumed = dtomo("align", given.path, out, *asked, "--resume")
    assert resumed.returncode == 0, resumed.stderr
    assert bits(out) == bits(tmp_path / "whole")


def test_average_and_fsc(here: Command, given: Scene, tmp_path: Path) -> None:
    done = here("subtomo", "average", given.path, tmp_path / "out", *DIAMETER, "--workers", "1")
    assert done.returncode == 0, done.stderr
    halves = [tmp_path / "out" / f"half-{half}.mrc" for half in (1, 2)]
    said = here("subtomo", "fsc", *halves, "--output", tmp_path / "fsc.txt")
    assert said.returncode == 0, said.stderr
    assert "resolution:" in said.stdout
    assert (tmp_path / "fsc.txt").read_text().startswith("# radius frequency unmasked")
    assert here("subtomo", "fsc", *halves, "--output", tmp_path / "fsc.txt").returncode == 2


@pytest.mark.slow
def test_boxes_cut_from_a_tomogram_and_where_they_lie_give_the_same(tmp_path: Path) -> None:
    """Also beside the border: those that leave the tomogram are skipped and listed."""
    volume = np.random.default_rng(0).normal(0, 0.1, (40, 50, 60)).astype(np.float32)
    corners = [(4, 6, 8), (14, 20, 30), (10, 2, 33), (15, 25, 3)]
    for z, y, x in corners:
        volume[z : z + SIZE, y : y + SIZE, x : x + SIZE] += lump()
    with mrcfile.new(tmp_path / "tomogram.mrc", volume) as file:
        file.voxel_size = PIXEL
    places = np.array([(x + SIZE / 2 + 0.25, y + SIZE / 2, z + SIZE / 2) for z, y, x in corners] + [(3.0, 20, 20)])
    listed = Particles(np.tile(np.eye(3), (5, 1, 1)), np.zeros((5, 3)), positions=places, tomograms=["t"] * 5)
    write_particles(tmp_path / "picked.xml", listed)
    options = ("--tomograms", tmp_path / "tomogram.mrc", "--box", SIZE)
    done = dtomo("extract", tmp_path / "picked.xml", tmp_path / "boxes.zarr", *options)
    assert done.returncode == 0, done.stderr
    assert "1 of 5 boxes leave their tomogram" in done.stderr
    store = zarr.open_array(tmp_path / "boxes.zarr")
    for number, (z, y, x) in enumerate(corners):
        assert np.array_equal(store[number], volume[z : z + SIZE, y : y + SIZE, x : x + SIZE])
    cut = read_particles(tmp_path / "boxes.xml")
    assert cut.shifts[:, 0].tolist() == [0.25] * 4
    first = dtomo(
        "average", tmp_path / "boxes.xml", tmp_path / "a", *DIAMETER, "--pixel-size", PIXEL, "--halves", "parity"
    )
    assert first.returncode == 0, first.stderr
    second = dtomo("average", tmp_path / "picked.xml", tmp_path / "b", *DIAMETER, *options, "--halves", "parity")
    assert second.returncode == 0, second.stderr
    assert "left out" in second.stderr
    one, two = (open_volume(tmp_path / name / "average.mrc").source.read(slice(None)) for name in "ab")
    assert np.array_equal(one, two)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("out.mrc",), "without .mrc"),
        (("out", "--particle-diameter", "1e6"), "--particle-diameter"),
        (("out", "--symmetry", "Q7"), "Q7"),
        (("out", "--mask", "nothing.mrc"), "nothing.mrc"),
        (("out", "--reference", "nothing.mrc"), "nothing.mrc"),
        (("out", "--iterations", "0"), "--iterations"),
        (("out", "--binning", "9"), "--binning"),
        (("out", "--tilts", "60"), "--tilts"),
        (("out", "--box", "9"), "--tomograms"),
        (("out", "--global-iterations", "30"), "--global-iterations"),
        (("out", "--memory", "200MB"), "--memory"),
    ],
)
def test_wrong_requests_are_one_sentence(
    here: Command, given: Scene, tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    done = here("subtomo", "align", given.path, tmp_path / words[0], *DIAMETER, *words[1:])
    assert done.returncode == 2, done.stderr
    lines = [line for line in done.stderr.splitlines() if not line.startswith("note:")]
    assert len(lines) == 1
    assert said in lines[0]
    assert not (tmp_path / words[0]).exists()


def test_wrong_lists_are_one_sentence(here: Command, tmp_path: Path) -> None:
    for name, content in (
        ("none.xml", None),
        ("empty.xml", b""),
        ("half.xml", b"<ParticleList><Particle"),
        ("other.xml", b"<Other/>"),
        ("nothing.xml", b"<ParticleList/>"),
        ("lost.xml", b"<ParticleList>" + b'<Particle Filename="no.mrc"/>' * 6 + b"</ParticleList>"),
        ("evil.xml", b'<!DOCTYPE x [<!ENTITY a "b">]><ParticleList><Particle Filename="&a;"/></ParticleList>'),
    ):
        if content is not None:
            (tmp_path / name).write_bytes(content)
        done = here("subtomo", "align", tmp_path / name, tmp_path / "out", *DIAMETER)
        assert done.returncode == 2, (name, done.stderr)
        assert len(done.stderr.splitlines()) == 1, (name, done.stderr)
        assert name in done.stderr or "no.mrc" in done.stderr
        assert not (tmp_path / "out").exists()
