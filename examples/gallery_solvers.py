"""Few and noisy views: what filtered back projection and iterative solvers make of them.

python examples/gallery_solvers.py [FOLDER]    # writes FOLDER/gallery-solvers.webp
"""

import sys
from pathlib import Path

import numpy as np
from matplotlib import rc_context

import dtomo
from dtomo.report.draw import STYLE, new_figure, show_slice

SIZE, VIEWS, NOISE = 128, 30, 0.3


def main(folder: Path) -> Path:
    """Reconstruct 30 views of the head phantom with noise by four solvers, and draw them with their errors."""
    geometry = dtomo.ParallelBeam(np.arange(VIEWS) * 180 / VIEWS, columns=SIZE)
    phantom = dtomo.simulate.head()
    exact = phantom.projections(geometry.angles, size=SIZE, columns=SIZE, center=geometry.center, slices=1)
    noise = NOISE * np.random.default_rng(0).standard_normal(exact.shape).astype(np.float32)
    true = phantom.volume(SIZE, slices=1)[0]
    found = {
        "truth": true,
        "fbp": dtomo.recon.fbp(exact + noise, geometry)[0],
        "fbp, hann filter": dtomo.recon.fbp(exact + noise, geometry, filter="hann")[0],
        "cgls, 8 iterations": dtomo.recon.cgls(exact + noise, geometry, iterations=8)[0],
        "sirt, 60, not negative": dtomo.recon.sirt(exact + noise, geometry, iterations=60, lower=0)[0],
        "total variation": dtomo.recon.tv(exact + noise, geometry, strength=0.6, iterations=150, lower=0)[0],
    }
    with rc_context(STYLE):
        figure = new_figure(10, 7)
        for place, (name, image) in zip(figure.subplots(2, 3).flat, found.items()):
            error = np.sqrt(np.mean((image - true) ** 2))
            title = name if image is true else f"{name}: error {error / np.sqrt(np.mean(true**2)):.2f}"
            show_slice(place, image, (0.0, 0.5), title)
        target = folder / "gallery-solvers.webp"
        figure.savefig(target, dpi=80, pil_kwargs={"quality": 80})
    return target


if __name__ == "__main__":
    print(main(Path(sys.argv[1] if len(sys.argv) > 1 else "docs/pictures")))
