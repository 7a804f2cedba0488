"""Filtered back projection: against ASTRA and scikit-image, between its two methods, bits, refusals."""

import numpy as np
import pytest

from dtomo.algorithms import fbp
from dtomo.algorithms.fbp import sums_spectra
from dtomo.errors import UserError
from dtomo.geometry import ParallelBeam
from dtomo.operators import FILTERS
from dtomo.simulate import Phantom
from tests import laws

BODY = Phantom(
    np.array(
        [
            [1.0, 0.6, 0.8, 9.0, 0.05, -0.05, 0.0, 20.0], [-0.5, 0.25, 0.15, 9.0, 0.2, -0.25, 0.0, 40.0],
            [0.7, 0.2, 0.2, 9.0, -0.15, 0.3, 0.0, 0.0], [-0.8, 0.1, 0.2, 9.0, -0.1, -0.3, 0.0, -20.0],
        ]
    )
)  # fmt: skip
METHODS = pytest.mark.parametrize("method", ["backprojection", "nufft"])
ANGLES = np.arange(150) * 1.2


def circle(height, width, part=0.92):
    y, x = np.ogrid[:height, :width]
    return np.hypot(y - (height - 1) / 2, x - (width - 1) / 2) < part * min(height, width) / 2


def difference(found, expected, part=0.92):
    """RMS difference in the circle, in units of the RMS value there."""
    inside = circle(*expected.shape, part)
    return laws.norm((found - expected)[inside]) / laws.norm(expected[inside])


@METHODS
@pytest.mark.parametrize(
    ("size", "columns", "center", "pitch"),
    [(96, 96, None, 1.0), (97, 97, None, 1.0), (96, 130, 51.3, 1.0), (96, 140, 80.0, 1.0), (97, 200, 97.2, 0.5)],
)
def test_the_phantom_comes_back(method, size, columns, center, pitch):
    lines = BODY.projections(ANGLES, size, columns, center, slices=1, pitch=pitch)
    geometry = ParallelBeam(ANGLES, columns, center, width=size, height=size, pitch=pitch)
    found = fbp(lines, geometry, method=method)
    truth = BODY.volume(size, 1)[0]
    assert found.shape == (1, size, size)
    assert difference(found[0], truth) < 0.16
    # neither mirrored, nor turned, nor moved: each of these is much worse
    for wrong in (truth[::-1], truth[:, ::-1], truth.T, np.roll(truth, 1, 0), np.roll(truth, 1, 1)):
        assert difference(found[0], wrong) > 1.3 * difference(found[0], truth)
    inside = circle(size, size)
    assert found[0][inside].mean() == pytest.approx(truth[inside].mean(), rel=0.005)


@METHODS
def test_coarse_pixels(method):
    """Detector pixels twice as wide as voxels: the same scale, less sharp."""
    lines = BODY.projections(ANGLES, 96, 51, 24.7, slices=1, pitch=2.0)
    geometry = ParallelBeam(ANGLES, 51, 24.7, width=96, height=96, pitch=2.0)
    found, truth = fbp(lines, geometry, method=method)[0], BODY.volume(96, 1)[0]
    assert difference(found, truth) < 0.25
    assert found[circle(96, 96)].mean() == pytest.approx(truth[circle(96, 96)].mean(), rel=0.01)


@METHODS
@pytest.mark.parametrize(("width", "height"), [(70, 96), (96, 51), (97, 40), (120, 130)])
def test_a_rectangle_is_cut_from_the_square(method, width, height):
    lines = BODY.projections(ANGLES, 96, 100, 50.25, slices=1)
    geometry = ParallelBeam(ANGLES, 100, 50.25, width=width, height=height)
    found = fbp(lines, geometry, method=method)[0]
    # sizes of the same parity: voxels lie in the same places
    square = fbp(lines, geometry.replace(width=140 + width % 2, height=140 + height % 2), method=method)[0]
    top, left = (square.shape[0] - height) // 2, (square.shape[1] - width) // 2
    np.testing.assert_allclose(found, square[top : top + height, left : left + width], atol=2e-3)


@pytest.mark.parametrize("name", FILTERS)
@pytest.mark.parametrize("size", [64, 65])
def test_both_methods_agree(name, size):
    lines = BODY.projections(ANGLES, size, slices=1)
    geometry = ParallelBeam(ANGLES, size)
    direct, fourier = (fbp(lines, geometry, filter=name, method=m)[0] for m in ("backprojection", "nufft"))
    # interpolation between columns is itself a low-pass filter
    assert difference(direct, fourier) < (0.09 if name in ("ramp", "shepp-logan") else 0.05)
    assert np.corrcoef(direct[circle(size, size)], fourier[circle(size, size)])[0, 1] > 0.996


