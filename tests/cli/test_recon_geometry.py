"""`dtomo recon` of scans that hold their geometry."""

import json

import numpy as np
import pytest

from dtomo import open as open_scan
from dtomo import recon
from dtomo.distributed import queue
from dtomo.errors import StoppedError
from dtomo.io import open_volume
from dtomo.recon.prepare import line_integrals
from dtomo.settings import ReconSettings
from dtomo.simulate import simulate_geometry_scan

CLEAN = {"rings": False, "dead_pixels": 0.0, "zingers": 0.0}


@pytest.fixture(scope="module")
def cone(tmp_path_factory):
    return simulate_geometry_scan(
        tmp_path_factory.mktemp("scans") / "cone.h5", "cone", size=32, angles=60, photons=1e6, **CLEAN
    )


def test_slabs_of_any_height_make_the_same_volume(here, cluster, cone, tmp_path):
    for name, words in (("a.zarr", ("--algorithm", "fdk")), ("b.mrc", ("--slab", 7))):
        done = here("recon", cone.path, name, "--cluster", cluster, *words)
        assert done.returncode == 0, done.stderr
        assert "cone beam, 60 views" in done.stderr
    volume = open_volume(tmp_path / "a.zarr")
    found = np.asarray(volume.array)
    assert np.array_equal(found, np.asarray(open_volume(tmp_path / "b.mrc").array))
    assert volume.attributes["unit"] == "1/cm"
    np.testing.assert_allclose(volume.voxel_size_um, (2.0, 2.0, 2.0))
    scan = open_scan(cone.path)
    settings = ReconSettings(scan=cone.path, output=tmp_path / "a.zarr")
    data, _ = line_integrals(scan, settings, slice(0, scan.shape[1]))
    np.testing.assert_array_equal(found, recon.fdk(data, scan.geometry) * np.float32(10))
    summary = json.loads((tmp_path / "b.mrc.summary.json").read_text())
    assert summary["geometry"] == "cone"
    assert "algorithm: fdk" in (tmp_path / "b.mrc.run.yaml").read_text()
    assert len(summary["slabs"]) == 5


def test_an_interrupted_run_goes_on_with_the_slabs_that_are_left(cluster, cone, tmp_path, monkeypatch):
    """Stopped as by Ctrl-C once two slabs are written."""
    settings = ReconSettings(scan=cone.path, output=tmp_path / "a.zarr", algorithm="fdk", slab=8, cluster=cluster)
    whole = settings.model_copy(update={"output": tmp_path / "b.zarr"})
    recon.run(whole, quiet=True)
    send = queue.run_tasks

    def some(client, task, job, left, finished, **options):
        written = []

        def count(slab, summary):
            finished(slab, summary)
            written.append(slab)
            if len(written) == 2:
                raise KeyboardInterrupt

        send(client, task, job, left, count, **options)

    with monkeypatch.context() as patch:
        patch.setattr(queue, "run_tasks", some)
        with pytest.raises(StoppedError, match="resume"):
            recon.run(settings, quiet=True)
    done = recon.run(settings, resume=True, quiet=True)
    assert done.summary["slabs_done_before"] >= 2
    assert len(done.summary["slabs"]) == 4 - done.summary["slabs_done_before"]
    one, other = (np.asarray(open_volume(path).array) for path in (settings.output, whole.output))
    assert np.array_equal(one, other)


def test_options_reach_the_result(here, cluster, cone, tmp_path):
    words = ("--bin", 2, "--nonnegative", "--filter", "hann", "--stripes", "none", "--cluster", cluster)
    done = here("recon", cone.path, "out.zarr", *words)
    assert done.returncode == 0, done.stderr
    volume = open_volume(tmp_path / "out.zarr")
    found = np.asarray(volume.array)
    assert found.shape == (16, 16, 16)
    assert found.min() == 0
    np.testing.assert_allclose(volume.voxel_size_um, (4.0, 4.0, 4.0))
    true = cone.volume().reshape(16, 2, 16, 2, 16, 2).mean((1, 3, 5)) * 10
    assert np.corrcoef(found[4:12].ravel(), true[4:12].ravel())[0, 1] > 0.85


def test_the_plan_and_info_know_the_geometry(here, cone, tmp_path):
    done = here("recon", cone.path, "out.zarr", "--plan")
    assert done.returncode == 0
    assert "memory per worker" in done.stdout
    assert not (tmp_path / "out.zarr").exists()
    said = here("info", cone.path).stdout
    assert "cone beam, 32 × 32 × 32 voxels of 2 × 2 × 2 (z, y, x) µm" in said
    assert "center" not in said
    assert "memory per worker" in said


def test_refusals(here, cone, scan, tmp_path):
    helix = simulate_geometry_scan(tmp_path / "helix.h5", "helix", size=16, angles=30)
    for words, sentence in (
        ((cone.path, "out.zarr", "--center", 8), "--center belongs to a parallel beam"),
        ((cone.path, "out.zarr", "--fold", "yes"), "--fold yes belongs to a parallel beam"),
        ((cone.path, "out.zarr", "--filter", "none"), "no filter 'none'"),
        ((scan, "out.zarr", "--algorithm", "fdk"), "is a plain parallel beam; use fbp"),
        ((helix.path, "out.zarr"), "a helix"),
    ):
        done = here("recon", *words)
        assert done.returncode == 2, words
        assert sentence in done.stderr
    assert not (tmp_path / "out.zarr").exists()
