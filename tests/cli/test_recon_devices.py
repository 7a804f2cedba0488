"""`dtomo recon` with devices: what it says, what it refuses, and that the volume does not depend on them."""

import numpy as np
import pytest
import yaml
import zarr


@pytest.fixture(autouse=True)
def _environment_of_no_gpu(monkeypatch):
    for name in ("CUDA_VISIBLE_DEVICES", "CUPY_GPU_MEMORY_LIMIT"):
        monkeypatch.delenv(name, raising=False)


def test_workers_own_devices_and_the_volume_is_the_same(dtomo, scan, tmp_path):
    words = ("recon", scan, "--center", "38.5", "--memory", "1GB")
    done = dtomo(
        *words, "one.zarr", "--devices", "1,1", "--device-memory", "4GB", "--performance-report", "report.html"
    )
    assert done.returncode == 0, done.stderr
    assert "devices: worker 0 on 1, worker 1 on 1" in done.stderr
    assert "compute on the CPU" in done.stderr
    assert "<html" in (tmp_path / "report.html").read_text("utf-8").lower()
    settings = yaml.safe_load((tmp_path / "one.zarr.run.yaml").read_text("utf-8"))["settings"]
    assert (settings["devices"], settings["device_memory"]) == ("1,1", "4GB")
    other = dtomo(*words, "two.zarr", "--devices", "", "--workers", "1")
    assert other.returncode == 0, other.stderr
    assert "devices: none listed, computing on the CPU" in other.stderr
    one, two = (np.asarray(zarr.open(str(tmp_path / name))["0"]) for name in ("one.zarr", "two.zarr"))
    assert one.any()
    np.testing.assert_array_equal(one, two)


def test_the_plan_names_the_devices(here, scan):
    done = here(
        "recon", scan, "out.zarr", "--center", "38.5", "--plan", "--devices", "3,1", "--workers-per-device", "2"
    )
    assert done.returncode == 0, done.stderr
    assert "workers: 4 with 1 thread each" in done.stdout
    assert "devices: worker 0 on 3, worker 1 on 1, worker 2 on 3, worker 3 on 1" in done.stdout


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["--devices", "0,,1"], "--devices takes indices"),
        (["--devices", "GPU-"], "--devices takes indices"),
        (["--devices", "0", "--workers-per-device", "0"], "--workers-per-device"),
        (["--devices", "0", "--device-memory", "much"], "--device-memory is a size"),
        (["--device-memory", "1GB"], "--device-memory is for workers that own CUDA devices"),
        (["--devices", "0", "--cluster", "tcp://127.0.0.1:1"], "clusters that dtomo starts"),
        (["--devices", "0", "--cluster", "slurm"], "clusters on this machine"),
        (["--devices", "0", "--cluster", "cuda"], "--cluster cuda needs CuPy"),
        (["--performance-report", "scan.h5"], "--performance-report is an HTML file"),
        (["--performance-report", "none/report.html"], "does not exist"),
    ],
)
def test_what_is_refused_touches_nothing(here, scan, tmp_path, monkeypatch, words, part):
    from dtomo.distributed import cuda

    monkeypatch.setattr(cuda, "find_spec", lambda name: None)
    done = here("recon", scan, "out.zarr", "--center", "38.5", *words)
    assert done.returncode == 2
    assert part in done.stderr.splitlines()[-1]
    assert not list(tmp_path.glob("out.zarr*"))


@pytest.mark.parametrize("devices", [0, [3, 1], "3,1"])
def test_settings_may_hold_devices_as_yaml_has_them(here, scan, tmp_path, devices):
    file = tmp_path / "again.yaml"
    file.write_text(yaml.safe_dump({"scan": str(scan), "output": "out.zarr", "center": 38.5, "devices": devices}))
    done = here("recon", "--config", file, "--plan")
    assert done.returncode == 0, done.stderr
    assert "devices: worker 0 on" in done.stdout