def test_astra():
    astra = pytest.importorskip("astra")
    size = 96
    lines = BODY.projections(ANGLES, size, slices=1)
    beam = astra.create_proj_geom("parallel", 1.0, size, -np.deg2rad(ANGLES))
    volume = astra.create_vol_geom(size, size)
    projector = astra.create_projector("linear", beam, volume)
    data, picture = astra.data2d.create("-sino", beam, lines[:, 0]), astra.data2d.create("-vol", volume)
    settings = astra.astra_dict("FBP")
    settings.update(ProjectorId=projector, ProjectionDataId=data, ReconstructionDataId=picture)
    algorithm = astra.algorithm.create(settings)
    astra.algorithm.run(algorithm)
    theirs = astra.data2d.get(picture)
    astra.algorithm.delete(algorithm)
    astra.data2d.delete([data, picture])
    astra.projector.delete(projector)
    truth, inside = BODY.volume(size, 1)[0], circle(size, size)
    for method in ("backprojection", "nufft"):
        ours = fbp(lines, ParallelBeam(ANGLES, size), method=method)[0]
        assert np.corrcoef(ours[inside], theirs[inside])[0, 1] > 0.99
        assert ours[inside].mean() == pytest.approx(theirs[inside].mean(), rel=0.01)
        assert difference(ours, truth) <= difference(theirs, truth) * 1.02


