"""ptypy's .ptyd, plain HDF5 and NumPy archives; what is done to frames on the way; `dtomo.open` and `dtomo info`."""

import pickle

import h5py
import numpy as np
import pytest

import dtomo
from dtomo.cli.info import describe
from dtomo.errors import UserError
from dtomo.io.ptycho import open_ptycho, recognise_ptycho
from dtomo.io.ptycho.arranged import FLIPS
from dtomo.settings import ReconSettings

RNG = np.random.default_rng(0)
FRAMES = RNG.poisson(20, (7, 12, 16)).astype(np.int32)
STEPS = RNG.integers(-9, 9, (7, 2)).astype(float)
ENERGY, DISTANCE, PIXEL = 6.2, 7.0, 172e-6
RESOLUTION = 1.23984193e-9 / ENERGY * DISTANCE / (PIXEL * np.array([12, 16]))  # as ptypy's geometry has it


def put(group, name, value):
    """As ptypy stores values: with their type as an attribute, None as a zero."""
    if value is None:
        group.create_dataset(name, data=np.zeros((1,))).attrs["type"] = "None"
    elif isinstance(value, str):
        group.create_dataset(name, data=value, dtype=h5py.string_dtype()).attrs["type"] = "string"
    elif np.isscalar(value):
        group.create_dataset(name, data=value).attrs["type"] = "scalar"
    else:
        group.create_dataset(name, data=value, compression="gzip").attrs["type"] = "array"


def put_chunk(group, part, weights, frames=FRAMES):
    put(group, "data", frames[part])
    put(group, "indices", np.arange(7)[part])
    put(group, "positions", (STEPS * RESOLUTION)[part])
    put(group, "weights", np.zeros((0,)) if weights is None else weights[part])


def ptyd_file(path, *, weights=None, linked=False, frames=FRAMES, **meta):
    """What ptypy's PtyScan saves: two chunks, the second perhaps in a file of its own."""
    values = {
        "version": "0.1", "num_frames": 7, "label": None, "shape": np.array([12, 16]), "psize": np.full(2, PIXEL),
        "energy": ENERGY, "center": np.array([6.0, 8.0]), "distance": DISTANCE,
    } | meta  # fmt: skip
    with h5py.File(path, "w") as file:
        file.attrs["h5rw_version"] = "0.1"
        for name in ("chunks", "meta", "info"):
            file.create_group(name).attrs["type"] = "dict"
        for name, value in values.items():
            put(file["meta"], name, value)
        put(file["info"], "lam", None)
        put_chunk(file.create_group("chunks/0"), slice(0, 4), weights, frames)
        if not linked:
            put_chunk(file.create_group("chunks/10"), slice(4, 7), weights, frames)
            return path
        part = path.with_name(path.name + ".part010")
        with h5py.File(part, "w") as other:
            put_chunk(other, slice(4, 7), weights, frames)
        file["chunks/10"] = h5py.ExternalLink(part.name, "/")
    return path


@pytest.mark.parametrize("linked", [False, True])
def test_a_file_of_ptypy(tmp_path, linked):
    path = ptyd_file(tmp_path / "scan.ptyd", linked=linked)
    scan = open_ptycho(path)
    assert recognise_ptycho(path) == scan.format == "ptyd"
    assert scan.shape == (7, 12, 16)
    assert scan.dtype == np.int32
    assert scan.energy == pytest.approx(ENERGY)
    assert scan.object_pixel_size == pytest.approx(RESOLUTION, rel=1e-6)
    np.testing.assert_allclose(scan.positions_in_pixels(), STEPS, rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(scan.read([6, 0, 4, 4]), FRAMES[[6, 0, 4, 4]])
    np.testing.assert_array_equal(scan.read(), FRAMES)
    assert scan.read([]).shape == (0, 12, 16)
    assert scan.mask is None
    assert scan.warnings == ()
    assert len(scan.inputs) == 1 + linked
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(scan)).read([5]), FRAMES[5:6])


def test_weights_are_masks(tmp_path):
    weights = np.ones((7, 12, 16), np.float32)
    weights[:, 3, 4] = 0
    scan = open_ptycho(ptyd_file(tmp_path / "same.ptyd", weights=weights))
    assert np.argwhere(~scan.mask).tolist() == [[3, 4]]
    assert scan.warnings == ()
    weights[5, 8, 9] = 0
    scan = open_ptycho(ptyd_file(tmp_path / "differ.ptyd", weights=weights))
    assert np.argwhere(~scan.mask).tolist() == [[3, 4], [8, 9]]
    assert "differ from frame to frame" in scan.warnings[0]
    common = np.ones((12, 16))
    common[0, 1] = 0
    scan = open_ptycho(ptyd_file(tmp_path / "common.ptyd", weight2d=common))
    assert np.argwhere(~scan.mask).tolist() == [[0, 1]]


