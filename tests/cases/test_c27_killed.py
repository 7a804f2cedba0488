"""C27: what a killed worker, a killed run and a deadly slab cost. Real processes, killed by the kernel."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from dtomo.distributed.clusters import TRIES, Resources, connect
from dtomo.distributed.queue import run_tasks
from dtomo.distributed.slabs import Slab
from dtomo.errors import StoppedError
from dtomo.io import Checkpoints, create_volume, open_volume, open_writer
from dtomo.io.output import unlocked_at_end
from dtomo.recon import job as job_module
from dtomo.recon import run
from dtomo.recon.checkpoints import SlabCheckpoints
from dtomo.recon.scans import geometry_of, open_scan, scale_of
from dtomo.recon.slab import Job, reconstruct_slab
from dtomo.settings import ReconSettings
from dtomo.simulate import simulate_scan

ROOT = Path(__file__).resolve().parents[2]
CENTER = 18.3
ITERATIONS = {"sirt": 600, "cgls": 400}
"""So many that a slab, with its checkpoints, takes seconds."""


@pytest.fixture(scope="module")
def scan(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("scan") / "scan.h5"
    simulate_scan(path, size=32, rows=32, angles=40, center=CENTER, photons=1e5)
    return path


@pytest.fixture(scope="module")
def undisturbed(scan, tmp_path_factory) -> Callable[[str], np.ndarray]:
    """The volume of an algorithm, from a run without checkpoints and in other slabs."""
    folder, done = tmp_path_factory.mktemp("undisturbed"), {}

    def volume(algorithm: str) -> np.ndarray:
        if algorithm not in done:
            output = folder / f"{algorithm}.zarr"
            settings = ReconSettings(
                scan=scan, output=output, center=CENTER, algorithm=algorithm, iterations=ITERATIONS[algorithm],
                workers=1, slab=16, checkpoint_every="never",
            )  # fmt: skip
            run(settings, quiet=True)
            done[algorithm] = np.asarray(open_volume(output).array)
        return done[algorithm]

    return volume


@pytest.fixture
def start(tmp_path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts ``dtomo recon WORDS…`` in a process group of its own."""
    running: list[subprocess.Popen[str]] = []

    def command(*words: object) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "dtomo", "recon", *map(str, words)], cwd=tmp_path, start_new_session=True,
            env=os.environ | {"PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        running.append(process)
        return process

    yield command
    for process in running:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def words(scan: Path, output: Path, algorithm: str, *more: object) -> tuple[object, ...]:
    """One slab, one worker, checkpoints every 20 iterations."""
    return (
        scan, output, "--center", CENTER, "--algorithm", algorithm, "--iterations", ITERATIONS[algorithm],
        "--workers", 1, "--slab", 32, "--checkpoint-every", "20it", *more,
    )  # fmt: skip


def progress(output: Path) -> Path:
    return output / ".dtomo" if output.suffix == ".zarr" else output.with_name(output.name + ".dtomo")


def reached(output: Path) -> int:
    """Iteration of the newest checkpoint on disk."""
    found = sorted(progress(output).glob("checkpoints-*/at-*/state-*/checkpoint.json"))
    try:
        return json.loads(json.loads(found[-1].read_text())["content"])["info"]["iteration"] if found else 0
    except FileNotFoundError:  # removed meanwhile
        return 0


def wait_for(condition: Callable[..., Any], process: subprocess.Popen[str] | None = None) -> None:
    end = time.monotonic() + 90
    while not condition():
        assert process is None or process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.005)


def workers(of: int) -> list[psutil.Process]:
    """Processes forked from the server that process `of` started."""
    servers = [child for child in psutil.Process(of).children() if "forkserver" in " ".join(child.cmdline())]
    return [worker for server in servers for worker in server.children()]


def resumed(output: Path) -> int:
    """Iterations that were not made again."""
    summary = json.loads(output.with_name(output.name + ".summary.json").read_text())
    return sum(slab["resumed"] for slab in summary["slabs"])


@pytest.mark.parametrize("algorithm", [pytest.param("sirt", marks=pytest.mark.slow), "cgls"])
def test_a_killed_worker_costs_what_came_after_its_checkpoint(scan, start, tmp_path, undisturbed, algorithm):
    output = tmp_path / "out.zarr"
    process = start(*words(scan, output, algorithm))
    wait_for(lambda: reached(output) >= 60, process)
    (worker,) = workers(process.pid)
    worker.kill()
    _, said = process.communicate(timeout=120)
    assert process.returncode == 0, said
    assert "Traceback" not in said
    assert "note: " not in said
    assert resumed(output) >= 60
    assert np.array_equal(np.asarray(open_volume(output).array), undisturbed(algorithm))
    assert not progress(output).exists()


