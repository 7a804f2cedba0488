"""Chunk by chunk with halos is the same as at once: filters, functions that pool, any shape; arrays, Dask, files."""

from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
from scipy import ndimage

from dtomo.errors import UserError
from dtomo.fitting.apply import Tiling, apply, apply_files
from dtomo.io import create_volume, open_volume

RNG = np.random.default_rng(5)


def smoothed(block: Any) -> Any:
    """A filter that looks 3 voxels far."""
    return ndimage.uniform_filter(block, 7, mode="mirror")


def pooled(block: Any) -> Any:
    """As networks that halve their input twice: means of cells of 4, smoothed over neighbouring cells, put back."""
    z, y, x = (n // 4 for n in block.shape)
    cells = block.reshape(z, 4, y, 4, x, 4).mean((1, 3, 5))
    return np.kron(ndimage.uniform_filter(cells, 3, mode="mirror"), np.ones((4, 4, 4))) + block


def at_once(function: Any, volume: Any, halo: int, multiple: int) -> Any:
    """On the volume continued on all sides, in whole cells."""
    ends = [-(-n // multiple) * multiple - n for n in volume.shape]
    padded = np.pad(volume, [(halo, halo + end) for end in ends], mode="reflect")
    return function(padded)[tuple(slice(halo, halo + n) for n in volume.shape)]


@pytest.mark.parametrize(("function", "halo", "multiple"), [(smoothed, 3, 1), (pooled, 8, 4)])
@pytest.mark.parametrize("shape", [(17, 21, 40), (5, 33, 9), (16, 16, 16)])
@pytest.mark.parametrize("chunk", [8, (4, 12, 64)])
def test_chunks_are_the_whole(function: Any, halo: int, multiple: int, shape: Any, chunk: Any) -> None:
    volume = RNG.normal(size=shape)
    whole = at_once(function, volume, 16, multiple)
    found = apply(function, volume, halo=halo, chunk=chunk, multiple=multiple, dtype=float)
    np.testing.assert_allclose(found, whole, rtol=0, atol=1e-12)


def test_a_halo_that_is_too_thin_shows() -> None:
    volume = RNG.normal(size=(17, 21, 40))
    found = apply(smoothed, volume, halo=2, chunk=8, dtype=float)
    assert np.abs(found - at_once(smoothed, volume, 16, 1)).max() > 1e-3


def test_one_slice_and_two_axes() -> None:
    volume = RNG.normal(size=(1, 20, 20))
    np.testing.assert_allclose(
        apply(smoothed, volume, halo=3, chunk=7, dtype=float)[0],
        ndimage.uniform_filter(np.pad(volume[0], 3, mode="reflect"), 7)[3:-3, 3:-3],
    )
    flat = apply(smoothed, volume[0], halo=(3, 3), chunk=(7, 9), dtype=float)
    np.testing.assert_allclose(flat, apply(smoothed, volume[0], halo=3, chunk=20, dtype=float))


def test_dask_arrays_stay_lazy_and_give_the_same() -> None:
    volume = RNG.normal(size=(17, 21, 40)).astype(np.float32)
    asked: list[int] = []

    def counted(block: Any) -> Any:
        asked.append(1)
        return pooled(block)

    lazy = apply(counted, da.from_array(volume, chunks=(5, 21, 17)), halo=8, chunk=8, multiple=4)
    assert not asked
    assert lazy.shape == volume.shape
    assert lazy.chunks[0] == (8, 8, 1)
    expected = apply(pooled, volume, halo=8, chunk=8, multiple=4)
    np.testing.assert_array_equal(lazy.compute(scheduler="sync"), expected)
    del asked[:]
    lazy[:3, :3, :3].compute(scheduler="sync")
    assert len(asked) == 1


@pytest.fixture
def on_disk(tmp_path: Path) -> tuple[Path, Any]:
    volume = RNG.normal(size=(21, 18, 30)).astype(np.float32)
    writer = create_volume(tmp_path / "in.zarr", volume.shape, slab=8, voxel_size_um=0.5)
    for z in range(0, 21, 8):
        writer.write_slab(z, volume[z : z + 8])
    writer.finish()
    return tmp_path / "in.zarr", volume


def test_from_disk_to_disk(on_disk: tuple[Path, Any], fitting_client: Any) -> None:
    path, volume = on_disk
    out = apply_files(
        pooled, path, path.with_name("out.zarr"), halo=8, chunk=8, multiple=4, slab=8, client=fitting_client
    )
    found = open_volume(out)
    expected = apply(pooled, volume, halo=8, chunk=16, multiple=4)
    np.testing.assert_allclose(found.source.read(slice(None)), expected, atol=1e-6)
    assert found.voxel_size_um == (0.5, 0.5, 0.5)


def test_a_function_of_another_shape_is_refused(on_disk: tuple[Path, Any], fitting_client: Any) -> None:
    def halved(block: Any) -> Any:
        return block[::2]

    path, volume = on_disk
    with pytest.raises(UserError, match="returns blocks of the shape it is given"):
        apply(halved, volume, halo=0)
    with pytest.raises(UserError, match="returns blocks of the shape it is given"):
        apply_files(halved, path, path.with_name("out.zarr"), halo=0, client=fitting_client)


@pytest.mark.parametrize(
    ("sizes", "says"),
    [({"halo": -1}, "the halo of a model"), ({"halo": 1, "chunk": 0}, "the chunk of a model"),
     ({"halo": (1, 2)}, "one for each of 3 axes"), ({"halo": 1, "multiple": 1.5}, "the multiple")],
)  # fmt: skip
def test_refusals(sizes: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says):
        apply(smoothed, np.zeros((4, 4, 4)), **sizes)


def test_halos_and_chunks_are_whole_cells() -> None:
    tiling = Tiling.of((100, 100, 100), 30, 5, 4)
    assert tiling.chunk == (32, 32, 32)
    assert tiling.halo == (8, 8, 8)
