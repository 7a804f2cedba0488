"""CXI of ptychography: fields and signs as CDTools writes them, odd variants, and one sentence for what is wrong."""

import pickle

import h5py
import numpy as np
import pytest

from dtomo.errors import UserError
from dtomo.io.ptycho import open_ptycho, recognise_ptycho, write_cxi

RNG = np.random.default_rng(0)
FRAMES = RNG.poisson(30, (6, 16, 20)).astype(np.float32)
WAVELENGTH, DISTANCE, PIXEL = 1e-9, 0.5, (30e-6, 20e-6)  # of the detector: height, width
OBJECT_PIXEL = (1e-9 * 0.5 / (16 * 30e-6), 1e-9 * 0.5 / (20 * 20e-6))
STEPS = RNG.integers(-20, 20, (6, 2)).astype(float)  # row, column of the probe on the object, in its pixels
DETECTOR = "entry_1/instrument_1/detector_1"


def basis_vectors():
    """Rows along -y, columns along -x, as CDTools has them by default."""
    return np.array([[0, -PIXEL[1]], [-PIXEL[0], 0], [0, 0]])


def cdtools_file(path, frames=FRAMES, steps=STEPS, *, leave_out=(), **more):
    """Field by field what `Ptycho2DDataset.to_cxi` writes; `more` are further datasets, by name."""
    probe = np.zeros((len(steps), 3))
    probe[:, 1], probe[:, 0] = -steps[:, 0] * OBJECT_PIXEL[0], -steps[:, 1] * OBJECT_PIXEL[1]
    fields = {
        "cxi_version": 160,
        "number_of_entries": 1,
        "entry_1/instrument_1/source_1/wavelength": np.float32(WAVELENGTH),
        "entry_1/instrument_1/source_1/energy": np.float32(1.9864459e-25 / WAVELENGTH),
        f"{DETECTOR}/distance": np.float32(DISTANCE),
        f"{DETECTOR}/x_pixel_size": PIXEL[1],
        f"{DETECTOR}/y_pixel_size": PIXEL[0],
        f"{DETECTOR}/basis_vectors": basis_vectors(),
        f"{DETECTOR}/mask": np.zeros(frames.shape[1:], np.uint32),
        "entry_1/sample_1/geometry_1/translation": -probe,  # CXI has the sample's motion
    }
    links = {
        "entry_1/data_1/translation": "/entry_1/sample_1/geometry_1/translation",
        f"{DETECTOR}/translation": "/entry_1/sample_1/geometry_1/translation",
        "entry_1/data_1/data": f"/{DETECTOR}/data",
    }
    with h5py.File(path, "w") as file:
        if "frames" not in leave_out:
            file.create_dataset(f"{DETECTOR}/data", data=frames, compression="gzip", chunks=True)
        for name, value in (fields | more).items():
            if name not in leave_out and value is not None:
                file[name] = value
        for name, target in links.items():
            if name not in leave_out and target.strip("/") in file:
                file[name] = h5py.SoftLink(target)
    return path


def test_a_file_of_cdtools(tmp_path):
    path = cdtools_file(tmp_path / "scan.cxi")
    scan = open_ptycho(path)
    assert recognise_ptycho(path) == scan.format == "cxi"
    assert scan.shape == (6, 16, 20)
    assert scan.wavelength == pytest.approx(WAVELENGTH)
    assert scan.energy == pytest.approx(1.23984198)
    assert (scan.distance, scan.detector_pixel) == (DISTANCE, pytest.approx(PIXEL))
    assert scan.object_pixel_size == pytest.approx(OBJECT_PIXEL)
    assert scan.position_unit == "m"
    np.testing.assert_allclose(scan.positions_in_pixels(), STEPS, atol=1e-5)
    np.testing.assert_array_equal(scan.read([4, 1]), FRAMES[[4, 1]])
    assert scan.mask is None
    assert scan.found["positions"].endswith("/entry_1/data_1/translation")
    assert "sample" in scan.found["motion"]
    assert (scan.warnings, scan.inputs) == ((), (path,))
    np.testing.assert_allclose(scan.object_basis, basis_vectors() / PIXEL * OBJECT_PIXEL)
    again = pickle.loads(pickle.dumps(scan))
    np.testing.assert_array_equal(again.read([2]), FRAMES[2:3])
    assert len(pickle.dumps(scan.frames)) < 2000


