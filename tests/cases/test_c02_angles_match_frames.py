"""C02: one finite angle per projection, or nothing is opened."""

import h5py
import numpy as np
import pytest

import dtomo
from dtomo.errors import UserError

KEY = np.repeat([2, 1, 0], [10, 10, 181])
ANGLES = np.concatenate([np.zeros(20), np.arange(181.0)])


def _nexus(path, angles):
    with h5py.File(path, "w") as file:
        file["entry/instrument/detector/data"] = (KEY[:, None, None] + np.ones((201, 2, 4))).astype(np.uint16)
        file["entry/instrument/detector/image_key"] = KEY
        if angles is not None:
            file["entry/sample/rotation_angle"] = angles
            file["entry/sample/rotation_angle"].attrs["units"] = "degree"
        file["entry"].attrs["NX_class"] = "NXentry"
    return path


def _dxchange(path, angles):
    with h5py.File(path, "w") as file:
        file["exchange/data"] = np.ones((181, 2, 4), np.uint16)
        if angles is not None:
            file["exchange/theta"] = angles
            file["exchange/theta"].attrs["units"] = "degrees"
    return path


def test_nexus_angles_are_those_of_the_projections(tmp_path):
    scan = dtomo.open(_nexus(tmp_path / "s.nxs", ANGLES))
    assert scan.shape[0] == 181
    np.testing.assert_array_equal(scan.angles, np.arange(181.0))
    assert scan.flats.shape[0] == scan.darks.shape[0] == 10
    assert (scan.read().projections == 1).all()


@pytest.mark.parametrize(
    ("make", "angles", "parts"),
    [
        (_dxchange, np.arange(180.0), ["s.h5:/exchange/theta", "180", "s.h5:/exchange/data", "181"]),
        (_dxchange, np.arange(182.0), ["s.h5:/exchange/theta", "182", "s.h5:/exchange/data", "181"]),
        (_dxchange, None, ["s.h5", "no angles", "181"]),
        (_dxchange, np.zeros(0), ["s.h5:/exchange/theta", "0 angles", "181"]),
        (_dxchange, np.where(np.arange(181) == 7, np.nan, np.arange(181)), ["theta", "1 of 181", "number 7"]),
        (_nexus, ANGLES[:200], ["s.h5:/entry/sample/rotation_angle", "200", "detector/data", "201"]),
        (_nexus, None, ["s.h5", "no angles", "181"]),
        (_nexus, np.where(np.arange(201) == 30, np.inf, ANGLES), ["rotation_angle", "1 of 181"]),
    ],
)
def test_refused_in_one_sentence_with_both_counts(make, angles, parts, tmp_path):
    with pytest.raises(UserError) as caught:
        dtomo.open(make(tmp_path / "s.h5", angles))
    message = str(caught.value)
    assert all(part in message for part in parts), message
    assert "\n" not in message
    assert caught.value.exit_code == 2


def test_a_nan_at_a_flat_does_not_matter(tmp_path):
    scan = dtomo.open(_nexus(tmp_path / "s.nxs", np.where(np.arange(201) < 20, np.nan, ANGLES)))
    np.testing.assert_array_equal(scan.angles, np.arange(181.0))


def test_the_users_angles_count_more_than_the_files(tmp_path):
    path = _dxchange(tmp_path / "s.h5", np.arange(180.0))
    np.testing.assert_array_equal(dtomo.open(path, angles=np.arange(181.0)).angles, np.arange(181.0))
    with pytest.raises(UserError, match=r"180 angles but .* 181 frames"):
        dtomo.open(path, angles=np.arange(180.0))
