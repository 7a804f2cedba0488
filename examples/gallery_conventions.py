"""Where pixels are, which way axes run, and where a point of a slice is seen: the conventions, drawn.

python examples/gallery_conventions.py [FOLDER]    # writes FOLDER/conventions-pixels.png and conventions-beam.png

The picture of the beam is computed: the mark on the detector is where dtomo's projector sees the voxel.
"""

import sys
from pathlib import Path

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

import dtomo
from dtomo.report.draw import BAR, INK, LINE, STYLE, new_figure

SIZE = 9
VOXEL = 6, 3
"""x and y of the voxel that is marked."""


def draw_pixels(axes: Axes, count: int) -> None:
    """A row of pixels with their numbers, their edges and the middle of the row."""
    for k in range(count):
        axes.add_patch(Rectangle((k - 0.5, 0), 1, 1, fill=False, edgecolor=INK))
        axes.text(k, 0.5, f"{k}", ha="center", va="center")
    middle = (count - 1) / 2
    axes.plot([middle, middle], [-0.45, 1.2], color=LINE)
    axes.text(middle, 1.3, f"middle ({count} − 1)/2 = {middle:g}", ha="center", color=LINE)
    for edge in (-0.5, count - 0.5):
        axes.text(edge, -0.12, f"{edge:g}".replace("-", "−"), ha="center", va="top", fontsize=8)
    axes.set(xlim=(-1.2, 6.2), ylim=(-0.7, 1.9))
    axes.set_axis_off()


def draw_beam(axes: Axes, degrees: float) -> None:
    """A slice with row 0 on top, the way of the rays, and the detector with the column that sees the voxel."""
    center = (SIZE - 1) / 2
    geometry = dtomo.ParallelBeam([degrees], columns=SIZE)
    volume = np.zeros((1, SIZE, SIZE), np.float32)
    volume[0, VOXEL[1], VOXEL[0]] = 1
    seen = dtomo.operators.ParallelProjector(geometry, slices=1).forward(volume)[0, 0]
    column = float(seen @ np.arange(SIZE) / seen.sum())  # where the projector sees the voxel

    theta = np.deg2rad(degrees)
    along, across = np.array([np.cos(theta), np.sin(theta)]), np.array([-np.sin(theta), np.cos(theta)])  # x, y
    axes.add_patch(Rectangle((-0.5, -0.5), SIZE, SIZE, facecolor="#f0f3f6", edgecolor=INK))
    axes.add_patch(Rectangle((VOXEL[0] - 0.5, VOXEL[1] - 0.5), 1, 1, facecolor=BAR, edgecolor=INK))
    screen = np.array([center, center]) + 8.5 * across
    ends = [screen + (k - center) * along for k in (-0.5, SIZE - 0.5)]
    axes.plot(*np.transpose(ends), color=INK, linewidth=3)
    for k in (0, SIZE - 1):
        axes.text(*(screen + (k - center) * along + 1.1 * across), f"{k}", ha="center", va="center")
    hit = screen + (column - center) * along
    axes.annotate("", hit, hit - 15 * across, arrowprops={"arrowstyle": "->", "color": LINE, "linewidth": 1.5})
    axes.plot(center, center, "+", color=INK)
    axes.annotate("", (SIZE + 1.5, -0.5), (-0.5, -0.5), arrowprops={"arrowstyle": "->", "color": INK})
    axes.annotate("", (-0.5, SIZE + 1.5), (-0.5, -0.5), arrowprops={"arrowstyle": "->", "color": INK})
    axes.text(SIZE + 1.6, -0.5, "x", va="center")
    axes.text(-0.5, SIZE + 1.7, "y", ha="center", va="top")
    axes.set(title=f"θ = {degrees:g}°: seen at column u = {column:.2f}", xlim=(-7, 17), ylim=(17, -7), aspect="equal")
    axes.set_axis_off()


def main(folder: Path) -> list[Path]:
    """Draw both pictures."""
    targets = [folder / "conventions-pixels.png", folder / "conventions-beam.png"]
    with rc_context(STYLE):
        figure = new_figure(8, 3)
        for axes, count in zip(figure.subplots(2, 1), (5, 6)):
            draw_pixels(axes, count)
        figure.savefig(targets[0], dpi=80)
        figure = new_figure(10, 3.7)
        for axes, degrees in zip(figure.subplots(1, 3), (0.0, 30.0, 90.0)):
            draw_beam(axes, degrees)
        figure.savefig(targets[1], dpi=80)
    return targets


if __name__ == "__main__":
    print(*main(Path(sys.argv[1] if len(sys.argv) > 1 else "docs/pictures")))