@pytest.mark.parametrize("shape", [(3, 2), (2, 3)])
def test_positions_go_along_the_basis_vectors(tmp_path, shape):
    turned = np.array([[0, PIXEL[1]], [PIXEL[0], 0], [0, 0]])  # rows along +y, columns along +x
    basis = turned if shape == (3, 2) else turned.T
    scan = open_ptycho(cdtools_file(tmp_path / "scan.cxi", **{f"{DETECTOR}/basis_vectors": basis}))
    np.testing.assert_allclose(scan.positions_in_pixels(), -STEPS, atol=1e-5)
    assert scan.detector_pixel == pytest.approx(PIXEL)


def test_without_basis_vectors_rows_run_down_and_columns_left(tmp_path):
    scan = open_ptycho(cdtools_file(tmp_path / "scan.cxi", leave_out=(f"{DETECTOR}/basis_vectors",)))
    np.testing.assert_allclose(scan.positions_in_pixels(), STEPS, atol=1e-5)
    one = cdtools_file(tmp_path / "one.cxi", leave_out=(f"{DETECTOR}/basis_vectors", f"{DETECTOR}/y_pixel_size"))
    assert open_ptycho(one).detector_pixel == (PIXEL[1], PIXEL[1])


@pytest.mark.parametrize("group", ["entry_1/sample_1/geometry_1", DETECTOR])
def test_positions_in_other_groups(tmp_path, group):
    out = ("entry_1/data_1/translation", "entry_1/sample_1/geometry_1/translation", f"{DETECTOR}/translation")
    moves = np.zeros((6, 3))
    moves[:, 1] = np.arange(6) * OBJECT_PIXEL[0]
    path = cdtools_file(tmp_path / "scan.cxi", leave_out=out)
    with h5py.File(path, "a") as file:
        file[f"{group}/translation"] = moves
    scan = open_ptycho(path)
    np.testing.assert_allclose(scan.positions_in_pixels()[:, 0], np.arange(6), rtol=1e-6)
    assert scan.found["positions"].endswith(f"{group}/translation")


def test_frames_in_the_detectors_group_only(tmp_path):
    scan = open_ptycho(cdtools_file(tmp_path / "scan.cxi", leave_out=("entry_1/data_1/data",)))
    assert scan.found["frames"].endswith("/entry_1/instrument_1/detector_1/data")
    np.testing.assert_array_equal(scan.read([0]), FRAMES[:1])


def test_energy_in_joules_where_there_is_no_wavelength(tmp_path):
    source = "entry_1/instrument_1/source_1"
    path = cdtools_file(tmp_path / "scan.cxi", leave_out=(f"{source}/wavelength",))
    assert open_ptycho(path).wavelength == pytest.approx(WAVELENGTH, rel=1e-6)
    wrong = cdtools_file(tmp_path / "ev.cxi", leave_out=(f"{source}/wavelength",), **{f"{source}/energy": 1240.0})
    with pytest.raises(UserError, match="cannot be joules"):
        open_ptycho(wrong)
    assert open_ptycho(path, energy=2.0).wavelength == pytest.approx(0.61992099e-9)
    with h5py.File(wrong, "a") as file:
        file[f"{source}/energy"].attrs["units"] = "eV"
    assert open_ptycho(wrong).energy == pytest.approx(1.24)


def test_distance_from_the_corner(tmp_path):
    corner = np.array([1e-4, 2e-4, 0.75])
    out = (f"{DETECTOR}/distance",)
    scan = open_ptycho(cdtools_file(tmp_path / "scan.cxi", leave_out=out, **{f"{DETECTOR}/corner_position": corner}))
    assert scan.distance == pytest.approx(0.75)
    assert "corner_position" in scan.found["distance"]


def test_a_mask_is_a_field_of_bits(tmp_path):
    field = np.zeros((16, 20), np.uint32)
    field[2, 3], field[4, 5], field[6, 7] = 1, 0x1000, 0x1001
    scan = open_ptycho(cdtools_file(tmp_path / "scan.cxi", **{f"{DETECTOR}/mask": field}))
    assert {tuple(place) for place in np.argwhere(~scan.mask)} == {(2, 3), (6, 7)}
    assert (scan.read([1])[:, ~scan.mask] == 0).all()
    assert open_ptycho(cdtools_file(tmp_path / "no.cxi", leave_out=(f"{DETECTOR}/mask",))).mask is None


