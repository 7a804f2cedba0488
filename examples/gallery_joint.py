"""Joint ptycho-tomography: δ in three planes of a simulated volume, true and found.

python examples/gallery_joint.py [FOLDER]    # writes FOLDER/gallery-joint.webp
"""

import sys
import tempfile
from pathlib import Path

from matplotlib import rc_context

import dtomo
from dtomo.report.draw import STYLE, gray_range, new_figure, show_slice
from dtomo.simulate.ptychotomo import simulate_ptychotomo


def main(folder: Path) -> Path:
    """Simulate 24 angles with 36 frames each, reconstruct them in 20 epochs, and draw the planes."""
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "joint.h5"
        truth = simulate_ptychotomo(path, size=32, angles=24, step=3)
        found = dtomo.ptychotomo.reconstruct(dtomo.ptychotomo.open(path), epochs=20, support=11.0)
    volumes = {"true δ": -truth.volume.real / truth.wavenumber, "δ found": found.delta}
    shown = list(volumes.values())
    with rc_context(STYLE):
        figure = new_figure(8, 5.6)
        for line, (name, volume) in zip(figure.subplots(2, 3), volumes.items()):
            middle = [size // 2 for size in volume.shape]
            show_slice(line[0], volume[middle[0]], gray_range(shown), f"{name}: z = {middle[0]}", ("y", "x"))
            show_slice(line[1], volume[:, middle[1]], gray_range(shown), f"y = {middle[1]}", ("z", "x"))
            show_slice(line[2], volume[:, :, middle[2]], gray_range(shown), f"x = {middle[2]}", ("z", "y"))
        target = folder / "gallery-joint.webp"
        figure.savefig(target, dpi=80, pil_kwargs={"quality": 80})
    return target


if __name__ == "__main__":
    print(main(Path(sys.argv[1] if len(sys.argv) > 1 else "docs/pictures")))
