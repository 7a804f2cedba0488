"""Files with bytes changed at random are read or refused in one sentence, never with a traceback of some library."""

import numpy as np
import pytest
import tifffile

import dtomo
from dtomo.errors import UserError
from dtomo.io import create_volume, open_volume, write_zarr_scan

RAW = np.random.default_rng(0).integers(300, 800, (6, 4, 8)).astype(np.uint16)


def _tiff(folder):
    tifffile.imwrite(folder / "s.tif", RAW, photometric="minisblack")
    return folder / "s.tif", [folder / "s.tif"]


def _mrc(folder):
    writer = create_volume(folder / "s.mrc", RAW.shape, RAW.dtype)
    writer.write_slab(0, RAW)
    return writer.finish(), [folder / "s.mrc"]


def _zarr(folder):
    writer = create_volume(folder / "s.zarr", RAW.shape, RAW.dtype, voxel_size_um=1)
    writer.write_slab(0, RAW)
    return writer.finish(), sorted(item for item in (folder / "s.zarr").rglob("*") if item.is_file())


def _zarr_scan(folder):
    path = write_zarr_scan(
        folder / "s.zarr",
        frames=iter(RAW),
        shape=RAW.shape,
        dtype=RAW.dtype,
        flats=RAW[0] + 1000,
        darks=None,
        angles=np.arange(6) * 30.0,
    )
    return path, sorted(item for item in path.rglob("*") if item.is_file())


@pytest.mark.parametrize("make", [_tiff, _mrc, _zarr, _zarr_scan])
@pytest.mark.parametrize("seed", range(3))
def test_random_damage(make, seed, tmp_path):
    path, files = make(tmp_path)
    rng = np.random.default_rng(seed)
    refused: list[str] = []
    for _ in range(40):
        victim = files[rng.integers(len(files))]
        whole = victim.read_bytes()
        content = bytearray(whole)
        for _ in range(4):
            content[rng.integers(min(len(content), 1100))] = rng.integers(256)
        victim.write_bytes(content[: rng.integers(len(content)) if rng.random() < 0.2 else None])
        for read in (
            lambda: dtomo.open(path, angles=np.arange(6) * 30.0).read(),
            lambda: open_volume(path).source.read(),
        ):
            try:
                read()
            except UserError as error:
                refused.append(str(error))
        victim.write_bytes(whole)
    assert refused
    assert [message for message in refused if "\n" in message or str(tmp_path) not in message] == []
