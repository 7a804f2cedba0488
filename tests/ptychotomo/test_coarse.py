"""Coarse to fine: what the middle of frames makes, and what the next level begins with."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.ndimage
import zarr
from numpy.typing import NDArray

from dtomo import ptychotomo
from dtomo.errors import UserError
from dtomo.ptychotomo.coarse import FromCoarser, KeptVolume, coarser, cropped, finer, levels, ratio_of
from dtomo.ptychotomo.engine import SlabPlace
from dtomo.ptychotomo.setup import JointData
from dtomo.settings import JointSettings
from dtomo.simulate.ptychotomo import simulate_ptychotomo


@pytest.fixture(scope="module")
def scan(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, NDArray[Any]]:
    """Where it is, and the true volume as large as the images are."""
    path = tmp_path_factory.mktemp("joint") / "scan.h5"
    truth = simulate_ptychotomo(path, 48, angles=30, frame=32, step=6, photons=1e6)
    data = ptychotomo.open(path)
    rows, columns = data.image_shape
    down = round(float(data.frames.positions[:, 0].min() - truth.positions[:, 0].min()))
    beside = (columns - 48) // 2
    whole = np.zeros((rows, columns, columns), np.complex64)
    whole[down : down + 48, beside : beside + 48, beside : beside + 48] = truth.volume
    return path, whole


def error(found: NDArray[Any], true: NDArray[Any]) -> float:
    return float(np.linalg.norm(found - true) / np.linalg.norm(true))


def test_a_wave_on_larger_pixels_is_that_of_the_middle_of_its_spectrum() -> None:
    """Of a band-limited wave, samples at 0, 2, 4 …, with the light of four pixels each."""
    random = np.random.default_rng(0)
    small = random.standard_normal((2, 12, 10)) + 1j * random.standard_normal((2, 12, 10))
    small -= cropped(small, (12, 10)) - small  # in single precision from here on
    first = np.zeros((2, 24, 20), np.complex64)
    wave = finer({"probe": small.astype(np.complex64)}, {"probe": first}, (2, 2))["probe"]
    assert np.abs(wave[:, ::2, ::2] * 2 - small).max() < 1e-5
    assert np.abs(cropped(wave, (12, 10)) - small).max() < 1e-5


@pytest.mark.parametrize("size", [(9, 8), (10, 7)])
def test_what_coarser_frames_do_not_hold_is_kept(size: tuple[int, int]) -> None:
    random = np.random.default_rng(1)
    first = (random.standard_normal((1, 18, 16)) + 1j * random.standard_normal((1, 18, 16))).astype(np.complex64)
    guesses = {"probe": first, "shifts": np.zeros((3, 2)), "ramps": np.zeros((3, 2)), "scale": np.ones(3)}
    guesses["background"] = random.random((18, 16)).astype(np.float32)
    ratio = 18 / size[0], 16 / size[1]
    found: dict[str, Any] = {"probe": cropped(first, size), "shifts": np.full((3, 2), 2.0)}
    found |= {"ramps": np.full((3, 2), 0.5), "scale": np.full(3, 1.1)}
    middle = np.fft.fftshift(guesses["background"])[9 - size[0] // 2 :, 8 - size[1] // 2 :][: size[0], : size[1]]
    found["background"] = np.fft.ifftshift(middle)
    result = finer(found, guesses, ratio)
    assert np.abs(result["probe"] - first).max() < 1e-6
    assert np.allclose(result["shifts"], 2 * np.array(ratio))
    assert np.allclose(result["ramps"], 0.5 / np.array(ratio))
    assert np.array_equal(result["background"], guesses["background"])
    assert (result["scale"] == 1.1).all()


def test_a_smooth_volume_comes_back_at_its_place(tmp_path: Path) -> None:
    """A plane wave of phases: linear in all directions, about the axis and from row 0."""
    z, y, x = np.ogrid[:9, :13, :13]
    coarse = (0.3 * 2 * z + 1j * ((y - 6) * 2 - 0.5 * (x - 6) * 2)).astype(np.complex64)
    kept = KeptVolume.create(tmp_path / "v", coarse.shape)
    kept(SlabPlace(0, 0, 5, 9), coarse[:5])
    kept(SlabPlace(1, 5, 9, 9), coarse[5:])
    assert np.array_equal(zarr.open_array(tmp_path / "v")[:], coarse)
    start = FromCoarser(tmp_path / "v", (17, 24, 24), (2.0, 2.0))
    found = np.concatenate([start(SlabPlace(0, 0, 8, 17)), start(SlabPlace(1, 8, 17, 17))])
    fine_z, fine_y, fine_x = np.ogrid[:17, :24, :24]
    true = (0.3 * fine_z + 1j * ((fine_y - 11.5) - 0.5 * (fine_x - 11.5))) / 2
    inside = np.s_[:, 1:-1, 1:-1]
    assert np.abs(found - true)[inside].max() < 1e-5
    whole = FromCoarser(coarse, (17, 24, 24), (2.0, 2.0))(SlabPlace(0, 0, 17, 17))
    assert found.tobytes() == whole.tobytes()


def test_the_coarse_scan_alone_gives_the_coarse_volume(scan: tuple[Path, NDArray[Any]]) -> None:
    path, true = scan
    data = ptychotomo.open(path)
    coarse = coarser(data, 2)
    assert coarse.frames.frame_shape == (16, 16)
    assert coarse.frames.pixel_size is not None
    found = ptychotomo.reconstruct(coarse, epochs=60, refine=())
    rows, columns = data.image_shape
    fine = FromCoarser(found.volume, (rows, columns, columns), ratio_of(coarse, data))(SlabPlace(0, 0, rows, rows))

    def likeness(*moved: float) -> float:
        return float(np.corrcoef(scipy.ndimage.shift(fine.real, moved, order=1).ravel(), true.real.ravel())[0, 1])

    assert likeness(0, 0, 0) > 0.9
    for axis in range(3):
        assert likeness(0, 0, 0) > max(likeness(*np.eye(3)[axis] / 2), likeness(*-np.eye(3)[axis] / 2))


def test_fewer_fine_epochs_are_needed(scan: tuple[Path, NDArray[Any]]) -> None:
    path, true = scan
    data = ptychotomo.open(path)
    few, coarse = (
        error(ptychotomo.reconstruct(data, epochs=6, refine=(), **more).volume, true)
        for more in ({}, {"coarse": (2.0,), "coarse_epochs": 15})
    )
    assert coarse < 0.8 * few


def test_settings() -> None:
    given: dict[str, Any] = {"scan": "a.h5", "output": "b.zarr"}
    assert JointSettings(**given, coarse="4, 2").coarse == (4.0, 2.0)
    assert JointSettings(**given, coarse=2, epochs=9).coarse_epochs_wanted == 4
    for wrong, words in (
        ({"coarse": "2,4"}, "coarsest first"),
        ({"coarse": "x"}, "factors"),
        ({"coarse": 1}, "above 1"),
        ({"coarse": 2, "start": "two-step"}, "--start"),
        ({"coarse_epochs": 3}, "--coarse"),
    ):
        with pytest.raises(UserError, match=words):
            JointSettings(**given, **wrong)


def test_frames_that_are_too_small_are_refused(scan: tuple[Path, NDArray[Any]]) -> None:
    data: JointData = ptychotomo.open(scan[0])
    with pytest.raises(UserError, match="smaller factor"):
        levels(data, JointSettings(scan=scan[0], output="b.zarr", coarse=5))
