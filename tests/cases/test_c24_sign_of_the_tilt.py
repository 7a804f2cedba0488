"""C24: tilts of one side only; the missing wedge lies on the matching side, wherever the angles come from."""

import mrcfile
import numpy as np
import pytest

import dtomo
from dtomo.simulate.phantoms import sample
from tests.io.tilts import files

TILTS = np.arange(-60.0, 1.0, 4.0)
SIZE = 32


def _opened(folder, kind, tilts):
    views = sample(0, 60).projections(TILTS, size=SIZE, columns=SIZE, center=(SIZE - 1) / 2, slices=4)
    with mrcfile.new(folder / "series.mrc") as file:
        file.set_data(views.astype(np.float32))
        file.set_image_stack()
    getattr(files, kind)(folder / f"series.{ {'warp': 'xml'}.get(kind, kind) }", tilts)
    return dtomo.open(folder / "series.mrc", values="integrals")


def _volume(scan):
    return dtomo.recon.fbp(scan.read().projections, dtomo.ParallelBeam(scan.angles, SIZE))


def _seen(volume):
    """Power in directions that views from -60 to 0 degrees see, over that on the other side."""
    power = (np.abs(np.fft.fft2(volume)) ** 2).sum(0)
    y, x = np.meshgrid(*(np.fft.fftfreq(n) for n in power.shape), indexing="ij")
    way, far = np.rad2deg(np.arctan2(y, x) % np.pi), np.hypot(y, x) > 0.08
    return power[far & (way > 125) & (way < 175)].sum() / power[far & (way > 5) & (way < 55)].sum()


@pytest.mark.parametrize(("kind", "said"), [("tlt", "IMOD"), ("mdoc", "IMOD"), ("warp", "negated")])
def test_c24_the_missing_wedge_lies_on_the_matching_side_and_the_sign_is_said(tmp_path, kind, said):
    scan = _opened(tmp_path, kind, TILTS)
    np.testing.assert_allclose(scan.angles, TILTS, atol=1e-6)
    assert said in scan.found["angles"]
    volume = _volume(scan)
    assert _seen(volume) > 3
    truth = sample(0, 60).volume(SIZE, slices=4)
    alike, mirrored = (np.corrcoef(one.ravel(), truth.ravel())[0, 1] for one in (volume, volume[:, ::-1]))
    assert alike > mirrored + 0.1


def test_c24_only_inverted_angles_mirror_the_volume(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    right, wrong = _volume(_opened(tmp_path / "a", "tlt", TILTS)), _volume(_opened(tmp_path / "b", "tlt", -TILTS))
    assert _seen(wrong) < 1 / 3
    np.testing.assert_allclose(wrong[:, ::-1], right, atol=1e-4 * np.abs(right).max())
