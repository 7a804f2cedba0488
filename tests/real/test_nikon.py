"""A measured cone beam: one radiograph of a body of revolution, repeated over the turn, by FDK."""

from pathlib import Path

import numpy as np
import pytest
import tifffile

import dtomo
from dtomo.io.nikon import read_xtekct

DATA = Path(__file__).resolve().parents[2] / ".." / "shared" / "data" / "nikon_cone_axisym"
pytestmark = pytest.mark.skipif(not DATA.exists(), reason="the measured data lie beside the project, not in it")


def test_the_external_reconstruction():
    """Correlation at least 0.98 with the half plane that the maker's program found; attenuation as stated there."""
    integrals = -np.log(tifffile.imread(DATA / "radiogram_bin4.tif"))
    external = tifffile.imread(DATA / "recon_external_bin4.tif")
    described = read_xtekct(DATA / "radiogram.xtekct", bin=4, center=183.75, views=180)
    geometry = described.replace(shape=(500, 1, 201))
    assert (geometry.rows, geometry.columns) == integrals.shape == (500, 375)
    found = dtomo.recon.fdk(np.broadcast_to(integrals, (geometry.views, *integrals.shape)), geometry)[:, 0]
    half = found[::-1, 100:200]  # from the axis outwards; z runs the other way there
    rows, radii = slice(5, 490), slice(2, 98)
    assert np.corrcoef(half[:499][rows, radii].ravel(), external[rows, radii].ravel())[0, 1] >= 0.98
    mirrored = found[::-1, 1:101][:, ::-1]
    assert np.corrcoef(half[rows, radii].ravel(), mirrored[rows, radii].ravel())[0, 1] > 0.995
    wall = half[rows, radii][external[rows, radii] > np.percentile(external[rows, radii], 60)]
    assert 0.044 < np.median(wall) < 0.050  # per millimetre
