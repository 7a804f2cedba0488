"""The projector: laws, a second implementation, ASTRA, closed forms."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dtomo.errors import UserError
from dtomo.geometry import ParallelBeam
from dtomo.operators import ParallelProjector, backproject
from dtomo.simulate import Phantom
from tests import laws

ODD_ANGLES = [0.0, 0.0, 17.3, 17.3, -40.0, 400.0, 361.0, 725.5, -190.0, 90.0, 45.0, 135.0, 180.0, 270.0, 225.0, 89.999]
HALF_TURN = np.arange(24) * 7.5

GEOMETRIES = {
    "even": ParallelBeam(HALF_TURN, 32),
    "odd": ParallelBeam(HALF_TURN, 33),
    "wide slice": ParallelBeam(ODD_ANGLES, 37, width=41, height=18),
    "tall slice, fine pitch": ParallelBeam(ODD_ANGLES, 58, 20.25, width=17, height=29, pitch=0.5),
    "pitch 0.7": ParallelBeam(ODD_ANGLES, 40, 22.0, width=24, height=31, pitch=0.7),
    "pitch 1.3, axis off the detector": ParallelBeam(ODD_ANGLES, 30, -7.5, width=40, height=41, pitch=1.3),
    "pitch 2.5": ParallelBeam(ODD_ANGLES, 15, 6.1, width=39, height=40, pitch=2.5),
    "unsorted single side": ParallelBeam([50.0, 10.0, 30.0, 10.0], 24, 30.0, width=20, height=20),
    "one angle": ParallelBeam([33.0], 20, width=21, height=20),
    "one column": ParallelBeam(HALF_TURN, 1, width=9, height=12),
    "size 1": ParallelBeam(ODD_ANGLES, 1),
    "size 2": ParallelBeam(ODD_ANGLES, 2),
    "more than one tile": ParallelBeam(HALF_TURN, 100, 47.3, width=70, height=131),
}
CASES = pytest.mark.parametrize("geometry", GEOMETRIES.values(), ids=GEOMETRIES.keys())
SLICES = (1, 3, 5, 16, 17, 37, 64, 70, 130)


def joseph(geometry: ParallelBeam) -> np.ndarray:
    """Joseph's projector as a dense matrix (angle x column, y x x) in float64, written for this test from the paper.

    Each ray takes one sample per row of voxels across its main axis, by linear interpolation.
    """
    g = geometry
    y, x = np.meshgrid(np.arange(g.height) - (g.height - 1) / 2, np.arange(g.width) - (g.width - 1) / 2, indexing="ij")
    u = (np.arange(g.columns) - g.center) * g.pitch
    rows = []
    for angle in g.angles:
        c, s = np.cos(np.deg2rad(angle)), np.sin(np.deg2rad(angle))
        if abs(c) >= abs(s):
            gap = np.abs(x - (u[:, None, None] - y * s) / c)
        else:
            gap = np.abs(y - (u[:, None, None] - x * c) / s)
        rows.append(np.maximum(0, 1 - gap) / max(abs(c), abs(s)))
    return np.array(rows).reshape(len(g.angles) * g.columns, -1)


@CASES
@pytest.mark.parametrize("dtype", [np.float32, np.complex64])
@pytest.mark.parametrize("slices", [2, 5])
def test_laws(geometry, dtype, slices):
    laws.check_operator(ParallelProjector(geometry, slices, dtype))


@CASES
@pytest.mark.parametrize("dtype", [np.float32, np.complex64])
def test_adjoint_at_any_slice_count(geometry, dtype):
    for slices in SLICES:
        assert laws.adjoint_error(ParallelProjector(geometry, slices, dtype)) <= 1e-6, slices


@CASES
@pytest.mark.parametrize("dtype", [np.float32, np.complex64])
def test_a_slice_has_the_same_bits_in_any_slab(geometry, dtype):
    for slices in (130, 37):
        laws.check_slices(lambda n: ParallelProjector(geometry, n, dtype), slices, (1, 2, 3, 4, 5, 16, 17, 64, 70))


@CASES
def test_every_weight_is_josephs(geometry):
    operator = ParallelProjector(geometry, 1)
    expected = joseph(geometry)
    x, y = laws.draw(operator.shape_in), laws.draw(operator.shape_out, seed=1)
    image = laws.wide(operator.forward(x))
    back = laws.wide(operator.adjoint(y))
    assert laws.norm(image - expected @ laws.wide(x)) <= 1e-5 * laws.norm(image) + 1e-6
    assert laws.norm(back - expected.T @ laws.wide(y)) <= 1e-5 * laws.norm(back) + 1e-6


@pytest.mark.parametrize("pitch", [1 / 32, 0.05, 0.3, 1.9, 5.0, 32.0])
def test_extreme_pitches(pitch):
    geometry = ParallelBeam([3.0, 47.0, 88.0, 120.0, 45.0, 0.0], 9, 4.3, width=40, height=50, pitch=pitch)
    operator = ParallelProjector(geometry, 5)
    assert laws.adjoint_error(operator) <= 1e-6
    x = laws.draw(operator.shape_in)
    expected = joseph(geometry) @ x[2].astype(float).ravel()
    assert laws.norm(laws.wide(operator.forward(x)[:, 2]) - expected) <= 1e-4 * laws.norm(expected)


@pytest.mark.parametrize("center", [-1e3, 1e6, 1e9])
def test_an_axis_far_away_sees_nothing(center):
    operator = ParallelProjector(ParallelBeam(ODD_ANGLES, 16, center), 2)
    assert not operator.forward(laws.draw(operator.shape_in)).any()
    assert not operator.adjoint(laws.draw(operator.shape_out)).any()


def test_every_voxel_alone():
    """C05's kind: no voxel is missed at any angle, whatever the parity of sizes; each column of A sums to 1 / main."""
    for size, columns in [(10, 30), (11, 30), (10, 31), (11, 31)]:
        angles = np.array([0.0, 90, 180, 270, 45, 30, -60, 359])
        geometry = ParallelBeam(angles, columns, width=size, height=size)
        matrix = laws.dense(ParallelProjector(geometry, 1)).reshape(len(angles), columns, size * size)
        assert (matrix.sum(1) > 0).all()
        for angle in range(4):
            np.testing.assert_allclose(matrix[angle].sum(0), 1, atol=1e-5)
        # off the axes a voxel is seen by one or two rays; on average over places its weight is the voxel's area
        np.testing.assert_allclose(matrix.sum(1).mean(1), 1, atol=0.05)


