"""Input found to be damaged part-way: one sentence, code 3, and the run goes on once the file was copied again."""

import shutil
from pathlib import Path

import h5py
import pytest

PARALLEL = ("scan", "--size", 24, "--angles", 40)
CONE = (*PARALLEL, "--geometry", "cone")
DATA = "/exchange/data"


def damaged(path: Path, name: str) -> Path:
    """Spoil the last chunk of a dataset, as a copy cut short would; where the whole file is kept."""
    with h5py.File(path, "r+") as file:
        values, attributes = file[name][()], dict(file[name].attrs)
        del file[name]
        chunks = (*(1 for _ in values.shape[:-2]), values.shape[-2] // 4, values.shape[-1])
        dataset = file.create_dataset(name, data=values, chunks=chunks, compression="gzip")
        dataset.attrs.update(attributes)
        chunk = dataset.id.get_chunk_info(dataset.id.get_num_chunks() - 1)
    whole = path.with_suffix(".whole")
    shutil.copy2(path, whole)
    with path.open("r+b") as file:
        file.seek(chunk.byte_offset)
        file.write(bytes(chunk.size))
    shutil.copystat(whole, path)  # what copies files keeps their times
    return whole


@pytest.mark.parametrize(
    ("simulated", "name", "command"),
    [
        (PARALLEL, DATA, "recon --center 12"),
        pytest.param(PARALLEL, DATA, "recon --center 12 --algorithm sirt --iterations 3", marks=pytest.mark.slow),
        pytest.param(CONE, DATA, "recon", marks=pytest.mark.slow),
        (CONE, DATA, "recon --algorithm cgls --iterations 3"),
    ],
    ids=["rows", "iterations", "fdk", "coupled"],
)
def test_stopped_and_finished_once_copied_again(here, tmp_path, simulated, name, command):
    scan = tmp_path / "scan.h5"
    assert here("simulate", simulated[0], scan, *simulated[1:]).returncode == 0
    whole = damaged(scan, name)
    stopped = here(*command.split(), scan, "out.zarr", "--workers", 1)
    assert stopped.returncode == 3, stopped.stderr
    last = stopped.stderr.strip().splitlines()[-1]
    assert last.startswith("dtomo: ")
    assert str(scan) in last
    assert "--resume" in last
    refused = here(*command.split(), scan, "out.zarr", "--workers", 1)
    assert refused.returncode == 2
    assert "--resume" in refused.stderr
    shutil.copy2(whole, scan)
    finished = here(*command.split(), scan, "out.zarr", "--workers", 1, "--resume")
    assert finished.returncode == 0, finished.stderr
    assert not (tmp_path / "out.zarr" / ".dtomo").exists()


@pytest.mark.parametrize(
    ("command", "size", "name"),
    [
        ("ptycho", ("--size", 32, "--positions", 40, "--modes", 1), "/entry_1/data_1/data"),
        ("ptychotomo", ("--size", 32, "--angles", 8, "--frame", 16), "frames"),
    ],
)
def test_what_is_read_before_anything_is_written_is_refused(here, tmp_path, command, size, name):
    scan = tmp_path / ("scan.cxi" if command == "ptycho" else "scan.h5")
    assert here("simulate", command, scan, *size).returncode == 0
    damaged(scan, name)
    refused = here(command, scan, "out.zarr", "--workers", 1)
    assert refused.returncode == 2
    assert "damaged" in refused.stderr
    assert not (tmp_path / "out.zarr").exists()
