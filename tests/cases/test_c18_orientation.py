"""C18: axes and signs of a scan, from the file to the picture."""

from itertools import product

import h5py
import numpy as np
import pytest

from dtomo import ptycho
from dtomo.errors import UserError
from dtomo.io.ptycho import open_ptycho
from dtomo.ptycho.frames import to_detector_order
from dtomo.ptycho.model import PtychoModel
from dtomo.ptycho.orientation import check

SIZE, SIDE, STEP = 32, 7, 4
DETECTOR = "entry_1/instrument_1/detector_1"
CORNERS = {"bar": (slice(2, 6), slice(2, 14)), "square": (slice(2, 9), slice(-9, -2))} | {
    "stripes": (slice(-14, -2), slice(2, 8)),
    "dot": (slice(-5, -2), slice(-5, -2)),
}
"""Where features of different phase and shape lie, in the part of the object that frames cover."""
PHASES = {"bar": 0.9, "square": -0.7, "stripes": 0.5, "dot": -1.1}


def sample():
    """Transmission with four features in the corners of what is lit, on a weak pattern of its own."""
    extent = SIZE + SIDE * STEP
    phase = np.random.default_rng(2).uniform(-0.15, 0.15, (extent, extent))
    edge = SIZE // 2 - 3
    lit = phase[edge:-edge, edge:-edge]
    for name, place in CORNERS.items():
        lit[place] += PHASES[name]
    return np.exp(1j * phase), edge


def light():
    """A probe out of focus that is no mirror image of itself."""
    row = np.arange(SIZE) - SIZE // 2
    y, x = row[:, None], row
    probe = np.exp(-(y**2 + x**2) / 60 + 0.04j * (y**2 + x**2)) * (1 + 0.03 * y - 0.02 * x)
    return probe * np.sqrt(1e6 / (np.abs(probe) ** 2).sum())


def scan_file(path, *, swap=False, rows=1, columns=1, frames=None):
    """A CXI file; what its positions are wrong by, and its frames."""
    steps = np.stack(np.meshgrid(np.arange(SIDE), np.arange(SIDE), indexing="ij"), -1).reshape(-1, 2) * STEP
    steps = steps + np.random.default_rng(3).integers(0, 2, steps.shape)
    image, _ = sample()
    waves = light() * np.array([image[r : r + SIZE, c : c + SIZE] for r, c in steps])
    counts = np.fft.fftshift(np.abs(np.fft.fft2(waves, norm="ortho")) ** 2, (1, 2)).astype(np.float32)
    counts = np.random.default_rng(4).poisson(counts).astype(np.float32)
    wrong = (steps[:, ::-1] if swap else steps) * (rows, columns)
    with h5py.File(path, "w") as file:
        file[f"{DETECTOR}/data"] = counts if frames is None else frames(counts)
        file[f"{DETECTOR}/distance"], file[f"{DETECTOR}/x_pixel_size"] = 1.0, 1e-5
        file["entry_1/instrument_1/source_1/wavelength"] = 1e-9 * SIZE * 1e-5
        moves = np.zeros((len(steps), 3))
        moves[:, 1], moves[:, 0] = wrong[:, 0] * 1e-9, wrong[:, 1] * 1e-9
        file["entry_1/data_1/translation"] = moves
    return path


def mirrored(counts):
    """Frames of a detector whose rows run the other way, frequency zero where it was."""
    return np.roll(counts[:, ::-1], 1, 1)


def features(phase):
    """Mean phase at each corner, against what is beside them."""
    beside = np.ones(phase.shape, bool)
    for place in CORNERS.values():
        beside[place] = False
    return {name: float(phase[place].mean() - np.median(phase[beside])) for name, place in CORNERS.items()}


def has_features(path, **options):
    """Whether a reconstruction has the four features at their own corners, with the sign of their phase.

    Where a probe has its middle is free, and so is where the object lies, by the few pixels that are searched.
    """
    result = ptycho.reconstruct(ptycho.open(path, **options), engine="epie", epochs=12, probe=light())
    _, edge = sample()
    size = SIZE + SIDE * STEP - 2 * edge
    top, left = edge - np.rint(result.origin).astype(int)
    off = []
    for down, right in product(range(-2, 3), repeat=2):
        part = result.object[0, 0, top + down : top + down + size, left + right : left + right + size]
        found = features(np.angle(part * np.exp(-1j * np.angle(part.sum()))))
        off.append(max(abs(found[name] - PHASES[name]) for name in PHASES))
    return min(off) < 0.3


def test_a_wave_of_three_periods_falls_on_column_35(tmp_path):
    wave = np.exp(2j * np.pi * 3 * np.arange(64) / 64) * np.ones((64, 1))
    parameters = {
        "object": wave[None, None].astype(np.complex64),
        "probe": np.ones((1, 64, 64), np.complex64),
        "positions": np.zeros((1, 2)),
    }
    frame = to_detector_order(PtychoModel((64, 64)).intensities(parameters, np.array([0])))
    np.savez(tmp_path / "scan.npz", data=np.asarray(frame), scan=np.zeros((1, 2)))
    read = open_ptycho(tmp_path / "scan.npz", center="middle").read()[0]
    assert np.unravel_index(read.argmax(), read.shape) == (32, 35)
    assert read[32, 35] == pytest.approx(64 * 64, rel=1e-5)
    assert read.sum() == pytest.approx(64 * 64, rel=1e-5)


@pytest.mark.parametrize(
    ("wrong", "options"),
    [
        ({}, {}),
        ({"swap": True}, {"swap_axes": True}),
        ({"rows": -1}, {"flip_rows": True}),
        ({"columns": -1}, {"flip_columns": True}),
        ({"rows": -1, "columns": -1}, {"motion": "probe"}),
        ({"frames": mirrored}, {"flip_frames": "rows"}),
    ],
    ids=["as it is", "swapped", "rows", "columns", "sample or probe", "detector"],
)
def test_features_come_out_at_their_corners_only_with_the_option_that_fits(tmp_path, wrong, options):
    path = scan_file(tmp_path / "scan.cxi", **wrong)
    assert has_features(path, **options)
    if options:
        assert not has_features(path)


@pytest.mark.parametrize("wrong", [{"swap": True}, {"rows": -1}, {"frames": mirrored}])
def test_the_check_says_what_fits(tmp_path, wrong):
    scan = open_ptycho(scan_file(tmp_path / "scan.cxi", **wrong))
    ranking = check(scan.frames, scan.positions_in_pixels(), pixel_size=scan.object_pixel_size)
    assert ranking.right is False
    options = {name: getattr(ranking.best, name) for name in ("swap_axes", "flip_rows", "flip_columns")}
    better = scan.reoriented(**options)
    assert check(better.frames, better.positions_in_pixels(), pixel_size=better.object_pixel_size).right


def test_an_orientation_that_is_none_is_refused(tmp_path):
    with pytest.raises(UserError, match="flip_frames is one of none"):
        open_ptycho(scan_file(tmp_path / "scan.cxi"), flip_frames="mirror")