def test_dark_intensities_and_efficiency(tmp_path):
    dark = RNG.uniform(0, 2, (4, 16, 20))
    dark[0, 3, 3] = np.nan
    more = {
        f"{DETECTOR}/data_dark": dark,
        f"{DETECTOR}/qe_mask": np.ones((16, 20), np.float32),
        "entry_1/sample_1/geometry_1/intensities": np.arange(1.0, 7),
    }
    scan = open_ptycho(cdtools_file(tmp_path / "scan.cxi", **more))
    np.testing.assert_allclose(scan.background, np.nanmean(dark, 0), rtol=1e-6)
    np.testing.assert_array_equal(scan.intensities, np.arange(1.0, 7))
    assert ["qe_mask" in note for note in scan.warnings] == [True]
    some = scan.select([5, 0])
    np.testing.assert_array_equal(some.intensities, [6, 1])
    np.testing.assert_array_equal(some.read([0]), FRAMES[5:6])
    np.testing.assert_array_equal(some.positions, scan.positions[[5, 0]])


def test_a_dark_that_is_not_finite_is_taken_as_zero(tmp_path):
    dark = np.ones((16, 20))
    dark[2, 3], dark[4, 5] = np.inf, 1e300
    np.save(tmp_path / "dark.npy", dark)
    scan = open_ptycho(cdtools_file(tmp_path / "scan.cxi"), background=tmp_path / "dark.npy")
    np.testing.assert_array_equal(scan.background, np.where(dark == 1, 1, 0))
    assert "2 pixels hold no counts" in scan.warnings[0]


def test_a_tilted_sample_moves_within_its_surface(tmp_path):
    normal = np.array([1.0, 0.0, 1.0]) / np.sqrt(2)
    basis = np.array([[0, -PIXEL[1] / np.sqrt(2)], [-PIXEL[0], 0], [0, PIXEL[1] / np.sqrt(2)]])
    more = {"entry_1/sample_1/geometry_1/surface_normal": normal, f"{DETECTOR}/basis_vectors": basis}
    scan = open_ptycho(cdtools_file(tmp_path / "scan.cxi", **more))
    # a step -x of the sample in a surface at 45 degrees is sqrt(2) long along it
    np.testing.assert_allclose(scan.positions_in_pixels(), STEPS * (1, np.sqrt(2)), atol=1e-4)
    level = {"entry_1/sample_1/geometry_1/surface_normal": np.array([1.0, 0, 0])}
    with pytest.raises(UserError, match="surface holds the beam"):
        open_ptycho(cdtools_file(tmp_path / "level.cxi", **level))


def test_what_the_user_says_counts_more(tmp_path):
    path = cdtools_file(tmp_path / "scan.cxi")
    scan = open_ptycho(path, distance=1.0, detector_pixel=(1e-5, 2e-5), wavelength=2e-9)
    assert scan.object_pixel_size == pytest.approx((2e-9 / 16e-5, 2e-9 / 40e-5))
    assert scan.found["distance"] == "given"
    np.testing.assert_allclose(open_ptycho(path, motion="probe").positions_in_pixels(), -STEPS, atol=1e-5)
    turned = open_ptycho(path, swap_axes=True, flip_rows=True)
    np.testing.assert_array_equal(turned.positions, open_ptycho(path).positions[:, ::-1] * (-1, 1))
    mask = np.ones((16, 20), bool)
    mask[:, 3] = False
    np.testing.assert_array_equal(open_ptycho(path, mask=mask).mask, mask)
    np.save(tmp_path / "mask.npy", mask)
    np.testing.assert_array_equal(open_ptycho(path, mask=tmp_path / "mask.npy").mask, mask)
    steps = np.column_stack([np.arange(6), np.arange(6) * 2])
    np.savetxt(tmp_path / "steps.csv", steps, delimiter=",", header="row,column", comments="")
    scan = open_ptycho(path, positions=tmp_path / "steps.csv", position_unit="pixels", exclude=[1])
    np.testing.assert_array_equal(scan.positions_in_pixels(), np.delete(steps, 1, 0))
    assert scan.shape[0] == 5
    assert tmp_path / "steps.csv" in scan.inputs


