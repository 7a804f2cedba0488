"""Scans with a geometry: simulated, written, opened again, cropped and binned, reconstructed."""

import h5py
import numpy as np
import pytest

import dtomo
from dtomo.errors import UserError
from dtomo.geometry import VectorGeometry
from dtomo.io.geometry_group import geometry_items
from dtomo.simulate import named_geometry, simulate_geometry_scan, voxel_values

KINDS = ("cone", "helix", "fan", "laminography", "tilt-series")
CLEAN = {"rings": False, "dead_pixels": 0.0, "zingers": 0.0}


@pytest.fixture(scope="module")
def cone(tmp_path_factory):
    path = tmp_path_factory.mktemp("scan") / "cone.h5"
    return simulate_geometry_scan(path, "cone", size=32, angles=72, photons=1e7, **CLEAN)


@pytest.mark.parametrize("kind", KINDS)
def test_the_whole_volume_is_seen(kind):
    geometry, angles = named_geometry(kind, 24)
    assert len(angles) == geometry.views
    assert geometry.shape[1:] == (24, 24)
    z, y, x = np.indices(geometry.shape).reshape(3, -1)
    inside = np.hypot(x - 11.5, y - 11.5) < 11.4
    points = np.stack([x, y, z, np.ones_like(x)])[:, inside]
    matrices = geometry.voxel_matrices()
    column = np.einsum("vi,ip->vp", matrices[:, 0], points) / np.einsum("vi,ip->vp", matrices[:, 2], points)
    assert column.min() > -0.5
    assert column.max() < geometry.columns - 0.5
    if kind in ("cone", "laminography", "tilt-series"):
        row = np.einsum("vi,ip->vp", matrices[:, 1], points) / np.einsum("vi,ip->vp", matrices[:, 2], points)
        assert row.min() > -0.5
        assert row.max() < geometry.rows - 0.5
    if kind == "helix":
        np.testing.assert_allclose(geometry.source[:, 2].mean(), 0, atol=0.2)


def test_a_scan_holds_its_geometry(cone):
    scan = dtomo.open(cone.path)
    assert scan.geometry is not None
    assert scan.geometry == cone.geometry
    assert "geometry" in scan.found
    assert scan.shape == (72, scan.geometry.rows, scan.geometry.columns)
    assert scan.geometry.voxel == (0.002, 0.002, 0.002)


def test_a_scan_is_reconstructed_with_its_geometry(cone):
    scan = dtomo.open(cone.path)
    slab = scan.read()
    dark, flat = slab.darks.mean(0), slab.flats.mean(0)
    integrals = -np.log((slab.projections - dark) / (flat - dark))
    found = dtomo.recon.fdk(integrals, scan.geometry, filter="hann")
    truth = cone.volume()
    np.testing.assert_array_equal(truth, voxel_values(cone.phantom, cone.geometry))
    middle = slice(12, 20)
    exact = np.stack([cone.projection(number) for number in range(72)])
    clean = dtomo.recon.fdk(exact, scan.geometry, filter="hann")
    assert np.corrcoef(found[middle].ravel(), clean[middle].ravel())[0, 1] > 0.998
    assert np.corrcoef(found[middle].ravel(), truth[middle].ravel())[0, 1] > 0.85
    inner = (middle, slice(8, 24), slice(10, 22))  # the brain
    assert found[inner].mean() == pytest.approx(truth[inner].mean(), rel=0.05)


def test_cropped_binned_and_chosen_scans_keep_where_pixels_are(cone):
    scan = dtomo.open(cone.path)
    part = scan.crop(rows=slice(3, 30), columns=slice(2, 33)).select([1, 5, 9])
    point = np.array([4, 3, 2, 1.0])

    def seen(geometry):
        column, row, depth = (geometry.voxel_matrices() @ point).T
        return np.stack([row / depth, column / depth], 1)

    np.testing.assert_allclose(seen(part.geometry), seen(scan.geometry)[[1, 5, 9]] - [3, 2], atol=1e-9)
    assert part.shape == (3, 27, 31)
    binned = part.bin(2)
    assert binned.shape == (3, 13, 15)
    assert (binned.geometry.rows, binned.geometry.columns) == (13, 15)
    assert binned.geometry.shape == (16, 16, 16)
    point[:3] = (point[:3] - 0.5) / 2  # the same place in voxels twice as large
    coarse = seen(binned.geometry)
    point[:3] = 2 * point[:3] + 0.5
    np.testing.assert_allclose(coarse, (seen(part.geometry) - 0.5) / 2, atol=1e-9)