@pytest.mark.parametrize(
    ("algorithm", "suffix"), [pytest.param("sirt", ".mrc", marks=pytest.mark.slow), ("cgls", ".zarr")]
)
@pytest.mark.slow
def test_a_killed_run_goes_on_from_its_checkpoint(scan, start, tmp_path, undisturbed, algorithm, suffix):
    """Client and workers at once, twice: the lock of the dead is taken over, a checkpoint cut off is no harm."""
    output = tmp_path / f"out{suffix}"
    before = 0
    for more in ([], ["--resume"]):
        process = start(*words(scan, output, algorithm, *more))
        wait_for(lambda least=before + 60: reached(output) >= least, process)
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        before = reached(output)
    refused = start(*words(scan, output, algorithm))
    assert "--resume" in refused.communicate(timeout=60)[1]
    assert refused.returncode == 2
    other = start(*words(scan, output, algorithm, "--resume", "--iterations", 7))
    assert f"iterations was {ITERATIONS[algorithm]} and is 7" in other.communicate(timeout=60)[1]
    assert reached(output) == before
    last = start(*words(scan, output, algorithm, "--resume", "--workers", 2, "--checkpoint-every", "0.5"))
    _, said = last.communicate(timeout=120)
    assert last.returncode == 0, said
    assert resumed(output) == before
    assert np.array_equal(np.asarray(open_volume(output).array), undisturbed(algorithm))


