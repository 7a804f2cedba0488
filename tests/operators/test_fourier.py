"""Back projection in Fourier space, against back projection at the voxels and against itself."""

import numpy as np
import pytest

from dtomo.errors import UserError
from dtomo.geometry import ParallelBeam
from dtomo.operators import FILTERS, backproject, filter_projections, fourier_backproject
from dtomo.simulate import Phantom
from tests import laws

ANGLES = np.arange(120) * 1.5
SMOOTH = Phantom(np.array([[1.0, 0.5, 0.3, 9.0, 0.15, -0.2, 0.0, 30.0], [-0.4, 0.2, 0.15, 9.0, 0.1, -0.2, 0.0, 0.0]]))

GEOMETRIES = {
    "even": ParallelBeam(ANGLES, 64),
    "odd": ParallelBeam(ANGLES, 65),
    "rectangle, axis moved": ParallelBeam(ANGLES, 80, 37.3, width=61, height=50),
    "fine pitch": ParallelBeam(ANGLES, 130, 61.0, width=63, height=64, pitch=0.5),
    "coarse pitch": ParallelBeam(ANGLES, 33, 15.7, width=64, height=64, pitch=2.0),
    "uneven, turned on": ParallelBeam(np.r_[ANGLES[:50], ANGLES[50::2], 7.5, 400.0, -20.0], 64),
}
CASES = pytest.mark.parametrize("geometry", GEOMETRIES.values(), ids=GEOMETRIES.keys())


@CASES
@pytest.mark.parametrize("name", ["hann", "parzen", "cosine"])
def test_both_ways_to_back_project_agree(geometry, name):
    """Smooth filters, so that interpolation between columns costs little."""
    g = geometry
    lines = SMOOTH.projections(g.angles, 60, g.columns, g.center, slices=1, pitch=g.pitch)
    options = {"cutoff": 0.5 * min(1.0, g.pitch)}
    direct = backproject(filter_projections(lines, g, name, **options), g)[0]
    fourier = fourier_backproject(lines, g, name, **options)[0]
    assert fourier.dtype == np.float32
    assert fourier.shape == (g.height, g.width)
    y, x = np.ogrid[: g.height, : g.width]
    seen = np.hypot(y - (g.height - 1) / 2, x - (g.width - 1) / 2) < 0.45 * min(g.height, g.width)
    assert laws.norm((direct - fourier)[seen]) <= 0.03 * laws.norm(direct[seen])


def test_an_axis_far_beside_the_detector():
    """As from a wider detector that saw nothing in its other columns: lines do not repeat within the slice."""
    angles, lines = np.arange(60) * 3.0, laws.draw((60, 1, 16))
    narrow = fourier_backproject(lines, ParallelBeam(angles, 16, -30.0, 90, 90), "hann", padding="zero")
    wide = np.pad(lines, ((0, 0), (0, 0), (100, 100)))
    expected = fourier_backproject(wide, ParallelBeam(angles, 216, 70.0, 90, 90), "hann", padding="zero")
    np.testing.assert_allclose(narrow, expected, atol=1e-4 * np.abs(expected).max())


@pytest.mark.parametrize("name", FILTERS)
@pytest.mark.parametrize("padding", ["edge", "zero"])
def test_every_filter_is_applied(name, padding):
    g = GEOMETRIES["odd"]
    lines = SMOOTH.projections(ANGLES, 80, 65, slices=1)  # wider than the detector: padding matters
    direct = backproject(filter_projections(lines, g, name, padding=padding), g)[0]
    fourier = fourier_backproject(lines, g, name, padding=padding)[0]
    assert laws.norm(direct - fourier) <= 0.07 * laws.norm(direct)


@pytest.mark.parametrize(("width", "height", "columns"), [(1, 1, 1), (2, 2, 2), (1, 7, 5), (3, 1, 4), (2, 5, 1)])
def test_small_sizes(width, height, columns):
    g = ParallelBeam([0.0, 30.0, 90.0, 141.0], columns, width=width, height=height)
    found = fourier_backproject(laws.draw((4, 2, columns)), g)
    assert found.shape == (2, height, width)
    assert np.isfinite(found).all()


@CASES
def test_bits_of_a_slice(geometry):
    g = geometry
    lines = laws.draw((len(g.angles), 9, g.columns))
    before = lines.copy()
    whole = fourier_backproject(lines, g)
    assert np.array_equal(lines, before)
    for size in (1, 2, 4):
        assert np.array_equal(fourier_backproject(lines[:, 3 : 3 + size], g), whole[3 : 3 + size])
    for count in (1, 2, 3):
        with laws.thread_count(count):
            assert np.array_equal(fourier_backproject(lines, g), whole)


def test_complex_is_two_real_and_layout_does_not_matter():
    g = GEOMETRIES["coarse pitch"]
    lines = laws.draw((120, 3, 33), np.complex64)
    both = fourier_backproject(lines, g)
    assert both.dtype == np.complex64
    assert np.array_equal(both.real, fourier_backproject(lines.real.copy(), g))
    assert np.array_equal(both.imag, fourier_backproject(lines.imag.copy(), g))
    for where, same in laws.layouts(lines):
        if where != "other byte order":
            assert np.array_equal(fourier_backproject(same, g), both), where


def test_a_broken_slice_spoils_no_other():
    g = GEOMETRIES["even"]
    lines = laws.draw((120, 4, 64))
    broken = lines.copy()
    broken[3, 2, 5] = np.nan
    assert np.array_equal(fourier_backproject(broken, g)[[0, 1, 3]], fourier_backproject(lines, g)[[0, 1, 3]])


def test_double_precision_is_not_taken_for_single():
    g, lines = GEOMETRIES["even"], laws.draw((120, 2, 64))
    assert np.array_equal(fourier_backproject(lines.astype(np.float64), g), fourier_backproject(lines, g))


@pytest.mark.parametrize("shape", [(120, 2, 63), (120, 2, 65), (119, 2, 64), (121, 2, 64), (120, 64)])
def test_what_does_not_fit_is_refused(shape):
    with pytest.raises(UserError):
        fourier_backproject(np.zeros(shape, np.float32), GEOMETRIES["even"])


def test_refused_settings():
    lines, g = np.zeros((120, 1, 64), np.float32), GEOMETRIES["even"]
    for options in ({"name": "x"}, {"cutoff": 0.0}):
        with pytest.raises(UserError):
            fourier_backproject(lines, g, **options)


def test_unknown_padding_is_refused():
    with pytest.raises(UserError, match="'wrap'"):
        fourier_backproject(np.zeros((120, 1, 64), np.float32), GEOMETRIES["even"], padding="wrap")
