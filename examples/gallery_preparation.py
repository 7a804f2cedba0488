"""Raw counts, a sinogram with stripes, and a slice with and without what preparation takes away.

python examples/gallery_preparation.py [FOLDER]    # writes FOLDER/gallery-preparation.webp
"""

import sys
import tempfile
from pathlib import Path

from matplotlib import rc_context

import dtomo
from dtomo import prep
from dtomo.report.draw import STYLE, gray_range, new_figure, show_slice

ROW = 4


def main(folder: Path) -> Path:
    """Simulate a scan of eight rows, prepare it twice, reconstruct one slice of each, and draw them."""
    with tempfile.TemporaryDirectory() as scratch:
        truth = dtomo.simulate.simulate_scan(Path(scratch) / "scan.h5", size=192, rows=8, seed=3)
        raw = dtomo.open(Path(scratch) / "scan.h5").read()
    geometry = dtomo.ParallelBeam(truth.angles, columns=truth.columns, center=truth.center)
    transmission, _ = prep.normalize(raw.projections, raw.flats, raw.darks)
    striped, _ = prep.minus_log(transmission)
    without, _ = prep.remove_outliers(transmission, threshold=0.2)
    clean = prep.remove_stripes(prep.minus_log(without)[0])
    slices = [dtomo.recon.fbp(one, geometry)[ROW] for one in (striped, clean)]

    counts, lines = raw.projections[0].astype(float), striped[:, ROW]
    with rc_context(STYLE):
        figure = new_figure(10, 7.2)
        axes = figure.subplots(2, 2, height_ratios=(1, 1.15))
        axes[0, 0].plot(counts[ROW], color="#2f6f9f")
        axes[0, 0].set(title="raw counts of one detector row", xlabel="column [pixel]", ylabel="counts")
        show_slice(
            axes[0, 1], lines, gray_range([lines]), "its sinogram: columns that answer differently", ("angle", "u")
        )
        for place, image, title in zip(axes[1], slices, ("slice without repairs: rings", "and with them")):
            show_slice(place, image, gray_range(slices[1:]), title)
        target = folder / "gallery-preparation.webp"
        figure.savefig(target, dpi=80, pil_kwargs={"quality": 80})
    return target


if __name__ == "__main__":
    print(main(Path(sys.argv[1] if len(sys.argv) > 1 else "docs/pictures")))
