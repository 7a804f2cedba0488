import numpy as np
import pytest

from dtomo import threads
from dtomo.errors import UserError
from dtomo.prep import flats, line_kernels, outliers


def counts(angles=7, rows=5, columns=67, seed=0):
    rng = np.random.default_rng(seed)
    return rng.integers(150, 40000, (angles, rows, columns)).astype(np.uint16)


@pytest.fixture
def frames():
    rng = np.random.default_rng(1)
    bright = rng.integers(30000, 50000, (4, 5, 67)).astype(np.uint16)
    dark = rng.integers(90, 110, (3, 5, 67)).astype(np.uint16)
    return bright, dark


def test_logarithm_is_exact_to_two_units_over_all_normal_floats():
    bits = np.linspace(0x00800000, 0x7F7FFFFF, 400_003).astype(np.int32)
    values = bits.view(np.float32).copy()
    result = values.copy()
    line_kernels.minus_log_line(result)
    exact = -np.log(values.astype(np.float64))
    assert np.all(np.abs(result - exact) <= 2 * np.spacing(np.abs(exact).astype(np.float32)))


def test_logarithm_of_one_is_plain_zero():
    line = np.ones(5, np.float32)
    line_kernels.minus_log_line(line)
    assert np.array_equal(line, np.zeros(5))
    assert not np.signbit(line).any()


def test_normalize_equals_the_formula(frames):
    bright, dark = frames
    raw = counts()
    result, report = flats.normalize(raw, bright, dark)
    d = dark.mean(0)
    expected = (raw - d) / (bright.mean(0) - d)
    assert result.dtype == np.float32
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)
    assert (report.dead_pixels, report.repaired, report.pixels, report.values) == (0, 0, 335, 2345)


def test_fused_logarithm_equals_two_steps(frames):
    raw = counts()
    raw[2, 3, 5] = 0
    fused, _ = flats.normalize(raw, *frames, minus_log=True)
    transmission, _ = flats.normalize(raw, *frames)
    apart, report = flats.minus_log(transmission, out=transmission)
    assert apart is transmission
    assert report.not_positive == 1
    assert np.array_equal(fused, apart)


def test_rows_and_threads_do_not_change_the_bits(frames):
    bright, dark = frames
    raw = counts(angles=301)
    raw[5, 2, 9] = 0
    whole, _ = flats.normalize(raw, bright, dark, minus_log=True, air_columns=(4, 3))
    for start, stop in ((0, 1), (1, 3), (3, 5)):
        rows = slice(start, stop)
        part, _ = flats.normalize(raw[:, rows], bright[:, rows], dark[:, rows], minus_log=True, air_columns=(4, 3))
        assert np.array_equal(part, whole[:, rows])
    before = threads.get_threads()
    try:
        threads.set_threads(1)
        single, _ = flats.normalize(raw, bright, dark, minus_log=True, air_columns=(4, 3))
    finally:
        threads.set_threads(before)
    assert np.array_equal(single, whole)


def test_input_stays_unless_it_is_the_output(frames):
    raw = counts().astype(np.float32)
    kept = raw.copy()
    flats.normalize(raw, *frames, minus_log=True)
    assert np.array_equal(raw, kept)
    result, _ = flats.normalize(raw, *frames, out=raw)
    assert result is raw


def test_any_layout_and_byte_order(frames):
    raw = counts(columns=134)[:, :, ::2]
    expected, _ = flats.normalize(np.ascontiguousarray(raw), *frames)
    for variant in (
        raw,
        raw.astype(">u2"),
        np.asfortranarray(raw),
        raw.astype(np.float64),
        raw.astype(np.int64),
    ):
        result, _ = flats.normalize(variant, *frames)
        assert result.dtype == np.float32
        assert np.array_equal(result, expected)


def test_flats_before_and_after_count_alike():
    before, after = np.full((1, 1, 3), 100.0), np.full((3, 1, 3), 200.0)
    result, _ = flats.normalize(np.full((2, 1, 3), 175.0), np.concatenate([before, after]), None)
    np.testing.assert_allclose(result, 1.0)


def test_median_ignores_one_bad_flat():
    bright = np.full((5, 1, 4), 1000, np.uint16)
    bright[2] = 60000
    result, _ = flats.normalize(np.full((1, 1, 4), 500, np.uint16), bright, average="median")
    np.testing.assert_allclose(result, 0.5)


def test_dead_pixels_take_the_line_between_neighbours():
    bright = np.full((1, 1, 6), 10.0)
    bright[0, 0, 2:4] = 0
    raw = np.array([[[1, 1, 7, 7, 4, 4]]], float)
    result, report = flats.normalize(raw, bright)
    np.testing.assert_allclose(result[0, 0], [0.1, 0.1, 0.2, 0.3, 0.4, 0.4], rtol=1e-6)
    assert (report.dead_pixels, report.repaired) == (2, 0)


def test_given_bad_pixels_count_as_dead():
    bad = np.zeros((1, 3), bool)
    bad[0, 1] = True
    result, report = flats.normalize(np.array([[[2.0, 900, 4]]]), bad_pixels=bad)
    np.testing.assert_allclose(result[0, 0], [2, 3, 4])
    assert report.dead_pixels == 1


def test_a_line_without_any_value_becomes_air():
    raw = np.full((2, 2, 4), 5.0)
    raw[1, 0] = np.nan
    result, report = flats.normalize(raw, np.full((2, 4), 10.0), minus_log=True)
    assert np.array_equal(result[1, 0], np.zeros(4))
    np.testing.assert_allclose(result[0], np.log(2), rtol=1e-6)
    assert (report.empty_lines, report.not_finite) == (1, 4)


