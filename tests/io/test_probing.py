"""Opening looks at a few pixels only, however large the frames say they are."""

import pickle
import subprocess
import sys
import time
import tracemalloc

import h5py
import numpy as np
import pytest
import tifffile
import zarr

import dtomo
from dtomo.errors import UserError
from dtomo.io import ArraySource, open_volume, suspicious_darks, suspicious_flats, write_dxchange
from dtomo.io.damage import TooLargeError, explained
from dtomo.io.probing import is_black
from dtomo.io.sources import SelectedFrames

HUGE = (4, 10**6, 10**6)


def _huge(path, dtype="u2", flats=1000, darks=100):
    """Frames of a million by a million pixels that take no room: none of their chunks was ever written."""
    with h5py.File(path, "w") as file:
        group = file.create_group("exchange")
        options = {"shape": HUGE, "dtype": dtype, "chunks": (1, 1000, 1000)}
        group.create_dataset("data", fillvalue=1 if dtype == "f4" else 500, **options)
        if flats is not None:
            group.create_dataset("data_white", fillvalue=flats, **options)
            group.create_dataset("data_dark", fillvalue=darks, **options)
        group.create_dataset("theta", data=np.arange(4) * 45.0).attrs["units"] = "degrees"
    assert path.stat().st_size < 10**6
    return path


@pytest.fixture
def bounded():
    """Less than 100 MB and a few seconds, whatever is done."""
    tracemalloc.start()
    started = time.monotonic()
    yield
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100e6
    assert time.monotonic() - started < 5


@pytest.mark.usefixtures("bounded")
class TestHugeFrames:
    """Frames of 10^12 pixels."""

    def test_are_opened(self, tmp_path):
        scan = dtomo.open(_huge(tmp_path / "s.h5"))
        assert scan.shape == HUGE
        assert suspicious_darks(scan) == suspicious_flats(scan) == []
        assert open_volume(f"{tmp_path / 's.h5'}:/exchange/data").shape == HUGE

    def test_with_bright_darks_are_told(self, tmp_path):
        scan = dtomo.open(_huge(tmp_path / "s.h5", darks=1000))
        assert any("as bright as the flats" in note for note in scan.warnings)

    def test_with_black_flats_are_refused(self, tmp_path):
        with pytest.raises(UserError, match=r"every flat of .* is 0"):
            dtomo.open(_huge(tmp_path / "s.h5", flats=0, darks=0))

    def test_without_flats_are_told_by_their_range(self, tmp_path):
        assert dtomo.open(_huge(tmp_path / "s.h5", dtype="f4", flats=None)).normalized

    def test_that_are_read_whole_are_refused_with_their_size(self, tmp_path):
        scan = dtomo.open(_huge(tmp_path / "s.h5"))
        with pytest.raises(TooLargeError, match=r"8e\+03 GB, which does not fit into the .* GB of memory") as caught:
            scan.read()
        assert "damaged" not in str(caught.value)
        assert str(tmp_path / "s.h5") in str(caught.value)
        np.testing.assert_array_equal(scan.crop(slice(0, 2), slice(0, 3)).read().projections, np.full((4, 2, 3), 500))

    def test_in_zarr_are_opened(self, tmp_path):
        group = zarr.create_group(tmp_path / "s.zarr")
        for name, value in (("projections", 500), ("flats", 1000), ("darks", 100)):
            group.create_array(name, shape=HUGE, dtype="u2", chunks=(1, 5000, 5000), fill_value=value)
        group.create_array("angles", data=np.arange(4) * 45.0).attrs["units"] = "degrees"
        assert dtomo.open(tmp_path / "s.zarr").shape == HUGE


def test_more_angles_than_frames_can_have_are_not_read(tmp_path):
    group = zarr.create_group(tmp_path / "s.zarr")
    group.create_array("projections", data=np.ones((4, 3, 3), np.uint16))
    group.create_array("angles", shape=(10**12,), dtype="f8", chunks=(10**6,))
    with pytest.raises(UserError, match="1000000000000 values, which cannot be one angle per projection"):
        dtomo.open(tmp_path / "s.zarr")


