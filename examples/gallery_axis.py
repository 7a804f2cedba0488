"""A slice about axes of rotation that are right and wrong by a few pixels.

python examples/gallery_axis.py [FOLDER]    # writes FOLDER/gallery-axis.webp
"""

import sys
from pathlib import Path

import numpy as np
from matplotlib import rc_context

import dtomo
from dtomo.report.draw import STYLE, new_figure, show_slice

SIZE, CENTER = 128, 68.0


def main(folder: Path) -> Path:
    """Reconstruct one slice with the axis two and five columns off and in its place, and draw them."""
    angles = np.arange(0, 180, 0.9)
    phantom = dtomo.simulate.head()
    projections = phantom.projections(angles, size=SIZE, columns=SIZE + 20, center=CENTER, slices=1)
    with rc_context(STYLE):
        figure = new_figure(10, 3.4)
        for place, off in zip(figure.subplots(1, 4), (-5.0, -2.0, 0.0, 2.0)):
            geometry = dtomo.ParallelBeam(angles, columns=SIZE + 20, center=CENTER + off)
            image = dtomo.recon.fbp(projections, geometry)[0]
            show_slice(place, image, (0.0, 0.5), f"--center {CENTER + off:g}" + (" (true)" if off == 0 else ""))
        target = folder / "gallery-axis.webp"
        figure.savefig(target, dpi=80, pil_kwargs={"quality": 80})
    return target


if __name__ == "__main__":
    print(main(Path(sys.argv[1] if len(sys.argv) > 1 else "docs/pictures")))
