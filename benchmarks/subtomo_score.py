"""The score of a particle at many rotations: its cost in units of its FFTs, and beside plain SciPy.

``python -m benchmarks.subtomo_score [--sizes 24 48 64 100] [--rotations 20] [--threads 1] [--json FILE]``

The definition of the score asks, for each rotation and a spherical mask, for four real transforms of the box: of the
turned reference, back after its wedge, of the masked reference, and back to the scores. The first column of ratios is
the time of a rotation over that of four such transforms by SciPy on one thread of the same machine; the second is over
the two (cut) transforms that are really made. "SciPy" is the same score by `scipy.ndimage.affine_transform` (cubic) and
`scipy.fft`, with what does not depend on the rotation done once.

Times are of the processor (all threads), the least of several runs: other work on the machine does not count.
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import scipy.fft
import scipy.ndimage
from scipy.spatial.transform import Rotation

from benchmarks.measure import number, table, write_json
from dtomo.geometry.wedge import Wedge
from dtomo.kernels import matching_parts as parts
from dtomo.kernels.matching import Prepared, Reference
from dtomo.threads import using_threads

SHIFT = np.array([-1, 0, 1])
"""Of the particle, voxels (z, y, x)."""

MASK_RADIUS = 0.4
"""Of the side."""


def least(function: Callable[[], object], repeats: int = 7) -> float:
    """Milliseconds of processor time, after one run that does not count."""
    function()
    times = []
    for _ in range(repeats):
        start = time.process_time()
        function()
        times.append(time.process_time() - start)
    return min(times) * 1e3


class PlainScipy:
    """FLCF of a particle by SciPy alone, in single precision, spherical mask."""

    def __init__(self, volume: np.ndarray, mask: np.ndarray, particle: np.ndarray, weights: np.ndarray) -> None:
        self.shape, self.mask, self.weights = volume.shape, mask, weights
        self.coefficients = scipy.ndimage.spline_filter(volume, 3, output=np.float32)
        self.total = mask.sum(dtype=float)
        self.spectrum = scipy.fft.rfftn(particle) * weights
        filtered = self._back(self.spectrum)
        window = np.conj(scipy.fft.rfftn(mask))
        means = self._back(self.spectrum * window) / self.total
        squares = self._back(scipy.fft.rfftn(filtered**2) * window) / self.total
        self.deviations = np.sqrt(np.maximum(squares - means**2, 1e-9))

    def _back(self, spectrum: np.ndarray) -> np.ndarray:
        return scipy.fft.irfftn(spectrum, s=self.shape)

    def best(self, matrix: np.ndarray) -> tuple[float, np.ndarray]:
        """Score and shift (x, y, z) of the highest voxel; lags are those of the mask about the center."""
        back = matrix.T[::-1, ::-1]
        middle = np.array([n // 2 for n in self.shape])
        turned = scipy.ndimage.affine_transform(
            self.coefficients, back, middle - back @ middle, order=3, prefilter=False, output=np.float32
        )
        turned = self._back(scipy.fft.rfftn(turned) * self.weights)
        mean = (self.mask * turned).sum(dtype=float) / self.total
        deviation = np.sqrt((self.mask * turned**2).sum(dtype=float) / self.total - mean**2)
        template = self.mask * ((turned - np.float32(mean)) / np.float32(deviation))
        scores = self._back(self.spectrum * np.conj(scipy.fft.rfftn(template))) / (self.total * self.deviations)
        place = np.array(np.unravel_index(scores.argmax(), self.shape))
        shift = (place + np.array(self.shape) // 2) % self.shape - np.array(self.shape) // 2
        return float(scores.max()), shift[::-1]


def case(size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Volume, mask, particle, weights, rotations: smooth noise within a ball; the first rotation is the true one."""
    grid = np.indices((size,) * 3) - size // 2
    radius = np.sqrt((grid**2).sum(0))
    noise = scipy.ndimage.gaussian_filter(np.random.default_rng(1).standard_normal((size,) * 3), 1.5)
    volume = (noise / noise.std() * np.clip(0.33 * size - radius, 0, 3) / 3).astype(np.float32)
    mask = np.clip(MASK_RADIUS * size - radius, 0, 1).astype(np.float32)
    turns = Rotation.random(50, random_state=2).as_matrix()
    back, middle = turns[0].T[::-1, ::-1], np.full(3, size // 2)
    particle = scipy.ndimage.affine_transform(volume, back, middle - back @ (middle + SHIFT), order=3)
    return volume, mask, particle.astype(np.float32), Wedge((-60, 60)).weights((size,) * 3), turns


def own_transforms(reference: Reference, prepared: Prepared) -> float:
    """Milliseconds of the two cut transforms that a rotation makes."""
    width = reference.shape[2]
    deep, high = (cut.stop - cut.start for cut in reference.slab)
    turned = np.repeat(prepared.filters[None], 1, 0)
    volumes = parts.backward_part(turned.copy(), deep, high, width)
    back = least(lambda: parts.backward_part(turned, deep, high, width), 30)
    return back + least(lambda: parts.forward_part(volumes, reference.shape, reference.columns), 30)


def measure(size: int, count: int, max_shift: float, cutoff: float) -> dict[str, float]:
    """One row: milliseconds for each rotation, and ratios."""
    volume, mask, particle, weights, turns = case(size)
    band = (None, cutoff) if cutoff < 0.5 else (None, None)
    reference = Reference(volume, mask, band=band, max_shift=max_shift)
    prepared = reference.prepare(particle, weights)
    plain = PlainScipy(volume, mask, particle, weights)
    match = reference.match(prepared, turns[:1])
    score, shift = plain.best(turns[0])
    ours = least(lambda: reference.scores(prepared, turns[:count])) / count
    fft = least(lambda: scipy.fft.rfftn(volume), 30)
    fft = (fft + least(lambda: scipy.fft.irfftn(plain.spectrum, s=volume.shape), 30)) / 2
    peer = least(lambda: [plain.best(turn) for turn in turns[: max(count // 4, 1)]], 3) / max(count // 4, 1)
    return {
        "size": size, "max_shift": max_shift, "cutoff": cutoff, "own": ours, "fft": fft, "scipy": peer,
        "of_four_ffts": ours / (4 * fft), "of_own_ffts": ours / own_transforms(reference, prepared),
        "scipy_over_own": peer / ours, "score_difference": abs(match.score - score),
        "shift_difference": float(np.linalg.norm(match.shift - shift)),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[24, 48, 64, 100])
    parser.add_argument("--rotations", type=int, default=20)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    rows = []
    with using_threads(arguments.threads):
        for size in arguments.sizes:
            rows += [measure(size, arguments.rotations, size / 8, cutoff) for cutoff in (0.5, 0.25)]
    head = [
        "box",
        "max shift",
        "band",
        "ms a rotation",
        "ms an FFT",
        "in 4 FFTs",
        "in own FFTs",
        "SciPy, ms",
        "SciPy / own",
    ]
    keys = ["size", "max_shift", "cutoff", "own", "fft", "of_four_ffts", "of_own_ffts", "scipy", "scipy_over_own"]
    print(table(head, [[number(row[key]) for key in keys] for row in rows]))
    worst = max(row["score_difference"] for row in rows if row["cutoff"] == 0.5)
    print(f"\nat the true rotation, without a band, the scores of both differ by {worst:.2g} at most")
    write_json(arguments.json, ["numpy", "scipy", "numba"], rows=rows)


if __name__ == "__main__":
    main()
