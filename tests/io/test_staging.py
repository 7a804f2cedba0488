"""Staging: the same values from the scratch store, each frame read once, little memory, nothing lost unnoticed."""

import dataclasses
import json
import pickle
import shutil
import subprocess
import tracemalloc

import h5py
import hdf5plugin
import numpy as np
import pytest
import tifffile
import zarr
from zarr.codecs import BloscCodec

from dtomo.errors import StoppedError, UserError
from dtomo.io.chunks import Layout, layout_of
from dtomo.io.hdf5_files import open_hdf5
from dtomo.io.sources import ArraySource, SelectedFrames, ZarrSource, hdf5_source
from dtomo.io.staging import Staging, check_scratch, is_staged, remove_staged, staging_folder
from dtomo.io.tiff import tiff_source

FRAMES = np.random.default_rng(3).integers(0, 4000, (13, 21, 17)).astype(np.uint16)
FRAMES[4:9] = 0  # whole chunks of nothing are data too
ABOUT = {"inputs": [{"path": "scan.h5", "size": 3}]}


def _hdf5(folder, frames=FRAMES, **options):
    path = folder / "stack.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("/a/data", data=frames, **options)
    with open_hdf5(path) as file:
        return hdf5_source(file, path, "/a/data", complex_too=True)


def _virtual(folder):
    _hdf5(folder, chunks=(1, 21, 17), compression="gzip")
    layout = h5py.VirtualLayout(FRAMES.shape, FRAMES.dtype)
    layout[:] = h5py.VirtualSource("stack.h5", "/a/data", FRAMES.shape)
    with h5py.File(folder / "virtual.h5", "w") as file:
        file.create_virtual_dataset("data", layout)
    with open_hdf5(folder / "virtual.h5") as file:
        return hdf5_source(file, folder / "virtual.h5", "/data")


def _zarr(folder, **options):
    zarr.create_group(folder / "s.zarr").create_array("p", data=FRAMES, **options)
    return ZarrSource(folder / "s.zarr", "p", FRAMES.shape, FRAMES.dtype)


def _tiffs(folder, **options):
    tifffile.imwrite(folder / "pages.tif", FRAMES, photometric="minisblack", **options)
    return tiff_source(folder / "pages.tif")


def _selected(folder):
    every = _hdf5(folder, np.repeat(FRAMES, 2, axis=0), chunks=(1, 21, 17), **hdf5plugin.Bitshuffle())
    return SelectedFrames.of(every, slice(1, None, 2))


WHOLE = Layout(1, 21, 17, "deflate")
KINDS = {
    "contiguous": (_hdf5, Layout()),
    "chunks without compression": (lambda folder: _hdf5(folder, chunks=(1, 21, 17)), Layout()),
    "gzip": (lambda folder: _hdf5(folder, chunks=(1, 21, 17), shuffle=True, compression="gzip"), WHOLE),
    "gzip in small chunks": (lambda folder: _hdf5(folder, chunks=(4, 8, 5), compression=9), Layout(4, 8, 5, "deflate")),
    "checksums": (lambda folder: _hdf5(folder, chunks=(2, 21, 17), fletcher32=True), Layout(2, 21, 17, "none")),
    "bitshuffle": (
        lambda folder: _hdf5(folder, chunks=(1, 21, 17), **hdf5plugin.Bitshuffle()),
        dataclasses.replace(WHOLE, codec="bitshuffle"),
    ),
    "bitshuffle zstd": (
        lambda folder: _hdf5(folder, chunks=(1, 21, 17), **hdf5plugin.Bitshuffle(cname="zstd")),
        dataclasses.replace(WHOLE, codec="bitshuffle zstd"),
    ),
    "blosc": (
        lambda folder: _hdf5(folder, chunks=(1, 21, 17), **hdf5plugin.Blosc()),
        dataclasses.replace(WHOLE, codec="blosc"),
    ),
    "virtual": (_virtual, WHOLE),
    "selected": (_selected, dataclasses.replace(WHOLE, codec="bitshuffle")),
    "zarr": (lambda folder: _zarr(folder, chunks=(1, 21, 17), compressors=None), Layout(1, 21, 17, "none")),
    "zarr blosc shards": (
        lambda folder: _zarr(folder, chunks=(1, 21, 17), shards=(4, 21, 17), compressors=BloscCodec(cname="lz4")),
        dataclasses.replace(WHOLE, codec="blosc"),
    ),
    "tiff": (_tiffs, Layout()),
    "tiff deflate": (lambda folder: _tiffs(folder, compression="zlib"), WHOLE),
    "memory": (lambda folder: ArraySource(FRAMES), Layout()),
}


def _staging(folder, source, **changes):
    options = {"rows": (3, 19), "columns": (2, 16), "band": 5, "block": 4, **changes}
    return Staging(folder / "staged", {"projections": source}, **options)