def astra_matrix_free(image, geometry):
    """ASTRA's `linear` projection of one slice, its detector described by vectors (y up)."""
    astra = pytest.importorskip("astra")
    theta = np.deg2rad(geometry.angles)
    along = np.stack([np.cos(theta), -np.sin(theta)], 1)
    middle = along * ((geometry.columns - 1) / 2 - geometry.center) * geometry.pitch
    vectors = np.concatenate([np.stack([np.sin(theta), np.cos(theta)], 1), middle, along * geometry.pitch], 1)
    volume = astra.create_vol_geom(geometry.height, geometry.width)
    beam = astra.create_proj_geom("parallel_vec", geometry.columns, vectors)
    projector = astra.create_projector("linear", beam, volume)
    identifier, sinogram = astra.create_sino(image, projector)
    back, picture = astra.create_backprojection(sinogram, projector)
    astra.data2d.delete([identifier, back])
    astra.projector.delete(projector)
    return sinogram, picture


@pytest.mark.parametrize(
    "geometry",
    [
        ParallelBeam(HALF_TURN, 48, width=48, height=48),
        ParallelBeam(ODD_ANGLES, 63, width=45, height=30),
        ParallelBeam(HALF_TURN, 60, 33.25, width=40, height=41),
        ParallelBeam(np.linspace(-50, 70, 23), 90, 41.5, width=33, height=52, pitch=0.7),
        ParallelBeam(ODD_ANGLES, 25, 12.5, width=47, height=46, pitch=2.5),
        ParallelBeam(HALF_TURN, 30, -4.0, width=64, height=64, pitch=1.3),
    ],
    ids=["square", "wide", "axis moved", "fine pitch", "coarse pitch", "axis off the detector"],
)
def test_astra_linear(geometry):
    operator = ParallelProjector(geometry, 1)
    image = np.random.default_rng(5).random(operator.shape_in, np.float32)
    lines = operator.forward(image)
    sinogram, picture = astra_matrix_free(image[0], geometry)
    assert laws.norm(lines[:, 0] - sinogram) <= 1e-4 * laws.norm(sinogram)
    back = operator.adjoint(sinogram[:, None])[0]
    assert laws.norm(back - picture) <= 1e-4 * laws.norm(picture)


