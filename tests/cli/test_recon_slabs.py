"""`dtomo recon` by iterative algorithms of scans that hold their geometry: slabs that exchange rows of projections."""

import json
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from dtomo import open as open_scan
from dtomo import recon
from dtomo.errors import StoppedError
from dtomo.io import create_volume, open_volume
from dtomo.recon.prepare import line_integrals
from dtomo.settings import ReconSettings
from dtomo.simulate import simulate_geometry_scan
from tests.cli.interrupted import ctrl_c_at

CLEAN = {"rings": False, "dead_pixels": 0.0, "zingers": 0.0}


@pytest.fixture(scope="module")
def cone(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return simulate_geometry_scan(
        tmp_path_factory.mktemp("scans") / "cone.h5", "cone", size=24, angles=30, photons=1e6, **CLEAN
    )


def data_of(path: Path) -> tuple[Any, Any]:
    """Line integrals and geometry of a scan."""
    scan = open_scan(path)
    settings = ReconSettings(scan=path, output="o.zarr")
    return line_integrals(scan, settings, slice(0, scan.shape[1]))[0], scan.geometry


def volume_of(path: Path) -> Any:
    return np.asarray(open_volume(path).array)


def close(found: Any, expected: Any, part: float = 1e-5) -> bool:
    return bool(np.abs(found - expected).max() <= part * np.abs(expected).max())


@pytest.mark.slow
def test_algorithms_in_slabs(here: Any, cluster: str, cone: Any, tmp_path: Path) -> None:
    data, geometry = data_of(cone.path)
    spacing = (1 / geometry.voxel[0],) * 3
    for words, solver, options in (
        (("sirt", "--iterations", 4, "--nonnegative", "--slab", 8), "sirt", {"iterations": 4, "lower": 0.0}),
        (("cgls", "--iterations", 4, "--slab", 12), "cgls", {"iterations": 4}),
        (
            ("tv", "--iterations", 5, "--strength", 0.02, "--upper", 5, "--slab", 10),
            "tv",
            {"iterations": 5, "strength": 0.02, "spacing": spacing, "upper": 0.5},
        ),
    ):
        done = here("recon", cone.path, "out.zarr", "--algorithm", *words, "--cluster", cluster, "--overwrite")
        assert done.returncode == 0, done.stderr
        assert "iterations done" in done.stderr
        whole = getattr(recon, solver)(data, geometry, **options) * np.float32(10)
        assert close(volume_of(tmp_path / "out.zarr"), whole)
    summary = json.loads((tmp_path / "out.zarr.summary.json").read_text())
    assert [slab["start"] for slab in summary["slabs"]] == [0, 10, 20]
    assert len({slab["residual"] for slab in summary["slabs"]}) == 1
    assert summary["slabs"][0]["residual"] < 1


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param("laminography", marks=pytest.mark.slow),
        "helix",
        pytest.param("tilt-series", marks=pytest.mark.slow),
    ],
)
def test_other_geometries_and_starts(here: Any, cluster: str, tmp_path: Path, kind: str) -> None:
    scan = simulate_geometry_scan(tmp_path / "scan.h5", kind, size=16, angles=24, photons=1e6, **CLEAN)
    data, geometry = data_of(scan.path)
    start = {} if kind == "helix" else {"initial": recon.fdk(data, geometry)}
    more = ("--start", "fbp") if start else ()
    words = ("--algorithm", "os-sart", "--iterations", 2, "--subsets", 4, "--slab", 6, "--mask", "circle", *more)
    done = here("recon", scan.path, "out.zarr", *words, "--cluster", cluster)
    assert done.returncode == 0, done.stderr
    y, x = np.ogrid[:16, :16]
    mask = ((y - 7.5) ** 2 + (x - 7.5) ** 2 <= 64)[None]
    whole = recon.os_sart(data, geometry, iterations=2, subsets=4, mask=mask, **start)
    assert close(volume_of(tmp_path / "out.zarr"), whole * np.float32(10), 2e-5)


