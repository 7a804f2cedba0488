"""Ptychography beside other packages: ``python -m benchmarks.ptycho [--frames siemens-star-small.npz.bz2]``.

All get the same frames, positions, first probe and number of epochs, one after another in one run. The unit of time is
the floor of an epoch: one forward and one inverse FFT of every frame (SciPy, complex64, all cores). What is compared
is the amplitude residual, sum((s |F| - sqrt(I))²) / sum(I) with the best scale s, since objects of different packages
differ by what the data cannot tell.
"""

import argparse
import bz2
import io
import json
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import scipy.fft
from numpy.typing import NDArray

from benchmarks import environment
from benchmarks.measure import table
from benchmarks.ptycho_own import OWN
from benchmarks.ptycho_peers import PEERS

Scan = tuple[NDArray[np.float32], NDArray[np.float64], NDArray[np.complex64]]
"""Intensities with frequency zero at [0, 0], positions (row, column) in object pixels about 0, first probe."""


def measured(path: Path) -> Scan:
    """A scan in an archive such as Tike's: data, scan and probe, plain or compressed with bzip2."""
    content = path.read_bytes()
    archive = np.load(io.BytesIO(bz2.decompress(content) if path.suffix == ".bz2" else content))
    probe = archive["probe"]
    return archive["data"][0], archive["scan"][0].astype(np.float64), probe.reshape(-1, *probe.shape[-2:])[0]


def simulated(count: int, width: int) -> Scan:
    """A noiseless scan at whole positions of an object of smooth noise; the first probe is out of focus."""
    random = np.random.default_rng(0)
    side, step = int(np.ceil(count**0.5)), width // 10
    places = np.stack(np.divmod(np.arange(count), side), 1) * step
    places += random.integers(-step // 4, step // 4 + 1, places.shape)
    corners = places - places.min(0)
    f2 = np.add.outer(np.fft.fftfreq(width) ** 2, np.fft.fftfreq(width) ** 2)
    focused = np.fft.fft2(np.fft.fftshift(np.fft.ifft2(f2 < 0.12**2)))
    probe, guess = (np.fft.ifft2(focused * np.exp(-1j * np.pi * z * f2)) for z in (7 * width, 8.2 * width))
    shape = corners.max(0) + width
    q2 = np.add.outer(np.fft.fftfreq(shape[0]) ** 2, np.fft.fftfreq(shape[1]) ** 2)
    parts = np.fft.ifft2(np.fft.fft2(random.standard_normal((2, *shape))) * np.exp(-300 * q2)).real
    parts /= np.abs(parts).max((1, 2), keepdims=True)
    image = (0.8 + 0.2 * parts[0]) * np.exp(1.5j * parts[1])
    views = np.stack([image[r : r + width, c : c + width] for r, c in corners])
    frames = np.abs(np.fft.fft2(probe * views, norm="ortho")) ** 2
    scale = 1e6 / frames.sum((1, 2)).mean()
    positions = corners - (shape - width) / 2
    return (frames * scale).astype(np.float32), positions, (guess * scale**0.5).astype(np.complex64)


def bare_ffts(frames: NDArray[np.float32], repeats: int = 7) -> float:
    """Seconds for one forward and one inverse FFT of every frame, all cores: the least of some runs."""
    waves, samples = frames.astype(np.complex64), []
    for _ in range(repeats):
        start = time.perf_counter()
        scipy.fft.ifft2(scipy.fft.fft2(waves, workers=environment.cores()), workers=environment.cores())
        samples.append(time.perf_counter() - start)
    return min(samples)


def residual(frames: NDArray[np.float32], amplitudes: Iterable[NDArray[np.float32]]) -> float:
    """The amplitude residual (see above)."""
    cross = power = 0.0
    for frame, amplitude in zip(frames, amplitudes, strict=True):
        cross += float((amplitude * np.sqrt(frame)).sum(dtype=np.float64))
        power += float((amplitude.astype(np.float64) ** 2).sum())
    return 1 - cross**2 / power / float(frames.sum(dtype=np.float64))


def compare(scan: Scan, names: list[str], epochs: int) -> tuple[float, list[dict[str, Any]]]:
    """The floor in seconds, and a row for each package that is installed."""
    frames, positions, probe = scan
    everyone = {name: ("dtomo", run) for name, run in OWN.items()} | PEERS
    rows: list[dict[str, Any]] = []
    floors = [bare_ffts(frames)]
    for name in names:
        package, run = everyone[name]
        try:
            amplitudes, seconds = run(frames, positions, probe, epochs)
        except ImportError as error:
            print(f"{name}: not installed ({error})", flush=True)
            continue
        rows.append({"engine": name, "seconds": seconds, "residual": residual(frames, amplitudes)})
        rows[-1] |= environment.versions([package])
        floors.append(bare_ffts(frames))
        print(f"{name}: {seconds:.3f} s per epoch, residual {rows[-1]['residual']:.4f}", flush=True)
    return min(floors), rows


def report(floor: float, rows: list[dict[str, Any]]) -> str:
    """A table; ratios to the bare FFTs."""
    head = ["engine", "s per epoch", "× bare FFTs", "residual"]
    return table(
        head,
        [
            [row["engine"], f"{row['seconds']:.4f}", f"{row['seconds'] / floor:.2f}", f"{row['residual']:.4f}"]
            for row in rows
        ],
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--frames", type=Path, help="archive with data, scan and probe; default: a simulated scan")
    parser.add_argument("--count", type=int, default=256, help="frames of the simulated scan")
    parser.add_argument("--width", type=int, default=128, help="of a simulated frame")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--engines", nargs="*", default=[*OWN, *PEERS], choices=[*OWN, *PEERS])
    parser.add_argument("--cores", type=int, help="threads of every package; default all")
    parser.add_argument("--json", type=Path, help="also write what was measured here")
    parser.add_argument("--quick", action="store_true", help="a tiny scan, to see that it works")
    chosen = parser.parse_args()
    environment.restart_clean(chosen.cores)
    if chosen.quick:
        chosen.count, chosen.width, chosen.epochs = 36, 32, 2
    scan = measured(chosen.frames) if chosen.frames else simulated(chosen.count, chosen.width)
    count, rows, columns = scan[0].shape
    print(f"{environment.processor()}, {environment.cores()} threads; {count} frames of {rows} x {columns}", flush=True)
    floor, results = compare(scan, chosen.engines, chosen.epochs)
    print(f"bare FFTs of an epoch: {floor:.4f} s; {chosen.epochs} epochs\n\n{report(floor, results)}")
    if chosen.json:
        content = {"machine": environment.describe(["numpy", "scipy"]), "bare_ffts": floor, "engines": results}
        chosen.json.write_text(json.dumps(content, indent=1))


if __name__ == "__main__":
    main()