def test_a_list_of_angles_that_says_it_is_huge(tmp_path):
    tifffile.imwrite(tmp_path / "s.tif", np.ones((4, 5, 6), np.uint16), photometric="minisblack")
    np.save(tmp_path / "a.npy", np.arange(4.0))
    content = (tmp_path / "a.npy").read_bytes()
    (tmp_path / "a.npy").write_bytes(content.replace(b"(4,), }               ", b"(4000000000000000,), }", 1))
    with pytest.raises(UserError, match=r"a\.npy does not fit into memory .*PiB"):
        dtomo.open(tmp_path / "s.tif", angles=tmp_path / "a.npy")


def test_want_of_memory_is_not_called_damage():
    said = r"s\.h5:/data does not fit into memory .*Unable to allocate 256\. PiB"
    with pytest.raises(TooLargeError, match=said) as one, explained("s.h5:/data"):
        np.empty(2**55)
    assert isinstance(one.value, UserError)
    assert isinstance(one.value, MemoryError)
    assert str(pickle.loads(pickle.dumps(one.value))) == str(one.value)


@pytest.mark.parametrize(("row", "column"), [(0, 0), (2999, 2999), (1500, 7), (1200, 2000)])
def test_one_lit_pixel_of_the_first_flat_is_seen(row, column):
    frames = np.zeros((2, 3000, 3000), np.uint8)
    assert is_black(ArraySource(frames))
    frames[0, row, column] = 1
    assert not is_black(ArraySource(frames))


def test_flats_lit_in_a_strip_far_from_the_middle_are_accepted(tmp_path):
    flats = np.zeros((2, 40, 30), np.uint16)
    flats[:, 2:5] = 1000
    frames = np.full((4, 40, 30), 500, np.uint16)
    path = tmp_path / "s.h5"
    write_dxchange(
        path,
        frames=iter(frames),
        shape=frames.shape,
        dtype="u2",
        flats=flats,
        darks=None,
        angles=np.arange(4) * 45.0,
    )
    assert dtomo.open(path).shape == frames.shape


def test_of_very_many_darks_evenly_spaced_ones_are_looked_at():
    stack = ArraySource(np.stack([np.full((2, 2), value, np.uint16) for value in (100, 1000)]))
    index = np.zeros(10_000, np.int64)
    index[-1] = 1
    scan = dtomo.Scan(
        path="s.h5",
        format="dxchange",
        projection_source=stack,
        flat_source=SelectedFrames.of(stack, [1]),
        dark_source=SelectedFrames.of(stack, index),
        angles=np.array([0.0, 90.0]),
    )
    assert suspicious_darks(scan) == [9999]


def test_a_folder_that_is_a_store_by_its_name_only(tmp_path):
    (tmp_path / "s.zarr").mkdir()
    for read in (dtomo.open, open_volume):
        with pytest.raises(UserError, match="is not a Zarr store: it is empty"):
            read(tmp_path / "s.zarr")
    (tmp_path / "s.zarr" / "c").mkdir()
    for read in (dtomo.open, open_volume):
        with pytest.raises(UserError, match=r"is not a Zarr store: it has none of zarr\.json"):
            read(tmp_path / "s.zarr")


def test_tifffile_does_not_speak_before_dtomo(tmp_path):
    tifffile.imwrite(tmp_path / "s.tif", np.ones((3, 40, 50), np.uint16), compression="zlib", photometric="minisblack")
    content = (tmp_path / "s.tif").read_bytes()
    (tmp_path / "s.tif").write_bytes(content[: len(content) * 2 // 3])
    with pytest.raises(UserError, match=r"s\.tif is truncated"):
        dtomo.open(tmp_path / "s.tif", angles=[0.0, 60.0, 120.0])
    program = (
        "import sys, dtomo\n"
        "try:\n    dtomo.open(sys.argv[1]).read()\n"
        "except dtomo.UserError as error:\n    print(error)"
    )
    line = [sys.executable, "-c", program, str(tmp_path / "s.tif")]
    done = subprocess.run(line, check=True, capture_output=True, text=True)
    assert str(tmp_path / "s.tif") in done.stdout
    assert done.stderr == ""
