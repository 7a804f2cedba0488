"""A particle under noise and a missing wedge, averages of poor and of good poses, and their Fourier shell correlation.

python examples/gallery_subtomograms.py [FOLDER]    # writes FOLDER/gallery-subtomograms.webp
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
from matplotlib import rc_context

import dtomo
from dtomo.io import open_volume
from dtomo.report.draw import STYLE, gray_range, new_figure, show_slice
from dtomo.settings import AlignSettings
from dtomo.simulate.particles import simulate_particles


def main(folder: Path) -> Path:
    """Average 40 simulated particles in the poses of a poor list and in the true ones, and draw the middle slices."""
    with tempfile.TemporaryDirectory() as scratch:
        sim = Path(scratch) / "sim"
        truth = simulate_particles(sim, count=40, box=32, pixel_size=8.0, snr=0.3, angle_error=15.0, shift_error=1.5)
        particle = open_volume(sim / "particles" / "particle_00000.mrc").source.read()
        averages, curves = [], []
        for name in ("particles", "truth"):
            out = Path(scratch) / name
            settings = AlignSettings(
                scan=sim / f"{name}.xml", output=out, pixel_size=8.0, particle_diameter=200.0, workers=1
            )
            dtomo.subtomo.average(settings, quiet=True)
            first, second, whole = (
                open_volume(out / f"{one}.mrc").source.read() for one in ("half-1", "half-2", "average")
            )
            averages.append(whole)
            curves.append(dtomo.subtomo.half_curve(first, second, pixel_size=8.0).unmasked)
    middle = truth.reference.shape[0] // 2
    names = "the map", "one particle", "average, poses 15° off", "average, true poses"
    with rc_context(STYLE):
        figure = new_figure(10, 6)
        axes = figure.subplot_mosaic([["0", "1", "2", "3"], ["curve"] * 4], height_ratios=(1, 0.9))
        for key, name, image in zip("0123", names, (truth.reference, particle, *averages)):
            show_slice(axes[key], image[middle], gray_range([image[middle]], 1, 99.5), name)
        for curve, name, color in zip(curves, names[2:], ("#b35900", "#2f6f9f")):
            axes["curve"].plot(curve.frequency, np.asarray(curve.correlation), color=color, label=name)
        axes["curve"].axhline(0.143, color="#7b8794", linewidth=0.8)
        axes["curve"].set(xlabel="spatial frequency [1/Å]", ylabel="FSC of the halves", ylim=(-0.2, 1.05))
        axes["curve"].legend()
        target = folder / "gallery-subtomograms.webp"
        figure.savefig(target, dpi=80, pil_kwargs={"quality": 80})
    return target


if __name__ == "__main__":
    print(main(Path(sys.argv[1] if len(sys.argv) > 1 else "docs/pictures")))