@pytest.mark.slow
def test_a_damaged_checkpoint_is_passed_over_and_the_user_is_told(scan, start, tmp_path, undisturbed):
    output = tmp_path / "out.zarr"
    process = start(*words(scan, output, "cgls"))
    wait_for(lambda: reached(output) >= 60, process)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    newest = max(progress(output).glob("checkpoints-*/at-*/state-*"))
    piece = next((newest / "residual" / "c").rglob("0"))
    piece = piece if piece.is_file() else next(item for item in piece.rglob("*") if item.is_file())
    raw = bytearray(piece.read_bytes())
    raw[len(raw) // 3] ^= 1
    piece.write_bytes(raw)
    last = start(*words(scan, output, "cgls", "--resume"))
    _, said = last.communicate(timeout=120)
    assert last.returncode == 0, said
    assert f"note: the checkpoint {newest} is damaged" in said
    assert resumed(output) >= 40
    assert np.array_equal(np.asarray(open_volume(output).array), undisturbed("cgls"))


@pytest.mark.slow
def test_a_disk_too_small_for_checkpoints_stops_nothing(scan, start, tmp_path, undisturbed):
    """The volume fits, the states of CGLS do not."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", disk], capture_output=True).returncode:
        pytest.skip("mounting a small disk needs privileges that are not there")
    try:
        process = start(*words(scan, disk / "out.mrc", "cgls"))
        _, said = process.communicate(timeout=120)
        assert process.returncode == 0, said
        assert "note: no checkpoint could be written" in said
        assert "goes on" in said
        assert np.array_equal(np.asarray(open_volume(disk / "out.mrc").array), undisturbed("cgls"))
    finally:
        subprocess.run(["umount", "-l", disk], check=True)


def _job(scan: Path, output: Path, block: int, **more: Any) -> Job:
    settings = ReconSettings(
        scan=scan, output=output, center=CENTER, algorithm="cgls", iterations=ITERATIONS["cgls"], **more
    )
    opened = open_scan(settings)
    geometry = geometry_of(opened, CENTER, False)
    create_volume(output, (32, geometry.height, geometry.width), np.float32, slab=32)
    return Job(opened, settings, None, geometry, scale_of(opened)[0], block, 1, output)


@pytest.mark.parametrize("every", ["0.002", pytest.param("30it", marks=pytest.mark.slow)])
def test_blocks_of_a_slab_that_were_done_are_not_done_again(scan, tmp_path, every):
    """A slab in four blocks, its worker killed in the third."""
    output = tmp_path / "out.zarr"
    job = _job(scan, output, 8, checkpoint_every=every)
    slab = Slab(0, 0, 32)
    summaries = []
    with connect(Resources(1, 1, 2_000_000_000, dashboard=":0")) as client, unlocked_at_end(output):

        def kill_in_the_third_block() -> None:
            wait_for(lambda: list(progress(output).glob("checkpoints-*/at-00000016-00000024/state-*")))
            os.kill(client.run(os.getpid, nanny=False).popitem()[1], signal.SIGKILL)

        killer = threading.Thread(target=kill_in_the_third_block)
        killer.start()
        run_tasks(client, reconstruct_slab, job, [slab], lambda _, summary: summaries.append(summary))
        killer.join()
        assert not list(progress(output).glob("checkpoints-*"))
    (summary,) = summaries
    assert summary.resumed > 2 * ITERATIONS["cgls"]
    assert not summary.notes
    undisturbed = dataclasses.replace(job, output=tmp_path / "whole.zarr", block=32)
    create_volume(undisturbed.output, (32, job.geometry.height, job.geometry.width), np.float32, slab=32)
    with unlocked_at_end(undisturbed.output):
        whole = reconstruct_slab(undisturbed, slab)
    assert whole.resumed == 0
    kept = ("pixels", "dead_pixels", "values", "repaired_values", "residual", "warnings")
    assert [getattr(summary, name) for name in kept] == [getattr(whole, name) for name in kept]
    for path in (output, undisturbed.output):
        open_writer(path).finish()
    assert np.array_equal(*(np.asarray(open_volume(path).array) for path in (output, undisturbed.output)))


def test_a_checkpoint_of_other_settings_is_not_gone_on_from(scan, tmp_path):
    """As it may be left in a folder that was copied by hand."""
    job = _job(scan, tmp_path / "out.zarr", 32, checkpoint_every="1it")
    slab = Slab(0, 0, 32)
    with unlocked_at_end(job.output):
        store = SlabCheckpoints(job, slab).block(slab).store
        store.save({"solution": np.zeros(3)})
        other = dataclasses.replace(job, settings=job.settings.model_copy(update={"stripes": "none"}))
        with pytest.raises(ValueError, match="made with stripes"):
            reconstruct_slab(other, slab)
        assert Checkpoints(store.folder, made_with=store.made_with).load() is not None


@pytest.mark.slow
def test_a_worker_thought_dead_stops_once_another_one_has_its_slab(scan, tmp_path, undisturbed):
    """As when the scheduler takes a task from a worker that cannot stop: both solve the same slab."""
    output = tmp_path / "out.zarr"
    job, slab = _job(scan, output, 32, checkpoint_every="3it"), Slab(0, 0, 32)
    with connect(Resources(2, 1, 2_000_000_000, dashboard=":0")) as client, unlocked_at_end(output):
        one, two = client.scheduler_info(n_workers=-1)["workers"]
        first = client.submit(reconstruct_slab, job, slab, workers=one, pure=False)
        wait_for(lambda: reached(output) >= 6)
        second = client.submit(reconstruct_slab, job, slab, workers=two, pure=False)
        with pytest.raises(StoppedError, match="rows 0:32 were taken over by another worker"):
            first.result()
        assert second.result().resumed >= 4
        # one that is at it when the run is over leaves nothing behind: the output counts as finished
        third = client.submit(reconstruct_slab, dataclasses.replace(job, block=16), slab, workers=one, pure=False)
        wait_for(lambda: list(progress(output).glob("checkpoints-*/at-*/state-*")))
        open_writer(output).finish()
        with pytest.raises(StoppedError, match="taken over"):
            third.result()
        assert not progress(output).exists()
    assert np.array_equal(np.asarray(open_volume(output).array), undisturbed("cgls"))


class DeadlySource:
    """Kills the process that reads rows 8 to 16, but not the one that `spared` names."""

    def __init__(self, source: Any, folder: Path, spared: int) -> None:
        self.source, self.folder, self.spared = source, folder, spared
        self.shape, self.dtype, self.location = source.shape, source.dtype, source.location

    def read(self, frames: Any = slice(None), rows: slice = slice(None), columns: slice = slice(None)) -> np.ndarray:
        if os.getpid() != self.spared and rows.start is not None and rows.start < 16 and rows.stop > 8:
            (self.folder / str(os.getpid())).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return self.source.read(frames, rows, columns)


@pytest.mark.parametrize("algorithm", ["fbp", pytest.param("sirt", marks=pytest.mark.slow)])
def test_a_slab_that_kills_each_worker_stops_the_run_and_is_named(scan, tmp_path, monkeypatch, algorithm):
    """And the slabs that were done stay done."""
    victims, output = tmp_path / "victims", tmp_path / "out.zarr"
    victims.mkdir()
    open_it = job_module.open_scan

    def deadly(settings: ReconSettings) -> Any:
        opened = open_it(settings)
        source = DeadlySource(opened.projection_source, victims, os.getpid())
        return dataclasses.replace(opened, projection_source=source)

    settings = ReconSettings(
        scan=scan, output=output, center=CENTER, algorithm=algorithm, iterations=5, workers=2, slab=8
    )
    with monkeypatch.context() as patch:
        patch.setattr(job_module, "open_scan", deadly)
        with pytest.raises(
            StoppedError, match=rf"rows 8:16 \(slab 2 of 4\) killed each of the {TRIES} workers"
        ) as caught:
            run(settings, quiet=True)
    assert caught.value.exit_code == 3
    assert "--resume" in str(caught.value)
    assert len(list(victims.iterdir())) == TRIES
    run(settings, resume=True, quiet=True)
    whole = settings.model_copy(update={"output": tmp_path / "whole.zarr", "slab": 32})
    run(whole, quiet=True)
    assert np.array_equal(*(np.asarray(open_volume(path).array) for path in (output, whole.output)))


def test_a_worker_killed_while_it_starts_ends_no_run(tmp_path):
    killed: list[int] = []
    before = {worker.pid for worker in workers(os.getpid())}

    def kill_the_first() -> None:
        """As soon as the server has forked one."""
        while not killed:
            for worker in [new for new in workers(os.getpid()) if new.pid not in before][:1]:
                worker.kill()
                killed.append(worker.pid)

    killer = threading.Thread(target=kill_the_first)
    killer.start()
    with connect(Resources(2, 1, 2_000_000_000, dashboard=":0")) as client:
        killer.join()
        client.wait_for_workers(2, timeout=60)
        assert len(client.run(os.getpid)) == 2
        assert killed[0] not in client.run(os.getpid).values()