def _stage(staging, about=ABOUT):
    staging = staging.open(about, staging.folder)
    for block in reversed(staging.waiting()):
        pickle.loads(pickle.dumps(staging)).write(block)
    return staging


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_values_whatever_the_file(kind, tmp_path):
    make, layout = KINDS[kind]
    source = make(tmp_path)
    assert layout_of(source) == layout
    assert layout.coarse == (layout.rows > 1)
    staging = _stage(_staging(tmp_path, source))
    assert staging.waiting() == []
    staged = pickle.loads(pickle.dumps(staging.staged("projections")))
    assert (staged.shape, staged.dtype) == (source.shape, source.dtype)
    for frames in (slice(None), slice(1, 12, 3), [12, 0, 0, 5, 6, 7], []):
        for rows, columns in ((slice(3, 19), slice(2, 16)), (slice(7, 9), slice(3, 4)), (slice(8, 13), slice(2, 9))):
            np.testing.assert_array_equal(staged.read(frames, rows, columns), source.read(frames, rows, columns))


@pytest.mark.parametrize("dtype", ["u1", "i4", "f4", "f8", "c8"])
def test_numbers_of_all_kinds(dtype, tmp_path):
    frames = (FRAMES * (1 + (1j if dtype == "c8" else 0))).astype(dtype)
    if dtype[0] in "fc":
        frames[0, 5, 5:8] = np.nan, np.inf, -0.0
    source = _hdf5(tmp_path, frames, chunks=(1, 21, 17), compression="lzf")
    staged = _stage(_staging(tmp_path, source, rows=(0, 21), columns=(0, 17))).staged("projections")
    assert staged.read().tobytes() == source.read().tobytes()


def test_what_is_decompressed_for_some_rows():
    assert Layout().decoded((9, 100, 80), slice(10, 14), slice(0, 80)) == 4 * 80
    assert Layout(1, 100, 80).decoded((9, 100, 80), slice(10, 14), slice(5, 6)) == 100 * 80
    assert Layout(1, 32, 16).decoded((9, 100, 80), slice(31, 33), slice(16, 32)) == 64 * 16
    assert Layout(1, 32, 16).decoded((9, 100, 80), slice(96, 100), slice(0, 80)) == 4 * 80
    assert Layout(codec="deflate").speed < Layout(codec="lz4").speed


class _Counted(ArraySource):
    """Frames in memory that count how often each is read."""

    def read(self, frames=slice(None), rows=slice(None), columns=slice(None)):
        self.counts[frames] += 1
        return super().read(frames, rows, columns)


def test_each_frame_is_read_once_whole(tmp_path):
    source = _Counted(FRAMES)
    object.__setattr__(source, "counts", np.zeros(13, int))
    staging = _staging(tmp_path, source).open(ABOUT, tmp_path)
    for block in staging.blocks():
        staging.write(block)
    assert (source.counts == 1).all()


def test_memory_holds_a_block_about_twice(tmp_path):
    frames = np.zeros((64, 64, 256), np.uint16)
    source = _hdf5(tmp_path, frames, chunks=(1, 64, 256), compression="lzf")
    staging = _staging(tmp_path, source, rows=(0, 64), columns=(0, 256), band=16, block=16).open(ABOUT, tmp_path)
    block_bytes = frames[:16].nbytes
    staging.write(staging.blocks()[0])
    tracemalloc.start()
    staging.write(staging.blocks()[1])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert 2 * block_bytes <= peak < 3 * block_bytes


def test_several_sources_are_counted_on(tmp_path):
    flats = FRAMES[:3] + 7
    staging = Staging(
        tmp_path / "s", {"projections": ArraySource(FRAMES), "flats": ArraySource(flats)}, (0, 21), (0, 17), 8, 5
    )
    assert [(block.start, block.stop) for block in staging.blocks()] == [(0, 5), (5, 10), (10, 13), (13, 16)]
    assert staging.size == (15 + 3) * 24 * 17 * 2
    staging = _stage(staging)
    on_disk = sum(path.stat().st_size for path in staging.folder.rglob("c/*/*/*"))
    assert on_disk == staging.size
    np.testing.assert_array_equal(staging.staged("flats").read(), flats)
    np.testing.assert_array_equal(staging.staged("projections").read(), FRAMES)


def test_an_interrupted_staging_goes_on_where_it_was(tmp_path):
    source = ArraySource(FRAMES)
    staging = _staging(tmp_path, source).open(ABOUT, tmp_path)
    blocks = staging.blocks()
    staging.write(blocks[1])
    again = _staging(tmp_path, source).open(ABOUT, tmp_path)
    assert again.waiting() == [blocks[0], *blocks[2:]]
    more_memory = _staging(tmp_path, source, block=9, band=8).open(ABOUT, tmp_path)
    assert (more_memory.block, more_memory.band) == (4, 5)
    assert more_memory.waiting() == again.waiting()
    np.testing.assert_array_equal(
        _stage(_staging(tmp_path, source)).staged("projections").read(rows=slice(3, 19), columns=slice(2, 16)),
        FRAMES[:, 3:19, 2:16],
    )


