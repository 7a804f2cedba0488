"""The model against what it says, written out frame by frame in plain NumPy."""

import pickle

import numpy as np
import pytest

from dtomo.distributed.sums import tree_sum
from dtomo.errors import UserError
from dtomo.ptycho.frames import FrameBlock, to_detector_order
from dtomo.ptycho.model import PtychoModel, object_shape
from tests.ptycho.small_models import FRAMES, SHAPE, block, counts, exit_waves, intensities, parameters, single

ALL = np.arange(FRAMES, dtype=np.int64)


@pytest.mark.parametrize("subpixel", [True, False])
@pytest.mark.parametrize("everything", [True, False])
def test_intensities_written_out(subpixel, everything):
    values = parameters(modes=2, object_modes=2, everything=everything)
    expected = intensities(values, subpixel)
    model = PtychoModel(SHAPE, subpixel=subpixel)
    assert np.allclose(model.intensities(values, ALL), expected, rtol=1e-12)
    small = model.intensities(single(values), ALL[2:5])
    assert small.dtype == np.float32
    assert np.abs(small - expected[2:5]).max() <= 1e-5 * expected.max()


@pytest.mark.parametrize("loss", ["amplitude", "intensity", "poisson"])
def test_losses_written_out(loss):
    values, good = parameters(everything=True), np.random.default_rng(2).random(SHAPE) < 0.8
    seen, frames = intensities(values), counts(dtype=np.float64)
    terms = {
        "amplitude": (np.sqrt(seen) - np.sqrt(frames)) ** 2,
        "intensity": (seen - frames) ** 2,
        "poisson": seen - frames - frames * np.log((seen + 1e-6) / (frames + 1e-6)),
    }
    model = PtychoModel(SHAPE, loss, mask=good)
    found, count, _ = model.loss_and_gradient(values, block(frames), ())
    assert found == pytest.approx(terms[loss][:, good].sum(), rel=1e-12)
    assert count == FRAMES * good.sum()
    assert model.loss_and_gradient(single(values), block(frames), ())[0] == pytest.approx(found, rel=1e-5)
    perfect, _, _ = PtychoModel(SHAPE, loss).loss_and_gradient(values, block(seen), ())
    assert abs(perfect) <= 1e-12 * found


def test_a_ramp_of_the_object_moves_the_pattern():
    """Case C18: exp(2πi·3x/64) under a flat probe: all intensity falls on row 32, column 35."""
    ramp = np.exp(2j * np.pi * 3 * np.arange(80) / 64) * np.ones((80, 1))
    values = {
        "object": ramp[None, None].astype(np.complex64),
        "probe": np.ones((1, 64, 64), np.complex64),
        "positions": np.array([[5.0, 7.0]]),
    }
    seen = to_detector_order(PtychoModel((64, 64)).intensities(values, np.array([0])))[0]
    assert np.unravel_index(seen.argmax(), seen.shape) == (32, 35)
    assert seen[32, 35] == pytest.approx(64 * 64, rel=1e-5)
    assert seen.sum() == pytest.approx(64 * 64, rel=1e-5)


@pytest.mark.parametrize("subpixel", [True, False])
def test_what_stands_under_the_mask_is_never_looked_at(subpixel):
    """Case C17."""
    good = np.random.default_rng(2).random(SHAPE) < 0.8
    values, model = single(parameters(modes=2, everything=True)), PtychoModel(SHAPE, mask=good, subpixel=subpixel)
    names = ("object", "probe", "background", "scale")
    found = []
    for dtype, bad in ((np.float32, np.nan), (np.float64, -1), (np.uint32, 4294967295), (np.int16, 5)):
        frames = counts().astype(dtype)
        frames[:, ~good] = bad
        loss, count, gradients = model.loss_and_gradient(values, block(frames), names)
        views = model.views(values, ALL)
        chi = model.residual(values, views, block(frames))[2]
        parts = [gradients["object"].values, gradients["probe"], gradients["background"], gradients["scale"].values]
        found.append((loss, count, chi.tobytes(), [part.tobytes() for part in parts]))
    assert np.isfinite(found[0][0])
    assert all(one == found[0] for one in found)


def test_views_written_out():
    values = parameters(modes=2, object_modes=2, everything=True)
    views = PtychoModel(SHAPE).views(values, ALL[1:5])
    assert len(views) == 4
    assert views.waves.shape == (4, 2, 2, *SHAPE)
    for place, frame in enumerate(range(1, 5)):
        assert np.allclose(views.waves[place], exit_waves(values, frame), atol=1e-12)
        row, column = views.corners[place]
        patch = values["object"][:, :, row : row + SHAPE[0], column : column + SHAPE[1]]
        assert np.array_equal(views.patches[place], patch)
        assert np.allclose(views.probes[place] * patch[0, 0], views.waves[place, 0])


