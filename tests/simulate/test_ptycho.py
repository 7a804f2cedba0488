"""Simulated ptychographic scans: frames against sums written out, photons, truth, and what is refused."""

import cmath
import math

import h5py
import numpy as np
import pytest

from dtomo.errors import UserError
from dtomo.io.ptycho.opening import open_ptycho
from dtomo.operators.propagation import FarField, NearField
from dtomo.ptycho.frames import FrameBlock, to_model_order
from dtomo.ptycho.model import PtychoModel
from dtomo.simulate.ptycho import GROUP, PtychoTruth, read_ptycho_truth, simulate_ptycho
from dtomo.simulate.ptycho_parts import (
    focused_probe,
    leaves,
    light_diameter,
    mode_powers,
    scan_positions,
    transmission,
    with_modes,
)

FRAMES, CXI = "entry_1/data_1/data", "entry_1/instrument_1/detector_1"


def small(path, **options):
    return simulate_ptycho(path, **{"size": 16, "positions": 12, "photons": 5000, "seed": 3} | options)


def fourier(signal, size):
    """Σ over places of one axis, with the frequencies numbered from −N/2, written out."""
    frequencies = range(-(size // 2), size - size // 2)
    return [sum(value * cmath.exp(-2j * math.pi * k * n / size) for n, value in enumerate(signal)) for k in frequencies]


def written_out(image, size):
    """Its spectrum with frequency zero at [N/2, N/2], by sums."""
    half = np.array([fourier(row, size) for row in image])
    return np.array([fourier(column, size) for column in half.T]).T


def moved(image, step, size):
    """An image of a band below the Nyquist frequency, at places between its pixels, by its Fourier series."""
    spectrum = written_out(image, size)
    axis = np.arange(-(size // 2), size - size // 2)
    out = np.empty((size, size), complex)
    for r in range(size):
        for c in range(size):
            waves = np.exp(2j * np.pi * axis * (r - step[0]) / size)[:, None] * np.exp(
                2j * np.pi * axis * (c - step[1]) / size
            )
            out[r, c] = (spectrum * waves).sum() / size**2
    return out


@pytest.mark.parametrize("number", [0, 7])
def test_far_field_frames_are_the_sums_written_out(tmp_path, number):
    truth = small(tmp_path / "scan.cxi", background=2.0)
    row, column = np.floor(truth.positions[number]).astype(int)
    part = truth.positions[number] - (row, column)
    total = truth.background.astype(float)
    for mode in truth.probe.astype(complex):
        wave = moved(mode, part, 16) * truth.object[row : row + 16, column : column + 16]
        total = total + np.abs(written_out(wave, 16) / 16) ** 2
    np.testing.assert_allclose(truth.expected(number), total, rtol=1e-9)


def test_near_field_frames_are_the_sums_written_out(tmp_path):
    """The object is what moves: the light stays where it is on the detector."""
    truth = small(tmp_path / "scan.cxi", near_field=True, modes=1)
    row, column = np.floor(truth.positions[5]).astype(int)
    part = truth.positions[5] - (row, column)
    wave = moved(truth.probe[0].astype(complex), part, 16) * truth.object[row : row + 16, column : column + 16]
    spectrum = written_out(moved(wave, -part, 16), 16)
    axis, z = np.arange(-8, 8) / (16 * truth.pixel_size), truth.distance / truth.magnification
    for (r, c), value in np.ndenumerate(spectrum):
        along = math.sqrt(truth.wavelength**-2 - axis[r] ** 2 - axis[c] ** 2) - 1 / truth.wavelength
        spectrum[r, c] = value * cmath.exp(2j * math.pi * z * along)
    places = np.arange(16)
    waves = np.exp(2j * np.pi * np.outer(places, np.arange(-8, 8)) / 16)
    image = waves @ spectrum @ waves.T / 256
    np.testing.assert_allclose(truth.expected(5), np.abs(image) ** 2, rtol=1e-4, atol=1e-4 * np.abs(image).max() ** 2)
    assert truth.magnification == pytest.approx(10)
    assert truth.parameters["distance"] == pytest.approx(truth.distance / 10)


@pytest.mark.parametrize("near", [False, True])
def test_the_light_stays_in_place_in_the_near_field_only(tmp_path, near):
    """Without an object, near-field frames are all alike; far-field patterns always are."""
    truth = small(tmp_path / "scan.cxi", near_field=near)
    bare = PtychoTruth(**{**vars(truth), "object": np.ones_like(truth.object)})
    frames = [bare.expected(number) for number in range(3)]
    np.testing.assert_allclose(frames[1], frames[0], rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(frames[2], frames[0], rtol=1e-6, atol=1e-6)


def test_photons_and_noise(tmp_path):
    truth = simulate_ptycho(tmp_path / "scan.cxi", size=32, positions=60, photons=20000, background=1.5)
    with h5py.File(tmp_path / "scan.cxi") as file:
        frames = file[FRAMES][:].astype(float)
    expected = np.stack([truth.expected(number) for number in range(60)])
    light = expected.sum() - 60 * truth.background.sum(dtype=float)
    assert light / 60 == pytest.approx(20000, rel=5e-3)
    assert frames.sum() == pytest.approx(expected.sum(), abs=4 * math.sqrt(expected.sum()))
    deviations = (frames - expected) / np.sqrt(expected)
    assert deviations.mean() == pytest.approx(0, abs=4 / math.sqrt(frames.size))
    assert deviations.std() == pytest.approx(1, abs=0.02)
    assert truth.background.mean() == pytest.approx(1.5)


def test_the_truth_comes_back_from_the_file(tmp_path):
    for near in (False, True):
        truth = small(tmp_path / "scan.cxi", near_field=near, position_error=1.5, background=1.0, overwrite=True)
        again = read_ptycho_truth(tmp_path / "scan.cxi")
        for name, value in vars(truth).items():
            other = getattr(again, name)
            assert type(other) is type(value), name
            np.testing.assert_array_equal(other, value, err_msg=name)
            assert getattr(other, "dtype", None) == getattr(value, "dtype", None)
        assert again.near_field is near


def test_the_file_states_positions_of_the_sample(tmp_path):
    """Sample motion along +x and +y moves the probe to lower columns and rows of frames that run along -x and -y."""
    truth = small(tmp_path / "scan.cxi", position_error=3.0)
    with h5py.File(tmp_path / "scan.cxi") as file:
        moves = file["entry_1/data_1/translation"][:]
        detector = file[CXI]
        assert file["entry_1/instrument_1/source_1/energy"][()] == pytest.approx(8800 * 1.602177e-19, rel=1e-3)
        wavelength, distance = file["entry_1/instrument_1/source_1/wavelength"][()], detector["distance"][()]
        assert wavelength * distance / (16 * detector["x_pixel_size"][()]) == pytest.approx(truth.pixel_size)
        assert not detector["mask"][:].any()
    probe_motion = -moves
    basis = np.array([[0, -1], [-1, 0], [0, 0]]) * truth.pixel_size
    np.testing.assert_allclose(probe_motion, truth.stated_positions @ basis.T, atol=1e-15)
    error = truth.stated_positions - truth.positions
    assert 1.5 < np.sqrt((error**2).sum(1).mean()) < 5


@pytest.mark.parametrize("near", [False, True])
def test_the_reader_of_scans_reads_it(tmp_path, near):
    """Pixel sizes and positions come back but for a common shift, frames to the last count."""
    truth = small(tmp_path / "scan.cxi", near_field=near, position_error=1.0)
    scan = open_ptycho(tmp_path / "scan.cxi", near_field=near)
    assert scan.shape == (12, 16, 16)
    assert scan.object_pixel_size == pytest.approx((truth.pixel_size,) * 2)
    assert scan.wavelength == truth.wavelength
    assert scan.magnification == pytest.approx(truth.magnification)
    assert scan.mask is None
    assert not scan.warnings
    moved = scan.positions / scan.object_pixel_size - truth.stated_positions
    np.testing.assert_allclose(moved, np.broadcast_to(moved[0], moved.shape), atol=1e-9)
    for number in (0, 11):
        np.testing.assert_array_equal(scan.frames.read(slice(number, number + 1))[0], truth.counts(number))


@pytest.mark.parametrize("near", [False, True])
def test_the_truth_is_the_best_that_the_model_can_do(tmp_path, near):
    """Of the frames without noise nothing is left; of counts what is left is a quarter per pixel, as of √Poisson."""
    truth = small(tmp_path / "scan.cxi", size=64, photons=1e6, background=30.0, near_field=near)
    frames = np.stack([truth.expected(number) for number in range(12)])
    counts = np.stack([truth.counts(number) for number in range(12)])
    pixel, distance = (truth.pixel_size,) * 2, truth.distance / truth.magnification
    lens = NearField((64, 64), pixel, truth.wavelength, distance) if near else FarField()
    model = PtychoModel((64, 64), propagation=lens)
    left = []
    for images in (frames, counts):
        block = FrameBlock(np.arange(12), (images if near else to_model_order(images)).astype(np.float32))
        loss, count, _ = model.loss_and_gradient(truth.parameters, block, ())
        left.append(loss / count)
    assert left[0] < 1e-3
    assert left[1] == pytest.approx(0.25, abs=0.02)


def test_frames_lie_within_the_object_and_the_file_repeats(tmp_path):
    for path in ("spiral", "grid"):
        truth = small(tmp_path / f"{path}.cxi", scan_path=path, position_error=5.0)
        for places in (truth.positions, truth.stated_positions):
            assert places.min() >= 2
            assert (np.ceil(places.max(0)) + 18 <= truth.object.shape).all()
    again = small(tmp_path / "again.cxi", scan_path="grid", position_error=5.0)
    np.testing.assert_array_equal(again.object, truth.object)
    with h5py.File(tmp_path / "grid.cxi") as one, h5py.File(tmp_path / "again.cxi") as other:
        np.testing.assert_array_equal(one[FRAMES][:], other[FRAMES][:])
    different = small(tmp_path / "again.cxi", scan_path="grid", seed=4, overwrite=True)
    assert different.object.shape != truth.object.shape or not np.array_equal(different.object, truth.object)


def test_bright_frames_are_counted_with_more_bits(tmp_path):
    small(tmp_path / "scan.cxi", photons=5e7)
    with h5py.File(tmp_path / "scan.cxi") as file:
        frames = file[FRAMES][:]
    assert frames.dtype == np.uint32
    assert 2**16 < frames.max() < 2**32 - 1
    assert frames.sum(dtype=float) / 12 == pytest.approx(5e7, rel=0.01)


def test_the_object_where_a_reconstruction_has_it(tmp_path):
    truth = small(tmp_path / "scan.cxi")
    same = truth.object_at(truth.positions + np.array([5.2, -2.9]), (90, 20))
    rows, columns = truth.object.shape
    assert same.shape == (90, 20)
    np.testing.assert_array_equal(same[5 : 5 + rows, : columns - 3][:, :20], truth.object[:85, 3:23])
    np.testing.assert_array_equal(same[:5], 1)


def test_objects_have_two_pictures_with_structure_of_all_sizes():
    image = transmission((300, 280), 0)
    amplitude, phase = np.abs(image), np.angle(image)
    assert 0.65 < amplitude.min() < amplitude.max() <= 1.001
    assert 0.8 < np.ptp(phase) < 2
    assert abs(np.corrcoef(amplitude.ravel(), phase.ravel())[0, 1]) < 0.1
    for picture in (amplitude, phase):  # the power falls steadily: no scale is empty, none sticks out
        spectrum = np.abs(np.fft.fft2(picture - picture.mean())) ** 2
        radius = np.hypot(np.fft.fftfreq(300)[:, None], np.fft.fftfreq(280))
        edges = 2.0 ** np.arange(-7, -0.9)
        bands = [spectrum[(radius >= low) & (radius < 2 * low)].mean() for low in edges[:-1]]
        ratios = np.array(bands[:-1]) / bands[1:]
        assert (ratios > 1.2).all()
        assert (ratios < 40).all()
    assert not np.array_equal(leaves((64, 64), [0], True), leaves((64, 64), [0], False))


@pytest.mark.parametrize("aperture", ["circle", "rectangle", "zone plate"])
def test_probes_fade_before_the_border_and_have_a_known_pupil(aperture):
    probe = focused_probe(64, aperture)
    power = np.abs(probe) ** 2
    assert power.sum() == pytest.approx(1)
    assert power[0].max() < 1e-3 * power.max()
    assert power[:, 0].max() < 1e-3 * power.max()
    assert 12 < light_diameter(probe[None]) < 32
    pupil = np.abs(np.fft.fftshift(np.fft.fft2(probe)))
    assert (pupil[32, 32] < 0.01 * pupil.max()) == (aperture == "zone plate")
    assert pupil[32, 50:].max() < 1e-2 * pupil.max()


def test_a_probe_without_its_defocus_is_a_small_spot(tmp_path):
    """Taken back by the stated distance, light comes together: what is left are the small aberrations."""
    truth = simulate_ptycho(tmp_path / "scan.cxi", size=64, positions=1, modes=1)
    frequency = np.fft.fftfreq(64, truth.pixel_size)
    square = frequency[:, None] ** 2 + frequency**2
    spectrum = np.fft.fft2(truth.probe[0].astype(complex))
    back = np.fft.ifft2(spectrum * np.exp(1j * math.pi * truth.wavelength * truth.defocus * square))
    further = np.fft.ifft2(spectrum * np.exp(-1j * math.pi * truth.wavelength * truth.defocus * square))
    here = light_diameter(truth.probe)
    assert light_diameter(back[None]) < 0.5 * here
    assert light_diameter(further[None]) > 1.3 * here


def test_modes_are_orthogonal_and_have_their_powers():
    powers = mode_powers(5)
    modes = with_modes(focused_probe(64), powers).reshape(5, -1)
    np.testing.assert_allclose(modes.conj() @ modes.T, np.diag(powers), atol=1e-12)
    np.testing.assert_allclose(powers[1:] / powers[:-1], 0.25)
    np.testing.assert_allclose(modes[0], focused_probe(64).ravel() * math.sqrt(powers[0]), atol=1e-12)
    assert mode_powers(2) == pytest.approx([0.8, 0.2])


@pytest.mark.parametrize("path", ["spiral", "grid"])
def test_positions_are_spread_evenly(path):
    places = scan_positions(900, 5.0, path, 0)
    distances = np.hypot(*(places[:, None] - places).T)
    np.fill_diagonal(distances, np.inf)
    assert 2.4 < distances.min() < 5
    assert distances.min(0).max() < 7.5
    area = math.pi * np.hypot(*places.T).max() ** 2 if path == "spiral" else np.ptp(places, axis=0).prod()
    assert area / 900 == pytest.approx(25, rel=0.1)


def test_what_makes_no_scan_is_refused(tmp_path):
    path = tmp_path / "scan.cxi"
    for options, words in (
        ({"size": 8}, "16 or more"),
        ({"positions": 0}, "a position or more"),
        ({"modes": 0}, "modes"),
        ({"photons": 0}, "photons"),
        ({"photons": math.inf}, "photons"),
        ({"position_error": -1}, "position error"),
        ({"background": math.nan}, "background"),
        ({"overlap": 1.0}, "overlap"),
        ({"aperture": "star"}, "aperture"),
        ({"scan_path": "line"}, "scan path"),
        ({"positions": 10**9, "size": 64}, "memory"),
    ):
        with pytest.raises(UserError, match=words):
            small(path, **options)
    assert not path.exists()
    small(path)
    with pytest.raises(UserError, match="exists"):
        small(path)
    with h5py.File(path, "a") as file:
        del file[GROUP]
    with pytest.raises(UserError, match="not simulated"):
        read_ptycho_truth(path)
    with pytest.raises(UserError, match="no file"):
        read_ptycho_truth(tmp_path / "none.cxi")
