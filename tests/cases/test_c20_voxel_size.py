"""C20: voxel sizes are compared with a tolerance, never averaged, and survive writing."""

import mrcfile
import numpy as np
import pytest

import dtomo
from dtomo.errors import UserError
from dtomo.io import convert, create_volume, open_volume

SHAPE = (4, 5, 6)


def _mrc(path, sizes_xyz):
    with mrcfile.new(path, overwrite=True) as file:
        file.set_data(np.zeros(SHAPE, np.float32))
        file.header.cella = tuple(np.float32(n * s) for n, s in zip(SHAPE[::-1], sizes_xyz))
    return path


def test_nearly_equal_sizes_are_one_size(tmp_path):
    volume = open_volume(_mrc(tmp_path / "a.mrc", (13.2800, 13.2801, 13.2799)))
    assert volume.voxel_size == (13.28, 13.28, 13.28)
    assert volume.unit == "angstrom"
    assert volume.isotropic_voxel_size() == 13.28
    assert volume.warnings == ()


def test_other_sizes_are_kept_and_never_averaged(tmp_path):
    volume = open_volume(_mrc(tmp_path / "a.mrc", (13.28, 13.28, 14.0)))
    assert volume.voxel_size == (14.0, 13.28, 13.28)
    assert any("not cubes" in note for note in volume.warnings)
    with pytest.raises(UserError, match=r"13\.28 × 13\.28 × 14 angstrom"):
        volume.isotropic_voxel_size()
    convert(tmp_path / "a.mrc", tmp_path / "b.zarr")
    assert open_volume(tmp_path / "b.zarr").voxel_size == pytest.approx((14.0, 13.28, 13.28))


@pytest.mark.parametrize("voxel_size", [(13.28, 13.28, 13.28), (1.0, 1.0, 1.0), (2.5, 2.0, 2.0)])
def test_written_spacing_is_read_by_other_programs(voxel_size, tmp_path):
    writer = create_volume(tmp_path / "w.mrc", SHAPE, voxel_size_um=tuple(size * 1e-4 for size in voxel_size))
    writer.write_slab(0, np.ones(SHAPE, np.float32))
    writer.finish()
    with mrcfile.open(tmp_path / "w.mrc") as file:
        header = file.header
        assert (header.mx, header.my, header.mz) == (header.nx, header.ny, header.nz) == (6, 5, 4)
        assert header.cella.z == pytest.approx(4 * voxel_size[0])
        assert [file.voxel_size[axis] for axis in "zyx"] == pytest.approx(voxel_size)
    assert open_volume(tmp_path / "w.mrc").voxel_size == pytest.approx(voxel_size)


def test_stacks_have_mz_1(tmp_path):
    from dtomo.io.mrc import create_mrc, read_mrc_header

    create_mrc(tmp_path / "s.mrc", SHAPE, np.dtype(np.int16), (2.0, 2.0, 2.0), is_stack=True)
    with mrcfile.open(tmp_path / "s.mrc", permissive=True) as file:
        assert (file.header.mz, file.header.ispg) == (1, 0)
        assert file.is_image_stack()
    assert read_mrc_header(tmp_path / "s.mrc").voxel_size == (2.0, 2.0, 2.0)


def test_unset_spacing_is_unknown(tmp_path):
    assert open_volume(_mrc(tmp_path / "a.mrc", (0, 0, 0))).voxel_size is None
    default = open_volume(_mrc(tmp_path / "b.mrc", (1.0, 1.0, 1.0)))
    assert default.voxel_size is None
    assert any("unknown" in note for note in default.warnings)
    writer = create_volume(tmp_path / "w.mrc", SHAPE)
    writer.write_slab(0, np.ones(SHAPE, np.float32))
    writer.finish()
    assert open_volume(tmp_path / "w.mrc").voxel_size is None


def test_unset_sampling_is_unknown(tmp_path):
    with mrcfile.open(_mrc(tmp_path / "a.mrc", (2, 2, 2)), "r+") as file:
        file.header.mx = file.header.my = file.header.mz = 0
    assert open_volume(tmp_path / "a.mrc").voxel_size is None


def test_a_default_that_clashes_with_the_users_size_gives_way(tmp_path):
    scan = dtomo.open(_mrc(tmp_path / "s.mrc", (1.0, 1.0, 1.0)), angles=np.arange(4) * 40.0, pixel_size=3.36e-3)
    assert scan.pixel_size == 3.36e-3
    assert scan.found["pixel_size"] == "given"
    convert(tmp_path / "s.mrc", tmp_path / "c.mrc", voxel_size_um=3.36e-3)
    assert open_volume(tmp_path / "c.mrc").voxel_size == pytest.approx((33.6, 33.6, 33.6))