@pytest.mark.parametrize("modes", [1, 2])
def test_the_residual_leads_to_the_measured_modulus(modes):
    values, frames = parameters(modes=modes), counts()
    good = np.random.default_rng(2).random(SHAPE) < 0.8
    model = PtychoModel(SHAPE, mask=good)
    views = model.views(values, ALL)
    before = views.waves.copy()
    loss, count, chi = model.residual(values, views, block(frames))
    assert np.array_equal(views.waves, before)
    assert (loss, count) == model.loss_and_gradient(values, block(frames), ())[:2]
    after = (np.abs(np.fft.fft2(before - chi, norm="ortho")) ** 2).sum((1, 2))
    assert np.allclose(after[:, good], frames[:, good], atol=1e-9)
    assert np.allclose(after[:, ~good], intensities(values)[:, ~good], rtol=1e-12)
    moved = model.residual(values, views, block(frames), waves=before - chi)
    assert moved[0] <= 1e-20 * loss


@pytest.mark.parametrize("subpixel", [True, False])
def test_residual_and_adjoint_are_the_gradient(subpixel):
    names = ("object", "probe", "scale")
    model = PtychoModel(SHAPE, subpixel=subpixel)
    for everything in (False, True):
        values = parameters(modes=2, object_modes=2, everything=everything)
        wanted = names if everything else names[:2]
        views = model.views(values, ALL)
        chi = model.residual(values, views, block(counts()))[2]
        kept = chi.copy()
        found = model.adjoint(values, views, chi, wanted)
        expected = model.loss_and_gradient(values, block(counts()), wanted)[2]
        assert np.array_equal(chi, kept)
        assert found["object"].origin == expected["object"].origin
        assert np.allclose(found["object"].values, expected["object"].values, atol=1e-11)
        assert np.allclose(found["probe"], expected["probe"], atol=1e-11)
        if everything:
            assert np.array_equal(found["scale"].index, ALL)
            assert np.allclose(found["scale"].values, expected["scale"].values, rtol=1e-11)


def test_whole_pixels_need_no_shift():
    values = parameters(modes=2)
    values["positions"] = np.floor(values["positions"])
    model = PtychoModel(SHAPE)
    assert len(model.views(values, ALL).probes) == 1
    plain = model.loss_and_gradient(values, block(counts()), ("object", "probe"))
    shifted = model.loss_and_gradient(values, block(counts()), ("object", "probe", "positions"))
    assert plain[0] == pytest.approx(shifted[0], rel=1e-12)
    assert np.allclose(plain[2]["object"].values, shifted[2]["object"].values)
    assert np.allclose(plain[2]["probe"], shifted[2]["probe"])
    views = model.views(values, ALL)
    back = model.adjoint(values, views, model.residual(values, views, block(counts()))[2], ("probe", "positions"))
    assert np.allclose(back["positions"].values, shifted[2]["positions"].values)
    assert np.allclose(back["probe"], shifted[2]["probe"])


def test_the_adjoint_identity_of_the_product():
    values, random = parameters(modes=2, object_modes=2), np.random.default_rng(3)
    for subpixel in (True, False):
        model = PtychoModel(SHAPE, subpixel=subpixel)
        views = model.views(values, ALL)
        change = random.normal(size=views.waves.shape) + 1j * random.normal(size=views.waves.shape)
        back = model.adjoint(values, views, change, ("object", "probe"))
        scalar = np.vdot(views.waves, change)
        for name in ("object", "probe"):
            gradient = back[name].put_into(values[name].shape) if name == "object" else back[name]
            assert np.vdot(values[name], gradient) == pytest.approx(scalar, rel=1e-12)


def test_light_on_the_object_and_object_under_the_probe():
    values = parameters(modes=2, object_modes=2)
    for subpixel in (True, False):
        model = PtychoModel(SHAPE, subpixel=subpixel)
        views = model.views(values, ALL)
        light, under = np.zeros((30, 28)), np.zeros(SHAPE)
        for frame, (row, column) in enumerate(views.corners):
            cut = slice(row, row + SHAPE[0]), slice(column, column + SHAPE[1])
            light[cut] += (np.abs(views.probes[frame if subpixel else 0]) ** 2).sum(0)
            under += (np.abs(values["object"][:, 0, *cut]) ** 2).sum(0)
        assert np.allclose(model.illumination(values, views).put_into((30, 28)), light)
        assert np.allclose(model.coverage(values, views), under)


