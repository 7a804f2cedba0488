"""Pictures of volumes and of trial slices: that they are there, show what they should, and read little."""

import matplotlib.image
import numpy as np
import pytest
import tifffile

from dtomo.errors import UserError
from dtomo.report import pictures, trial_slices, write_pictures
from dtomo.report.draw import bar_length, gray_range
from dtomo.simulate import sample


@pytest.fixture(scope="module")
def volume_path(tmp_path_factory):
    path = tmp_path_factory.mktemp("volume") / "volume.tif"
    tifffile.imwrite(path, sample().volume(48, 40))
    return path


def gray(path):
    """A PNG as (row, column) brightness from 0 to 1."""
    return matplotlib.image.imread(path)[..., :3].mean(-1)


def test_slices_and_histogram(volume_path, tmp_path):
    written = write_pictures(volume_path, tmp_path / "new" / "folder", pixel_size=2.0, unit="1/pixel", title="scan")
    assert [path.name for path in written] == ["slices.png", "histogram.png"]
    assert sorted(written) == sorted((tmp_path / "new" / "folder").iterdir())
    for path in written:
        assert gray(path).std() > 0.1


def test_residuals_and_comparison_are_added(volume_path, tmp_path):
    truth = sample().volume(48, 40, rows=[20])[0]
    written = write_pictures(volume_path, tmp_path, truth=truth, residuals=[3.0, 1.0, 0.5])
    assert [path.name for path in written][2:] == ["residuals.png", "comparison.png"]


def test_a_scale_bar_only_where_the_pixel_size_is_known(volume_path, tmp_path):
    write_pictures(volume_path, tmp_path / "with", pixel_size=2.0)
    write_pictures(volume_path, tmp_path / "without")

    def yellow(path):
        red, green, blue = np.moveaxis(matplotlib.image.imread(path)[..., :3], -1, 0)
        return int(((red > 0.85) & (green > 0.65) & (blue < 0.5)).sum())

    assert yellow(tmp_path / "with" / "slices.png") > 300
    assert yellow(tmp_path / "without" / "slices.png") == 0


@pytest.mark.parametrize("shape", [(1, 8, 8), (2, 1, 1), (3, 40, 5)])
@pytest.mark.parametrize("fill", [0.0, np.nan, "noise"])
def test_awkward_volumes_are_drawn(tmp_path, shape, fill):
    volume = np.random.default_rng(0).random(shape, np.float32) if fill == "noise" else np.full(shape, fill, np.float32)
    tifffile.imwrite(tmp_path / "v.tif", volume, photometric="minisblack")
    truth = np.zeros(shape[1:], np.float32)
    assert len(write_pictures(tmp_path / "v.tif", tmp_path, truth=truth, residuals=[1.0, 0.0], pixel_size=0.5)) == 4


def test_wrong_requests(volume_path, tmp_path):
    with pytest.raises(UserError, match="true slice"):
        write_pictures(volume_path, tmp_path, truth=np.zeros((3, 3)))
    with pytest.raises(UserError, match=r"none\.tif"):
        write_pictures(tmp_path / "none.tif", tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be made"):
        write_pictures(volume_path, tmp_path / "file")


def test_trial_slices(tmp_path):
    rng = np.random.default_rng(0)
    trials = [(c, rng.random((20, 20), np.float32)) for c in (31.5, 30.0, 33.25)]
    written = trial_slices(trials, tmp_path, best=31.5, pixel_size=1.0)
    assert [path.name for path in written] == [
        "centers.png",
        "center_0030.00.png",
        "center_0031.50.png",
        "center_0033.25.png",
    ]
    assert all(gray(path).std() > 0.1 for path in written)


def test_a_contact_sheet_stays_readable(tmp_path, monkeypatch):
    monkeypatch.setattr(pictures, "SHEET_LIMIT", 9)
    trials = [(float(c), np.full((4, 4), c, np.float32)) for c in range(12)]
    sheet, *rest = trial_slices(trials, tmp_path)
    assert len(rest) == 12
    assert max(gray(sheet).shape) < 1500


def test_trial_slices_must_be_alike(tmp_path):
    with pytest.raises(UserError, match="no trial slices"):
        trial_slices([], tmp_path)
    with pytest.raises(UserError, match="one shape"):
        trial_slices([(1.0, np.zeros((3, 3))), (2.0, np.zeros((3, 4)))], tmp_path)


@pytest.mark.parametrize(
    ("pixels", "size", "label", "length"),
    [
        (256, 2.0, "100 µm", 50),
        (1000, 10.0, "2 mm", 200),
        (500, 0.01, "1 µm", 100),
        (100, 0.001, "20 nm", 20),
        (50, 1e5, "1 m", 10),
    ],
)
def test_scale_bars_have_round_lengths(pixels, size, label, length):
    found, text = bar_length(pixels, size)
    assert text == label
    assert found == pytest.approx(length)


def test_gray_range_is_never_empty():
    assert gray_range([]) == (0.0, 1.0)
    assert gray_range([np.full((3, 3), np.nan)]) == (0.0, 1.0)
    low, high = gray_range([np.full((3, 3), 7.0)])
    assert low < 7 < high
    spike = np.zeros(1000)
    spike[0] = 1e9
    low, high = gray_range([spike])
    assert high > low
