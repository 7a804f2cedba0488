"""`dtomo recon` as a user runs it: outputs, records, the plan, options that reach the result."""

import json

import numpy as np
import pytest
import yaml
from ome_zarr_models.v05.image import Image

from dtomo.io import open_volume
from dtomo.simulate import read_truth


def _array(path) -> np.ndarray:
    return np.asarray(open_volume(path).array)


def test_scan_to_volume_with_the_axis_found(dtomo, scan, tmp_path):
    done = dtomo("recon", scan, "out.zarr")
    assert done.returncode == 0, done.stderr
    assert "dashboard: http://127.0.0.1:" in done.stderr
    truth = read_truth(scan)
    summary = json.loads((tmp_path / "out.zarr.summary.json").read_text())
    assert summary["center"] == pytest.approx(truth.center, abs=0.5)
    assert summary["unit"] == "1/cm"
    volume = open_volume(tmp_path / "out.zarr")
    assert volume.attributes["unit"] == "1/cm"
    assert volume.voxel_size_um == (2.0, 2.0, 2.0)
    found = np.asarray(volume.array)
    true = truth.volume(width=found.shape[1]) * np.float32(1e4 / 2.0)
    y, x = np.ogrid[: found.shape[1], : found.shape[2]]
    middle = (found.shape[1] - 1) / 2
    inside = (y - middle) ** 2 + (x - middle) ** 2 < (middle - 1) ** 2
    assert np.corrcoef(found[:, inside].ravel(), true[:, inside].ravel())[0, 1] > 0.9
    assert np.median(found[true > 0] / true[true > 0]) == pytest.approx(1, abs=0.03)


def test_store_is_valid_ome_zarr_and_not_marked(here, cluster, scan, tmp_path):
    import zarr

    assert here("recon", "--cluster", cluster, scan, "out.zarr", "--center", 38.5, "--quiet").returncode == 0
    Image.from_zarr(zarr.open_group(tmp_path / "out.zarr", mode="r"))
    assert not (tmp_path / "out.zarr" / ".dtomo").exists()


def test_run_yaml_repeats_the_run_and_options_win(here, cluster, scan, tmp_path):
    words = [
        "recon",
        "--cluster",
        cluster,
        scan,
        "a.zarr",
        "--algorithm",
        "cgls",
        "--iterations",
        3,
        "--rows",
        "8:24",
        "--quiet",
    ]
    done = here(*words)
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    record = yaml.safe_load((tmp_path / "a.zarr.run.yaml").read_text())
    assert record["settings"]["algorithm"] == "cgls"
    assert {"dtomo", "numpy", "zarr"} <= record["versions"].keys()
    assert record["inputs"][0]["size"] == scan.stat().st_size
    assert here("recon", "--cluster", cluster, "--config", "a.zarr.run.yaml").returncode == 2, "the output exists"
    assert here("recon", "--cluster", cluster, scan, "b.zarr", "--config", "a.zarr.run.yaml").returncode == 0
    assert np.array_equal(_array(tmp_path / "a.zarr"), _array(tmp_path / "b.zarr"))
    assert (
        here("recon", "--cluster", cluster, scan, "c.zarr", "--config", "a.zarr.run.yaml", "--rows", "8:10").returncode
        == 0
    )
    assert open_volume(tmp_path / "c.zarr").shape[0] == 2


def test_formats_hold_the_same_bits(here, cluster, scan, tmp_path):
    arrays = []
    for name in ("out.zarr", "out.mrc", "out.tif"):
        done = here("recon", "--cluster", cluster, scan, name, "--center", 38.5, "--rows", "10:21")
        assert done.returncode == 0, done.stderr
        arrays.append(_array(tmp_path / name))
    assert np.array_equal(arrays[0], arrays[1])
    assert np.array_equal(arrays[0], arrays[2])
    assert open_volume(tmp_path / "out.mrc").voxel_size == (2e4, 2e4, 2e4)


