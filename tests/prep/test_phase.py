import numpy as np
import pytest

from dtomo.errors import UserError
from dtomo.prep import paganin, paganin_halo_rows, phase

SETUP = {"pixel_size": 1.0, "energy": 20.0, "distance": 10.0, "delta_beta": 500.0}


@pytest.mark.parametrize(
    ("text", "value"),
    [(308, 308), ("308 mm", 308), ("30.8 cm", 308), ("0.308m", 308), ("5e2 µm", 0.5), ("7", 7)],
)
def test_distances_with_unit(text, value):
    assert phase.millimeters(text) == pytest.approx(value)


@pytest.mark.parametrize("text", ["", "far", "3 inch", "mm", "nan mm", float("inf"), "1 2 mm"])
def test_distances_that_are_none(text):
    with pytest.raises(UserError):
        phase.millimeters(text)


def test_a_slab_with_halo_equals_the_whole():
    rng = np.random.default_rng(0)
    data = rng.uniform(0.2, 1, (2, 200, 30))
    whole = paganin(data, **SETUP)
    halo = paganin_halo_rows(**SETUP)
    assert 5 < halo < 60
    for start, stop in ((0, 40), (90, 91), (150, 200)):
        low, high = max(start - halo, 0), min(stop + halo, 200)
        part = paganin(data[:, low:high], **SETUP, halo=(start - low, high - stop))
        assert part.shape == (2, stop - start, 30)
        np.testing.assert_allclose(part, whole[:, start:stop], atol=1e-4)


def test_no_distance_is_the_plain_logarithm():
    data = np.random.default_rng(0).uniform(0.2, 1, (2, 7, 9))
    nothing = {**SETUP, "distance": 0}
    assert paganin_halo_rows(**nothing) == 0
    np.testing.assert_allclose(paganin(data, **nothing), -np.log(data), atol=2e-6)


def test_edges_are_mirrored():
    data = np.random.default_rng(1).uniform(0.2, 1, (1, 40, 50))
    mirrored = np.pad(data, ((0, 0), (40, 40), (50, 50)), mode="symmetric")
    np.testing.assert_allclose(paganin(mirrored, **SETUP)[:, 40:80, 50:100], paganin(data, **SETUP), atol=1e-5)


def test_input_stays_and_delta_and_beta_give_the_ratio():
    data = np.random.default_rng(1).uniform(0.2, 1, (2, 4, 5)).astype(np.float32)
    kept = data.copy()
    one = paganin(data, **SETUP)
    material = {key: value for key, value in SETUP.items() if key != "delta_beta"}
    two = paganin(data, **material, delta=5e-7, beta=1e-9)
    assert np.array_equal(data, kept)
    assert one.dtype == np.float32
    np.testing.assert_allclose(one, two, rtol=1e-6)


@pytest.mark.parametrize(
    "wrong",
    [
        {"energy": 0},
        {"energy": np.nan},
        {"pixel_size": -1},
        {"distance": -3},
        {"delta_beta": 0},
        {"delta_beta": None},
        {"delta_beta": None, "delta": 1e-6},
        {"delta_beta": None, "delta": 1e-6, "beta": 0.0},
        {"source_distance": 0},
        {"output": "thickness"},
        {"output": "phase"},
        {"halo": (3, 2)},
        {"halo": (-1, 0)},
    ],
)
def test_wrong_requests(wrong):
    with pytest.raises(UserError):
        paganin(np.ones((1, 5, 6)), **{**SETUP, **wrong})


@pytest.mark.parametrize("array", [np.ones((3, 4)), np.ones((1, 3, 4), complex), np.full((1, 3, 4), np.nan)])
def test_wrong_arrays(array):
    with pytest.raises(UserError):
        paganin(array, **SETUP)