@pytest.mark.slow
def test_a_killed_worker_costs_iterations_and_no_bit(cone: Any, tmp_path: Path) -> None:
    """Killed by the kernel, in a run that keeps its state every few iterations."""
    settings = ReconSettings(
        scan=cone.path, output=tmp_path / "a.zarr", algorithm="sirt", iterations=60, slab=12, workers=2,
        memory="1GB", checkpoint_every="5it",
    )  # fmt: skip
    killed: list[int] = []
    before = _workers()

    def kill() -> None:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and not killed:
            if any(tmp_path.rglob("checkpoints-*/iteration-*")):
                victim = sorted(_workers() - before)[-1]
                killed.append(victim)
                os.kill(victim, signal.SIGKILL)
            time.sleep(0.02)

    killer = threading.Thread(target=kill)
    killer.start()
    done = recon.run(settings, quiet=True)
    killer.join()
    assert killed
    assert not list(tmp_path.rglob("checkpoints-*"))
    assert {slab["resumed"] for slab in done.summary["slabs"]} != {0}
    undisturbed = settings.model_copy(update={"output": tmp_path / "b.zarr", "workers": 1, "checkpoint_every": "never"})
    recon.run(undisturbed, quiet=True)
    assert np.array_equal(volume_of(settings.output), volume_of(undisturbed.output))


def _workers() -> set[int]:
    """Processes forked from the server of this one."""
    servers = [child for child in psutil.Process().children() if "forkserver" in " ".join(child.cmdline())]
    return {worker.pid for server in servers for worker in server.children()}


def test_an_interrupted_run_goes_on_from_its_states(cluster: str, cone: Any, tmp_path: Path) -> None:
    settings = ReconSettings(
        scan=cone.path, output=tmp_path / "a.zarr", algorithm="cgls", iterations=12, slab=12, cluster=cluster,
        checkpoint_every="2it",
    )  # fmt: skip

    with pytest.raises(StoppedError, match="resume"), ctrl_c_at(7):
        recon.run(settings, quiet=True)
    assert not list(tmp_path.glob("*.summary.json"))
    done = recon.run(settings, resume=True, quiet=True)
    assert all(slab["resumed"] >= 4 for slab in done.summary["slabs"])
    whole = settings.model_copy(update={"output": tmp_path / "b.zarr"})
    recon.run(whole, quiet=True)
    assert np.array_equal(volume_of(settings.output), volume_of(whole.output))


def test_plan_and_refusals(here: Any, cone: Any, tmp_path: Path) -> None:
    done = here("recon", cone.path, "out.zarr", "--algorithm", "tv", "--strength", 0.1, "--plan", "--workers", 2)
    assert done.returncode == 0, done.stderr
    assert "exchanged" in done.stdout
    flat = create_volume(tmp_path / "flat.mrc", (1, 20, 24), np.dtype(np.float32))
    flat.write_slab(0, np.ones((1, 20, 24), np.float32))
    flat.finish()
    for words, sentence in (
        (("fista", "--prior", "nuclear", "--strength", 1), "joins all slices"),
        (("sirt", "--start", "coarse"), "--start coarse is for a parallel beam"),
        (("mlem",), "is for emission"),
        (("sirt", "--center", 8), "--center belongs to a parallel beam"),
        (("sirt", "--mask", "flat.mrc"), "24 × 24 × 24 (z, y, x)"),
    ):
        done = here("recon", cone.path, "out.zarr", "--algorithm", *words)
        assert done.returncode == 2, words
        assert sentence in done.stderr
    assert not (tmp_path / "out.zarr").exists()


def test_memory_is_what_is_planned(cone: Any, tmp_path: Path) -> None:
    scan = simulate_geometry_scan(tmp_path / "scan.h5", "cone", size=80, angles=40, photons=1e6, **CLEAN)
    settings = ReconSettings(
        scan=scan.path, output=tmp_path / "a.zarr", algorithm="sirt", iterations=2, slab=32, workers=1
    )
    done = recon.run(settings, quiet=True)
    (peak,) = done.summary["peak_memory"].values()
    assert peak <= 1.05 * done.plan.worker_memory
