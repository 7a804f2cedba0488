"""Iterative algorithms of arrays in geometries that join the slices."""

import numpy as np
import pytest

from dtomo import recon
from dtomo.errors import UserError
from dtomo.geometry import VectorGeometry, cone_beam, laminography, tilt_series
from dtomo.operators import RayProjector

ANGLES = np.arange(0, 360, 6)
GEOMETRIES = {
    "cone": cone_beam(ANGLES, 24, 32, source_axis=80, source_detector=120, pixel=1.6, shape=(14, 20, 20), voxel=1.0),
    "laminography": laminography(ANGLES, 40, 40, tilt=30, shape=(14, 20, 20)),
    "tilt series": tilt_series(np.arange(-80, 81, 3), 24, 28, shape=(14, 20, 20), axis_angle=8),
}


def ball(shape: tuple[int, int, int]) -> np.ndarray:
    z, y, x = (np.arange(n) - (n - 1) / 2 for n in shape)
    return np.exp(-((z[:, None, None] - 1) ** 2 + (y[:, None] + 2) ** 2 + (x - 3) ** 2) / 18).astype(np.float32)


@pytest.mark.parametrize("name", GEOMETRIES)
@pytest.mark.parametrize(
    ("solver", "options"), [("cgls", {"iterations": 20}), ("sirt", {"iterations": 150}), ("os_sart", {})]
)
def test_a_smooth_object_comes_back(name: str, solver: str, options: dict[str, int]) -> None:
    geometry: VectorGeometry = GEOMETRIES[name]
    truth = ball(geometry.shape)
    data = RayProjector(geometry).forward(truth)
    found = getattr(recon, solver)(data, geometry, **options)
    assert found.shape == geometry.shape
    assert found.dtype == np.float32
    assert np.linalg.norm(found - truth) <= 0.06 * np.linalg.norm(truth)


def test_what_does_not_fit_is_refused() -> None:
    import dask.array as da

    geometry = GEOMETRIES["cone"]
    with pytest.raises(UserError, match=r"order is \(view, row, column\)"):
        recon.cgls(np.zeros((60, 24, 31), np.float32), geometry)
    with pytest.raises(UserError, match=r"order is \(view, row, column\)"):
        recon.cgls(da.zeros((60, 24, 31), np.float32), geometry)
    with pytest.raises(UserError, match="fdk"):
        recon.fbp(np.zeros((60, 24, 32), np.float32), geometry)
