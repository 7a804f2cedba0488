"""`dtomo demo`, `info`, `center`, `convert` and `simulate scan`."""

import json
import time

import numpy as np
import pytest

import dtomo as dtomo_package
from dtomo.io import open_volume
from dtomo.io.volumes import store_volume


def test_demo_takes_under_a_minute_and_compares_with_the_truth(dtomo, tmp_path):
    started = time.monotonic()
    done = dtomo("demo", "here", "--size", 128, "--rows", 32)
    assert done.returncode == 0, done.stderr
    assert time.monotonic() - started < 60
    folder = tmp_path / "here"
    for name in (
        "scan.h5",
        "volume.zarr",
        "pictures/slices.png",
        "pictures/comparison.png",
        "demo.json",
        "volume.zarr.report.html",
    ):
        assert (folder / name).exists(), name
    found = json.loads((folder / "demo.json").read_text())
    assert abs(found["center_error"]) < 0.5
    assert found["correlation"] > 0.9
    assert found["relative_error"] < 0.4
    again = dtomo("demo", "here", "--size", 128, "--rows", 32)
    assert again.returncode == 2
    assert "--overwrite" in again.stderr


def test_info_of_a_scan_says_what_is_there_and_what_it_costs(here, scan):
    done = here("info", scan)
    assert done.returncode == 0, done.stderr
    for part in (
        "90 × 64 × 74",
        "uint16",
        "0 to 178 degrees",
        "/exchange/theta",
        "2 µm",
        "25 keV",
        "memory per worker",
    ):
        assert part in done.stdout


def test_info_of_a_volume_and_of_nothing(here, cluster, scan, tmp_path):
    assert here("recon", scan, "out.zarr", "--center", 38.5, "--rows", "0:8", "--cluster", cluster).returncode == 0
    done = here("info", "out.zarr", "none.h5")
    assert done.returncode == 2
    assert "8 × 74 × 74 (z, y, x) float32" in done.stdout
    assert "attenuation in 1/cm" in done.stdout
    assert "none.h5" in done.stderr
    assert "Traceback" not in done.stderr


def test_center_is_printed_alone_for_scripts(here, scan):
    done = here("center", scan)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) == pytest.approx(38.5, abs=0.5)
    assert "±" in done.stderr
    cropped = here("center", scan, "--columns", "4:70", "--bin", 2)
    assert float(cropped.stdout) == pytest.approx(38.5, abs=0.6)


def test_center_writes_labelled_trial_slices(here, scan, tmp_path):
    done = here("center", scan, "--try", "--around", 38, "--step", 0.5, "--output", "trials")
    assert done.returncode == 0, done.stderr
    names = {path.name for path in (tmp_path / "trials").iterdir()}
    assert "centers.png" in names
    assert "center_0038.50.png" in names
    assert len(names) == 10
    refused = here("center", scan, "--try", "--row", 64)
    assert refused.returncode == 2
    assert "--row" in refused.stderr


def test_convert_keeps_voxels_and_their_size(here, cluster, scan, tmp_path):
    assert here("recon", scan, "out.zarr", "--center", 38.5, "--rows", "0:9", "--cluster", cluster).returncode == 0
    assert here("convert", "out.zarr", "out.mrc").returncode == 0
    first, second = open_volume(tmp_path / "out.zarr"), open_volume(tmp_path / "out.mrc")
    assert np.array_equal(np.asarray(first.array), np.asarray(second.array))
    assert second.voxel_size_um == first.voxel_size_um
    refused = here("convert", "out.zarr", "out.mrc")
    assert refused.returncode == 2
    assert "--overwrite" in refused.stderr


def test_simulate_scan_is_the_same_for_the_same_seed(here, tmp_path):
    import h5py

    for name, seed in (("a.h5", 3), ("b.h5", 3), ("c.h5", 4)):
        words = ["--size", 32, "--rows", 4, "--angles", 10, "--seed", seed]
        assert here("simulate", "scan", name, *words).returncode == 0
    data = []
    for name in ("a.h5", "b.h5", "c.h5"):
        with h5py.File(tmp_path / name) as file:
            data.append(file["exchange/data"][()])
    assert data[0].shape == (10, 4, 37)
    assert np.array_equal(data[0], data[1])
    assert not np.array_equal(data[0], data[2])
    assert here("simulate", "scan", "a.h5").returncode == 2
    assert here("simulate", "scan", "d.h5", "--size", 3).returncode == 2


def test_no_memory_in_the_midst_of_a_volume_is_code_3(here, tmp_path, monkeypatch):
    from dtomo.io.section_file import SectionFileWriter

    def no_memory(*arguments):
        raise MemoryError

    store_volume(np.ones((4, 8, 8), np.float32), tmp_path / "in.mrc")
    monkeypatch.setattr(SectionFileWriter, "write_slab", no_memory)
    done = here("convert", "in.mrc", "out.tif")
    assert done.returncode == 3
    assert "out.tif is unfinished" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("devices", ["0,,1", "foo", "-1"])
def test_a_slurm_script_is_not_written_for_devices_that_are_none(here, scan, devices):
    done = here("slurm-script", scan, "out.zarr", f"--devices={devices}")
    assert done.returncode == 2
    assert "--devices takes indices" in done.stderr
    assert not done.stdout


def test_a_slurm_script_with_gpus_computes_on_them(here, scan):
    done = here("slurm-script", scan, "out.zarr", "--gpus", 2, "--memory", "4GB")
    assert done.returncode == 0
    (run,) = [line for line in done.stdout.splitlines() if line.startswith("run=(")]
    assert "--workers 2 " in run
    assert "--cluster cuda" in run
    assert "#SBATCH --gres=gpu:2" in done.stdout
    assert "--cluster" not in here("slurm-script", scan, "out.zarr").stdout.split("run=(")[1].split(")")[0]
    done = here("slurm-script", scan, "out.zarr", "--gpus", 2, "--nodes", 2)
    assert done.returncode == 2
    assert "--gpus is for one node" in done.stderr


def test_simulate_scan_with_a_geometry(here, tmp_path):
    done = here("simulate", "scan", "cone.h5", "--geometry", "cone", "--size", 16, "--angles", 5)
    assert done.returncode == 0, done.stderr
    assert "5 views, 21 x 18 pixels" in done.stdout
    scan = dtomo_package.open(tmp_path / "cone.h5")
    assert scan.geometry.beam == "cone"
    for words, sentence in (
        (("--geometry", "spiral"), "no geometry 'spiral'"),
        (("--geometry", "fan", "--center", 8), "--center belongs to a parallel beam"),
    ):
        refused = here("simulate", "scan", "no.h5", *words)
        assert refused.returncode == 2
        assert sentence in refused.stderr
    assert not (tmp_path / "no.h5").exists()