def test_ptyd_that_lacks_something(tmp_path):
    path = ptyd_file(tmp_path / "none.ptyd", energy=None, center=np.array([2.0, 3.0]))
    scan = open_ptycho(path)
    assert scan.wavelength is None
    assert "not the middle of the frames (6, 8)" in scan.warnings[0]
    with pytest.raises(UserError, match="wavelength must be given"):
        scan.positions_in_pixels()
    assert open_ptycho(path, energy=6.2).object_pixel_size == pytest.approx(RESOLUTION, rel=1e-6)
    linked = ptyd_file(tmp_path / "linked.ptyd", linked=True)
    (tmp_path / "linked.ptyd.part010").unlink()
    with pytest.raises(UserError, match=r"chunk 10 is a link to linked.ptyd.part010, which is missing"):
        open_ptycho(linked)
    with h5py.File(path, "a") as file:
        del file["chunks/10/positions"]
        file["chunks/10/positions"] = np.zeros((2, 2))
    with pytest.raises(UserError, match=r"\(2, 2\), but there are 3 frames"):
        open_ptycho(path)
    with h5py.File(path, "a") as file:
        del file["chunks/0"], file["chunks/10"]
    with pytest.raises(UserError, match="no chunks of frames"):
        open_ptycho(path)


def test_plain_hdf5_by_the_names_of_programs(tmp_path):
    path = tmp_path / "ptychi.h5"
    with h5py.File(path, "w") as file:
        file["dp"] = FRAMES
        file["probe_position_y_m"], file["probe_position_x_m"] = STEPS[:, 0] * 1e-8, STEPS[:, 1] * 1e-8
        file["probe"] = np.ones((1, 1, 12, 16), np.complex64)
        file["mask"] = np.ones((12, 16), bool)
        file["wavelength"], file["distance"], file["detector_pixel_size"] = 2e-10, 2.0, 75e-6
        file["distance"].attrs["units"] = "mm"
    scan = open_ptycho(path)
    assert scan.format == "hdf5"
    np.testing.assert_allclose(scan.positions, STEPS * 1e-8)
    assert (scan.wavelength, scan.distance, scan.detector_pixel) == (2e-10, 2e-3, (75e-6, 75e-6))
    assert scan.probe.shape == (1, 12, 16)
    assert "probe" in scan.found["motion"]
    np.testing.assert_array_equal(open_ptycho(path, motion="sample").positions, -scan.positions)


def test_plain_hdf5_whose_units_must_be_said(tmp_path):
    path = tmp_path / "scan.h5"
    with h5py.File(path, "w") as file:
        file["scan/frames"] = FRAMES
        file["motors/positions"] = STEPS
    with pytest.raises(UserError, match="/motors/positions has no unit"):
        open_ptycho(path)
    scan = open_ptycho(path, position_unit="um")
    np.testing.assert_allclose(scan.positions, STEPS * 1e-6)
    with pytest.raises(UserError, match="wavelength, distance, detector_pixel must be given"):
        scan.positions_in_pixels()
    np.testing.assert_array_equal(open_ptycho(path, position_unit="pixels").positions_in_pixels(), STEPS)
    with h5py.File(path, "a") as file:
        file["motors/positions"].attrs["units"] = "nm"
    np.testing.assert_allclose(open_ptycho(path).positions, STEPS * 1e-9)
    np.testing.assert_allclose(open_ptycho(path, position_unit="um").positions, STEPS * 1e-6)
    np.testing.assert_allclose(
        open_ptycho(path, positions=f"{path}:/motors/positions", position_unit="mm").positions, STEPS * 1e-3
    )


def test_plain_hdf5_that_leaves_frames_open(tmp_path):
    path = tmp_path / "scan.h5"
    with h5py.File(path, "w") as file:
        file["one"], file["two"] = FRAMES, FRAMES
        file["positions"] = STEPS
    with pytest.raises(UserError, match=r"/one .*, /two .*name the frames with dataset"):
        open_ptycho(path)
    assert open_ptycho(path, dataset="two", position_unit="pixels").shape == (7, 12, 16)
    with pytest.raises(UserError, match="no dataset /three"):
        open_ptycho(path, dataset="three")
    assert recognise_ptycho(path) is None
    assert recognise_ptycho(path, "two") == "hdf5"


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_archives_have_frequency_zero_in_the_corner(tmp_path, save):
    path = tmp_path / "scan.npz"
    stored = np.fft.ifftshift(FRAMES, (1, 2)).astype(np.float32)
    probe = RNG.standard_normal((1, 1, 2, 12, 16)).astype(np.complex64)
    save(path, data=stored[None], scan=STEPS[None].astype(np.float32), probe=probe)
    scan = open_ptycho(path)
    assert (scan.format, scan.shape, scan.position_unit) == ("npz", (7, 12, 16), "pixels")
    np.testing.assert_array_equal(scan.read(), FRAMES)
    np.testing.assert_array_equal(scan.read([5, 2]), FRAMES[[5, 2]])
    np.testing.assert_array_equal(scan.positions_in_pixels(), STEPS)
    np.testing.assert_array_equal(scan.probe, probe[0, 0])
    if save is np.savez:
        assert len(pickle.dumps(scan.frames)) < 2000


