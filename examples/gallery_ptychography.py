"""Frames, probe and object of a simulated ptychographic scan, beside the truth.

python examples/gallery_ptychography.py [FOLDER]    # writes FOLDER/gallery-ptychography.webp
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
from matplotlib import rc_context

import dtomo
from dtomo.ptycho.gauge import aligned
from dtomo.report.draw import STYLE, gray_range, new_figure, show_slice

EDGE = slice(24, -24)
"""Rows and columns that are drawn: where frames overlap."""


def main(folder: Path) -> Path:
    """Simulate 100 frames, reconstruct them in 30 epochs, and draw what came out."""
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "scan.cxi"
        truth = dtomo.simulate.simulate_ptycho(path, size=48, positions=100, modes=1, photons=1e6)
        frame = truth.counts(50)
        result = dtomo.ptycho.reconstruct(dtomo.ptycho.open(path), epochs=30, seed=0)
    found = result.transmission[0, 0]
    true = truth.object_at(result.positions, found.shape)[EDGE, EDGE]
    found = aligned(found[EDGE, EDGE], true)
    phases = [np.angle(true), np.angle(found)]
    with rc_context(STYLE):
        figure = new_figure(10, 3.2)
        axes = figure.subplots(1, 4)
        count = np.log10(1 + frame)
        show_slice(axes[0], count, (0.0, count.max()), "a frame, log10(1 + counts)", ("row", "column"), cmap="magma")
        show_slice(
            axes[1], np.abs(result.probe[0]), (0.0, np.abs(result.probe[0]).max()), "probe found", ("row", "column")
        )
        for place, image, title in zip(axes[2:], phases, ("phase of the true object", "phase found")):
            show_slice(place, image, gray_range(phases), title, ("row", "column"))
        target = folder / "gallery-ptychography.webp"
        figure.savefig(target, dpi=80, pil_kwargs={"quality": 80})
    return target


if __name__ == "__main__":
    print(main(Path(sys.argv[1] if len(sys.argv) > 1 else "docs/pictures")))
