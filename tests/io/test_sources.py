"""Sources: what is asked for is what comes back, whatever the format, compression, order and byte order."""

import os
import pickle
from pathlib import Path

import h5py
import hdf5plugin
import numpy as np
import pytest
import tifffile
import zarr
from hypothesis import given
from hypothesis import strategies as st

from dtomo.errors import UserError
from dtomo.io.hdf5_files import open_hdf5
from dtomo.io.mrc import create_mrc, read_mrc_header
from dtomo.io.sources import ArraySource, SelectedFrames, ZarrSource, hdf5_source, numeric_order, runs_of
from dtomo.io.tiff import tiff_source

FRAMES = np.random.default_rng(3).integers(0, 60000, (11, 7, 9)).astype(np.uint16)


def _hdf5(folder, **options):
    path = folder / "stack.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("/a/data", data=FRAMES, **options)
    with open_hdf5(path) as file:
        return hdf5_source(file, path, "/a/data")


def _zarr(folder):
    zarr.create_group(folder / "s.zarr").create_array("p", data=FRAMES, chunks=(2, 3, 9))
    return ZarrSource(folder / "s.zarr", "p", FRAMES.shape, FRAMES.dtype)


def _tiff_folder(folder, **options):
    (folder / "t").mkdir()
    for number, frame in enumerate(FRAMES):
        tifffile.imwrite(folder / "t" / f"f_{number}.tif", frame, **options)
    return tiff_source(folder / "t")


def _tiff_pages(folder, **options):
    tifffile.imwrite(folder / "pages.tif", FRAMES, photometric="minisblack", **options)
    return tiff_source(folder / "pages.tif")


def _mrc(folder):
    offset, stored = create_mrc(folder / "s.mrc", FRAMES.shape, FRAMES.dtype, None, is_stack=True)
    with open(folder / "s.mrc", "r+b") as file:
        file.seek(offset)
        file.write(FRAMES.astype(stored).tobytes())
    return read_mrc_header(folder / "s.mrc").source


MAKERS = {
    "array": lambda folder: ArraySource(FRAMES),
    "hdf5": _hdf5,
    "hdf5 bitshuffle": lambda folder: _hdf5(folder, chunks=(1, 7, 9), **hdf5plugin.Bitshuffle()),
    "hdf5 gzip chunks across frames": lambda folder: _hdf5(folder, chunks=(4, 3, 5), compression="gzip"),
    "hdf5 big endian": lambda folder: _hdf5(folder, dtype=">u2"),
    "zarr": _zarr,
    "tiff folder": _tiff_folder,
    "tiff folder deflate": lambda folder: _tiff_folder(folder, compression="zlib"),
    "tiff folder big endian": lambda folder: _tiff_folder(folder, byteorder=">"),
    "tiff pages": _tiff_pages,
    "tiff pages deflate": lambda folder: _tiff_pages(folder, compression="zlib"),
    "bigtiff big endian": lambda folder: _tiff_pages(folder, bigtiff=True, byteorder=">"),
    "imagej": lambda folder: _tiff_pages(folder, imagej=True),
    "mrc": _mrc,
    "selected": lambda folder: SelectedFrames.of(ArraySource(np.repeat(FRAMES, 2, axis=0)), slice(1, None, 2)),
}


@pytest.mark.parametrize("kind", MAKERS)
def test_reads_frames_rows_columns_and_travels_light(kind, tmp_path):
    source = pickle.loads(pickle.dumps(MAKERS[kind](tmp_path)))
    assert source.shape == FRAMES.shape
    assert source.dtype == np.uint16
    assert source.dtype.isnative
    selections = [slice(None), slice(2, 9, 3), [10, 0, 0, 5, 6, 7], np.arange(11) % 2 == 0, [-1], []]
    for frames in selections:
        for rows, columns in (
            (slice(None), slice(None)),
            (slice(2, 5), slice(1, 8)),
            (slice(6, 7), slice(0, 1)),
        ):
            got = source.read(frames, rows, columns)
            index = frames if isinstance(frames, slice) or len(frames) else np.empty(0, int)
            np.testing.assert_array_equal(got, FRAMES[index][:, rows, columns])
            assert got.dtype == np.uint16
            assert got.dtype.isnative
    if kind not in ("array", "selected"):
        assert len(pickle.dumps(source)) < 1000


@pytest.mark.parametrize("frames", [[11], [-12], [0.5], np.zeros(5, bool), [[0]]])
def test_frames_that_do_not_exist_are_refused(frames):
    with pytest.raises(UserError, match="frame"):
        ArraySource(FRAMES).read(frames)


@given(st.lists(st.integers(0, 40), max_size=30))
def test_runs_give_the_index_back(index):
    runs = runs_of(np.array(index, int))
    assert [frame for run in runs for frame in range(*run)] == index