def test_a_frame_without_a_position_can_be_left_out(tmp_path):
    moves = np.zeros((6, 3))
    moves[4, 0] = np.nan
    path = cdtools_file(tmp_path / "scan.cxi", **{"entry_1/sample_1/geometry_1/translation": moves})
    with pytest.raises(UserError, match=r"position number 4 of .* leave that frame out"):
        open_ptycho(path)
    assert open_ptycho(path, exclude=[4]).shape[0] == 5


def test_near_field(tmp_path):
    path = cdtools_file(tmp_path / "scan.cxi", **{"entry_1/instrument_1/source_1/distance": -0.05})
    scan = open_ptycho(path, near_field=True)
    assert scan.magnification == pytest.approx(11)
    assert scan.object_pixel_size == pytest.approx((PIXEL[0] / 11, PIXEL[1] / 11))
    assert open_ptycho(path, near_field=True, magnification=4).object_pixel_size[0] == pytest.approx(PIXEL[0] / 4)


def test_images_of_the_near_field_have_no_frequency_zero(tmp_path):
    path = cdtools_file(tmp_path / "scan.cxi")
    np.testing.assert_array_equal(open_ptycho(path, near_field=True, flip_frames="rows").read(), FRAMES[:, ::-1])
    far = open_ptycho(path, flip_frames="rows").read()
    np.testing.assert_array_equal(far[:, 0], FRAMES[:, 0])
    np.testing.assert_array_equal(far[:, 1:], FRAMES[:, :0:-1])


def test_there_and_back(tmp_path):
    field = np.zeros((16, 20), np.uint32)
    field[2, 3] = 1
    more = {f"{DETECTOR}/mask": field, f"{DETECTOR}/data_dark": np.full((16, 20), 2.0)}
    scan = open_ptycho(cdtools_file(tmp_path / "scan.cxi", **more), crop=(12, 16), flip_frames="rows")
    write_cxi(tmp_path / "new.cxi", scan)
    again = open_ptycho(tmp_path / "new.cxi")
    np.testing.assert_array_equal(again.read(), scan.read())
    np.testing.assert_allclose(again.positions, scan.positions, atol=1e-18)
    np.testing.assert_array_equal(again.mask, scan.mask)
    np.testing.assert_array_equal(again.background, scan.background)
    for name in ("wavelength", "distance", "detector_pixel", "object_pixel_size"):
        assert getattr(again, name) == pytest.approx(getattr(scan, name))
    with pytest.raises(UserError, match="exists"):
        write_cxi(tmp_path / "new.cxi", scan)
    with pytest.raises(UserError, match="needs the distance"):
        write_cxi(tmp_path / "no.cxi", scan.replace(distance=None))
    assert not (tmp_path / "no.cxi").exists()


BAD = {
    "no frames": ({"leave_out": ("frames",)}, {}, "has no frames at /entry_1/data_1/data or"),
    "other frames": ({}, {"dataset": "entry_1/nothing"}, "has no frames at entry_1/nothing"),
    "no positions": (
        {"leave_out": ("entry_1/sample_1/geometry_1/translation",)},
        {},
        "has no positions for its 6 frames",
    ),
    "fewer positions": (
        {"entry_1/sample_1/geometry_1/translation": np.zeros((5, 3))},
        {},
        "has 5 positions, but there are 6 frames",
    ),
    "positions of another shape": (
        {"entry_1/sample_1/geometry_1/translation": np.zeros((6, 4))},
        {},
        r"\(6, 4\); x, y, z of each frame",
    ),
    "words": ({"entry_1/sample_1/geometry_1/translation": np.bytes_("left")}, {}, "where numbers were expected"),
    "infinite": (
        {"entry_1/sample_1/geometry_1/translation": np.full((6, 3), np.inf)},
        {},
        "number 0 of .* is not a finite",
    ),
    "mask of another shape": ({f"{DETECTOR}/mask": np.zeros((4, 4), np.uint32)}, {}, r"\(4, 4\), but frames have"),
    "inverted mask": ({f"{DETECTOR}/mask": np.ones((16, 20), np.uint32)}, {}, "leaves no good pixel; is it inverted"),
    "basis of another shape": ({f"{DETECTOR}/basis_vectors": np.zeros((3, 3))}, {}, "two vectors"),
    "huge": ({f"{DETECTOR}/data_dark": h5py.Empty("f")}, {"crop": 400}, "do not lie within frames"),
    "unit": ({}, {"positions": np.zeros((6, 2))}, "has no unit"),
    "other unit": ({}, {"positions": np.zeros((6, 2)), "position_unit": "parsec"}, "has the unit 'parsec'"),
    "both": ({}, {"energy": 1.0, "wavelength": 1e-9}, "say the same"),
    "negative": ({}, {"distance": -1.0}, "must be a positive number"),
    "motion": ({}, {"motion": "detector"}, "'sample' or 'probe'"),
    "flip": ({}, {"flip_frames": "sideways"}, "one of none, rows"),
    "center": ({}, {"center": "left"}, "'middle', 'corner', or"),
    "exclude": ({}, {"exclude": [9]}, "no frame 9 can be left out"),
    "file": ({}, {"positions": "nowhere.txt"}, "no file nowhere.txt"),
    "mask file": ({}, {"mask": np.ones((3, 3))}, "must match"),
}