@pytest.mark.parametrize(("size", "columns", "center", "pitch"), [(96, 96, None, 1.0), (97, 45, 20.3, 2.0)])
def test_closed_form_of_an_ellipse(size, columns, center, pitch):
    ellipse = Phantom(np.array([[0.02, 0.7, 0.35, 9.0, 0.1, -0.15, 0.0, 25.0]]))
    geometry = ParallelBeam(ODD_ANGLES, columns, center, width=size, height=size, pitch=pitch)
    lines = ParallelProjector(geometry, 1).forward(ellipse.volume(size, 1))
    exact = ellipse.projections(ODD_ANGLES, size, columns, center, slices=1, pitch=pitch)
    assert laws.norm(lines - exact) <= 0.02 * laws.norm(exact)
    # mass is kept at every angle
    inside = pitch * lines.sum((1, 2))
    np.testing.assert_allclose(inside, ellipse.volume(size, 1).sum(), rtol=0.01)


@pytest.mark.parametrize("dtype", [np.float32, np.complex64])
@pytest.mark.parametrize(
    "geometry", [ParallelBeam(HALF_TURN, 9, 3.7, width=8, height=7), ParallelBeam([10.0], 5, pitch=2.0)]
)
def test_norm(geometry, dtype):
    laws.check_norm(ParallelProjector(geometry, 1, dtype))


def test_norm_of_nothing():
    assert ParallelProjector(ParallelBeam([0.0, 45.0], 8, 1e4), 2).norm() == 0


def _numpy_dot(x, y, axis):
    product = np.conj(x.astype(np.complex128)) * y.astype(np.complex128)
    return product.real.sum(tuple(i for i in range(3) if i != axis))


def _spaces(operator):
    """(shape, which axis holds the slices, inner product) of volumes and of projections."""
    return [(operator.shape_in, 0, operator.dot_in), (operator.shape_out, 1, operator.dot_out)]


@pytest.mark.parametrize("dtype", [np.float32, np.complex64])
@pytest.mark.parametrize("slices", [1, 5, 70])
def test_dot_is_taken_slice_by_slice(dtype, slices):
    operator = ParallelProjector(ParallelBeam(HALF_TURN, 40, width=33, height=70), slices, dtype)
    for shape, axis, dot in _spaces(operator):
        x, y = laws.draw(shape, dtype), laws.draw(shape, dtype, 1)
        found = dot(x, y)
        assert found.dtype == np.float64
        np.testing.assert_allclose(found, _numpy_dot(x, y, axis), rtol=1e-12, atol=1e-9)
        for where, same in laws.layouts(x):
            assert np.array_equal(dot(same, y), found), where


def test_dot_of_other_dtypes():
    operator = ParallelProjector(GEOMETRIES["even"], 4)
    for shape, _, dot in _spaces(operator):
        x = laws.draw(shape)
        assert np.array_equal(dot(x.astype(np.float64), x), dot(x, x))


