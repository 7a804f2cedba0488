"""Geometries of Nikon's .xtekct files."""

from pathlib import Path

import numpy as np
import pytest

from dtomo.errors import UserError
from dtomo.io.nikon import read_xtekct

TEXT = """[XTekCT]
Name=a
VoxelsX=90
VoxelsY=80
VoxelsZ=70
VoxelSizeX=0.5
VoxelSizeY=0.6
VoxelSizeZ=0.7
OffsetX=1
OffsetY=2
OffsetZ=3
SrcToObject=100.0
SrcToDetector=150
DetectorPixelsX=60
DetectorPixelsY=40
DetectorPixelSizeX=0.2
DetectorPixelSizeY=0.3
DetectorOffsetX=0.4
DetectorOffsetY=-0.6
Projections=4
InitialAngle=5
AngularStep=90
[CTPro]
Filter_Material=Copper
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "scan.xtekct"
    path.write_text(text)
    return path


def test_what_the_file_says(tmp_path: Path) -> None:
    geometry = read_xtekct(written(tmp_path, TEXT))
    assert (geometry.rows, geometry.columns, geometry.views) == (40, 60, 4)
    assert (geometry.shape, geometry.voxel, geometry.middle) == ((70, 80, 90), (0.7, 0.6, 0.5), (1, 2, 3))
    turn = -np.deg2rad(5 + 90 * np.arange(4))
    np.testing.assert_allclose(geometry.source, 100 * np.stack([np.sin(turn), -np.cos(turn), 0 * turn], 1), atol=1e-9)
    np.testing.assert_allclose(np.linalg.norm(geometry.column_step, axis=1), 0.2)
    np.testing.assert_allclose(geometry.row_step, [[0, 0, 0.3]] * 4)
    column, row, depth = geometry.matrices()[0] @ [0, 0, 0, 1]
    np.testing.assert_allclose([column / depth, row / depth], [29.5 - 0.4 / 0.2, 19.5 + 0.6 / 0.3])


def test_the_axis_and_binning(tmp_path: Path) -> None:
    path = written(tmp_path, TEXT + "CentreOfRotationTop=0.1\nCentreOfRotationBottom=0.3\n")
    column, _, depth = read_xtekct(path).matrices()[0] @ [0, 0, 0, 1]
    assert column / depth == pytest.approx(29.5 + (0.2 * 1.5 - 0.4) / 0.2)
    binned = read_xtekct(path, bin=2, center=14.25, views=8)
    assert (binned.rows, binned.columns, binned.views, binned.shape) == (20, 30, 8, (35, 40, 45))
    column, _, depth = binned.matrices()[3] @ [0, 0, 0, 1]
    assert column / depth == pytest.approx(14.25)
    assert binned.voxel == (1.4, 1.2, 1.0)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (TEXT.replace("SrcToObject", "Nothing"), "has no SrcToObject, which a geometry needs"),
        (TEXT.replace("=150", "=far"), "SrcToDetector: 'far' is not a finite number"),
        (TEXT.replace("[XTekCT]", ""), "no .xtekct file"),
    ],
)
def test_what_is_no_such_file(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        read_xtekct(written(tmp_path, text))
    with pytest.raises(UserError, match="does not exist"):
        read_xtekct(tmp_path / "other.xtekct")
