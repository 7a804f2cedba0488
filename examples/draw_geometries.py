"""The pictures of docs/geometries.md: ``python -m examples.draw_geometries docs/pictures``."""

import io
import sys
from pathlib import Path

import numpy as np
from PIL import Image

from dtomo.geometry import VectorGeometry, cone_beam, fan_beam, laminography, tilt_series

DOTS, COLORS = 72, 48
"""Per inch, and in the palette of a picture, which has 20 to 30 kB so."""


def geometries() -> dict[str, VectorGeometry]:
    """Name of the picture -> geometry."""
    far = {"source_axis": 200, "source_detector": 300}
    turn, turns = np.arange(0, 360, 10), np.arange(-360, 361, 10)
    return {
        "cone": cone_beam(turn, 64, 96, **far, shape=(40, 56, 56)),
        "aside": cone_beam(turn, 64, 96, **far, shape=(40, 80, 80), center=20, roll=6),
        "helix": cone_beam(turns, 48, 96, **far, shape=(64, 56, 56), rise=32),
        "fan": fan_beam(np.arange(0, 240, 10), 96, **far, slices=24, shape=(24, 56, 56), voxel=1.0),
        "laminography": laminography(turn, 64, 80, tilt=30, shape=(16, 56, 56)),
        "tilt-series": tilt_series(np.arange(-60, 61, 5), 64, 64, shape=(16, 56, 56), axis_angle=10),
    }


def draw(folder: Path) -> None:
    """Write all of them into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, geometry in geometries().items():
        drawn = io.BytesIO()
        geometry.plot().savefig(drawn, format="png", dpi=DOTS)
        small = Image.open(drawn).convert("RGB").quantize(COLORS, Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
        small.save(folder / f"geometry-{name}.png", optimize=True)


if __name__ == "__main__":
    draw(Path(sys.argv[1]))
