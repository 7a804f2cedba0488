"""Scan: crop, bin, select and replace keep data and metadata right; lazy and eager agree."""

import pickle

import numpy as np
import pytest

from dtomo.errors import UserError
from dtomo.io import ArraySource, Scan, suspicious_darks, suspicious_flats

RNG = np.random.default_rng(1)
RAW = RNG.integers(500, 900, (12, 13, 17)).astype(np.uint16)
FLATS = RNG.integers(900, 1000, (3, 13, 17)).astype(np.uint16)
DARKS = RNG.integers(90, 110, (2, 13, 17)).astype(np.uint16)


def _scan(**changes):
    values = {
        "path": "scan.h5",
        "format": "dxchange",
        "projection_source": ArraySource(RAW),
        "flat_source": ArraySource(FLATS),
        "dark_source": ArraySource(DARKS),
        "angles": np.linspace(0, 180, 12, endpoint=False),
        "center": 8.25,
        "pixel_size": 1.5,
    }
    return Scan(**{**values, **changes})


def test_read_gives_raw_counts_of_the_rows():
    slab = _scan().read(slice(3, 6))
    np.testing.assert_array_equal(slab.projections, RAW[:, 3:6])
    np.testing.assert_array_equal(slab.flats, FLATS[:, 3:6])
    np.testing.assert_array_equal(slab.darks, DARKS[:, 3:6])
    assert slab.projections.dtype == np.uint16


def test_crop_moves_the_center():
    scan = _scan().crop(slice(2, 10), slice(3, -2))
    assert scan.shape == (12, 8, 12)
    assert scan.center == 5.25
    np.testing.assert_array_equal(scan.read().projections, RAW[:, 2:10, 3:-2])
    np.testing.assert_array_equal(scan.crop(columns=slice(1, 4)).read().flats, FLATS[:, 2:10, 4:7])


def test_bin_means_in_float32_and_maps_the_center():
    scan = _scan().bin(2)
    assert scan.shape == (12, 6, 8)
    assert scan.center == pytest.approx((8.25 - 0.5) / 2)
    assert scan.pixel_size == 3.0
    got = scan.read(slice(1, 3)).projections
    assert got.dtype == np.float32
    expected = RAW[:, 2:6, :16].reshape(12, 2, 2, 8, 2).mean(axis=(2, 4))
    np.testing.assert_allclose(got, expected, rtol=1e-6)


def test_bin_of_bin_and_crop_of_bin():
    twice, once = _scan().bin(2).bin(3), _scan().bin(6)
    assert twice.shape == once.shape == (12, 2, 2)
    np.testing.assert_allclose(twice.read().projections, once.read().projections, rtol=1e-6)
    assert twice.center == pytest.approx(once.center)
    cropped = _scan().bin(2).crop(slice(1, 4), slice(2, 7))
    np.testing.assert_array_equal(cropped.read().projections, _scan().bin(2).read().projections[:, 1:4, 2:7])
    assert cropped.center == pytest.approx((8.25 - 0.5) / 2 - 2)


@pytest.mark.parametrize("rows", [slice(0, 14), slice(5, 5), slice(0, 4, 2), slice(20, 30)])
def test_rows_that_do_not_exist_are_refused(rows):
    with pytest.raises(UserError, match="rows"):
        _scan().read(rows)
    with pytest.raises(UserError, match="rows"):
        _scan().crop(rows)


@pytest.mark.parametrize("factor", [0, -1, 14, 1.5])
def test_impossible_binning_is_refused(factor):
    with pytest.raises(UserError, match="binning"):
        _scan().bin(factor)


def test_select_and_without():
    scan = _scan().select([7, 1, 1]).without(flats=[1], darks=[0, 1])
    np.testing.assert_array_equal(scan.read().projections, RAW[[7, 1, 1]])
    np.testing.assert_array_equal(scan.angles, [105, 15, 15])
    np.testing.assert_array_equal(scan.read().flats, FLATS[[0, 2]])
    assert scan.darks is None
    with pytest.raises(UserError, match="no frame 5"):
        _scan().without(darks=[5])
    with pytest.raises(UserError, match="no projection"):
        _scan().select([])


def test_reading_some_projections_only():
    np.testing.assert_array_equal(_scan().read(slice(0, 2), angles=[0, -1]).projections, RAW[[0, -1], :2])


def test_lazy_arrays_equal_eager_ones_under_slicing():
    for scan in (_scan(), _scan().bin(2), _scan().crop(columns=slice(4, 9))):
        whole = scan.read().projections
        lazy = scan.projections
        assert lazy.shape == whole.shape
        assert lazy.dtype == whole.dtype
        for key in (
            np.s_[:],
            np.s_[3],
            np.s_[2:5, 1],
            np.s_[::3, ::-1, 1::2],
            np.s_[..., -1],
            np.s_[[5, 1], 2:4],
        ):
            np.testing.assert_array_equal(lazy[key].compute(scheduler="sync"), whole[key])
        np.testing.assert_array_equal(scan.flats.compute(), scan.read().flats)


def test_replace_takes_the_users_word_and_says_so():
    flat = np.full((13, 17), 950, np.uint16)
    scan = _scan().replace(flats=flat, darks=None, pixel_size=2.0)
    np.testing.assert_array_equal(scan.read().flats, flat[None])
    assert scan.darks is None
    assert scan.pixel_size == 2.0
    assert scan.found["pixel_size"] == "given"
    assert _scan().pixel_size == 1.5
    with pytest.raises(UserError, match=r"flats.*\(4, 4\).*\(13, 17\)"):
        _scan().replace(flats=np.ones((4, 4)))
    with pytest.raises(UserError, match="colour"):
        _scan().replace(colour=3)
    with pytest.raises(UserError, match="11 angles for the 12"):
        _scan().replace(angles=np.arange(11))


def test_nan_angle_is_refused():
    with pytest.raises(UserError, match="number 4"):
        _scan(angles=np.where(np.arange(12) == 4, np.nan, np.arange(12)))


def test_scan_pickles_and_is_immutable():
    scan = _scan().bin(2)
    again = pickle.loads(pickle.dumps(scan))
    np.testing.assert_array_equal(again.read().projections, scan.read().projections)
    with pytest.raises(ValueError, match="read-only"):
        scan.angles[0] = 3


def test_suspicious_frames():
    assert suspicious_darks(_scan()) == []
    mixed = np.concatenate([DARKS, FLATS[:1]])
    assert suspicious_darks(_scan(dark_source=ArraySource(mixed))) == [2]
    assert suspicious_darks(_scan(dark_source=ArraySource(FLATS[:1]))) == [0]
    assert suspicious_flats(_scan(flat_source=ArraySource(np.concatenate([DARKS[:1], FLATS])))) == [0]