@pytest.mark.parametrize("size", [80, 81])
def test_scikit_image(size):
    """Its axis runs through pixel N // 2; see docs/conventions.md."""
    transform = pytest.importorskip("skimage.transform")
    image = BODY.volume(size, 1)[0]
    sinogram = transform.radon(image, theta=-ANGLES, circle=True)
    theirs = transform.iradon(sinogram, theta=-ANGLES, filter_name="ramp", circle=True)
    geometry = ParallelBeam(ANGLES, size, size // 2, width=size + 1 - size % 2, height=size + 1 - size % 2)
    lines = np.ascontiguousarray(sinogram.T[:, None], np.float32)
    ours = fbp(lines, geometry, method="backprojection")[0, :size, :size]
    assert difference(ours, theirs, 0.85) < 0.02
    moved = fbp(lines, ParallelBeam(ANGLES, size, size // 2 + 0.5), method="backprojection")[0]
    assert difference(moved, theirs, 0.85) > 0.05


@METHODS
@pytest.mark.parametrize("dtype", [np.float32, np.complex64])
def test_bits_do_not_depend_on_slab_threads_or_layout(method, dtype):
    geometry = ParallelBeam(ANGLES[::4], 37, 17.3, width=33, height=36)
    lines = laws.draw((38, 37, 37), dtype)
    whole = fbp(lines, geometry, method=method)
    assert whole.dtype == dtype
    for size in (1, 2, 3, 4, 5, 16, 17):
        part = fbp(lines[:, 11 : 11 + size], geometry, method=method)
        assert np.array_equal(part, whole[11 : 11 + size]), size
    for count in (1, 2, 3):
        with laws.thread_count(count):
            assert np.array_equal(fbp(lines, geometry, method=method), whole)
    for where, same in laws.layouts(lines[:, :5]):
        before = same.copy()
        assert np.array_equal(fbp(same, geometry, method=method), whole[:5]), where
        assert np.array_equal(same, before), where


@METHODS
def test_complex_is_two_real(method):
    geometry = ParallelBeam(ANGLES[::4], 31)
    lines = laws.draw((38, 3, 31), np.complex64)
    both = fbp(lines, geometry, method=method)
    assert np.array_equal(both.real, fbp(lines.real, geometry, method=method))
    assert np.array_equal(both.imag, fbp(lines.imag, geometry, method=method))


@METHODS
def test_linear(method):
    geometry = ParallelBeam(ANGLES[::4], 31)
    x, y = laws.draw((38, 2, 31)), laws.draw((38, 2, 31), seed=1)
    parts = [fbp(a, geometry, method=method) for a in (x, y)]
    mixed = fbp(x - 2 * y, geometry, method=method)
    assert laws.norm(mixed - (parts[0] - 2 * parts[1])) <= 1e-5 * laws.norm(mixed)
    assert not fbp(np.zeros_like(x), geometry, method=method).any()


@METHODS
def test_other_dtypes_are_brought_to_single_precision(method):
    geometry = ParallelBeam(ANGLES[::4], 31)
    lines = np.round(100 * laws.draw((38, 2, 31))).astype(np.float32)
    expected = fbp(lines, geometry, method=method)
    for dtype in (np.float64, np.int16, np.float16, ">f4"):
        found = fbp(lines.astype(dtype), geometry, method=method)
        assert found.dtype == np.float32
        assert np.array_equal(found, expected), dtype
    assert fbp(lines.astype(np.complex128), geometry, method=method).dtype == np.complex64


@METHODS
def test_a_broken_slice_spoils_no_other(method):
    geometry = ParallelBeam(ANGLES[::4], 31)
    lines = laws.draw((38, 5, 31))
    spoilt = lines.copy()
    spoilt[4, 2, 7] = np.nan
    clean, found = fbp(lines, geometry, method=method), fbp(spoilt, geometry, method=method)
    assert np.array_equal(found[[0, 1, 3, 4]], clean[[0, 1, 3, 4]])


@METHODS
@pytest.mark.parametrize("size", [1, 2, 3])
def test_small_sizes(method, size):
    geometry = ParallelBeam([0.0, 45.0, 90.0], size)
    found = fbp(np.ones((3, 2, size), np.float32), geometry, method=method)
    assert found.shape == (2, size, size)
    assert np.isfinite(found).all()
    assert (found > 0).all()


@METHODS
@pytest.mark.parametrize(
    ("shape", "options"),
    [
        ((38, 2, 30), {}), ((38, 2, 32), {}), ((37, 2, 31), {}), ((2, 38, 31), {}), ((38, 31), {}), ((38, 0, 31), {}),
        ((38, 2, 31), {"filter": "ram-lak"}), ((38, 2, 31), {"filter": ""}), ((38, 2, 31), {"cutoff": 0.0}),
        ((38, 2, 31), {"cutoff": 1.5}), ((38, 2, 31), {"cutoff": np.nan}), ((38, 2, 31), {"padding": "reflect"}),
    ],
    ids=str,
)  # fmt: skip
def test_refused(method, shape, options):
    with pytest.raises(UserError):
        fbp(np.zeros(shape, np.float32), ParallelBeam(ANGLES[::4], 31), method=method, **options)


def test_unknown_method():
    with pytest.raises(UserError, match="'gridrec'"):
        fbp(np.zeros((38, 2, 31), np.float32), ParallelBeam(ANGLES[::4], 31), method="gridrec")


@METHODS
@pytest.mark.parametrize(("columns", "center", "size"), [(48, 23.5, 160), (48, 5.0, 100), (48, -70.0, 60)])
def test_a_slice_much_wider_than_the_detector_has_no_ghosts(method, columns, center, size):
    """Far from what the detector sees there is next to nothing: lines must not come round again."""
    u = np.arange(columns) - 23.5
    line = 0.04 * np.sqrt(np.maximum(15**2 - u**2, 0)).astype(np.float32)
    geometry = ParallelBeam(np.arange(180.0), columns, center, width=size, height=size)
    found = fbp(np.tile(line, (180, 1, 1)), geometry, method=method)[0]
    y, x = np.indices(found.shape) - (size - 1) / 2
    across = np.hypot(y, x)
    unseen = across < -center - 5 if center < 0 else across > max(center, columns - 1 - center) + 15
    assert unseen.any()
    assert np.abs(found[unseen]).max() < 0.15 * 0.02


@pytest.mark.parametrize("dtype", [np.float32, np.complex64])
def test_overwriting_the_projections_gives_the_same_bits(dtype):
    geometry = ParallelBeam(np.arange(0, 180, 6.0), 40)
    rng = np.random.default_rng(4)
    data = rng.standard_normal((30, 5, 40)).astype(dtype)
    if dtype == np.complex64:
        data += 1j * rng.standard_normal(data.shape).astype(np.float32)
    inside_out = np.swapaxes(np.swapaxes(data, 1, 2).copy(), 1, 2)
    expected, before = fbp(data, geometry), data.copy()
    locked = inside_out.copy(order="K")
    locked.flags.writeable = False
    for given in (data, locked):
        assert np.array_equal(fbp(given, geometry, overwrite=True), expected)
        assert np.array_equal(given, before)  # another layout is copied; what is read-only stays
    assert np.array_equal(fbp(inside_out, geometry, overwrite=True), expected)
    assert not np.array_equal(inside_out, before)  # spared a copy


@pytest.mark.parametrize(
    ("size", "angles", "spectra"),
    [
        (512, 804, False),
        (1024, 1608, False),
        (1600, 2513, True),
        (2048, 3217, True),
        (2000, 256, False),
        (8000, 400, False),
    ],
)
def test_the_faster_way_for_that_width_and_number_of_angles(size, angles, spectra):
    geometry = ParallelBeam(np.arange(angles) * 180 / angles, size)
    assert sums_spectra(geometry) is spectra
    assert sums_spectra(geometry, "nufft")
    assert not sums_spectra(geometry, "backprojection")
