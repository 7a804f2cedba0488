"""open(): formats told by content, the user's word on top, and one sentence for everything that is wrong."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest
import tifffile
import zarr

import dtomo
from dtomo.errors import UserError
from dtomo.io import convert_scan, recognise, write_dxchange, write_zarr_scan

SHARED = Path(__file__).resolve().parents[2] / ".." / "shared" / "data"
RNG = np.random.default_rng(0)
RAW = RNG.integers(300, 800, (20, 6, 10)).astype(np.uint16)
FLATS = np.full((3, 6, 10), 1000, np.uint16)
DARKS = np.full((2, 6, 10), 100, np.uint16)
ANGLES = np.arange(20) * 9.0


def _data(name):
    if not (SHARED / name).exists():
        pytest.skip(f"needs shared/data/{name} beside the repository")
    return SHARED / name


def _dx(path, frames=RAW, **changes):
    values = {"flats": FLATS, "darks": DARKS, "angles": ANGLES[: len(frames)], **changes}
    return write_dxchange(path, frames=iter(frames), shape=frames.shape, dtype=frames.dtype, **values)


def _tiffs(folder, frames=RAW):
    folder.mkdir(parents=True, exist_ok=True)
    for number, frame in enumerate(frames):
        tifffile.imwrite(folder / f"raw_{number}.tif", frame)
    return folder


def test_dxchange_there_and_back(tmp_path):
    for compress in (False, True):
        path = _dx(
            tmp_path / f"s{compress}.h5",
            pixel_size=1.25,
            energy=25.0,
            sample_detector_distance=60.0,
            extra={"/exchange/center": 4.75, "/process/x": (3.0, "mm"), "/measurement/sample/name": "tooth"},
            compress=compress,
        )
        scan = dtomo.open(path)
        assert (scan.format, scan.shape, scan.dtype) == ("dxchange", (20, 6, 10), np.uint16)
        assert (scan.pixel_size, scan.energy, scan.sample_detector_distance) == (1.25, 25.0, 60.0)
        assert scan.center == 4.75
        assert "energy" in scan.found["energy"]
        assert scan.warnings == ()
        np.testing.assert_array_equal(scan.angles, ANGLES)
        slab = scan.read()
        for got, expected in ((slab.projections, RAW), (slab.flats, FLATS), (slab.darks, DARKS)):
            np.testing.assert_array_equal(got, expected)


def test_zarr_scan_there_and_back(tmp_path):
    path = write_zarr_scan(
        tmp_path / "s.zarr",
        frames=iter(RAW),
        shape=RAW.shape,
        dtype=RAW.dtype,
        flats=FLATS[0],
        darks=None,
        angles=ANGLES,
        pixel_size=0.65,
        extra={"center": 4.0},
    )
    scan = dtomo.open(path)
    assert (scan.format, scan.pixel_size, scan.center) == ("zarr", 0.65, 4.0)
    np.testing.assert_array_equal(scan.read().projections, RAW)
    np.testing.assert_array_equal(scan.read().flats, FLATS[:1])
    assert any("no darks" in note for note in scan.warnings)


def test_real_dxchange_tooth():
    scan = dtomo.open(_data("tooth_dxchange/tooth.h5"))
    assert (scan.format, scan.shape, scan.dtype) == ("dxchange", (181, 2, 640), np.float32)
    assert scan.flats.shape == scan.darks.shape == (10, 2, 640)
    assert scan.angles[[0, -1]] == pytest.approx([0, 179.00552])
    assert scan.pixel_size is None
    assert scan.warnings == ()


def test_real_nxtomo_behind_external_links():
    scan = dtomo.open(_data("k11_nxtomo_links/k11-18014.nxs"))
    assert (scan.format, scan.shape, scan.dtype) == ("nxtomo", (3001, 22, 26), np.uint16)
    assert scan.flats.shape == scan.darks.shape == (100, 22, 26)
    assert scan.angles[[0, -1]] == pytest.approx([89.9951, 269.9946], abs=1e-4)
    assert np.diff(scan.angles) == pytest.approx(0.06, abs=0.01)
    slab = scan.read()
    assert slab.flats.mean() == pytest.approx(45317, abs=1)
    assert slab.darks.mean() == pytest.approx(99.2, abs=0.1)
    assert scan.energy is None  # the file's only energy is the storage ring's
    assert any("taken as degrees" in note for note in scan.warnings)
    assert any(path.name == "k11-18014-imaging.h5" for path in scan.inputs)


def test_real_nxtomo_with_its_data_missing(tmp_path):
    shutil.copy(_data("k11_nxtomo_links/k11-18014.nxs"), tmp_path)
    with pytest.raises(UserError, match=r"links to .*k11-18014/k11-18014-imaging\.h5.* missing"):
        dtomo.open(tmp_path / "k11-18014.nxs")


def test_real_tiff_folder_and_its_surplus_angles():
    folder = _data("i13_tiff_stack") / "tiffs"
    angles = folder.parent / "angles.txt"
    with pytest.raises(UserError, match=r"111 angles.*91 frames.*\[10:101\]"):
        dtomo.open(folder, angles=angles)
    with pytest.raises(UserError, match=r"no angles.*angles\.txt"):
        dtomo.open(folder)
    with pytest.raises(UserError, match="tiffs holds 91"):
        dtomo.open(folder.parent, angles=f"{angles}[10:101]")
    scan = dtomo.open(folder, angles=f"{angles}[10:101]")
    assert (scan.format, scan.shape) == ("tiff", (91, 135, 160))
    assert "flat_00001" in scan.found["flats"]
    slab = scan.read(slice(40, 88))
    flat, dark = slab.flats[0], slab.darks[0]
    corrected = (slab.projections - dark) / (flat - dark)
    published = dtomo.open(folder.parent / "projections_rows40-87.mrc", angles=scan.angles)
    assert published.dtype == np.float16
    assert published.normalized
    difference = np.abs(corrected - published.read().projections.astype(np.float32))
    assert difference.max() < 0.020


def test_real_mrc_without_stamp():
    scan = dtomo.open(_data("haadf_needle/HAADF_crop.mrc"), angles=_data("haadf_needle/HAADF.rawtlt"))
    assert (scan.format, scan.shape, scan.dtype) == ("mrc", (77, 168, 160), np.int16)
    assert scan.angles[[0, -1]].tolist() == [-76, 76]
    assert scan.pixel_size == 3.36e-3  # the header's 1.0 Å is a default; FEI's extended header has the true one
    assert scan.found["pixel_size"].endswith("FEI extended header")
    assert not any("voxel size" in note for note in scan.warnings)
    given = dtomo.open(scan.path, angles=scan.angles, pixel_size=3.4e-3)
    assert given.pixel_size == 3.4e-3
    assert scan.read().projections.min() == -31908


def test_nikon_radiogram_is_one_normalised_frame():
    scan = dtomo.open(_data("nikon_cone_axisym/radiogram_bin4.tif"), angles=[0.0])
    assert scan.shape == (1, 500, 375)
    assert scan.normalized


def test_tiff_folder_with_flats_and_darks_by_name(tmp_path):
    folder = _tiffs(tmp_path / "scan")
    tifffile.imwrite(folder / "flat_1.tif", FLATS[0])
    tifffile.imwrite(folder / "flat_2.tif", FLATS[1])
    (folder / "darks").mkdir()
    tifffile.imwrite(folder / "darks" / "d1.tif", DARKS[0])
    np.savetxt(folder / "angles.csv", ANGLES, header="angle_deg", comments="")
    scan = dtomo.open(folder, angles=folder / "angles.csv")
    np.testing.assert_array_equal(scan.read().projections, RAW)  # raw_10 after raw_9
    assert (scan.flats.shape[0], scan.darks.shape[0]) == (2, 1)
    assert scan.warnings == ()


def test_missing_frames_odd_frames_and_colour_are_named(tmp_path):
    folder = _tiffs(tmp_path / "gap", RAW[:9])
    (folder / "raw_4.tif").unlink()
    scan = dtomo.open(folder, angles=np.arange(8) * 20.0)
    assert any("1 numbers are missing" in note and "is 4" in note for note in scan.warnings)
    tifffile.imwrite(folder / "raw_4.tif", RAW[0, :3])
    with pytest.raises(UserError, match=r"raw_4\.tif has a frame of uint16 \(3, 10\)"):
        dtomo.open(folder, angles=ANGLES[:9])
    tifffile.imwrite(tmp_path / "rgb.tif", np.zeros((6, 10, 3), np.uint8), photometric="rgb")
    with pytest.raises(UserError, match="colour"):
        dtomo.open(tmp_path / "rgb.tif", angles=[0])


def test_truncated_frames_are_named_at_opening(tmp_path):
    folder = _tiffs(tmp_path / "t")
    os.truncate(folder / "raw_7.tif", 100)
    with pytest.raises(UserError, match=r"raw_7\.tif"):
        dtomo.open(folder, angles=ANGLES)


def test_hdf5_of_no_known_layout_needs_a_dataset(tmp_path):
    with h5py.File(tmp_path / "own.h5", "w") as file:
        file["images/sample"] = RAW
        file["images/open"] = FLATS
    with pytest.raises(UserError, match=r"neither Data Exchange.*/images/sample \(20, 6, 10\)"):
        dtomo.open(tmp_path / "own.h5")
    scan = dtomo.open(
        tmp_path / "own.h5",
        dataset="/images/sample",
        angles=ANGLES,
        flats=f"{tmp_path}/own.h5:/images/open",
        darks=DARKS,
    )
    assert scan.format == "hdf5"
    np.testing.assert_array_equal(scan.read().flats, FLATS)
    with pytest.raises(UserError, match=r"no dataset /nope.*sample"):
        dtomo.open(tmp_path / "own.h5", dataset="/nope", angles=ANGLES)


@pytest.mark.parametrize(
    ("content", "name", "message"),
    [
        (b"", "empty.h5", "is empty"),
        (b"hello world" * 200, "text.h5", "not a scan dtomo knows"),
        (b"II*\0" + b"\0" * 50, "bad.tif", "TIFF"),
        (b"\0" * 2000, "zeros.mrc", "not a scan dtomo knows"),
        (b"\x89HDF\r\n\x1a\n", "short.h5", "not a scan|cannot be opened"),
    ],
)
def test_files_that_are_not_scans(content, name, message, tmp_path):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=message) as caught:
        dtomo.open(tmp_path / name)
    assert name in str(caught.value)
    assert "\n" not in str(caught.value)


def test_every_truncation_of_a_scan_is_refused_in_one_sentence(tmp_path):
    path = _dx(tmp_path / "s.h5")
    whole = path.read_bytes()
    for size in np.linspace(1, len(whole) - 1, 25).astype(int):
        (tmp_path / "cut.h5").write_bytes(whole[:size])
        with pytest.raises(UserError, match=r"cut\.h5"):
            dtomo.open(tmp_path / "cut.h5").read()


def test_missing_and_empty_places(tmp_path):
    with pytest.raises(UserError, match="no file or folder"):
        dtomo.open(tmp_path / "nothing.h5")
    with pytest.raises(UserError, match="no TIFF frames"):
        dtomo.open(tmp_path)
    _dx(tmp_path / "inside.h5")
    with pytest.raises(UserError, match=r"holds inside\.h5: open that"):
        dtomo.open(tmp_path)


def test_empty_and_missing_datasets(tmp_path):
    with h5py.File(tmp_path / "e.h5", "w") as file:
        file["exchange/data"] = np.zeros((0, 4, 5))
    with pytest.raises(UserError, match=r"e\.h5:/exchange/data is empty.*\(0, 4, 5\)"):
        dtomo.open(tmp_path / "e.h5")
    with h5py.File(tmp_path / "t.h5", "w") as file:
        file["exchange/data"] = np.full((3, 4, 5), "x", "S2")
    with pytest.raises(UserError, match="expected whole or floating-point"):
        dtomo.open(tmp_path / "t.h5")


def test_no_flats(tmp_path):
    counts = dtomo.open(_dx(tmp_path / "counts.h5", flats=None))
    assert counts.flats is None
    assert not counts.normalized
    assert any("no flats" in note for note in counts.warnings)
    empty = dtomo.open(_dx(tmp_path / "empty.h5", flats=FLATS[:0]))
    assert empty.flats is None
    ready = dtomo.open(_dx(tmp_path / "ready.h5", (RAW / 1000).astype(np.float32), flats=None))
    assert ready.normalized
    assert any("already normalised" in note for note in ready.warnings)
    assert dtomo.open(tmp_path / "counts.h5", normalized=True).normalized
    with pytest.raises(UserError, match=r"every flat of .*data_white is 0"):
        dtomo.open(_dx(tmp_path / "black.h5", flats=0 * FLATS))


def test_bright_darks_are_named_and_can_be_left_out(tmp_path):
    path = _dx(tmp_path / "s.h5", darks=np.concatenate([DARKS, FLATS[:1]]))
    scan = dtomo.open(path)
    assert any("darks number 2 are as bright as the flats" in note for note in scan.warnings)
    scan = dtomo.open(path, skip_darks=[2])
    assert scan.warnings == ()
    np.testing.assert_array_equal(scan.read().darks, DARKS)


@pytest.mark.parametrize("value", [0, -1.0, float("nan"), float("inf")])
def test_impossible_values_given(value, tmp_path):
    path = _dx(tmp_path / "s.h5")
    with pytest.raises(UserError, match="pixel_size must be a positive number"):
        dtomo.open(path, pixel_size=value)


def test_recognise_goes_by_content_not_by_name(tmp_path):
    _dx(tmp_path / "scan.dat")
    assert recognise(tmp_path / "scan.dat") == "dxchange"
    tifffile.imwrite(tmp_path / "frames.bin", RAW)
    assert recognise(tmp_path / "frames.bin") == "tiff"


def test_a_zarr_volume_is_not_a_scan(tmp_path):
    zarr.create_group(tmp_path / "v.zarr").create_array("0", data=np.zeros((2, 2, 2)))
    with pytest.raises(UserError, match="no array 'projections'"):
        dtomo.open(tmp_path / "v.zarr")
    (tmp_path / "v.zarr" / "zarr.json").write_text("{broken")
    with pytest.raises(UserError, match="cannot be read as Zarr"):
        dtomo.open(tmp_path / "v.zarr")


def test_a_file_another_program_holds_open(tmp_path):
    path = _dx(tmp_path / "s.h5")
    code = f"import h5py, sys; f = h5py.File({str(path)!r}, 'r'); print('open', flush=True); sys.stdin.read()"
    other = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert other.stdout.readline() == b"open\n"
        np.testing.assert_array_equal(dtomo.open(path).read().projections, RAW)
    finally:
        other.communicate(b"")


def test_write_refuses_frames_that_do_not_match(tmp_path):
    with pytest.raises(UserError, match="19 angles for 20 projections"):
        _dx(tmp_path / "a.h5", angles=ANGLES[:19])
    with pytest.raises(UserError, match="19 frames were given where 20"):
        write_dxchange(
            tmp_path / "b.h5",
            frames=iter(RAW[:19]),
            shape=RAW.shape,
            dtype="u2",
            flats=None,
            darks=None,
            angles=ANGLES,
        )
    with pytest.raises(UserError, match="flats have shape"):
        _dx(tmp_path / "c.h5", flats=FLATS[:, :2])
    assert list(tmp_path.iterdir()) == []
    _dx(tmp_path / "d.h5")
    with pytest.raises(UserError, match="exists"):
        _dx(tmp_path / "d.h5")
    _dx(tmp_path / "d.h5", overwrite=True)


@pytest.mark.parametrize("name", ["out.h5", "out.zarr"])
def test_scans_are_converted_with_their_metadata(name, tmp_path):
    path = _dx(tmp_path / "s.h5", pixel_size=2.0, energy=20.0, extra={"/exchange/center": 4.5})
    scan = dtomo.open(path, source_sample_distance=30000).crop(columns=slice(1, 9))
    again = dtomo.open(convert_scan(scan, tmp_path / name))
    np.testing.assert_array_equal(again.read().projections, RAW[:, :, 1:9])
    np.testing.assert_array_equal(again.read().flats, FLATS[:, :, 1:9])
    assert (again.center, again.pixel_size, again.energy, again.source_sample_distance) == (
        3.5,
        2.0,
        20.0,
        30000,
    )
    np.testing.assert_array_equal(again.angles, ANGLES)
    with pytest.raises(UserError, match="is the input itself"):
        convert_scan(scan, path, overwrite=True)
    with pytest.raises(UserError, match="scans are written as"):
        convert_scan(scan, tmp_path / "out.tif")


def test_an_interrupted_zarr_scan_is_refused(tmp_path):
    def frames():
        yield RAW[0]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_zarr_scan(
            tmp_path / "s.zarr",
            frames=frames(),
            shape=RAW.shape,
            dtype="u2",
            flats=None,
            darks=None,
            angles=ANGLES,
        )
    with pytest.raises(UserError, match="unfinished"):
        dtomo.open(tmp_path / "s.zarr")


def test_a_full_disk_while_writing_a_scan(tmp_path):
    folder = tmp_path / "disk"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", folder], capture_output=True).returncode:
        pytest.skip("needs the right to mount a small file system")
    try:
        frames = np.random.default_rng(0).integers(0, 60000, (20, 200, 200)).astype(np.uint16)
        for name, options in (("a.h5", {}), ("b.h5", {"compress": True})):
            with pytest.raises(UserError, match=r"GB free|disk is full"):
                _dx(folder / name, frames, flats=None, darks=None, **options)
            assert list(folder.iterdir()) == []
    finally:
        subprocess.run(["umount", folder], check=True)
