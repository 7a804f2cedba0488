"""Pictures of geometries: files that are pictures, of every kind of beam, without any display."""

from pathlib import Path

import matplotlib.image
import numpy as np
import pytest

from dtomo.geometry import ParallelBeam, VectorGeometry, cone_beam, fan_beam, laminography, tilt_series
from dtomo.report.geometry_pictures import draw_geometry

ROUND = {"source_axis": 80, "source_detector": 130}
GEOMETRIES = {
    "cone": cone_beam(np.arange(0, 360, 30.0), 12, 20, **ROUND, roll=4),
    "one view": cone_beam(20, 12, 20, **ROUND),
    "fan": fan_beam(np.arange(0, 360, 4.0), 20, slices=3, **ROUND),
    "laminography": laminography([0, 40, 80], 20, 20, tilt=30, shape=(4, 15, 15)),
    "tilts": tilt_series([0, 10, 50], 20, 20, shape=(4, 15, 15)),
    "parallel": VectorGeometry.of_parallel(ParallelBeam([0, 30], 20), 5),
    "behind the source": cone_beam([0, 30], 12, 20, source_axis=21, source_detector=30, shape=(4, 30, 30), voxel=1.0),
}


@pytest.mark.parametrize("name", GEOMETRIES)
def test_every_kind(tmp_path: Path, name: str) -> None:
    geometry = GEOMETRIES[name]
    figure = geometry.plot(tmp_path / "new" / "g.png")
    drawn = matplotlib.image.imread(tmp_path / "new" / "g.png")
    assert drawn.shape[1] > drawn.shape[0] > 300
    assert drawn[..., :3].std() > 0.01
    outside, seen = figure.axes
    assert f"{geometry.views} views" in figure.get_suptitle()
    low, high = outside.get_zlim()
    assert low < geometry.middle[2] - geometry.lengths[0] / 2.1
    assert high > geometry.middle[2] + geometry.lengths[0] / 2.1
    assert seen.yaxis_inverted()


def test_edges_of_the_volume_are_drawn_where_they_are_seen() -> None:
    geometry = GEOMETRIES["cone"]
    lines = draw_geometry(geometry, title="mine").axes[1].lines
    drawn = np.concatenate([np.column_stack(line.get_data()) for line in lines[1:]])
    corner = np.array(geometry.middle) + geometry.lengths[::-1] / 2
    column, row, depth = geometry.matrices()[0] @ [*corner, 1]
    assert np.abs(drawn - [column / depth, row / depth]).sum(1).min() < 1e-6