def test_archives_that_are_none(tmp_path):
    np.savez(tmp_path / "other.npz", values=np.zeros(3))
    with pytest.raises(UserError, match="has no array data of frames; it has values"):
        open_ptycho(tmp_path / "other.npz")
    np.savez(tmp_path / "flat.npz", data=np.zeros((3, 3)), scan=np.zeros((3, 2)))
    with pytest.raises(UserError, match="frames need three axes"):
        open_ptycho(tmp_path / "flat.npz")
    np.savez(tmp_path / "objects.npz", data=np.array([{}], dtype=object))
    with pytest.raises(UserError, match="Python objects"):
        open_ptycho(tmp_path / "objects.npz")
    np.savez(tmp_path / "wrong.npz", data=FRAMES, scan=np.zeros((5, 2)))
    with pytest.raises(UserError, match=r"\(5, 2\); \(7, 2\) was expected"):
        open_ptycho(tmp_path / "wrong.npz")
    np.savez(tmp_path / "good.npz", data=FRAMES, scan=STEPS)
    damaged = bytearray((tmp_path / "good.npz").read_bytes())
    damaged[damaged.index(STEPS.tobytes()) + 3] ^= 0xFF
    (tmp_path / "bad.npz").write_bytes(damaged)
    with pytest.raises(UserError, match="truncated or damaged"):
        open_ptycho(tmp_path / "bad.npz")
    whole = (tmp_path / "wrong.npz").read_bytes()
    (tmp_path / "cut.npz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match="truncated or damaged"):
        open_ptycho(tmp_path / "cut.npz")


@pytest.mark.parametrize("flip", FLIPS)
@pytest.mark.parametrize("shape", [(12, 16), (11, 15)])
def test_frames_are_turned_over_about_frequency_zero(tmp_path, flip, shape):
    image = np.zeros((9, *shape), np.float32)
    middle = (shape[0] // 2, shape[1] // 2)
    image[:, middle[0], middle[1]] = 5
    image[:, middle[0] + 2, middle[1] + 1] = 3
    np.savez(tmp_path / "scan.npz", data=image, scan=np.zeros((9, 2)))
    scan = open_ptycho(tmp_path / "scan.npz", center="middle", flip_frames=flip)
    transpose, rows, columns = FLIPS[flip]
    row, column = (1, 2) if transpose else (2, 1)
    place = (-row if rows else row, -column if columns else column)
    middle = middle[::-1] if transpose else middle
    frame = scan.read([0])[0]
    assert frame.shape == (shape[::-1] if transpose else shape)
    assert frame[middle] == 5
    assert frame[middle[0] + place[0], middle[1] + place[1]] == 3


def test_crop_and_center(tmp_path):
    frames = np.zeros((2, 20, 24), np.uint16)
    frames[:, 9, 13] = 7
    np.savez(tmp_path / "scan.npz", data=frames, scan=np.zeros((2, 2)))
    scan = open_ptycho(tmp_path / "scan.npz", center=(9, 13), crop=8)
    assert scan.shape == (2, 8, 8)
    assert (scan.read()[:, 4, 4] == 7).all()
    assert open_ptycho(tmp_path / "scan.npz", center=(9, 13)).shape == (2, 18, 22)
    corner = np.fft.ifftshift(frames, (1, 2))
    np.savez(tmp_path / "corner.npz", data=corner, scan=np.zeros((2, 2)))
    np.testing.assert_array_equal(open_ptycho(tmp_path / "corner.npz", crop=(10, 6)).read(), frames[:, 5:15, 9:15])
    with pytest.raises(UserError, match="do not lie within frames of 20 × 24"):
        open_ptycho(tmp_path / "scan.npz", center=(9, 13), crop=20)


def test_light_in_the_corner_is_noticed(tmp_path):
    frames = RNG.uniform(1, 2, (3, 32, 32)).astype(np.float32)
    frames[:, 14:18, 14:18] *= 1000
    np.savez(tmp_path / "scan.npz", data=frames, scan=np.zeros((3, 2)))
    (note,) = open_ptycho(tmp_path / "scan.npz").warnings
    assert "say center='middle'" in note
    assert open_ptycho(tmp_path / "scan.npz", center="middle").warnings == ()


def test_dtomo_open_and_info_know_such_scans(tmp_path):
    path = ptyd_file(tmp_path / "scan.ptyd")
    with pytest.raises(UserError, match=r"ptychographic scan \(ptyd\): reconstruct it with dtomo ptycho"):
        dtomo.open(path)
    lines = "\n".join(describe(ReconSettings(scan=path, output="volume.zarr")))
    for text in ("ptychographic scan (ptyd)", "7 × 12 × 16", "6.2 keV", "7 m", "of the probe"):
        assert text in lines