@pytest.mark.parametrize("name", BAD)
def test_one_sentence_for_what_is_wrong(tmp_path, name):
    changes, options, sentence = BAD[name]
    path = cdtools_file(tmp_path / "scan.cxi", **changes)
    with pytest.raises(UserError, match=sentence) as caught:
        open_ptycho(path, **options)
    assert "\n" not in str(caught.value)


def test_files_that_are_none(tmp_path):
    with pytest.raises(UserError, match="there is no file"):
        open_ptycho(tmp_path / "absent.cxi")
    (tmp_path / "empty.cxi").touch()
    with pytest.raises(UserError, match="0 bytes"):
        open_ptycho(tmp_path / "empty.cxi")
    (tmp_path / "text.cxi").write_text("not a scan")
    with pytest.raises(UserError, match="no ptychographic scan"):
        open_ptycho(tmp_path / "text.cxi")
    whole = cdtools_file(tmp_path / "scan.cxi", np.repeat(FRAMES, 40, 0), np.repeat(STEPS, 40, 0)).read_bytes()
    (tmp_path / "cut.cxi").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match="truncated"):
        open_ptycho(tmp_path / "cut.cxi")


def test_declared_sizes_that_nothing_holds(tmp_path):
    path = cdtools_file(tmp_path / "scan.cxi", leave_out=("entry_1/sample_1/geometry_1/translation",))
    with h5py.File(path, "a") as file:
        file.create_dataset("entry_1/sample_1/geometry_1/translation", (2**40, 3), np.float64, chunks=(1024, 3))
    with pytest.raises(UserError, match="more than any scan has"):
        open_ptycho(path)


def test_frames_behind_an_external_link(tmp_path):
    with h5py.File(tmp_path / "frames.h5", "w") as file:
        file["data"] = FRAMES
    path = cdtools_file(tmp_path / "scan.cxi", leave_out=("frames",))
    with h5py.File(path, "a") as file:
        file["entry_1/data_1/data"] = h5py.ExternalLink("frames.h5", "/data")
    np.testing.assert_array_equal(open_ptycho(path).read([3]), FRAMES[3:4])
    (tmp_path / "frames.h5").unlink()
    with pytest.raises(UserError, match="has no frames at"):
        open_ptycho(path)


def test_damage_anywhere_ends_in_one_sentence_or_a_scan(tmp_path):
    whole = cdtools_file(tmp_path / "scan.cxi").read_bytes()
    random = np.random.default_rng(1)
    refused = []
    for number in range(40):
        damaged = bytearray(whole[: random.integers(1, len(whole))] if number % 4 == 0 else whole)
        for place in random.integers(0, min(len(damaged), 6000), 3):
            damaged[place] = random.integers(0, 256)
        path = tmp_path / "damaged.cxi"
        path.write_bytes(damaged)
        try:
            assert open_ptycho(path).read().shape == FRAMES.shape
        except UserError as error:
            refused.append(str(error))
    assert 10 < len(refused) < 40
    assert not any("\n" in sentence for sentence in refused)
