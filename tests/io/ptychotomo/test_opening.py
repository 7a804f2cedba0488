"""Joint scans opened: one file of all angles, or one for each; what does not fit is said in one sentence."""

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from dtomo.errors import UserError
from dtomo.io.ptychotomo import open_ptychotomo, write_ptychotomo
from dtomo.io.ptychotomo.turning import turned
from dtomo.simulate.ptycho import simulate_ptycho

LENGTHS = {"pixel_size": 1e-8, "wavelength": 1.4e-10, "distance": 2.0}


def write(path: Path, **changes: Any) -> Path:
    random = np.random.default_rng(0)
    given: dict[str, Any] = {
        "angles": [0.0, 60.0, 120.0],
        "angle_of_frame": [0, 0, 1, 2, 2, 2],
        "positions": random.uniform(0, 12, (6, 2)),
        "image_shape": (20, 20),
        "frame_shape": (8, 8),
        "probe": np.ones((1, 8, 8), np.complex64),
        "attributes": LENGTHS,
        **changes,
    }
    return write_ptychotomo(path, random.poisson(50, (6, 8, 8)).astype(np.uint32), **given)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    scan = open_ptychotomo(write(tmp_path / "a.h5", attributes={**LENGTHS, "center": 9.0}))
    assert (scan.shape, scan.image_shape, scan.center) == ((6, 8, 8), (20, 20), 9.0)
    assert scan.frames_per_angle.tolist() == [2, 1, 3]
    assert (scan.pixel_size, scan.wavelength, scan.distance) == (1e-8, 1.4e-10, 2.0)
    assert scan.probe is not None
    assert scan.inputs == (tmp_path / "a.h5",)
    over = open_ptychotomo(tmp_path / "a.h5", angles=[0.0, 1.0, 90.0], center_column=4.5, saturation=1000.0)
    assert (over.angles.tolist(), over.center, over.saturation) == ([0.0, 1.0, 90.0], 4.5, 1000.0)


def test_waves_of_the_other_sign_are_turned_about_frequency_zero(tmp_path: Path) -> None:
    path = write(tmp_path / "a.h5", probe=np.full((1, 8, 8), 1 + 2j))
    plain, other = open_ptychotomo(path), open_ptychotomo(path, sign=-1)
    np.testing.assert_array_equal(other.frames.read(), turned(plain.frames.read()))
    assert plain.probe is not None
    assert other.probe is not None
    np.testing.assert_array_equal(other.probe, plain.probe.conj())
    for size in (8, 7):
        image = np.random.default_rng(1).random((size, size))
        wave = np.fft.ifft2(np.fft.ifftshift(image))
        np.testing.assert_allclose(np.fft.fftshift(np.fft.fft2(wave.conj()).conj()), turned(image), atol=1e-12)


def single(folder: Path, count: int = 3) -> Path:
    folder.mkdir()
    for number in range(count):
        simulate_ptycho(folder / f"angle-{number:03d}.cxi", size=16, positions=4 + number, modes=1, seed=number)
    return folder


def test_a_file_for_each_angle(tmp_path: Path) -> None:
    folder = single(tmp_path / "angles")
    scan = open_ptychotomo(folder, angles=[0.0, 50.0, 120.0])
    assert scan.frames_per_angle.tolist() == [4, 5, 6]
    assert scan.pixel_size == pytest.approx(10e-9, rel=1e-3)
    rows, columns = scan.image_shape
    assert scan.positions.min() >= 0
    assert (scan.positions <= (rows - 16, columns - 16)).all()
    listed = open_ptychotomo(sorted(folder.iterdir()), angles=[0.0, 50.0, 120.0])
    np.testing.assert_array_equal(listed.positions, scan.positions)
    middle = open_ptychotomo(folder, angles=[0.0, 50.0, 120.0], origin="middle")
    for angle in range(3):
        part = middle.positions[middle.angle_of_frame == angle]
        ends = (part.min(0) + part.max(0)) / 2 + 7.5
        np.testing.assert_allclose(ends, (np.array(middle.image_shape) - 1) / 2, atol=0.51)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda file: file.attrs.__delitem__("format"), "no joint scan"),
        (lambda file: file.__delitem__("angles"), "no numbers angles"),
        (lambda file: file.__delitem__("frames"), "holds no counts"),
        (lambda file: file["angles"].__setitem__(1, np.nan), "finite"),
        (lambda file: file["angle_of_frame"].__setitem__(0, 7), "from 0 to 2"),
        (lambda file: file["positions"].__setitem__((0, 0), 400.0), "outside of the images"),
        (lambda file: file.attrs.__setitem__("wavelength", -1.0), "positive number"),
        (lambda file: file.attrs.__setitem__("pixel_size", "wide"), "not a number"),
        (lambda file: file.attrs.__delitem__("image_rows"), "how large its images are"),
        (lambda file: file.attrs.__setitem__("pixel_size", 1.0), "pixel size of 1 m cannot be"),
        (lambda file: file["angles"].__setitem__(..., [30.0, 210.0, 30.0]), "from several sides"),
        (lambda file: file["frames"].__setitem__(4, 2**32 - 1), "frame 4 .* holds no counts"),
    ],
)
def test_damage_is_said_in_one_sentence(tmp_path: Path, damage: Any, said: str) -> None:
    path = write(tmp_path / "a.h5")
    with h5py.File(path, "r+") as file:
        damage(file)
    with pytest.raises(UserError, match=said):
        open_ptychotomo(path)


def test_what_is_not_there_or_does_not_fit(tmp_path: Path) -> None:
    path, folder = write(tmp_path / "a.h5"), single(tmp_path / "angles", 2)
    (tmp_path / "text.h5").write_text("no")
    for given, options, said in (
        (tmp_path / "gone.h5", {}, "no file or folder"),
        (tmp_path / "text.h5", {}, "no ptychographic scan"),
        (folder, {}, "does not say its angle"),
        (folder, {"angles": [1.0, 100.0, 170.0]}, "3 angles are given"),
        (path, {"angles": [1.0, 100.0]}, "2 angles are given"),
        (path, {"sign": 0}, "the sign is"),
        (path, {"probe": np.ones((5, 5))}, "the probe of"),
        (path, {"mask": np.zeros((8, 8))}, "good"),
        ([folder / "angle-000.cxi"], {"angles": [0.0]}, "two at least"),
    ):
        with pytest.raises(UserError, match=said):
            open_ptychotomo(given, **options)


def test_masks_and_backgrounds_that_cannot_be_meant_are_doubted(tmp_path: Path) -> None:
    few = np.zeros((8, 8), bool)
    few[:2] = True
    holes = np.full((8, 8), 3.0)
    holes[1, 2:4] = np.nan, np.inf
    for number, (changes, said) in enumerate(
        (
            ({"mask": few}, "leaves 25 % of the pixels as good; is it inverted"),
            ({"background": holes}, "2 pixels hold no counts; they are taken as 0"),
            ({"background": np.full((8, 8), 400.0)}, "it cannot be theirs"),
        )
    ):
        scan = open_ptychotomo(write(tmp_path / f"{number}.h5", **changes))
        assert [said in note for note in scan.warnings] == [True]
        assert scan.background is None or np.isfinite(scan.background).all()
    assert open_ptychotomo(write(tmp_path / "plain.h5", background=np.full((8, 8), 3.0))).warnings == ()
