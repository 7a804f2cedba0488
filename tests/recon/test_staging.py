"""Runs whose frames are staged: the same volume, decided by cost, resumed, and cleaned up."""

import json
import signal
import subprocess
import sys
import time
from collections import namedtuple
from pathlib import Path

import h5py
import hdf5plugin
import numpy as np
import pytest
import tifffile
import zarr

from dtomo.distributed.clusters import Resources
from dtomo.errors import StoppedError, UserError
from dtomo.io import open_volume
from dtomo.io.output import progress_folder
from dtomo.io.staging import Staging, staging_folder
from dtomo.recon import cost, run
from dtomo.recon import staging as stages
from dtomo.recon.scans import geometry_of, open_scan
from dtomo.settings import ReconSettings
from dtomo.simulate import simulate_scan

ROWS, COLUMNS, ANGLES = 80, 40, 48
GZIP = {"compression": "gzip", "shuffle": True}


@pytest.fixture(scope="module")
def plain(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("scan") / "scan.h5"
    simulate_scan(path, size=32, rows=ROWS, columns=COLUMNS, angles=ANGLES, center=20.0, photons=1e4)
    return path


def _with_whole_frames(plain: Path, path: Path, **options) -> Path:
    """The scan again, with one compressed chunk per frame."""
    with h5py.File(plain) as old, h5py.File(path, "w") as new:
        for name in ("data", "data_white", "data_dark"):
            frames = old["/exchange/" + name][()]
            new.create_dataset("/exchange/" + name, data=frames, chunks=(1, *frames.shape[1:]), **options)
        old.copy("/exchange/theta", new["/exchange"])
        for name in ("measurement", "simulation"):
            if name in old:
                old.copy(name, new)
    return path


@pytest.fixture(scope="module")
def whole(plain) -> Path:
    return _with_whole_frames(plain, plain.with_name("whole.h5"), **GZIP)


@pytest.fixture(scope="module")
def cluster():
    from dtomo.distributed.clusters import connect

    with connect(Resources(2, 1, 1_500_000_000, dashboard=":0")) as client:
        yield client.scheduler.address


@pytest.fixture(scope="module")
def expected(plain, cluster, tmp_path_factory) -> np.ndarray:
    return _volume(plain, tmp_path_factory.mktemp("expected") / "v.zarr", cluster)


def _settings(scan: Path, output: Path, cluster: str = "local", **changes) -> ReconSettings:
    return ReconSettings(**{"scan": scan, "output": output, "center": 20.0, "slab": 16, "cluster": cluster, **changes})


def _volume(scan: Path, output: Path, cluster: str, **changes) -> np.ndarray:
    run(_settings(scan, output, cluster, **changes), quiet=True)
    return open_volume(output).array.compute()


@pytest.mark.parametrize("filters", [GZIP, dict(hdf5plugin.Bitshuffle())], ids=["gzip", "bitshuffle"])
@pytest.mark.parametrize("changes", [{}, {"slab": 7}, {"rows": "9:71", "columns": "2:39"}], ids=["", "slab 7", "crop"])
def test_the_same_bits_staged_and_not(plain, cluster, tmp_path, filters, changes):
    scan = _with_whole_frames(plain, tmp_path / "scan.h5", **filters)
    volumes = [
        _volume(path, tmp_path / f"{number}.zarr", cluster, **changes, stage=stage)
        for number, (path, stage) in enumerate([(plain, "no"), (scan, "no"), (scan, "yes")])
    ]
    assert volumes[0].tobytes() == volumes[1].tobytes() == volumes[2].tobytes()
    assert not list(tmp_path.rglob("*staged*"))


def test_phase_retrieval_binning_and_left_out_frames(plain, whole, cluster, tmp_path):
    changes = {
        "delta_beta": 50.0,
        "energy": 20.0,
        "distance": 100.0,
        "pixel_size": 1.0,
        "bin": 2,
        "rows": "5:75",
        "exclude_frames": "3,7:9",
        "skip_flats": "0",
    }
    one = _volume(plain, tmp_path / "one.zarr", cluster, **changes, stage="no")
    two = _volume(whole, tmp_path / "two.zarr", cluster, **changes, stage="yes")
    assert one.tobytes() == two.tobytes()


def test_zarr_and_tiff_with_whole_frames(plain, cluster, expected, tmp_path):
    with h5py.File(plain) as file:
        frames, flats, darks, angles = (
            file["/exchange/" + n][()] for n in ("data", "data_white", "data_dark", "theta")
        )
    store = zarr.create_group(tmp_path / "scan.zarr")
    for name, data in (("projections", frames), ("flats", flats), ("darks", darks)):
        store.create_array(name, data=data, chunks=(1, *data.shape[1:]))
    store.create_array("angles", data=angles).attrs["units"] = "degrees"
    for name, data in (("scan.tif", frames), ("flats.tif", flats), ("darks.tif", darks)):
        tifffile.imwrite(tmp_path / name, data, photometric="minisblack", compression="zlib")
    np.savetxt(tmp_path / "angles.txt", angles)
    beside = {"flats": tmp_path / "flats.tif", "darks": tmp_path / "darks.tif", "angles": tmp_path / "angles.txt"}
    with h5py.File(plain) as file:
        pixel = open_scan(_settings(plain, tmp_path / "x.zarr")).pixel_size
    from_zarr = _volume(tmp_path / "scan.zarr", tmp_path / "a.zarr", cluster, stage="yes", pixel_size=pixel)
    from_tiff = _volume(tmp_path / "scan.tif", tmp_path / "b.zarr", cluster, stage="yes", pixel_size=pixel, **beside)
    assert from_zarr.tobytes() == expected.tobytes()
    assert from_tiff.tobytes() == expected.tobytes()


def test_mrc_output_and_a_scratch_folder(whole, cluster, expected, tmp_path):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    found = _volume(whole, tmp_path / "v.mrc", cluster, stage="yes", scratch=scratch)
    assert found.tobytes() == expected.tobytes()
    assert list(scratch.iterdir()) == []
    assert _volume(whole, tmp_path / "w.mrc", cluster, stage="yes").tobytes() == expected.tobytes()
    assert not progress_folder(tmp_path / "w.mrc").exists()


class _Big:
    """A scan and its plan as `decide` sees them, without a file of that size."""

    def __init__(self, scan: Path, output: Path, workers: int = 4, memory: int = 4_000_000_000, **changes) -> None:
        self.settings = ReconSettings(scan=scan, output=output, center=1024.0, **changes)
        self.scan = open_scan(self.settings)
        geometry = geometry_of(self.scan, 1024.0, False)
        self.plan = cost.make_plan(self.scan, self.settings, geometry, Resources(workers, 1, memory))

    def decide(self) -> stages.Decision:
        return stages.decide(self.scan, self.settings, self.plan)


def _sparse_scan(path: Path, chunks: tuple[int, int, int], shape=(1500, 2048, 2048), **options) -> Path:
    """A large scan whose chunks were never written."""
    with h5py.File(path, "w") as file:
        file.create_dataset("/exchange/data", shape, "u2", chunks=chunks, fillvalue=500, **options)
        file.create_dataset("/exchange/data_white", (20, *shape[1:]), "u2", chunks=(1, *chunks[1:]), fillvalue=1000)
        file.create_dataset("/exchange/theta", data=np.linspace(0, 180, shape[0], endpoint=False))
        file["/exchange/theta"].attrs["units"] = "degrees"
    return path


@pytest.fixture
def roomy(monkeypatch):
    """What is decided does not hang on how full the disk is that tests write to."""
    Disk = namedtuple("Disk", "total used free")
    monkeypatch.setattr(stages.shutil, "disk_usage", lambda _: Disk(2**42, 0, 2**42))


def test_large_scans_of_whole_frames_are_staged_and_the_plan_says_so(roomy, tmp_path):
    big = _Big(_sparse_scan(tmp_path / "scan.h5", (1, 2048, 2048), compression="gzip"), tmp_path / "v.zarr")
    decision = big.decide()
    staging = decision.staging
    assert staging is not None
    assert list(staging.sources) == ["projections"]
    assert 0 <= staging.size - 1500 * 2048 * 2048 * 2 < staging.block * 2048 * 2048 * 2
    assert staging.band == big.plan.block
    assert 2**20 <= staging.block * staging.band * 2048 * 2 <= 16 * 2**20
    assert decision.direct > 5 * decision.staged
    plan = stages.planned(big.plan, decision)
    assert plan.worker_memory <= plan.resources.memory
    text = "\n".join(plan.lines())
    assert "staged frames 13 GB" in text
    assert "frames are staged in the output's progress folder" in text


@pytest.mark.parametrize(
    ("chunks", "options"),
    [((1, 2048, 2048), {}), ((1, 64, 2048), {"compression": "gzip"}), ((1500, 16, 128), {"compression": "gzip"})],
    ids=["not compressed", "rows together", "sinogram chunks"],
)
def test_scans_whose_rows_can_be_read_alone_are_not(chunks, options, tmp_path):
    big = _Big(_sparse_scan(tmp_path / "scan.h5", chunks, **options), tmp_path / "v.zarr")
    decision = big.decide()
    assert decision.staging is None
    assert stages.planned(big.plan, decision).scratch == {}
    assert "staged" not in "\n".join(stages.planned(big.plan, decision).lines())


def test_what_is_read_directly_again_and_again_is_in_the_plan(tmp_path):
    scan = _sparse_scan(tmp_path / "scan.h5", (1, 2048, 2048), compression="gzip")
    big = _Big(scan, tmp_path / "v.zarr", stage="no")
    plan = stages.planned(big.plan, big.decide())
    assert plan.seconds["reading"] > 20 * big.plan.seconds["reading"] / 4
    assert "read directly, about 32.0 times each" in "\n".join(plan.lines())


def test_little_memory_gives_small_blocks_and_none_is_refused(roomy, tmp_path):
    scan = _sparse_scan(tmp_path / "scan.h5", (1, 2048, 2048), compression="gzip")
    big = _Big(scan, tmp_path / "v.zarr", memory=600_000_000)
    staging = big.decide().staging
    assert staging is not None
    assert stages.COPIES * staging.block * 2048 * 2048 * 2 < 340_000_000
    frames = _sparse_scan(tmp_path / "tall.h5", (1, 60000, 2048), shape=(64, 60000, 2048), compression="gzip")
    big = _Big(frames, tmp_path / "v.zarr", memory=600_000_000)
    assert big.decide().staging is None
    assert "though staging them would pay" in big.decide().line
    big = _Big(frames, tmp_path / "v.zarr", memory=600_000_000, stage="yes")
    with pytest.raises(UserError, match=r"--stage yes: a task takes 801 MB of memory.*more --memory"):
        big.decide()


def test_deep_chunks_are_staged_in_blocks_of_them(roomy, tmp_path):
    scan = _sparse_scan(tmp_path / "scan.h5", (10, 512, 512), shape=(1500, 512, 512), compression="gzip")
    staging = _Big(scan, tmp_path / "v.zarr", stage="yes").decide().staging
    assert staging is not None
    assert staging.block % 10 == 0


@pytest.fixture
def small_disk(tmp_path):
    folder = tmp_path / "disk"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", folder], capture_output=True).returncode:
        pytest.skip("needs the right to mount a small file system")
    yield folder
    subprocess.run(["umount", folder], check=True)


def test_a_disk_that_is_too_small(small_disk, tmp_path):
    scan = _sparse_scan(tmp_path / "scan.h5", (1, 2048, 2048), compression="gzip")
    decision = _Big(scan, tmp_path / "v.zarr", scratch=small_disk).decide()
    assert decision.staging is None
    assert "the copy takes 13 GB" in decision.line
    with pytest.raises(UserError, match=r"--stage yes: the copy takes 13 GB and .*disk has"):
        _Big(scan, tmp_path / "v.zarr", scratch=small_disk, stage="yes").decide()
    assert list(small_disk.iterdir()) == []


def test_a_disk_that_becomes_full(whole, cluster, expected, small_disk, tmp_path, monkeypatch, capsys):
    settings = _settings(whole, tmp_path / "v.zarr", cluster, scratch=small_disk)
    (small_disk / "filler").write_bytes(b"x" * 950_000)
    monkeypatch.setattr(stages, "LEAST", -1e9)
    monkeypatch.setattr(stages, "WORTH", 0.0)
    monkeypatch.setattr(stages, "_obstacle", lambda *_: "")
    run(settings)
    assert "the disk became full while frames were staged" in capsys.readouterr().err
    assert open_volume(tmp_path / "v.zarr").array.compute().tobytes() == expected.tobytes()
    assert [item.name for item in small_disk.iterdir()] == ["filler"]
    with pytest.raises(StoppedError, match=r"the disk is full.*--resume"):
        run(settings.model_copy(update={"output": tmp_path / "w.zarr", "stage": "yes"}), quiet=True)
    (small_disk / "filler").unlink()
    run(settings.model_copy(update={"output": tmp_path / "w.zarr", "stage": "yes"}), resume=True, quiet=True)
    assert open_volume(tmp_path / "w.zarr").array.compute().tobytes() == expected.tobytes()
    assert list(small_disk.iterdir()) == []


@pytest.mark.parametrize("scratch", [pytest.param(True, marks=pytest.mark.slow), False])
def test_killed_while_staging_and_resumed(plain, whole, expected, cluster, scratch, tmp_path):
    output, folder = tmp_path / "v.zarr", tmp_path / "scratch"
    folder.mkdir()
    settings = _settings(whole, output, stage="yes", **({"scratch": folder} if scratch else {}))
    config = tmp_path / "run.yaml"
    config.write_text(json.dumps(settings.plain()))
    process = subprocess.Popen(
        [sys.executable, "-m", "dtomo", "recon", "--config", config, "--workers", "1"],
        cwd=Path(__file__).parents[2],
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    store = staging_folder(output, folder if scratch else None)
    while process.poll() is None and not list(store.glob("slab-*.json")):
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    before = {path: path.stat().st_mtime_ns for path in store.glob("slab-*.json")}
    assert before
    run(settings.model_copy(update={"cluster": cluster}), resume=True, quiet=True)
    assert open_volume(output).array.compute().tobytes() == expected.tobytes()
    assert not store.exists()
    assert list(folder.iterdir()) == []


def test_frames_staged_before_are_not_staged_again(whole, cluster, expected, tmp_path, monkeypatch):
    settings = _settings(whole, tmp_path / "v.zarr", cluster, stage="yes")
    with monkeypatch.context() as patch:
        patch.setattr("dtomo.recon.slabwise.send_out", _interrupted)
        with pytest.raises(StoppedError, match="interrupted"):
            run(settings, quiet=True)
    store = staging_folder(settings.output, None)
    marks = {path.name: path.stat().st_mtime_ns for path in store.glob("slab-*.json")}
    seen = []
    real = Staging.waiting
    monkeypatch.setattr(Staging, "waiting", lambda self: seen.append(real(self)) or seen[-1])
    run(settings, resume=True, quiet=True)
    assert len(marks) > 2
    assert seen == [[]]
    assert open_volume(settings.output).array.compute().tobytes() == expected.tobytes()


def _interrupted(*_, **__):
    raise KeyboardInterrupt


def test_settings_that_do_not_change_the_result_may_change_at_resume(whole, cluster, expected, tmp_path, monkeypatch):
    settings = _settings(whole, tmp_path / "v.zarr", cluster, stage="yes")
    with monkeypatch.context() as patch:
        patch.setattr("dtomo.recon.slabwise.send_out", _interrupted)
        with pytest.raises(StoppedError):
            run(settings, quiet=True)
    run(settings.model_copy(update={"stage": "no"}), resume=True, quiet=True)
    assert open_volume(settings.output).array.compute().tobytes() == expected.tobytes()
    assert not staging_folder(settings.output, None).exists()


def test_unusable_scratch_folders_are_refused_before_anything_is_touched(whole, tmp_path):
    with pytest.raises(UserError, match=r"--scratch .*none is not a folder"):
        run(_settings(whole, tmp_path / "v.zarr", scratch=tmp_path / "none", stage="yes"), quiet=True)
    settings = _settings(whole, tmp_path / "v.zarr", scratch=tmp_path, stage="yes")
    store = staging_folder(settings.output, tmp_path)
    store.mkdir()
    (store / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match="is in the way"):
        run(settings, quiet=True)
    assert sorted(item.name for item in tmp_path.iterdir()) == [store.name]
    with pytest.raises(UserError, match="--stage"):
        _settings(whole, tmp_path / "v.zarr", stage="maybe")