@pytest.mark.parametrize("size", [1, 3])
def test_any_blocks_give_the_same_sum(size):
    values = parameters(everything=True)
    names = ("object", "probe", "positions")
    model, frames = PtychoModel(SHAPE), counts()
    loss, count, gradients = model.loss_and_gradient(values, block(frames), names)
    total = tree_sum(
        model.loss_and_gradient(values, FrameBlock(ALL[start : start + size], frames[start : start + size]), names)
        for start in range(0, FRAMES, size)
    )
    assert total[0] == pytest.approx(loss, rel=1e-12)
    assert total[1] == count
    shape = values["object"].shape
    assert np.allclose(total[2]["object"].put_into(shape), gradients["object"].put_into(shape))
    assert np.allclose(total[2]["probe"], gradients["probe"])
    assert np.array_equal(total[2]["positions"].index, ALL)
    assert np.allclose(total[2]["positions"].values, gradients["positions"].values)


def test_frames_beyond_the_object_lie_at_its_border():
    values = parameters()
    model = PtychoModel(SHAPE)
    moved = values | {"positions": values["positions"].copy()}
    moved["positions"][0] = -3, 40.2
    with pytest.raises(UserError, match=r"frame 0 .* reaches beyond the object"):
        model.check(moved)
    model.check(moved, inside=False)
    moved_inside = values | {"positions": moved["positions"].copy()}
    moved_inside["positions"][0] = 0, 28 - SHAPE[1]
    model.check(moved_inside)
    assert np.array_equal(model.intensities(moved, ALL), model.intensities(moved_inside, ALL))


def test_the_size_of_an_object():
    given = np.array([[-3.25, 100.5], [4.0, 120.25]])
    shape, placed = object_shape(given, (8, 6), padding=2)
    assert np.array_equal(placed, given - [-4, 100] + 2)
    assert shape == (8 + 2 + 8 + 2, 21 + 2 + 6 + 2)
    PtychoModel((8, 6)).check(
        {"object": np.ones((1, 1, *shape), complex), "probe": np.ones((1, 8, 6), complex), "positions": placed}
    )
    for bad, padding in ((np.zeros((0, 2)), 0), (np.array([[np.nan, 1]]), 0), (given, -1)):
        with pytest.raises(UserError, match=r"positions are|padding"):
            object_shape(bad, (8, 6), padding)


def test_a_model_is_a_value():
    values = parameters()
    model = PtychoModel(SHAPE, "poisson", mask=np.ones(SHAPE, bool), saturation=100)
    other = pickle.loads(pickle.dumps(model))
    found = [m.loss_and_gradient(values, block(counts()), ())[0] for m in (model, other)]
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"probe": None}, "lack probe"),
        ({"probe": np.ones((1, 5, 5), complex)}, "probe .* should have shape"),
        ({"object": np.ones((30, 28), complex)}, r"object has the axes \(mode, slice, row, column\)"),
        ({"object": np.ones((1, 1, 30, 28))}, "object is complex"),
        ({"object": np.ones((1, 1, 30, 28), np.complex64)}, "one dtype"),
        ({"object": np.ones((1, 1, 9, 28), complex)}, "smaller than the probe"),
        ({"probe_weights": np.ones((FRAMES, 2), complex)}, "belong together"),
        ({"scale": np.ones(3)}, "scale .* should have shape"),
        ({"colour": np.ones(3)}, "colour is not a parameter"),
    ],
)
def test_parameters_that_do_not_fit_are_refused(change, message):
    values = {name: value for name, value in (parameters() | change).items() if value is not None}
    with pytest.raises(UserError, match=message):
        PtychoModel(SHAPE).check(values)


def test_models_that_cannot_be_are_refused():
    with pytest.raises(UserError, match="loss is one of"):
        PtychoModel(SHAPE, "huber")
    with pytest.raises(UserError, match="mask is bool"):
        PtychoModel(SHAPE, mask=np.ones(SHAPE))
    with pytest.raises(UserError, match="saturation"):
        PtychoModel(SHAPE, saturation=0)
    with pytest.raises(UserError, match="no gradient of scale"):
        PtychoModel(SHAPE).loss_and_gradient(parameters(), block(counts()), ("scale",))
    with pytest.raises(UserError, match="sub-pixel"):
        PtychoModel(SHAPE, subpixel=False).loss_and_gradient(parameters(), block(counts()), ("positions",))
    with pytest.raises(UserError, match="no distance to refine"):
        PtychoModel(SHAPE).loss_and_gradient(parameters() | {"distance": np.ones(())}, block(counts()), ("distance",))
    with pytest.raises(UserError, match="2 slices"):
        PtychoModel(SHAPE).intensities(parameters(slices=2), ALL)
    values = parameters(everything=True)
    model = PtychoModel(SHAPE)
    views = model.views(values, ALL)
    with pytest.raises(UserError, match="know no background"):
        model.adjoint(values, views, views.waves, ("background",))