def test_dot_where_volume_and_projections_have_one_shape():
    """As many angles as slices, and slices as high and wide: which axis is which must not be guessed from the shape."""
    operator = ParallelProjector(ParallelBeam(np.arange(8) * 22.5, 8), 8)
    assert operator.shape_in == operator.shape_out
    y = operator.forward(laws.draw(operator.shape_in))
    for _, axis, dot in _spaces(operator):
        np.testing.assert_allclose(dot(y, y), _numpy_dot(y, y, axis), rtol=1e-12)


def test_factors_multiply_slices():
    operator = ParallelProjector(GEOMETRIES["even"], 3)
    values = np.array([1.0, 2.0, -3.0])
    x, y = laws.draw(operator.shape_in), laws.draw(operator.shape_out)
    assert np.array_equal((x * operator.factor_in(values))[2], -3 * x[2])
    assert np.array_equal((y * operator.factor_out(values))[:, 1], 2 * y[:, 1])
    assert (x * operator.factor_in(values)).dtype == np.float32


def test_read_only_input():
    """What comes out of a file or over a network may not be written to."""
    operator = ParallelProjector(GEOMETRIES["odd"], 5)
    x = laws.draw(operator.shape_in)
    expected = operator.forward(x)
    inside_out = operator.zeros()
    inside_out[...] = x
    for same in (x.copy(), inside_out):
        same.flags.writeable = False
        assert np.array_equal(operator.forward(same), expected)


@pytest.mark.parametrize("slices", [2, 20])
def test_calls_from_several_threads_at_once(slices):
    operator = ParallelProjector(GEOMETRIES["pitch 1.3, axis off the detector"], slices)
    inputs = [laws.draw(operator.shape_in, seed=seed) for seed in range(6)]
    expected = [operator.forward(x) for x in inputs]
    with laws.thread_count(2), ThreadPoolExecutor(3) as pool:
        for _ in range(5):
            for found, one in zip(pool.map(operator.forward, inputs), expected):
                assert np.array_equal(found, one)


@pytest.mark.parametrize("slices", [0, -1])
def test_no_slices(slices):
    with pytest.raises(UserError, match="at least one slice"):
        ParallelProjector(GEOMETRIES["even"], slices)


@pytest.mark.parametrize("dtype", [np.float64, np.complex128, np.int32, bool])
def test_other_dtypes(dtype):
    with pytest.raises(UserError, match="float32 or complex64"):
        ParallelProjector(GEOMETRIES["even"], 1, dtype)


@CASES
def test_backproject_interpolates(geometry):
    """At every voxel the sum over angles of linearly interpolated lines, from zeros beyond the detector."""
    g = geometry
    lines = laws.draw((len(g.angles), 5, g.columns))
    found = backproject(lines, g)
    assert found.dtype == np.float32
    assert found.shape == (5, g.height, g.width)
    y, x = np.meshgrid(np.arange(g.height) - (g.height - 1) / 2, np.arange(g.width) - (g.width - 1) / 2, indexing="ij")
    expected = np.zeros((g.height, g.width))
    for angle, line in zip(np.deg2rad(g.angles), lines[:, 3].astype(float)):
        u = (x * np.cos(angle) + y * np.sin(angle)) / g.pitch + g.center
        expected += np.interp(u, np.arange(-1, g.columns + 1), np.pad(line, 1), left=0, right=0)
    assert laws.norm(found[3] - expected) <= 1e-4 * laws.norm(expected) + 1e-6
    assert np.array_equal(backproject(lines[:, 3:4], g)[0], found[3])
    for count in (1, 2, 3):
        with laws.thread_count(count):
            assert np.array_equal(backproject(lines, g), found)


