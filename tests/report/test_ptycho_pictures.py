"""Pictures of ptychographic results: which there are, that they show what they should, awkward results."""

import matplotlib.image
import numpy as np
import pytest

from dtomo.algorithms.resolution import FourierCorrelation, fourier_correlation
from dtomo.errors import UserError
from dtomo.ptycho.result import PtychoResult
from dtomo.report import ptycho_pictures
from dtomo.report.ptycho_pictures import colored, write_pictures

SIZE, FRAMES = 24, 30


@pytest.fixture(autouse=True)
def coarse(monkeypatch):
    """Small pictures are drawn faster."""
    original = ptycho_pictures.new_figure

    def figure(width, height):
        made = original(width, height)
        made.set_dpi(40)
        return made

    monkeypatch.setattr(ptycho_pictures, "new_figure", figure)


def noise(*shape, seed=0):
    random = np.random.default_rng(seed)
    return (random.normal(size=shape) + 1j * random.normal(size=shape)).astype(np.complex64)


def result(slices=1, modes=2, **changes):
    positions = np.random.default_rng(0).uniform(0, 40, (FRAMES, 2))
    row = np.arange(SIZE) - 11.5
    probe = np.exp(-(row[:, None] ** 2 + row**2) / 40)
    y, x = np.mgrid[:66, :66]
    image = (0.8 + 0.2 * (y > 33)) * np.exp(1j * (x > 33))
    whole = {
        "object": np.broadcast_to(image ** (1 / slices), (1, slices, 66, 66)).astype(np.complex64),
        "probe": np.stack([probe * 0.5**mode for mode in range(modes)]).astype(np.complex64),
        "positions": positions,
        "history": np.geomspace(3, 0.1, 8),
    }
    return PtychoResult(**whole | changes)


def rgb(path):
    return matplotlib.image.imread(path)[..., :3]


def test_every_picture_is_there_and_shows_something(tmp_path):
    full = result(
        slices=3,
        start_positions=result().positions + 1,
        frame_error=np.arange(float(FRAMES)),
        pixel_size=(1e-8, 1e-8),
        frc=fourier_correlation(noise(64, 64), noise(64, 64) + noise(64, 64, seed=1), pixel_size=1e-8),
    )
    written = write_pictures(full, tmp_path / "out.h5")
    names = ["overview", "amplitude", "phase", "probe", "positions", "loss", "frc", "errors", "slices"]
    assert [path.name for path in written] == [f"{name}.png" for name in names]
    assert sorted(written) == sorted((tmp_path / "out.h5.pictures").iterdir())
    for path in written:
        assert rgb(path).std() > 0.02, path.name


def test_what_is_not_known_is_not_drawn(tmp_path):
    written = write_pictures(result(), tmp_path / "out.zarr", folder=tmp_path / "here")
    assert [path.stem for path in written] == ["overview", "amplitude", "phase", "probe", "positions", "loss"]
    assert {path.parent for path in written} == {tmp_path / "here"}


def test_a_scale_bar_only_where_the_pixel_size_is_known(tmp_path):
    for name, size in (("with", (1e-8, 1e-8)), ("without", None)):
        write_pictures(result(pixel_size=size), tmp_path / name, folder=tmp_path / name)

    def yellow(path):
        red, green, blue = np.moveaxis(rgb(path), -1, 0)
        return int(((red > 0.85) & (green > 0.65) & (blue < 0.5)).sum())

    assert yellow(tmp_path / "with" / "amplitude.png") > 10
    assert yellow(tmp_path / "without" / "amplitude.png") == 0


class Drawn:
    """What a panel showed: stands for the axes and the figure."""

    def __init__(self, monkeypatch):
        self.images = {}

        def show_slice(axes, image, limits, title, names, pixel_size=None, place=None):
            self.images[title] = (np.array(image), limits, place)

        monkeypatch.setattr(ptycho_pictures, "show_slice", show_slice)

    def colorbar(self, *_, **__):
        """Nothing to see."""


