"""The raw scans that the demo and many tests are made from."""

import h5py
import numpy as np
import pytest

from dtomo.errors import UserError
from dtomo.simulate import read_truth, simulate_scan, truth_slice


def corrected(path, row):
    """-log of the flat-corrected sinogram (angle, column) by hand."""
    with h5py.File(path, "r") as file:
        group = file["exchange"]
        flat = group["data_white"][:, row].mean(0, dtype=float)
        dark = group["data_dark"][:, row].mean(0, dtype=float)
        return -np.log(np.clip((group["data"][:, row] - dark) / (flat - dark), 1e-3, None))


def test_the_counts_are_those_of_the_phantom(tmp_path):
    path = tmp_path / "scan.h5"
    truth = simulate_scan(path, size=64, rows=6, rings=False, dead_pixels=0, zingers=0, photons=1e6, dtype=np.uint32)
    exact = np.stack([truth.projection(n)[3] for n in range(len(truth.angles))])
    error = corrected(path, 3) - exact
    assert abs(np.median(error)) < 0.01  # the beam decays by 1 %
    assert (error - error.mean()).std() < 0.01
    assert exact.max() == pytest.approx(2.0, rel=0.2)


def test_the_noise_is_that_of_photons(tmp_path):
    quiet = simulate_scan(
        tmp_path / "a.h5", size=48, rows=4, rings=False, dead_pixels=0, zingers=0, photons=1000, flats=200
    )
    exact = np.stack([quiet.projection(n)[2] for n in range(len(quiet.angles))])
    noise = (corrected(quiet.path, 2) - exact)[exact < 1e-6].std()
    assert noise == pytest.approx(1 / np.sqrt(1000 * 0.85), rel=0.15)


def test_the_same_seed_gives_the_same_counts_and_another_does_not(tmp_path):
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        simulate_scan(tmp_path / name, size=32, rows=3, angles=11, flats=2, darks=2, seed=seed)
    a, b, c = (h5py.File(tmp_path / name, "r") for name in "abc")
    for key in ("exchange/data", "exchange/data_white", "exchange/data_dark"):
        np.testing.assert_array_equal(a[key][()], b[key][()])
        assert not np.array_equal(a[key][()], c[key][()])
    assert a["exchange/data"].dtype == np.uint16


def test_a_frame_does_not_depend_on_how_many_came_before(tmp_path):
    angles = np.arange(0, 180, 20.0)
    simulate_scan(tmp_path / "long.h5", size=32, rows=3, angles=angles)
    simulate_scan(tmp_path / "again.h5", size=32, rows=3, angles=angles, flats=3, darks=0)
    with h5py.File(tmp_path / "long.h5", "r") as a, h5py.File(tmp_path / "again.h5", "r") as b:
        np.testing.assert_array_equal(a["exchange/data"][()], b["exchange/data"][()])
        assert "data_dark" not in b["exchange"] or not b["exchange/data_dark"].size


def test_bad_pixels_and_rings_are_there(tmp_path):
    truth = simulate_scan(tmp_path / "scan.h5", size=64, rows=64, angles=20, dead_pixels=0.01, zingers=1e-3)
    with h5py.File(truth.path, "r") as file:
        flat, dark = file["exchange/data_white"][()].mean(0), file["exchange/data_dark"][()].mean(0)
        data = file["exchange/data"][()]
    dead, hot = np.abs(flat - dark) < 20, dark > 50000
    assert 0.001 < dead.mean() < 0.02
    assert 0.001 < hot.mean() < 0.02
    assert (data[:, hot] > 50000).all()
    stripes = np.median(data / flat, 0)[:, :3]  # air at every angle: what remains is the change of response
    assert stripes.std() > 0.003


def test_the_truth_is_stored_in_the_scan(tmp_path):
    truth = simulate_scan(tmp_path / "scan.h5", size=48, rows=10, angles=7, center=31.5, pixel_size=1.6)
    found = read_truth(tmp_path / "scan.h5")
    np.testing.assert_array_equal(found.phantom.table, truth.phantom.table)
    assert (found.center, found.pixel_size, found.size, found.slices) == (31.5, 1.6, 48, 10)
    np.testing.assert_allclose(found.angles, np.arange(7) * 180 / 7)
    np.testing.assert_array_equal(truth_slice(tmp_path / "scan.h5", 4), truth.volume()[4])
    assert truth_slice(tmp_path / "scan.h5", -1, width=56).shape == (56, 56)
    with pytest.raises(UserError, match="rows 0 to 9"):
        truth_slice(tmp_path / "scan.h5", 10)


def test_a_full_turn_with_the_axis_near_the_edge(tmp_path):
    truth = simulate_scan(tmp_path / "scan.h5", size=64, rows=2, angles=40, full_turn=True, columns=50, center=8.0)
    assert truth.angles[-1] == pytest.approx(351)
    left, right = truth.projection(0)[0], truth.projection(20)[0]
    # opposite views show the same rays, mirrored about the axis
    np.testing.assert_allclose(left[:17], right[16::-1], atol=1e-4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": 2}, "size and columns"),
        ({"rows": 0}, "and a row"),
        ({"photons": 0}, "photons"),
        ({"photons": float("nan")}, "photons"),
        ({"flats": -1}, "negative"),
        ({"dead_pixels": 0.9}, "dead pixels"),
        ({"angles": 0}, "angles"),
        ({"angles": 2.5}, "angles"),
        ({"angles": [0, float("nan")]}, "angles"),
        ({"angles": []}, "angles"),
        ({"dtype": "int64"}, "int64"),
        ({"dtype": "uint8", "dark_level": 100}, "dark level"),
        ({"phantom": "cat"}, "cat"),
        ({"center": float("inf")}, "center"),
        ({"pixel_size": -1}, "pixel size"),
        ({"energy": 0}, "energy"),
        ({"seed": -1}, "seed"),
    ],
)
def test_bad_requests_are_refused_before_anything_is_written(tmp_path, options, message):
    with pytest.raises(UserError, match=message):
        simulate_scan(tmp_path / "scan.h5", **{"size": 32, "rows": 2, "angles": 4, **options})
    assert not list(tmp_path.iterdir())


def test_a_scan_that_exists_is_kept(tmp_path):
    path = tmp_path / "scan.h5"
    path.write_bytes(b"precious")
    with pytest.raises(UserError, match="exists"):
        simulate_scan(path, size=32, rows=2, angles=4)
    assert path.read_bytes() == b"precious"
    path.unlink()
    simulate_scan(path, size=48, rows=2, angles=4)
    simulate_scan(path, size=32, rows=2, angles=4, overwrite=True)
    assert read_truth(path).size == 32


def test_only_simulated_scans_have_a_truth(tmp_path):
    with pytest.raises(UserError, match="does not exist"):
        read_truth(tmp_path / "none.h5")
    (tmp_path / "text.h5").write_text("text")
    with pytest.raises(UserError, match="HDF5"):
        read_truth(tmp_path / "text.h5")
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["exchange/data"] = np.zeros((2, 2, 2))
    with pytest.raises(UserError, match="not simulated"):
        read_truth(tmp_path / "other.h5")