@pytest.mark.parametrize(("columns", "angles"), [(31, 38), (32, 37), (65, 90), (17, 12), (100, 60)])
def test_few_slices_have_the_bits_of_many(columns, angles):
    """One to three slices go through code of their own; voxels and rays that meet exactly are the hard case."""
    g = ParallelBeam(np.arange(angles) * 180 / angles, columns)
    lines, volume = laws.draw((angles, 20, columns)), laws.draw((20, columns, columns))
    many = ParallelProjector(g, 20)
    back, image, direct = many.adjoint(lines), many.forward(volume), backproject(lines, g)
    for n in (1, 2, 3, 4):
        few = ParallelProjector(g, n)
        assert np.array_equal(few.forward(volume[:n]), image[:, :n]), n
        assert np.array_equal(few.adjoint(lines[:, :n]), back[:n]), n
        assert np.array_equal(backproject(lines[:, :n], g), direct[:n]), n


def test_backproject_of_complex_lines():
    g = GEOMETRIES["pitch 1.3, axis off the detector"]
    lines = laws.draw((len(g.angles), 4, g.columns), np.complex64)
    both = backproject(lines, g)
    assert np.array_equal(both.real, backproject(lines.real.copy(), g))
    assert np.array_equal(both.imag, backproject(lines.imag.copy(), g))


def test_backproject_refuses_what_does_not_fit():
    g = GEOMETRIES["even"]
    for shape in [(24, 2, 31), (23, 2, 32), (25, 2, 32), (24, 32)]:
        with pytest.raises(UserError):
            backproject(np.zeros(shape, np.float32), g)


def test_backproject_takes_double_precision():
    g = GEOMETRIES["even"]
    lines = laws.draw((24, 2, 32))
    assert np.array_equal(backproject(lines.astype(np.float64), g), backproject(lines, g))


geometries = st.builds(
    ParallelBeam,
    st.lists(st.floats(-400, 800, width=32), min_size=1, max_size=40),
    st.integers(1, 40),
    st.none() | st.floats(-30, 60, width=32),
    st.integers(1, 70),
    st.integers(1, 70),
    st.sampled_from([0.25, 0.5, 0.7, 1.0, 1.0, 1.3, 1.9, 2.0, 3.7]),
)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(geometries, st.integers(1, 20), st.booleans(), st.integers(0, 1000))
def test_property_adjoint(geometry, slices, is_complex, seed):
    operator = ParallelProjector(geometry, slices, np.complex64 if is_complex else np.float32)
    assert laws.adjoint_error(operator, seed) <= 1e-6


@settings(max_examples=40, deadline=None, derandomize=True)
@given(geometries, st.integers(1, 40), st.integers(1, 5), st.booleans())
def test_property_bits_of_a_slice(geometry, slices, piece, is_complex):
    dtype = np.complex64 if is_complex else np.float32
    laws.check_slices(lambda n: ParallelProjector(geometry, n, dtype), slices, (min(piece, slices),))


@settings(max_examples=15, deadline=None, derandomize=True)
@given(geometries, st.integers(1, 6), st.integers(1, 3))
def test_property_bits_of_threads(geometry, slices, count):
    operator = ParallelProjector(geometry, slices)
    x, y = laws.draw(operator.shape_in), laws.draw(operator.shape_out)
    with laws.thread_count(1):
        expected = operator.forward(x), operator.adjoint(y)
    with laws.thread_count(count):
        assert np.array_equal(operator.forward(x), expected[0])
        assert np.array_equal(operator.adjoint(y), expected[1])


@settings(max_examples=25, deadline=None, derandomize=True)
@given(geometries)
def test_property_weights(geometry):
    operator = ParallelProjector(geometry, 1)
    x = laws.draw(operator.shape_in)
    expected = joseph(geometry) @ laws.wide(x)
    size = np.abs(joseph(geometry)) @ np.abs(laws.wide(x))
    assert np.abs(laws.wide(operator.forward(x)) - expected).max() <= 1e-4 * size.max() + 1e-5


@pytest.mark.parametrize("numbers", [[24], [-1], [], [0.5]])
def test_views_that_are_not_there_are_refused(numbers):
    with pytest.raises(UserError, match="numbers from 0 to 23"):
        ParallelProjector(GEOMETRIES["even"], 1).of_views(numbers)