def test_air_columns_take_out_the_beam():
    transmission = np.array([[[1, 1, 0.5, 0.25, 1, 1]]])
    beam = np.linspace(0.5, 0.8, 6)
    result, _ = flats.normalize(transmission * beam, air_columns=(2, 2))
    np.testing.assert_allclose(result, transmission, rtol=1e-6)
    left, _ = flats.normalize(transmission * 0.7, air_columns=(2, 0))
    np.testing.assert_allclose(left, transmission, rtol=1e-6)


def test_dark_air_is_counted_and_left():
    result, report = flats.normalize(np.array([[[0.0, 0.0, 0.5]]]), air_columns=(2, 0))
    np.testing.assert_allclose(result[0, 0], [0, 0, 0.5])
    assert report.lines_without_air == 1


def test_reports_add_up():
    one = flats.NormalizeReport(10, 1, 100, 2, 3, warnings=("a",))
    both = one + flats.NormalizeReport(10, 2, 100, 1, 1, warnings=("a", "b"))
    assert (both.dead_pixels, both.repaired, both.warnings) == (3, 7, ("a", "b"))
    assert "7 of 200 values were repaired (4 not positive, 3 not finite)" in str(both)
    assert flats.REPAIR_RULE in str(both)


@pytest.mark.parametrize(
    ("bright", "dark", "words"),
    [
        (np.ones((2, 5, 66)), None, ["flats", "(2, 5, 66)", "5, 67"]),
        (np.ones((5, 67)), np.ones((67,)), ["darks", "(67,)", "5, 67"]),
        (np.ones((5, 67), complex), None, ["flats", "complex128"]),
    ],
)
def test_wrong_frames_are_refused_with_both_shapes(bright, dark, words):
    with pytest.raises(UserError) as error:
        flats.normalize(counts(), bright, dark)
    assert all(word in str(error.value) for word in words)


@pytest.mark.parametrize("array", [np.ones((3, 4)), np.ones((0, 3, 4)), np.ones((2, 3, 4), complex), np.array("a")])
def test_wrong_projections_are_refused(array):
    with pytest.raises(UserError):
        flats.normalize(array)


def test_other_wrong_requests_are_refused(frames):
    raw = counts()
    for wrong in (
        {"exclude_flats": [4]},
        {"exclude_darks": [0, 1, 2]},
        {"air_columns": (60, 8)},
        {"bad_pixels": np.zeros((5, 66), bool)},
        {"average": "mode"},
        {"out": np.empty((7, 5, 67))},
    ):
        with pytest.raises(UserError):
            flats.normalize(raw, *frames, **wrong)


@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 1, 2), (3, 1, 1)])
def test_tiny_arrays(shape):
    raw = np.full(shape, 5, np.uint8)
    result, _ = flats.normalize(raw, np.full(shape[1:], 10), minus_log=True)
    np.testing.assert_allclose(result, np.log(2), rtol=1e-6)
    cleaned, replaced = outliers.remove_outliers(raw, threshold=1)
    assert replaced == 0
    assert np.array_equal(cleaned, raw)


def test_bad_pixels_from_flats_and_darks():
    rng = np.random.default_rng(0)
    bright = rng.normal(40000, 100, (5, 6, 90)) * np.linspace(0.7, 1.2, 90)
    dark = rng.normal(100, 3, (5, 6, 90))
    bright[:, 1, 30] = dark[:, 1, 30]
    bright[:, 2, 0] *= 0.3
    dark[:, 3, 89] = 30000
    bright[:, 4, 50] = np.nan
    bad = flats.find_bad_pixels(bright, dark)
    assert sorted(map(tuple, np.argwhere(bad))) == [(1, 30), (2, 0), (3, 89), (4, 50)]
    assert np.array_equal(flats.find_bad_pixels(bright[:, 2:4], dark[:, 2:4]), bad[2:4])
    assert (3, 89) in set(map(tuple, np.argwhere(flats.find_bad_pixels(None, dark))))
    with pytest.raises(UserError):
        flats.find_bad_pixels(None, None)


def test_outliers_go_and_the_rest_keeps_its_bits():
    rng = np.random.default_rng(0)
    clean = (1 + 0.01 * rng.normal(size=(30, 4, 40))).astype(np.float32)
    dirty = clean.copy()
    dirty[3, 1, 7] = 9
    dirty[29, 2, 39] = 9
    dirty[:, 3, 20] = 5
    dirty[8, 0, 8] = -4
    result, replaced = outliers.remove_outliers(dirty, threshold=0.5)
    assert replaced == 2 + 30
    assert result[8, 0, 8] == np.float32(-4)
    assert np.abs(result[dirty > 2] - 1).max() < 0.05
    assert np.array_equal(result[dirty < 2], dirty[dirty < 2])
    both, _ = outliers.remove_outliers(dirty, threshold=0.5, kind="both")
    assert np.abs(both - 1).max() < 0.06
    part, _ = outliers.remove_outliers(dirty[:, 1:3], threshold=0.5)
    assert np.array_equal(part, result[:, 1:3])


@pytest.mark.parametrize("wrong", [{"threshold": 0}, {"threshold": np.nan}, {"threshold": 1, "kind": "pink"}])
def test_wrong_outlier_requests(wrong):
    with pytest.raises(UserError):
        outliers.remove_outliers(np.ones((2, 2, 2)), **wrong)
