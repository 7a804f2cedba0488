"""Volumes: written in slabs, refused while unfinished, resumed, read back by dtomo and by others."""

import errno
import json
import os
import pickle
import subprocess

import dask.array as da
import mrcfile
import numpy as np
import pytest
import tifffile
import zarr
from ome_zarr_models import open_ome_zarr

from dtomo.errors import StoppedError, UserError
from dtomo.io import convert, create_volume, open_volume, open_writer
from dtomo.io.convert import slab_for
from dtomo.io.ome_zarr import OmeZarrWriter
from dtomo.io.output import progress_folder, writing
from dtomo.io.pyramid import halved, level_factors, level_shapes
from dtomo.io.volumes import store_volume

VOLUME = np.random.default_rng(5).standard_normal((21, 30, 26)).astype(np.float32)
NAMES = ["v.zarr", "v.mrc", "v.tif"]


def _write(path, volume=VOLUME, slab=8, **options):
    writer = create_volume(path, volume.shape, volume.dtype, slab=slab, **options)
    for start in reversed(range(0, volume.shape[0], slab)):
        pickle.loads(pickle.dumps(writer)).write_slab(start, volume[start : start + slab])
    return writer.finish()


@pytest.mark.parametrize("name", NAMES)
def test_slabs_in_any_order_give_the_volume_back(name, tmp_path):
    _write(tmp_path / name, voxel_size_um=(2.0, 1.5, 1.5))
    volume = open_volume(tmp_path / name)
    assert volume.complete
    assert volume.voxel_size_um == pytest.approx((2.0, 1.5, 1.5))
    assert volume.dtype == np.float32
    np.testing.assert_array_equal(volume.array.compute(), VOLUME)
    np.testing.assert_array_equal(volume.array[3:9, 4].compute(), VOLUME[3:9, 4])
    assert not progress_folder(tmp_path / name).exists()
    assert sorted(item.name for item in tmp_path.iterdir()) == [name]


@pytest.mark.parametrize("name", NAMES)
def test_a_slab_with_z_innermost_in_memory(name, tmp_path):
    volume = np.ascontiguousarray(VOLUME.transpose(1, 2, 0)).transpose(2, 0, 1)
    _write(tmp_path / name, volume)
    np.testing.assert_array_equal(open_volume(tmp_path / name).array.compute(), VOLUME)


@pytest.mark.parametrize("name", NAMES)
def test_unfinished_is_refused_as_input_and_resumed(name, tmp_path):
    path = tmp_path / name
    settings = {"algorithm": "fbp", "rows": (0, 21)}
    create_volume(path, VOLUME.shape, slab=8, attributes=settings).write_slab(8, VOLUME[8:16])
    with pytest.raises(UserError, match=r"unfinished.*--resume"):
        open_volume(path)
    with pytest.raises(UserError, match=r"unfinished.*--resume"):
        create_volume(path, VOLUME.shape, slab=8)
    with pytest.raises(UserError, match=r"slices 0:8, 16:21 were never written"):
        open_writer(path).finish()
    with pytest.raises(UserError, match="algorithm = 'fbp', not 'sirt'"):
        create_volume(path, VOLUME.shape, slab=8, attributes={**settings, "algorithm": "sirt"}, resume=True)
    with pytest.raises(UserError, match="slab 8, not 4"):
        create_volume(path, VOLUME.shape, slab=4, attributes=settings, resume=True)
    writer = create_volume(path, VOLUME.shape, slab=8, attributes=settings, resume=True)
    assert writer.done() == [(8, 16)]
    writer.write_slab(0, VOLUME[:8])
    writer.write_slab(16, VOLUME[16:])
    writer.finish({"seconds": 3})
    np.testing.assert_array_equal(open_volume(path).array.compute(), VOLUME)
    with pytest.raises(UserError, match="nothing to resume"):
        create_volume(path, VOLUME.shape, slab=8, attributes=settings, resume=True)
    if name == "v.zarr":
        assert open_volume(path).attributes == {"algorithm": "fbp", "rows": [0, 21], "seconds": 3}


