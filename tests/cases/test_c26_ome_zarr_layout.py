"""C26: OME-Zarr opens in other readers with the data, and the levels lie where they belong."""

import json

import numpy as np
import pytest
import zarr
from ome_zarr_models.v05 import Image

from dtomo.io import create_volume, open_volume

VOLUME = np.random.default_rng(0).random((12, 20, 16)).astype(np.float32) + 1


def test_written_store_is_valid_version_05_with_the_data_in_place(tmp_path):
    writer = create_volume(tmp_path / "v.zarr", VOLUME.shape, slab=4, voxel_size_um=5.4e-4, levels=3)
    for start in range(0, 12, 4):
        writer.write_slab(start, VOLUME[start : start + 4])
    path = writer.finish()
    group = zarr.open_group(path, mode="r")
    assert group.metadata.zarr_format == 3
    multiscale = Image.from_zarr(group).ome_attributes.multiscales[0]
    assert [(axis.name, axis.unit) for axis in multiscale.axes] == [(name, "angstrom") for name in "zyx"]
    expected = VOLUME
    for level, (scale, shift) in enumerate(((5.4, 0.0), (10.8, 2.7), (21.6, 8.1))):
        dataset = multiscale.datasets[level]
        assert dataset.coordinateTransformations[0].scale == [scale] * 3
        assert dataset.coordinateTransformations[1].translation == [shift] * 3
        np.testing.assert_allclose(group[dataset.path][:], expected, rtol=1e-6)
        volume = open_volume(path, level=level)
        assert volume.voxel_size == (scale,) * 3
        assert volume.origin == (shift,) * 3
        assert volume.unit == "angstrom"
        z, y, x = (size // 2 for size in expected.shape)
        expected = expected[: 2 * z, : 2 * y, : 2 * x].reshape(z, 2, y, 2, x, 2).mean(axis=(1, 3, 5))


def test_the_middle_of_mass_is_the_same_on_every_level(tmp_path):
    blob = np.zeros((32, 32, 32), np.float32)
    blob[8:16, 8:24, 16:24] = 1  # whole voxels at every level
    writer = create_volume(
        tmp_path / "v.zarr", blob.shape, slab=8, voxel_size_um=2.0, origin_um=(100.0, 0.0, 7.0), levels=4
    )
    for start in range(0, 32, 8):
        writer.write_slab(start, blob[start : start + 8])
    writer.finish()
    for level in range(4):
        volume = open_volume(tmp_path / "v.zarr", level=level)
        data = volume.array.compute().astype(np.float64)
        places = [o + s * np.arange(n) for o, s, n in zip(volume.origin, volume.voxel_size, volume.shape)]
        middle = [np.average(p, weights=data.sum(axis=tuple({0, 1, 2} - {a}))) for a, p in enumerate(places)]
        assert middle == pytest.approx([100 + 2 * 11.5, 2 * 15.5, 7 + 2 * 19.5])


@pytest.mark.parametrize("separator", ["/", "."])
def test_version_04_is_read_with_the_separator_in_its_metadata(separator, tmp_path):
    group = zarr.create_group(tmp_path / "old.zarr", zarr_format=2)
    group.create_array(
        "0",
        data=VOLUME[None, None],
        chunks=(1, 1, 5, 7, 16),
        chunk_key_encoding={"name": "v2", "separator": separator},
    )
    axes = [{"name": "t", "type": "time"}, {"name": "c", "type": "channel"}]
    axes += [{"name": name, "type": "space", "unit": "nanometer"} for name in "zyx"]
    transforms = [{"type": "scale", "scale": [1, 1, 2.0, 1.5, 1.5]}]
    group.attrs["multiscales"] = [
        {"version": "0.4", "axes": axes, "datasets": [{"path": "0", "coordinateTransformations": transforms}]}
    ]
    assert json.loads((tmp_path / "old.zarr" / "0" / ".zarray").read_text())["dimension_separator"] == separator
    volume = open_volume(tmp_path / "old.zarr")
    np.testing.assert_array_equal(volume.array.compute(), VOLUME)
    assert volume.voxel_size == (2.0, 1.5, 1.5)
    assert volume.voxel_size_um == pytest.approx((2e-3, 1.5e-3, 1.5e-3))
