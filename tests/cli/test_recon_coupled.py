"""`dtomo recon --coupled` of a parallel beam: slabs on the workers, all at once, that exchange planes."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dtomo import open as open_scan
from dtomo import recon
from dtomo.algorithms import TotalVariation
from dtomo.errors import StoppedError
from dtomo.geometry import ParallelBeam
from dtomo.io import open_volume
from dtomo.recon.prepare import line_integrals
from dtomo.settings import ReconSettings
from dtomo.simulate import simulate_scan
from tests.cli.interrupted import ctrl_c_at

CENTER = 13.9
PER_CM = np.float32(5000)
"""Voxels of 2 µm in a centimetre."""


@pytest.fixture(scope="module")
def scan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("scans") / "scan.h5"
    simulate_scan(path, size=24, rows=28, angles=40, photons=1e5)
    return path


def volume_of(path: Path) -> Any:
    return np.asarray(open_volume(path).array)


def close(found: Any, expected: Any) -> bool:
    return bool(np.abs(found - expected).max() <= 1e-5 * np.abs(expected).max())


def whole_of(scan: Path, solver: str, **options: Any) -> Any:
    """The volume by arrays, all slices at once."""
    opened = open_scan(scan)
    settings = ReconSettings(scan=scan, output="o.zarr")
    data, _ = line_integrals(opened, settings, slice(0, opened.shape[1]))
    beam = ParallelBeam(opened.angles, data.shape[2], CENTER)
    if options.pop("start", None):
        options["initial"] = recon.fbp(data, beam)
    return getattr(recon, solver)(data, beam, **options) * PER_CM


@pytest.mark.parametrize(
    ("words", "solver", "options"),
    [
        (
            "tv --strength 0.02 --nonnegative --start fbp",
            "tv",
            {"strength": 0.02, "lower": 0.0, "spacing": (1.0, 1.0, 1.0), "start": True},
        ),
        pytest.param(
            "fista --prior tv --strength 0.02 --upper 50",
            "fista",
            {"prior": TotalVariation(0.02, (1.0,) * 3), "upper": 0.01},
            marks=pytest.mark.slow,
        ),
    ],
    ids=["tv", "fista"],
)
def test_slabs_are_the_whole(
    here: Any, cluster: str, scan: Path, tmp_path: Path, words: str, solver: str, options: Any
) -> None:
    whole = whole_of(scan, solver, iterations=6, **options)
    for slab, place in ((10, ("--cluster", cluster)), (7, ("--workers", 2))):
        asked = ("--algorithm", *words.split(), "--coupled", "--iterations", 6, "--slab", slab, "--center", CENTER)
        done = here("recon", scan, f"{slab}.zarr", *asked, *place)
        assert done.returncode == 0, done.stderr
        assert "6 of 6 iterations done" in done.stderr
        assert close(volume_of(tmp_path / f"{slab}.zarr"), whole)
    summary = json.loads((tmp_path / "10.zarr.summary.json").read_text())
    assert [part["start"] for part in summary["slabs"]] == [0, 10, 20]
    assert len({part["residual"] for part in summary["slabs"]}) == 1
    slicewise = whole_of(scan, "tv", strength=0.02, iterations=6, spacing=(1.0, 1.0))
    assert not close(whole, slicewise)


def test_interrupted_and_finished_by_another_number_of_workers(cluster: str, scan: Path, tmp_path: Path) -> None:
    settings = ReconSettings(
        scan=scan, output=tmp_path / "a.zarr", algorithm="tv", strength=0.02, coupled=True, iterations=12, slab=10,
        center=CENTER, cluster=cluster, checkpoint_every="2it",
    )  # fmt: skip

    with pytest.raises(StoppedError, match="resume"), ctrl_c_at(7):
        recon.run(settings, quiet=True)
    done = recon.run(settings.model_copy(update={"cluster": "local", "workers": 2}), resume=True, quiet=True)
    assert all(part["resumed"] >= 4 for part in done.summary["slabs"])
    whole = settings.model_copy(update={"output": tmp_path / "b.zarr"})
    recon.run(whole, quiet=True)
    assert np.array_equal(volume_of(settings.output), volume_of(whole.output))


def test_a_full_turn_with_the_axis_at_one_side(here: Any, cluster: str, tmp_path: Path) -> None:
    simulate_scan(
        tmp_path / "scan.h5", size=24, rows=6, columns=20, angles=60, photons=1e5, full_turn=True, center=16.0
    )
    asked = ("--algorithm", "tv", "--strength", 0.02, "--coupled", "--iterations", 4, "--center", 16, "--fold", "yes")
    for slab in (6, 3):
        done = here("recon", "scan.h5", f"{slab}.zarr", *asked, "--slab", slab, "--cluster", cluster)
        assert done.returncode == 0, done.stderr
    one, two = (volume_of(tmp_path / f"{slab}.zarr") for slab in (6, 3))
    assert one.shape[1] > 20
    assert close(two, one)


def test_memory_is_what_is_planned(tmp_path: Path) -> None:
    simulate_scan(tmp_path / "scan.h5", size=160, rows=64, angles=90, photons=1e5)
    settings = ReconSettings(
        scan=tmp_path / "scan.h5", output=tmp_path / "a.zarr", algorithm="tv", strength=0.02, coupled=True,
        iterations=3, slab=16, center=80.0, workers=1,
    )  # fmt: skip
    done = recon.run(settings, quiet=True)
    (peak,) = done.summary["peak_memory"].values()
    assert done.plan.worker_parts["other slabs"] > 0
    assert 0.6 * done.plan.worker_memory < peak <= 1.05 * done.plan.worker_memory, (peak, done.plan.worker_memory)