@pytest.mark.parametrize("name", NAMES)
def test_creation_that_was_cut_short_can_be_resumed(name, tmp_path):
    create_volume(tmp_path / name, VOLUME.shape, slab=8)
    (progress_folder(tmp_path / name) / "settings.json").unlink()
    with pytest.raises(UserError, match="not an unfinished dtomo output"):
        open_writer(tmp_path / name)
    writer = create_volume(tmp_path / name, VOLUME.shape, slab=21, resume=True)
    writer.write_slab(0, VOLUME)
    writer.finish()
    np.testing.assert_array_equal(open_volume(tmp_path / name).array.compute(), VOLUME)


@pytest.mark.parametrize("name", NAMES)
def test_the_old_output_is_replaced_only_on_request(name, tmp_path):
    _write(tmp_path / name)
    with pytest.raises(UserError, match=r"exists.*--overwrite"):
        create_volume(tmp_path / name, (4, 5, 6))
    np.testing.assert_array_equal(open_volume(tmp_path / name).array.compute(), VOLUME)
    _write(tmp_path / name, 2 * VOLUME[:4], overwrite=True)
    np.testing.assert_array_equal(open_volume(tmp_path / name).array.compute(), 2 * VOLUME[:4])


@pytest.mark.parametrize("name", NAMES)
def test_slabs_that_do_not_fit_are_refused(name, tmp_path):
    writer = create_volume(tmp_path / name, VOLUME.shape, slab=8)
    for start, slab in (
        (16, VOLUME[:8]),
        (-8, VOLUME[:8]),
        (0, VOLUME[:8, :5]),
        (0, VOLUME[0]),
        (0, VOLUME[:0]),
    ):
        with pytest.raises(UserError, match="does not fit"):
            writer.write_slab(start, slab)
    with pytest.raises(UserError, match="complex"):
        writer.write_slab(0, VOLUME[:8] * 1j)


@pytest.mark.parametrize("dtype", ["uint8", "int16", "uint16", "float16", "float32", "complex64", "float64"])
def test_dtypes_survive_or_are_refused(dtype, tmp_path):
    values = np.arange(24).reshape(2, 3, 4).astype(dtype)
    for name in NAMES:
        if dtype == "complex64" and name == "v.tif":
            with pytest.raises(UserError, match="cannot hold complex64; write OME-Zarr"):
                create_volume(tmp_path / name, values.shape, dtype)
            continue
        _write(tmp_path / name, values, slab=2)
        got = open_volume(tmp_path / name)
        np.testing.assert_array_equal(got.array.compute(), values)
        if name == "v.zarr":
            assert got.dtype == dtype
    with pytest.raises(UserError, match="no mode for int64"):
        create_volume(tmp_path / "w.mrc", (2, 2, 2), np.int64)


@pytest.mark.parametrize("slab", [1, 2, 3, 6, 8, 21, 64])
def test_pyramid_does_not_depend_on_slabs(slab, tmp_path):
    _write(tmp_path / "a.zarr", slab=slab, levels=4)
    group = zarr.open_group(tmp_path / "a.zarr", mode="r")
    expected = VOLUME
    for level in range(4):
        np.testing.assert_array_equal(group[str(level)][:], expected)
        expected = halved(expected)


def test_halved_means():
    block = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    got = halved(block)
    assert got.shape == (1, 2, 2)
    assert got.dtype == np.float32
    assert got[0, 0, 0] == block[:, :2, :2].mean()
    assert got[0, 1, 1] == block[:, 2, 2:].mean()
    assert halved(np.full((2, 2, 2), 255, np.uint8)).item() == 255
    assert halved(np.full((2, 2, 2), 60000, np.float16)).item() == 60000
    assert level_shapes((1, 1000, 300)) == [(1, 1000, 300), (1, 500, 150), (1, 250, 75)]
    assert level_factors([(1, 1000, 300), (1, 500, 150)]) == [(1, 1, 1), (1, 2, 2)]


def test_no_slab_shares_a_shard_at_any_level(tmp_path):
    for z, slab in ((200, 64), (200, 96), (130, 24), (64, 16), (37, 37), (500, 128)):
        shape = (z, 520, 300)
        path = tmp_path / f"{z}-{slab}.zarr"
        writer = create_volume(path, shape, slab=slab, levels=5)
        assert isinstance(writer, OmeZarrWriter)
        group = zarr.open_group(path, mode="r")
        for level in range(5):
            array = group[str(level)]
            assert all(shard % chunk == 0 for shard, chunk in zip(array.shards, array.chunks))
            if writer._by_slab(level) and slab < z:
                assert slab % 2**level == 0
                assert (slab >> level) % array.shards[0] == 0


