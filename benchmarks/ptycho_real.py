"""A measured scan through the command line: ``python -m benchmarks.ptycho_real siemens-star-small.npz.bz2 OUT.h5``.

The archive is unpacked, ``dtomo ptycho`` reconstructs it and two halves of its frames, and the residual, the ring
correlation of the halves and where the pictures are is printed.
"""

import argparse
import bz2
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks import environment
from benchmarks.ptycho import measured, residual
from dtomo.algorithms.resolution import resolution
from dtomo.io.ptycho.results import read_results
from dtomo.ptycho.model import PtychoModel


def main() -> None:
    """Reconstruct and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("scan", type=Path, help="archive with data, scan and probe (.npz, .npz.bz2)")
    parser.add_argument("output", type=Path)
    parser.add_argument("options", nargs=argparse.REMAINDER, help="of dtomo ptycho")
    chosen = parser.parse_args()
    environment.restart_clean()
    with tempfile.TemporaryDirectory() as folder:
        scan = Path(folder) / "scan.npz"
        content = chosen.scan.read_bytes()
        scan.write_bytes(bz2.decompress(content) if chosen.scan.suffix == ".bz2" else content)
        command = [sys.executable, "-m", "dtomo", "ptycho", str(scan), str(chosen.output), "--frc"]
        start = time.perf_counter()
        subprocess.run([*command, *chosen.options], check=True)
        print(f"{time.perf_counter() - start:.0f} s, with two half-scans")
        frames, _, _ = measured(scan)
    result = read_results(chosen.output)
    model = PtychoModel(frames.shape[1:])
    given = {"object": result.object, "probe": result.probe, "positions": result.positions}
    given |= {name: value for name in ("background", "scale") if (value := getattr(result, name)) is not None}
    amplitudes = model.intensities(given, np.arange(len(frames))) ** 0.5
    print(f"amplitude residual {residual(frames, amplitudes):.4f} after {len(result.history)} epochs")
    assert result.frc is not None
    for threshold in ("half-bit", 0.5, 0.143):
        crossing = resolution(result.frc, threshold)
        print(f"halves correlate to {crossing.frequency / result.frc.nyquist:.2f} of Nyquist ({threshold})")


if __name__ == "__main__":
    main()