@pytest.mark.parametrize("change", ["about", "rows", "columns", "source", "memory", "damaged", "no settings"])
def test_what_was_staged_for_something_else_is_not_used(change, tmp_path):
    staging = _stage(_staging(tmp_path, ArraySource(FRAMES)))
    about, source, changes = ABOUT, ArraySource(FRAMES), {}
    settings = staging.folder / "settings.json"
    if change == "about":
        about = {"inputs": [{"path": "scan.h5", "size": 4}]}
    elif change == "source":
        source = ArraySource(FRAMES.astype(np.int32))
    elif change == "memory":
        changes = {"block": 2}
    elif change == "damaged":
        settings.write_text(json.dumps({**json.loads(settings.read_text()), "block": "four"}))
    elif change == "no settings":
        settings.unlink()
    else:
        changes = {change: (3, 15)}
    found = _staging(tmp_path, source, **changes).open(about, tmp_path)
    assert found.waiting() == found.blocks()


def test_a_chunk_that_is_gone_is_missed_and_staged_again(tmp_path):
    staging = _stage(_staging(tmp_path, ArraySource(FRAMES)))
    (staging.folder / "projections" / "c" / "1" / "2" / "0").unlink()
    staged = staging.staged("projections")
    staged.read(rows=slice(3, 13), columns=slice(2, 16))
    with pytest.raises(UserError, match=r"lack .*c/1/2/0.*--scratch"):
        staged.read(rows=slice(3, 14), columns=slice(2, 16))
    assert staging.waiting() == [staging.blocks()[1]]


def test_pixels_that_are_not_staged_are_refused(tmp_path):
    staged = _stage(_staging(tmp_path, ArraySource(FRAMES))).staged("projections")
    for rows, columns in ((slice(2, 5), slice(2, 16)), (slice(3, 20), slice(2, 16)), (slice(3, 19), slice(0, 16))):
        with pytest.raises(UserError, match="are not there"):
            staged.read(rows=rows, columns=columns)


def test_a_worker_that_does_not_see_the_folder(tmp_path):
    staging = _staging(tmp_path, ArraySource(FRAMES)).open(ABOUT, tmp_path)
    shutil.rmtree(staging.folder)
    with pytest.raises(UserError, match="does not find the scratch store"):
        staging.write(staging.blocks()[0])


def test_only_scratch_stores_are_removed(tmp_path):
    folder = tmp_path / "staged"
    folder.mkdir()
    (folder / "thesis.tex").write_text("precious")
    with pytest.raises(UserError, match="something else"):
        _staging(tmp_path, ArraySource(FRAMES)).open(ABOUT, tmp_path)
    assert (folder / "thesis.tex").read_text() == "precious"
    link = tmp_path / "link"
    target = _stage(Staging(tmp_path / "s", {"flats": ArraySource(FRAMES)}, (0, 21), (0, 17), 8, 5)).folder
    link.symlink_to(target)
    assert is_staged(target)
    with pytest.raises(UserError, match="something else"):
        remove_staged(link, tmp_path)
    remove_staged(target, tmp_path)
    assert not target.exists()
    remove_staged(target, tmp_path)


def test_folders(tmp_path):
    assert staging_folder(tmp_path / "v.zarr", None) == tmp_path / "v.zarr" / ".dtomo" / "staged"
    one, two = (staging_folder(tmp_path / name / "v.zarr", tmp_path / "scratch") for name in "ab")
    assert one != two
    assert one.parent == two.parent == tmp_path / "scratch"
    assert one.name.startswith("v.zarr-")
    with pytest.raises(UserError, match="is not a folder"):
        check_scratch(tmp_path / "none")
    check_scratch(tmp_path)


def _write_all(staging):
    for block in staging.blocks():
        staging.write(block)


@pytest.fixture
def small_disk(tmp_path):
    folder = tmp_path / "disk"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", folder], capture_output=True).returncode:
        pytest.skip("no small disk can be mounted here")
    yield folder
    subprocess.run(["umount", folder], check=True)


def test_full_disk(small_disk):
    frames = np.random.default_rng(1).integers(0, 65536, (40, 64, 512)).astype(np.uint16)
    staging = Staging(small_disk / "staged", {"projections": ArraySource(frames)}, (0, 64), (0, 512), 16, 8)
    staging = staging.open(ABOUT, small_disk)
    with pytest.raises(StoppedError, match="disk is full"):
        _write_all(staging)
    remove_staged(staging.folder, small_disk)
    assert list(small_disk.iterdir()) == []
