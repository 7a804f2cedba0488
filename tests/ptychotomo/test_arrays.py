"""Joint reconstruction from Python: arrays in, a volume out, what does not fit refused in one sentence."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client, LocalCluster

from dtomo import ptychotomo
from dtomo.errors import UserError
from dtomo.io.ptycho.doubts import GOOD
from dtomo.simulate.ptychotomo import simulate_ptychotomo
from tests.ptychotomo.scenes import Scene, scene

ASKED: dict[str, Any] = {"epochs": 12, "subsets": 3, "support": 0}


@pytest.fixture(scope="module")
def given() -> Scene:
    return scene(rows=28, width=20, frame=8, angles=6, step=3)


def arrays(given: Scene) -> dict[str, Any]:
    return {
        "frames": given.source.array,
        "positions": given.positions,
        "angles": given.model.geometry.angles,
        "angle_of_frame": given.angle_of_frame,
        "image_shape": given.model.image_shape,
        "probe": given.parameters["probe"],
    }


def test_arrays_give_the_volume(given: Scene) -> None:
    reports: list[Any] = []
    found = ptychotomo.reconstruct(**arrays(given), **(ASKED | {"epochs": 40}), on_epoch=reports.append)
    assert found.volume.shape == (28, 20, 20)
    assert len(reports) == len(found.history) == 40
    assert found.history[-1, 0] < 0.02 * found.history[0, 0]
    both = [np.ravel(volume - volume.mean()) for volume in (found.volume.real, given.volume.real)]
    assert np.corrcoef(*both)[0, 1] > 0.9
    np.testing.assert_array_equal(found.delta, -found.volume.real)
    assert found.probe.shape == (1, 8, 8)


def test_lengths_turn_radians_into_indices(given: Scene) -> None:
    found = ptychotomo.reconstruct(**arrays(given), epochs=1, pixel_size=2e-8, wavelength=1e-10)
    assert found.wavenumber == pytest.approx(2 * np.pi * 200)
    np.testing.assert_allclose(found.beta, found.volume.imag / found.wavenumber, rtol=1e-6)


def test_the_truth_as_start_has_nearly_no_loss(given: Scene) -> None:
    first = [
        ptychotomo.reconstruct(**arrays(given), start=start, **(ASKED | {"epochs": 1, "subsets": 1})).history[0, 0]
        for start in (np.zeros_like(given.volume), given.volume)
    ]
    assert first[1] < 1e-4 * first[0]


def test_a_scan_on_disk_and_its_arrays_have_the_same_bits(tmp_path: Path) -> None:
    truth = simulate_ptychotomo(tmp_path / "scan.h5", 24, angles=4, frame=12, step=6)
    scan = ptychotomo.open(tmp_path / "scan.h5")
    one = ptychotomo.reconstruct(scan, epochs=2)
    two = ptychotomo.reconstruct(
        scan.frames.source.read(), truth.positions, truth.angles, truth.angle_of_frame, image_shape=(24, 24),
        probe=truth.probe, pixel_size=truth.pixel_size, wavelength=truth.wavelength, epochs=2,
    )  # fmt: skip
    assert one.volume.tobytes() == two.volume.tobytes()
    assert one.wavenumber == pytest.approx(two.wavenumber)


def test_workers_leave_the_bits_alone(given: Scene) -> None:
    alone = ptychotomo.reconstruct(**arrays(given), epochs=2, slab_rows=14)
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, processes=False, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        spread = ptychotomo.reconstruct(**arrays(given), epochs=2, client=client)
    assert spread.volume.tobytes() == alone.volume.tobytes()
    assert spread.history.tobytes() == alone.history.tobytes()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"positions": None}, "take positions"),
        ({"angles": None}, "take angles"),
        ({"positions": np.zeros((3, 2))}, "168 frames"),
        ({"positions": np.full((168, 2), np.nan)}, "finite"),
        ({"angles": np.array(["a"] * 6)}, "angles are finite numbers"),
        ({"angles": np.zeros(1)}, "two angles"),
        ({"angle_of_frame": np.zeros(3, int)}, "numbers of angles"),
        ({"angle_of_frame": np.zeros(168)}, "whole numbers"),
        ({"image_shape": (10, 10)}, "outside of images"),
        ({"image_shape": (40, 24, 24)}, "rows and columns of the images"),
        ({"image_shape": "wide"}, "rows and columns of the images"),
        ({"center": "left"}, "center is a column"),
        ({"center": 20.0}, "outside of images of 20 columns"),
        ({"angles": np.array([10.0, 190.0] * 3)}, "from several sides"),
        (
            {"frames": np.zeros((0, 8, 8)), "positions": np.zeros((0, 2)), "angle_of_frame": np.zeros(0, int)},
            "there are no frames",
        ),
        ({"pixel_size": -1.0}, "pixel_size is a length"),
        ({"probe": np.zeros((7, 7))}, "probe has the shape"),
        ({"mask": np.zeros((8, 8))}, "mask is bool"),
        ({"start": np.zeros((2, 2, 2), np.complex64)}, "start is a volume"),
        ({"start": "nowhere.zarr"}, "--start"),
        ({"workers": 2}, "a client says where"),
        ({"energy": 8.0}, "how a scan is opened"),
        ({"engine": "sirt"}, "--engine"),
        ({"slab_rows": 3}, "at least as high"),
        ({"client": "tcp://here"}, "client is"),
        ({"on_epoch": 3}, "on_epoch"),
    ],
)
def test_what_does_not_fit_is_refused(given: Scene, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        ptychotomo.reconstruct(**(arrays(given) | {"epochs": 1} | changes))


def test_a_scan_has_its_own_positions(tmp_path: Path) -> None:
    simulate_ptychotomo(tmp_path / "scan.h5", 24, angles=4, frame=12, step=6)
    with pytest.raises(UserError, match="its own positions"):
        ptychotomo.reconstruct(ptychotomo.open(tmp_path / "scan.h5"), np.zeros((3, 2)))


def test_counts_below_zero_are_refused(given: Scene) -> None:
    wrong = arrays(given)
    wrong["frames"] = wrong["frames"].copy()
    wrong["frames"][0, 0, 0] = -1
    with pytest.raises(UserError, match="below 0"):
        ptychotomo.reconstruct(**wrong, epochs=1)
    good = np.ones((8, 8), bool)
    good[0, 0] = False
    assert good.mean() > GOOD
    assert np.isfinite(ptychotomo.reconstruct(**wrong, mask=good, epochs=1).history).all()


def test_public_names_are_found_on_first_use() -> None:
    assert all(callable(getattr(ptychotomo, name)) for name in dir(ptychotomo))
    with pytest.raises(AttributeError, match="nonsense"):
        _ = ptychotomo.nonsense  # type: ignore[attr-defined]