def test_writing_a_slab_touches_only_its_own_shards(tmp_path):
    writer = create_volume(tmp_path / "v.zarr", (32, 20, 20), slab=8, levels=4)
    writer.write_slab(8, np.ones((8, 20, 20), np.float32))
    made = set((tmp_path / "v.zarr").rglob("c/*/*/*"))
    writer.write_slab(0, np.ones((8, 20, 20), np.float32))
    stamps = {item: item.stat().st_mtime_ns for item in made}
    writer.write_slab(16, np.ones((8, 20, 20), np.float32))
    assert made
    assert {item: item.stat().st_mtime_ns for item in made} == stamps


def test_ome_zarr_is_valid_and_read_by_plain_zarr(tmp_path):
    path = _write(tmp_path / "v.zarr", voxel_size_um=0.65, levels=3)
    model = open_ome_zarr(zarr.open_group(path, mode="r"))
    assert model.ome_attributes.version == "0.5"
    assert [axis.unit for axis in model.ome_attributes.multiscales[0].axes] == ["micrometer"] * 3
    np.testing.assert_array_equal(zarr.open_array(path / "0", mode="r")[:], VOLUME)
    np.testing.assert_array_equal(da.from_zarr(str(path / "0")).compute(), VOLUME)
    assert json.loads((path / "0" / "zarr.json").read_text())["dimension_names"] == ["z", "y", "x"]


def test_mrc_is_read_by_mrcfile(tmp_path):
    path = _write(tmp_path / "v.mrc", voxel_size_um=1e-3, origin_um=(3e-3, 0.0, -2e-3))
    assert open_volume(path).origin == pytest.approx((30, 0, -20))
    assert mrcfile.validate(path)
    with mrcfile.open(path) as file:
        np.testing.assert_array_equal(file.data, VOLUME)
        assert file.header.dmin == VOLUME.min()
        assert file.header.dmax == VOLUME.max()
        assert file.header.dmean == pytest.approx(VOLUME.mean(dtype=np.float64), abs=1e-6)
        assert file.header.rms == pytest.approx(VOLUME.std(dtype=np.float64), rel=1e-5)


def test_tiff_is_read_by_tifffile(tmp_path):
    path = _write(tmp_path / "v.tif", voxel_size_um=1.3)
    with tifffile.TiffFile(path) as file:
        assert file.is_bigtiff
        assert len(file.pages) == 21
        np.testing.assert_array_equal(file.asarray(), VOLUME)
        np.testing.assert_array_equal(file.pages[20].asarray(), VOLUME[20])


def test_convert_between_all(tmp_path):
    _write(tmp_path / "v.zarr", voxel_size_um=0.5)
    before = "v.zarr"
    for name in ("b.mrc", "c.tif", "d.zarr"):
        convert(tmp_path / before, tmp_path / name)
        before = name
    volume = open_volume(tmp_path / "d.zarr")
    np.testing.assert_array_equal(volume.array.compute(), VOLUME)
    assert volume.voxel_size_um == (0.5, 0.5, 0.5)
    with pytest.raises(UserError, match="is the input itself"):
        convert(tmp_path / "d.zarr", tmp_path / "d.zarr", overwrite=True)
    with pytest.raises(UserError, match="suffix"):
        convert(tmp_path / "d.zarr", tmp_path / "d.png")
    assert slab_for((4096, 4096, 4096), 4) == 4
    assert slab_for((10, 10, 10), 4) == 64
    assert slab_for((10, 10**6, 10**6), 4) == 1


def test_store_volume_makes_irregular_dask_chunks_regular(tmp_path):
    lazy = da.from_array(VOLUME, chunks=((5, 1, 15), (7, 23), 26))
    store_volume(lazy, tmp_path / "v.zarr", slab=8)
    np.testing.assert_array_equal(open_volume(tmp_path / "v.zarr").array.compute(), VOLUME)


