"""C19: the bytes of MRC mode 0 mean what the file's stamps say."""

import mrcfile
import numpy as np
import pytest

from dtomo.io import open_volume

STAMP = 1146047817


def _bytes_file(path, raw, stamp, flags):
    with mrcfile.new(path, overwrite=True) as file:
        file.set_data(np.array(raw, np.int8).reshape(1, 1, -1))
    with open(path, "r+b") as file:
        file.seek(152)
        file.write(np.array([stamp, flags], "<i4").tobytes())
    return path


@pytest.mark.parametrize(
    ("stamp", "flags", "values", "dtype"),
    [
        (STAMP, 1, [0, 1, 128, 255], np.uint8),
        (STAMP, 0, [128, 129, 0, 127], np.uint8),
        (0, 0, [-128, -127, 0, 127], np.int8),
        (0, 1, [-128, -127, 0, 127], np.int8),
    ],
)
def test_mode_0(stamp, flags, values, dtype, tmp_path):
    volume = open_volume(_bytes_file(tmp_path / "b.mrc", [-128, -127, 0, 127], stamp, flags))
    assert volume.dtype == dtype
    got = volume.array.compute()
    assert got.dtype == dtype
    assert got.ravel().tolist() == values
    assert volume.source.read(columns=slice(1, 3)).ravel().tolist() == values[1:3]


def test_a_mask_of_signed_bytes_multiplies_a_volume(tmp_path):
    mask = open_volume(_bytes_file(tmp_path / "m.mrc", [-128, -127, -127, -128], STAMP, 1)).array.compute()
    volume = np.array([[[5, 6, 7, 8]]], np.float32)
    np.testing.assert_array_equal(volume * mask, [[[0, 6, 7, 0]]])
