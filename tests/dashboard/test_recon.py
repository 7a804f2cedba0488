"""Real reconstructions on the page."""

import hashlib

import numpy as np
import pytest

from dtomo.dashboard.plugin import Page
from dtomo.io import open_volume
from dtomo.recon import run
from dtomo.settings import ReconSettings
from dtomo.simulate import simulate_scan


@pytest.fixture(scope="module")
def scan(tmp_path_factory):
    """32 slices of 40 × 40 voxels."""
    path = tmp_path_factory.mktemp("scan") / "scan.h5"
    simulate_scan(path, size=40, rows=32, angles=48, center=20.5, photons=1e5)
    return path


def digest(path):
    return hashlib.sha256(np.ascontiguousarray(open_volume(path).array.compute()).tobytes()).hexdigest()


@pytest.mark.parametrize("algorithm", ["fbp", "sirt"])
def test_a_run_is_seen_on_the_page_and_has_the_same_bits_without_it(
    algorithm, scan, client, cluster, tmp_path, wait_until, monkeypatch
):
    common = {"scan": scan, "center": 20.5, "algorithm": algorithm, "iterations": 5, "slab": 8}
    common |= {"cluster": cluster.scheduler_address}
    seen = ReconSettings(output=tmp_path / "seen.zarr", **common)
    run(seen, quiet=True)
    state = next(reversed(cluster.scheduler.plugins[Page.name].runs.by_id.values()))
    wait_until(lambda: state.slabs_done == 4)
    assert (state.name, state.state, state.iterations) == (str(seen.output), "done", 5 if algorithm == "sirt" else None)
    volume = open_volume(seen.output).array.compute()
    assert state.grid.shape == volume.shape
    middle = volume.shape[1] // 2
    size = np.abs(volume).max()
    np.testing.assert_allclose(state.pictures["xz"], volume[:, middle, :], rtol=2e-3, atol=1e-3 * size)
    np.testing.assert_allclose(state.pictures["yz"], volume[:, :, middle], rtol=2e-3, atol=1e-3 * size)
    np.testing.assert_allclose(state.pictures["xy"], volume[16], rtol=2e-3, atol=1e-3 * size)
    curves = [curve for slab in state.slabs for curve in slab.curves()]
    if algorithm == "sirt":
        assert [len(curve) for curve in curves] == [5] * 4
        assert all(np.diff(curve).max() < 0 for curve in curves)
    else:
        assert curves == []
    assert state.settings["algorithm"] == "sirt" if algorithm == "sirt" else "algorithm" not in state.settings
    monkeypatch.setattr("dtomo.dashboard.plugin.install", lambda client: "switched off")
    unseen = ReconSettings(output=tmp_path / "unseen.zarr", **common)
    run(unseen, quiet=True)
    assert digest(seen.output) == digest(unseen.output)
