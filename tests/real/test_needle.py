"""A measured tilt series (STEM-HAADF, not aligned): a needle of layered discs."""

from pathlib import Path

import mrcfile
import numpy as np
import pytest

import dtomo
from dtomo.align import job
from dtomo.io.tilts import read_alignment
from dtomo.settings import AlignmentSettings

DATA = Path(__file__).resolve().parents[2] / ".." / "shared" / "data" / "haadf_needle"
pytestmark = pytest.mark.skipif(not DATA.exists(), reason="the measured data lie beside the project, not in it")


def flatness(image):
    """Longer over shorter axis of what is bright: 1 for a disc."""
    rows, columns = np.nonzero(image > 0.5 * np.percentile(image, 99.8))
    spread = np.linalg.eigvalsh(np.cov(rows, columns))
    return np.sqrt(spread[1] / spread[0])


def test_the_needle_becomes_round(tmp_path):
    """At binning 4. Known of it: drift to 40 and 11 pixels, axis a few degrees off the columns, tip to +x, layers."""
    settings = AlignmentSettings(
        scan=DATA / "HAADF_crop.mrc", output=tmp_path / "out", finest=4, axis_angle=90, iterations=8
    )
    done = job.run(settings, quiet=True)
    found = read_alignment(tmp_path / "out" / "alignment.yaml")
    assert found.axis_angles[0] == pytest.approx(87.5, abs=1)
    assert 20 < np.abs(found.shifts[:, 1]).max() < 40
    assert 7 < np.abs(found.shifts[:, 0]).max() < 14
    np.testing.assert_allclose(found.levels, -31890, atol=40)
    assert done.after.misfit < 0.1 < 0.3 < done.before.misfit
    assert done.after.slices.keys() == done.before.slices.keys()
    discs = list(done.after.slices.values())[:2]  # the last is at the tip
    assert max(flatness(disc) for disc in discs) < 1.12
    for plane in done.after.along:
        widths = (plane > 0.05 * plane.max()).sum(1)
        assert widths[:5].min() > 15 > 1 > widths[-3:].max()  # the shaft lies at low z, the tip points to high z: +x
    layers = done.after.along[1].max(1)[5:35]
    assert (np.diff(np.sign(np.diff(layers))) != 0).sum() >= 4  # bright and dark by turns
    with mrcfile.open(tmp_path / "out" / "aligned.mrc") as file:
        assert file.data.shape == (77, 160, 168)
    assert dtomo.open(tmp_path / "out" / "aligned.mrc").center == 83.5