def test_the_users_geometry_counts_more(cone):
    scan = dtomo.open(cone.path)
    other = scan.geometry.replace(voxel=0.004, shape=(16, 16, 16))
    assert scan.replace(geometry=other).geometry == other
    with pytest.raises(UserError, match="72 views of 40 rows and 36 columns, but its projections 72 of 40 and 37"):
        scan.replace(geometry=other.with_columns(0, -1))


def test_a_geometry_of_ones_own(tmp_path):
    geometry, _ = named_geometry("tilt-series", 16, angles=5, voxel=1e-3)
    made = simulate_geometry_scan(tmp_path / "own.h5", geometry, darks=0, phantom="sample")
    assert dtomo.open(made.path).geometry == geometry
    with pytest.raises(UserError, match="give one for each view"):
        simulate_geometry_scan(tmp_path / "other.h5", geometry, angles=[1, 2])
    assert not (tmp_path / "other.h5").exists()


def test_refusals(tmp_path):
    with pytest.raises(UserError, match="no geometry 'spiral'"):
        simulate_geometry_scan(tmp_path / "a.h5", "spiral")
    with pytest.raises(UserError, match="number of angles"):
        simulate_geometry_scan(tmp_path / "a.h5", "cone", size=16, angles=0)
    with pytest.raises(UserError, match="no phantom named"):
        simulate_geometry_scan(tmp_path / "a.h5", "cone", size=16, angles=3, phantom="cat")
    assert not list(tmp_path.iterdir())


def test_a_stored_geometry_that_is_none_is_refused_by_a_sentence(tmp_path):
    geometry, angles = named_geometry("fan", 16, rows=2, angles=4, voxel=1e-3)
    path = tmp_path / "scan.h5"

    def write(**changes):
        with h5py.File(path, "w") as file:
            file["exchange/data"] = np.ones((4, 2, geometry.columns), np.uint16)
            file["exchange/theta"] = angles
            file["exchange/theta"].attrs["units"] = "degrees"
            for name, item in geometry_items(geometry).items():
                value, unit = item if isinstance(item, tuple) else (item, None)
                value = changes.get(name.rsplit("/", 1)[-1], value)
                if value is not None:
                    file[name] = value
                    if unit:
                        file[name].attrs["units"] = changes.get("unit", unit)

    write()
    assert dtomo.open(path).geometry == geometry
    write(unit="um")
    small = dtomo.open(path).geometry
    np.testing.assert_allclose(small.detector, geometry.detector * 1e-3)
    np.testing.assert_allclose(small.voxel, np.array(geometry.voxel) * 1e-3)
    for changes, sentence in (
        ({"voxel": None}, "has no voxel"), ({"beam": "spiral"}, "parallel, fan or cone"),
        ({"unit": "parsec"}, "parsec"), ({"source": geometry.source[:3]}, "as many vectors"),
        ({"row_step": np.zeros((4, 3))}, "view 0"),
        ({name: getattr(geometry, name)[:3] for name in ("source", "detector", "column_step", "row_step")},
         "has 3 views, but there are 4 projections"),
    ):  # fmt: skip
        write(**changes)
        with pytest.raises(UserError, match=sentence):
            dtomo.open(path)


def test_vectors_of_all_views_may_be_one(tmp_path):
    geometry = VectorGeometry("parallel", [0, 1, 0], [0, 0, 0], [1, 0, 0], [0, 0, 1], 2, 3, (2, 3, 3))
    path = tmp_path / "scan.h5"
    with h5py.File(path, "w") as file:
        file["exchange/data"] = np.ones((4, 2, 3), np.uint16)
        for name, item in geometry_items(geometry).items():
            file[name] = item[0] if isinstance(item, tuple) else item
    assert dtomo.open(path, angles=[0, 0.0, 0, 45]).geometry == geometry.of_views([0] * 4)