@pytest.mark.parametrize("exponential", [False, True])
@pytest.mark.parametrize("slices", [1, 2])
def test_the_object_is_shown_where_it_was_lit(monkeypatch, slices, exponential):
    grid = np.stack(np.meshgrid(np.arange(0.0, 41, 5), np.arange(0.0, 41, 5), indexing="ij"), -1).reshape(-1, 2)
    positions = grid[grid.max(1) > 20]  # one corner stays dark
    shown = result(slices=slices, positions=positions)
    if exponential:
        shown = result(slices=slices, positions=positions, object=-1j * np.log(shown.object), exponential=True)
    drawn = Drawn(monkeypatch)
    view = ptycho_pictures._View(shown)
    view.amplitude(drawn, None)
    view.phase(drawn, None)
    amplitude, limits, place = drawn.images["object: amplitude"]
    phase = drawn.images["object: phase"][0]
    top, left, bottom, right = place
    assert 3 < top < 15 < 50 < bottom < 63
    assert amplitude.shape == (bottom - top, right - left)
    dark = np.isnan(amplitude)
    assert 0 < dark.mean() < 0.3
    assert dark[0, 0]
    assert not dark[len(dark) // 2, dark.shape[1] // 2]
    np.testing.assert_allclose(amplitude[: 34 - top][~dark[: 34 - top]], 0.8, rtol=1e-5)
    np.testing.assert_allclose(amplitude[34 - top :][~dark[34 - top :]], 1.0, rtol=1e-5)
    steps = phase[:, 34 - left] - phase[:, 33 - left]
    np.testing.assert_allclose(steps[np.isfinite(steps)], 1, rtol=1e-5)
    np.testing.assert_allclose(limits, (0.8, 1.0), rtol=1e-5)


def test_large_objects_are_thinned(monkeypatch):
    monkeypatch.setattr(ptycho_pictures, "MOST_PIXELS", 20)
    drawn = Drawn(monkeypatch)
    view = ptycho_pictures._View(result())
    view.amplitude(drawn, None)
    image, _, place = drawn.images["object: amplitude"]
    assert max(image.shape) <= 20
    assert place[2] - place[0] > 40


def test_phases_wrap_as_little_as_they_can(monkeypatch):
    """Phases about π are no salt and pepper."""
    drawn = Drawn(monkeypatch)
    shown = result(object=np.exp(1j * (np.pi + 0.3 * np.random.default_rng(0).uniform(-1, 1, (1, 1, 66, 66)))))
    ptycho_pictures._View(shown).phase(drawn, None)
    phase = drawn.images["object: phase"][0]
    assert np.ptp(phase[np.isfinite(phase)]) < 0.61


def test_complex_values_are_hue_and_brightness():
    colors = colored(np.array([[2.0, 1.0, -2.0, 2j, 0]]))[0]
    assert colors[0].argmax() == 0  # red
    np.testing.assert_allclose(colors[1], colors[0] / 2)
    assert colors[2][1] == colors[2][2] > colors[2][0]  # cyan, the opposite
    assert colors[3].argmax() == 1
    np.testing.assert_array_equal(colors[4], 0)
    np.testing.assert_array_equal(colored(np.zeros((2, 2), complex)), 0)


AWKWARD = {
    "dark": {"probe": np.zeros((1, SIZE, SIZE), np.complex64)},
    "one frame": {"positions": np.zeros((1, 2)), "start_positions": np.zeros((1, 2)), "frame_error": np.zeros(1)},
    "no epoch": {"history": np.zeros(0)},
    "nan": {"history": np.array([1.0, np.nan]), "object": np.full((1, 1, 66, 66), np.nan, np.complex64)},
    "zero": {"history": np.array([1.0, 0.0]), "object": np.zeros((1, 1, 66, 66), np.complex64)},
    "noise": {"frc": FourierCorrelation(np.arange(1, 5) / 8, np.full(4, -0.1), np.full(4, 50.0), 0.5)},
    "many modes": {"probe": np.ones((14, SIZE, SIZE), np.complex64)},
}


@pytest.mark.parametrize("kind", AWKWARD)
@pytest.mark.slow
def test_awkward_results_are_drawn(tmp_path, kind):
    written = write_pictures(result(**AWKWARD[kind]), tmp_path / "out.h5")
    assert len(written) >= 6
    assert all(path.stat().st_size > 1000 for path in written)


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written"):
        write_pictures(result(), tmp_path / "out.h5", folder=tmp_path / "file" / "inside")