def test_rows_are_those_of_the_whole_and_bins_keep_the_scale(here, cluster, scan, tmp_path):
    for name, words in {"whole": [], "part": ["--rows", "30:40"], "half": ["--bin", 2]}.items():
        assert here("recon", "--cluster", cluster, scan, f"{name}.zarr", "--center", 38.5, *words).returncode == 0
    whole, part, half = (_array(tmp_path / f"{name}.zarr") for name in ("whole", "part", "half"))
    assert np.array_equal(part, whole[30:40])
    assert open_volume(tmp_path / "part.zarr").origin_um[0] == 60.0
    assert half.shape == (32, 37, 37)
    assert open_volume(tmp_path / "half.zarr").voxel_size_um == (4.0, 4.0, 4.0)
    assert open_volume(tmp_path / "half.zarr").origin_um == (1.0, 1.0, 1.0)
    coarse = whole.reshape(32, 2, 37, 2, 37, 2).mean(axis=(1, 3, 5))
    assert np.corrcoef(half.ravel(), coarse.ravel())[0, 1] > 0.97
    assert half.mean() == pytest.approx(coarse.mean(), rel=0.02)


def test_overwrite_replaces_the_whole_output(here, cluster, scan, tmp_path):
    assert here("recon", "--cluster", cluster, scan, "out.zarr", "--center", 38.5).returncode == 0
    assert (
        here(
            "recon", "--cluster", cluster, scan, "out.zarr", "--center", 38.5, "--rows", "0:8", "--overwrite"
        ).returncode
        == 0
    )
    assert open_volume(tmp_path / "out.zarr").shape[0] == 8


def test_plan_prints_and_stops(here, scan, tmp_path):
    done = here("recon", scan, "out.zarr", "--center", 38.5, "--plan", "--workers", 2, "--memory", "1.5GB")
    assert done.returncode == 0, done.stderr
    for part in (
        "tasks:",
        "workers: 2",
        "memory per worker:",
        "of 1.5 GB",
        "read:",
        "written:",
        "time: about",
    ):
        assert part in done.stdout
    assert not list(tmp_path.iterdir())


def test_axis_outside_the_middle_of_a_full_turn(here, cluster, tmp_path):
    shape = ["--size", 96, "--rows", 8, "--columns", 64, "--center", 8]
    assert here("simulate", "scan", "full.h5", *shape, "--full-turn", "--clean").returncode == 0
    done = here("recon", "--cluster", cluster, "full.h5", "full.zarr")
    assert done.returncode == 0, done.stderr
    found = _array(tmp_path / "full.zarr")
    assert found.shape == (8, 111, 111)
    true = read_truth(tmp_path / "full.h5").volume(width=111) * np.float32(1e4 / 2)
    assert np.corrcoef(found.ravel(), true.ravel())[0, 1] > 0.9


def test_summary_tells_times_repairs_and_memory(here, cluster, scan, tmp_path):
    done = here("recon", "--cluster", cluster, scan, "out.zarr", "--center", 38.5, "--slab", 16)
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stderr.splitlines() if line.startswith("raw data: ") and "pixels are dead" in line]
    summary = json.loads((tmp_path / "out.zarr.summary.json").read_text())
    assert len(summary["slabs"]) == 4
    assert summary["dead_pixels"] > 0
    for slab in summary["slabs"]:
        assert set(slab["seconds"]) == {"reading", "preparing", "computing", "writing"}
        assert 1e8 < slab["peak_memory"] < 2e9
    assert sum(summary["seconds_by_stage"].values()) < 2 * summary["seconds"]


def test_nonnegative_and_filters_reach_the_result(here, cluster, scan, tmp_path):
    common = ["--center", 38.5, "--rows", "30:34"]
    assert here("recon", "--cluster", cluster, scan, "ramp.zarr", *common).returncode == 0
    assert (
        here("recon", "--cluster", cluster, scan, "hann.zarr", *common, "--filter", "hann", "--nonnegative").returncode
        == 0
    )
    ramp, hann = _array(tmp_path / "ramp.zarr"), _array(tmp_path / "hann.zarr")
    assert ramp.min() < 0
    assert hann.min() == 0
    assert np.diff(hann, axis=2).std() < np.diff(ramp, axis=2).std()