def test_open_volume_refuses_what_is_none(tmp_path):
    zarr.create_group(tmp_path / "g.zarr").create_array("a", data=VOLUME)
    (tmp_path / "t.txt").write_text("x" * 2000)
    (tmp_path / "e.mrc").touch()
    _write(tmp_path / "v.mrc")
    os.truncate(tmp_path / "v.mrc", 20000)
    cases = (
        ("g.zarr", "without OME"),
        ("t.txt", "not a volume"),
        ("e.mrc", "empty"),
        ("v.mrc", "truncated"),
        ("no", "no file"),
    )
    for name, message in cases:
        with pytest.raises(UserError, match=message):
            open_volume(tmp_path / name)
    np.testing.assert_array_equal(open_volume(tmp_path / "g.zarr" / "a").array.compute(), VOLUME)
    path = _write(tmp_path / "v.zarr")
    with pytest.raises(UserError, match="no level 7"):
        open_volume(path, level=7)


def test_full_disk_in_the_middle_is_a_stop_with_advice(tmp_path):
    with (
        pytest.raises(StoppedError, match=r"disk is full.*--resume"),
        writing(tmp_path / "x", resumable=True),
    ):
        raise OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(UserError, match="disk is full"), writing(tmp_path / "x"):
        raise OSError(errno.ENOSPC, "No space left on device")


def _write_all(writer, volume):
    for start in range(0, 24, 8):
        writer.write_slab(start, volume[start : start + 8])


@pytest.fixture
def small_disk(tmp_path):
    folder = tmp_path / "disk"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "none", folder], capture_output=True).returncode:
        pytest.skip("needs the right to mount a small file system")
    yield folder
    subprocess.run(["umount", folder], check=True)


@pytest.mark.parametrize("name", NAMES)
def test_a_full_disk(name, small_disk):
    big = (64, 128, 128)
    with pytest.raises(UserError, match="GB free"):
        create_volume(small_disk / name, big)
    assert list(small_disk.iterdir()) == []
    volume = np.random.default_rng(0).standard_normal((24, 128, 128)).astype(np.float32)
    writer = create_volume(small_disk / name, volume.shape, slab=8)
    filler = small_disk / "filler"
    filler.write_bytes(b"x" * 1_000_000)
    with pytest.raises(StoppedError, match="disk is full"):
        _write_all(writer, volume)
    filler.unlink()
    done = writer.done()
    assert len(done) < 3
    for start in range(0, 24, 8):
        if (start, start + 8) not in done:
            writer.write_slab(start, volume[start : start + 8])
    writer.finish()
    np.testing.assert_array_equal(open_volume(small_disk / name).array.compute(), volume)


@pytest.mark.parametrize(("compression", "codec"), [(None, "lz4"), ("fast", "lz4"), ("small", "zstd"), ("none", None)])
@pytest.mark.parametrize("dtype", [np.float32, np.complex64, np.uint16])
def test_compression_changes_bytes_and_no_voxel(compression, codec, dtype, tmp_path):
    volume = np.abs(1000 * VOLUME).astype(dtype) * dtype(1 + 2j if dtype == np.complex64 else 1)
    _write(tmp_path / "v.zarr", volume, compression=compression)
    found = zarr.open_array(tmp_path / "v.zarr" / "0", mode="r").compressors
    assert [str(one.cname.value) for one in found] == ([codec] if codec else [])
    assert open_volume(tmp_path / "v.zarr").array.compute().tobytes() == volume.tobytes()


def test_compression_that_a_format_does_not_have(tmp_path):
    for name, compression, words in (
        ("v.mrc", "small", "only OME-Zarr"),
        ("v.tif", "fast", "only OME-Zarr"),
        ("v.zarr", "gzip", "none, fast, small; got 'gzip'"),
    ):
        with pytest.raises(UserError, match=words):
            create_volume(tmp_path / name, VOLUME.shape, compression=compression)
    assert list(tmp_path.iterdir()) == []
    _write(tmp_path / "v.mrc", compression="none")
    create_volume(tmp_path / "w.zarr", VOLUME.shape, slab=8)
    create_volume(tmp_path / "w.zarr", VOLUME.shape, slab=8, compression="fast", resume=True)
    with pytest.raises(UserError, match="begun with compression fast, not small"):
        create_volume(tmp_path / "w.zarr", VOLUME.shape, slab=8, compression="small", resume=True)
