"""How near ptychography comes to the truth: ``python -m benchmarks.ptycho_accuracy``.

A scan is simulated (two probe modes, photon noise), written as CXI, opened like any other and reconstructed, once with
the positions as they are and once with positions that are wrong. Object and positions are compared with the truth
after what the data cannot tell was taken off: a factor, a phase ramp and a common shift.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import environment
from dtomo import ptycho
from dtomo.algorithms.resolution import fourier_correlation, resolution
from dtomo.ptycho.curvatures import illumination
from dtomo.ptycho.gauge import aligned, error, position_error
from dtomo.simulate.ptycho import PtychoTruth, simulate_ptycho

LIT = 0.5
"""Light, as part of its median under the scan, from which on a pixel of the object is compared."""
REFINE_FROM = 5
"""Epoch from which on positions move."""


def main() -> None:
    """Simulate, reconstruct, compare, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=int, default=128, help="of a frame")
    parser.add_argument("--positions", type=int, default=400)
    parser.add_argument("--modes", type=int, default=2)
    parser.add_argument("--photons", type=float, default=1e5, help="per frame")
    parser.add_argument("--overlap", type=float, default=0.85, help="of neighbouring frames, in diameters of the probe")
    parser.add_argument("--position-error", type=float, default=3.0, help="pixels, root mean square")
    parser.add_argument("--loss", default="poisson")
    parser.add_argument("--epochs", type=int, nargs=2, default=[120, 150], help="true positions, wrong positions")
    parser.add_argument("--only", choices=["object", "positions"])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="also write what came out here")
    parser.add_argument("--quick", action="store_true", help="a small scan, to see that it works")
    chosen = parser.parse_args()
    environment.restart_clean()
    if chosen.quick:
        chosen.size, chosen.positions, chosen.modes, chosen.epochs, chosen.position_error = 48, 80, 1, [30, 60], 1.0
    found = {}
    for part, wrong in (("object", 0.0), ("positions", chosen.position_error)):
        if chosen.only in (None, part):
            found[part] = compare(chosen, wrong)
            print(f"{part}: {describe(found[part])}", flush=True)
    if chosen.json:
        chosen.json.write_text(json.dumps({"machine": environment.describe(["numpy"]), **found}, indent=1))


def compare(chosen: argparse.Namespace, wrong: float) -> dict[str, Any]:
    """Simulate with positions that are wrong by so many pixels, reconstruct, compare with the truth."""
    with tempfile.TemporaryDirectory() as folder:
        truth = simulate_ptycho(
            Path(folder) / "scan.cxi",
            size=chosen.size,
            positions=chosen.positions,
            modes=chosen.modes,
            photons=chosen.photons,
            overlap=chosen.overlap,
            position_error=wrong,
            seed=chosen.seed,
        )
        start = time.perf_counter()
        result = ptycho.reconstruct(
            ptycho.open(truth.path),
            engine="adam" if wrong else "cg",
            loss=chosen.loss,
            epochs=chosen.epochs[bool(wrong)],
            modes=chosen.modes,
            refine="positions" if wrong else "",
            refine_from=REFINE_FROM if wrong else 0,
            frc=not wrong,
        )
        seconds = time.perf_counter() - start
    image, true, lit = on_one_grid(result, truth)
    found = {
        "seconds": seconds,
        "object_error": error(image, true, lit),
        "positions_before": position_error(truth.stated_positions, truth.positions),
        "positions_after": position_error(result.positions, truth.positions),
        "positions_after_affine": position_error(result.positions, truth.positions, affine=True),
    }
    rows, columns = (slice(*np.flatnonzero(lit.any(axis=axis))[[0, -1]]) for axis in (1, 0))
    curves = {"truth": fourier_correlation(aligned(image, true, lit)[rows, columns], true[rows, columns])}
    if result.frc is not None:
        curves["halves"] = result.frc
    for name, curve in curves.items():
        crossing = resolution(curve, "half-bit" if name == "halves" else 0.5)
        found[f"frc_{name}_of_nyquist"] = float(crossing.frequency / curve.nyquist)
    return found


def on_one_grid(
    result: Any, truth: PtychoTruth
) -> tuple[NDArray[np.complex64], NDArray[np.complex64], NDArray[np.bool_]]:
    """Object, the true one in its place (to a pixel), and where there was light."""
    image = result.object[0, 0]
    offset = np.rint((result.positions - truth.positions).mean(axis=0)).astype(int)
    true = np.ones(image.shape, np.complex64)
    there = np.zeros(image.shape, bool)
    first, last = np.maximum(offset, 0), np.minimum(offset + truth.object.shape, image.shape)
    inside = slice(first[0], last[0]), slice(first[1], last[1])
    true[inside] = truth.object[first[0] - offset[0] : last[0] - offset[0], first[1] - offset[1] : last[1] - offset[1]]
    there[inside] = True
    light = illumination({"object": result.object, "probe": result.probe, "positions": result.positions})
    return image, true, there & (light > LIT * np.median(light[light > 1e-3 * light.max()]))


def describe(found: dict[str, Any]) -> str:
    """One line."""
    line = f"object error {found['object_error']:.4f}, {found['seconds']:.0f} s"
    if found["positions_before"]:
        line += (
            f"; positions wrong by {found['positions_before']:.2f} pixels, then {found['positions_after']:.3f} "
            f"({found['positions_after_affine']:.3f} but for an affine map)"
        )
    for name in ("truth", "halves"):
        if f"frc_{name}_of_nyquist" in found:
            line += f"; FRC with {name} to {found[f'frc_{name}_of_nyquist']:.2f} of Nyquist"
    return line


if __name__ == "__main__":
    main()
