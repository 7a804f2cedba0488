"""Two runs are kept out of one output; a run that was killed leaves nothing that cannot be taken over."""

import json
import socket
import subprocess
import sys
import time

import dask
import dask.array as da
import numpy as np
import psutil
import pytest

from dtomo.errors import UserError
from dtomo.io import check_output, create_volume, open_volume
from dtomo.io.lock import LOCK, Owner, release_lock, take_lock
from dtomo.io.output import clear, progress_folder, unlocked_at_end
from dtomo.io.volumes import store_volume

VOLUME = np.random.default_rng(6).standard_normal((8, 6, 5)).astype(np.float32)
NAMES = ["v.zarr", "v.mrc", "v.tif"]


@pytest.fixture
def other():
    """Another process that lives until it is killed."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield process
    process.kill()
    process.communicate()


def _begun(path):
    writer = create_volume(path, VOLUME.shape, slab=4)
    writer.write_slab(0, VOLUME[:4])
    return writer


def _lock(path, pid, started=None, host=None):
    """Put a lock as the process `pid` would have written it."""
    content = {
        "host": host or socket.gethostname(),
        "pid": pid,
        "started": psutil.Process(pid).create_time() if started is None else started,
    }
    (progress_folder(path) / LOCK).write_text(json.dumps(content))
    return content


def _locked_by(path):
    return json.loads((progress_folder(path) / LOCK).read_text())


@pytest.mark.parametrize("name", NAMES)
def test_an_output_that_a_living_process_writes_is_left_alone(name, other, tmp_path):
    path = tmp_path / name
    _begun(path)
    content = _lock(path, other.pid)
    before = sorted(tmp_path.rglob("*"))
    for choice in ({}, {"overwrite": True}, {"resume": True}):
        with pytest.raises(UserError, match=rf"being written by another run \(process {other.pid}\)") as caught:
            check_output(path, **choice)
        assert "\n" not in str(caught.value)
        with pytest.raises(UserError, match="being written by another run"):
            create_volume(path, VOLUME.shape, slab=4, **choice)
    with pytest.raises(UserError, match="being written by another run"):
        clear(path)
    assert sorted(tmp_path.rglob("*")) == before
    assert _locked_by(path) == content


@pytest.mark.parametrize("reaped", [True, False])
@pytest.mark.parametrize("name", NAMES)
def test_a_killed_run_is_resumed_and_its_lock_taken_over(name, reaped, other, tmp_path):
    path = tmp_path / name
    _begun(path)
    _lock(path, other.pid)
    other.kill()
    if reaped:
        other.wait()
    else:  # a zombie: dead, but its number is still in use
        while psutil.Process(other.pid).status() != psutil.STATUS_ZOMBIE:
            time.sleep(0.01)
    writer = create_volume(path, VOLUME.shape, slab=4, resume=True)
    assert writer.done() == [(0, 4)]
    assert Owner(**_locked_by(path)).is_this_process()
    writer.write_slab(4, VOLUME[4:])
    writer.finish()
    np.testing.assert_array_equal(open_volume(path).array.compute(), VOLUME)
    assert not progress_folder(path).exists()


def test_a_process_number_used_again_is_not_the_run(other, tmp_path):
    path = tmp_path / "v.mrc"
    _begun(path)
    _lock(path, other.pid, started=psutil.Process(other.pid).create_time() - 1000)
    check_output(path, resume=True)
    create_volume(path, VOLUME.shape, slab=4, overwrite=True)
    assert Owner(**_locked_by(path)).is_this_process()


def test_a_run_on_another_host_is_refused_and_the_file_named(tmp_path):
    path = tmp_path / "v.zarr"
    _begun(path)
    _lock(path, 1, host="node17")
    for choice in ({"overwrite": True}, {"resume": True}):
        with pytest.raises(UserError, match=r"a run on node17 .*remove .*v\.zarr/\.dtomo/lock\.json"):
            check_output(path, **choice)
    (path / ".dtomo" / LOCK).unlink()
    check_output(path, resume=True)


@pytest.mark.parametrize("content", ["", "[]", '{"pid": 1}', '{"host": "h", "pid": "x", "started": 0}'])
def test_a_lock_that_cannot_be_read_is_named(content, tmp_path):
    path = tmp_path / "v.tif"
    _begun(path)
    (progress_folder(path) / LOCK).write_text(content)
    with pytest.raises(UserError, match=r"v\.tif\.dtomo/lock\.json cannot be read"):
        check_output(path, overwrite=True)


def test_of_two_that_begin_at_once_one_is_refused(other, tmp_path):
    folder = progress_folder(tmp_path / "v.mrc")
    folder.mkdir()
    content = _lock(tmp_path / "v.mrc", other.pid)
    with pytest.raises(UserError, match="being written by another run"):
        take_lock(folder, tmp_path / "v.mrc")
    assert _locked_by(tmp_path / "v.mrc") == content
    release_lock(folder)
    assert _locked_by(tmp_path / "v.mrc") == content
    assert [item.name for item in folder.iterdir()] == [LOCK]


@pytest.mark.parametrize("name", NAMES)
def test_a_run_that_fails_lets_others_go_on(name, tmp_path):
    @dask.delayed
    def fail():
        raise RuntimeError("no more")

    path = tmp_path / name
    with pytest.raises(RuntimeError, match="no more"):
        store_volume(da.from_delayed(fail(), VOLUME.shape, np.float32), path, slab=4)
    assert progress_folder(path).is_dir()
    assert not (progress_folder(path) / LOCK).exists()
    check_output(path, resume=True)
    with unlocked_at_end(path):
        writer = create_volume(path, VOLUME.shape, slab=4, resume=True)
        assert (progress_folder(path) / LOCK).exists()
    assert not (progress_folder(path) / LOCK).exists()
    assert writer.done() == []


def test_a_folder_of_the_name_of_the_progress_is_kept(tmp_path):
    (tmp_path / "v.mrc.dtomo").mkdir()
    (tmp_path / "v.mrc.dtomo" / "thesis.txt").write_text("all my work")
    for choice in ({}, {"overwrite": True}, {"resume": True}):
        with pytest.raises(UserError, match="which is in use"):
            create_volume(tmp_path / "v.mrc", VOLUME.shape, slab=4, **choice)
    assert (tmp_path / "v.mrc.dtomo" / "thesis.txt").exists()