def test_runs_are_few_for_an_nxtomo_scan():
    assert runs_of(np.arange(100, 3101)) == [(100, 3101, 1)]
    assert len(runs_of(np.delete(np.arange(1000), [500]))) == 2
    assert runs_of(np.arange(0, 3000, 5)) == [(0, 2996, 5)]


def test_selecting_from_selected_counts_the_selected():
    some = SelectedFrames.of(SelectedFrames.of(ArraySource(FRAMES), [9, 3, 4, 5]), [2, 0])
    np.testing.assert_array_equal(some.read(), FRAMES[[4, 9]])


def test_only_the_rows_of_a_band_are_read_from_hdf5(tmp_path):
    """8 rows of 512 from frames of 1 MB cost at most 64 kB a frame (HDF5's buffer), contiguous or chunked."""
    shape = (40, 512, 1024)
    for name, options in (("contiguous", {}), ("chunked", {"chunks": (1, 512, 1024)})):
        path = tmp_path / f"{name}.h5"
        with h5py.File(path, "w") as file:
            data = file.create_dataset("d", shape, np.uint16, **options)
            for number in range(shape[0]):
                data[number] = number
        with open_hdf5(path) as file:
            source = hdf5_source(file, path, "/d")
        before = _bytes_read()
        band = source.read(rows=slice(100, 108))
        cost = _bytes_read() - before
        assert (band == np.arange(40)[:, None, None]).all()
        assert cost < 40 * 2**16 + band.nbytes + 2**20, f"{name}: {cost} bytes read for {band.nbytes}"


def _bytes_read() -> int:
    if not Path("/proc/self/io").exists():
        pytest.skip("bytes read are counted by /proc only")
    return int(Path("/proc/self/io").read_text().split("rchar:")[1].split()[0])


def test_a_damaged_file_is_named(tmp_path):
    source = _hdf5(tmp_path)
    os.truncate(source.path, 2500)
    with pytest.raises(UserError, match=r"stack\.h5.*truncated"):
        source.read()
    source.path.unlink()
    with pytest.raises(UserError, match="no file"):
        source.read()


def test_a_truncated_tiff_is_named(tmp_path):
    source = _tiff_pages(tmp_path)
    os.truncate(tmp_path / "pages.tif", 1000)
    with pytest.raises(UserError, match=r"pages\.tif"):
        source.read()
    with pytest.raises(UserError, match=r"pages\.tif"):
        tiff_source(tmp_path / "pages.tif")


def test_missing_files_of_a_virtual_dataset_are_refused(tmp_path):
    with h5py.File(tmp_path / "part.h5", "w") as file:
        file["d"] = FRAMES
    layout = h5py.VirtualLayout(FRAMES.shape, FRAMES.dtype)
    layout[:] = h5py.VirtualSource("part.h5", "d", FRAMES.shape)
    with h5py.File(tmp_path / "main.h5", "w") as file:
        file.create_virtual_dataset("d", layout)
    with open_hdf5(tmp_path / "main.h5") as file:
        np.testing.assert_array_equal(hdf5_source(file, tmp_path / "main.h5", "/d").read(), FRAMES)
    (tmp_path / "part.h5").unlink()
    with open_hdf5(tmp_path / "main.h5") as file, pytest.raises(UserError, match=r"part\.h5 is missing"):
        hdf5_source(file, tmp_path / "main.h5", "/d")


@pytest.mark.parametrize("data", [np.zeros(3), np.zeros((2, 2, 2, 2)), np.zeros((0, 4, 4)), np.array(["a", "b"], "S1")])
def test_datasets_that_are_no_frames_are_refused(data, tmp_path):
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["d"] = data
    with open_hdf5(tmp_path / "x.h5") as file, pytest.raises(UserError, match=r"x\.h5:/d"):
        hdf5_source(file, tmp_path / "x.h5", "/d")


def test_a_2d_dataset_is_one_frame(tmp_path):
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["d"] = FRAMES[0]
    with open_hdf5(tmp_path / "x.h5") as file:
        source = hdf5_source(file, tmp_path / "x.h5", "/d")
    assert source.shape == (1, 7, 9)
    np.testing.assert_array_equal(source.read(rows=slice(1, 3)), FRAMES[:1, 1:3])


def test_numeric_order():
    names = ["f10.tif", "f9.tif", "a2.tif", "f1.tif", "F2.tif", "12.tif"]
    assert sorted(names, key=numeric_order) == ["12.tif", "F2.tif", "a2.tif", "f1.tif", "f9.tif", "f10.tif"]


def test_a_damaged_structure_is_named(tmp_path):
    path = _hdf5(tmp_path).path
    content = bytearray(path.read_bytes())
    content[100:2000] = bytes(1900)
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"stack\.h5"), open_hdf5(path) as file:
        file["a/data"][()]
