"""Two commands that want one output, and one that was killed outright."""

import contextlib
import os
import signal
import time

import numpy as np
import pytest

from dtomo.io import open_volume

SLOW = ["--center", 38.5, "--algorithm", "sirt", "--iterations", 50, "--slab", 8, "--workers", 1]


@pytest.mark.parametrize("name", ["out.zarr", pytest.param("out.mrc", marks=pytest.mark.slow)])
def test_a_second_run_is_refused_and_a_killed_one_is_resumed(name, here, start, scan, tmp_path):
    output = tmp_path / name
    folder = output / ".dtomo" if name == "out.zarr" else tmp_path / "out.mrc.dtomo"
    process = start("recon", scan, output, *SLOW)
    end = time.monotonic() + 60
    while not list(folder.glob("slab-*.json")):
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < end
        time.sleep(0.005)
    process.send_signal(signal.SIGSTOP)  # it stays alive and unfinished for as long as this takes
    for choice in ("--overwrite", "--resume"):
        refused = here("recon", scan, output, *SLOW, choice)
        assert refused.returncode == 2, refused.stderr
        assert f"is being written by another run (process {process.pid})" in refused.stderr
        assert "axis of rotation" not in refused.stderr
    assert list(folder.glob("slab-*.json"))
    process.kill()
    process.wait()
    assert (folder / "lock.json").exists()
    resumed = here("recon", scan, output, *SLOW, "--resume")
    assert resumed.returncode == 0, resumed.stderr
    assert not folder.exists()
    with contextlib.suppress(ProcessLookupError):  # its workers, if they have not ended by themselves
        os.killpg(process.pid, signal.SIGKILL)
    assert np.isfinite(np.asarray(open_volume(output).array)).all()


def test_an_output_that_cannot_be_is_refused_before_the_axis_is_searched(here, scan, tmp_path):
    (tmp_path / "out.mrc").mkdir()
    (tmp_path / "out.tif").mkdir()
    for name in ("out.mrc", "out.tif"):
        refused = here("recon", scan, name, "--overwrite")
        assert refused.returncode == 2
        assert "is a folder, but the output is one file" in refused.stderr
        assert "axis of rotation" not in refused.stderr
    for words in (["a.png"], ["a"], ["a.png", "--plan"]):
        refused = here("recon", scan, *words)
        assert refused.returncode == 2
        assert "is not known; use .zarr, .mrc, .em or .tif" in refused.stderr
        assert "axis of rotation" not in refused.stderr
    assert sorted(item.name for item in tmp_path.iterdir()) == ["out.mrc", "out.tif"]
