"""C08: the logarithm of zero, negative and NaN is repaired, counted, and stays in its slice."""

import numpy as np

from dtomo.prep import minus_log, normalize

BAD = np.array([[[1, 0.5, 0, -0.1, np.nan]]], np.float32)


def test_values_report_and_rule():
    attenuation, report = minus_log(BAD)
    assert np.isfinite(attenuation).all()
    np.testing.assert_allclose(attenuation[0, 0, :2], [0, 0.6931], atol=1e-4)
    assert report.repaired == 3
    assert (report.not_positive, report.not_finite) == (2, 1)
    assert "3 of 5 values were repaired" in str(report)
    assert "smallest positive" in str(report)


def test_infinite_and_denormal_values():
    attenuation, report = minus_log(np.array([[[np.inf, -np.inf, 0.5, 1e-42]]], np.float32))
    np.testing.assert_allclose(attenuation[0, 0], np.log(2), rtol=1e-6)
    assert (report.not_finite, report.not_positive) == (2, 1)


def test_one_pixel_changes_no_other_slice_and_only_its_line():
    rng = np.random.default_rng(0)
    transmission = rng.uniform(0.1, 1, (9, 4, 31)).astype(np.float32)
    clean, _ = minus_log(transmission)
    for value in (0, -3, np.nan, np.inf):
        transmission[4, 2, 10] = value
        dirty, report = minus_log(transmission)
        assert report.repaired == 1
        assert np.isfinite(dirty).all()
        changed = np.argwhere(dirty != clean)
        assert changed.tolist() == [[4, 2, 10]]


def test_fused_with_the_flat_field():
    raw = np.array([[[1000, 500, 0, 0, 1000]]], np.float32)
    raw[0, 0, 4] = np.nan
    attenuation, report = normalize(raw, np.full((1, 5), 1000), np.array([[0, 0, 0, 100, 0]]), minus_log=True)
    assert np.isfinite(attenuation).all()
    assert report.repaired == 3
