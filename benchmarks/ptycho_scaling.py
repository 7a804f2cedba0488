"""Ptychography on workers: ``python -m benchmarks.ptycho_scaling [scaling|streaming]``.

scaling: seconds per epoch of a gradient solver (Adam on all frames) on 1, 2, … workers of one thread each, with an
object of 1024 × 1024, whole on every worker and cut into tiles (--tile rows); results are compared bit for bit.
streaming: frames that are several times what the workers may hold together, read from disk in every epoch; the peak
memory of each worker beside its limit.
"""

import argparse
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import scipy.fft
from numpy.typing import NDArray

from benchmarks import environment
from benchmarks.measure import number, table, write_json

MOST_COUNTS = 2000
"""In a pixel."""


def raster(side: int, width: int, size: int) -> NDArray[np.float64]:
    """side × side positions over an object of `size`² pixels, a little uneven, between whole pixels."""
    places = np.linspace(2, size - width - 2, side)
    grid = np.stack(np.meshgrid(places, places, indexing="ij"), -1).reshape(-1, 2)
    return grid + np.random.default_rng(0).uniform(-1.5, 1.5, grid.shape)


def shifted(probe: NDArray[np.complex64], parts: NDArray[np.float64]) -> NDArray[Any]:
    """The probe moved by fractions of a pixel, for each frame."""
    f = np.fft.fftfreq(probe.shape[-1])
    rows, columns = (np.exp(-2j * np.pi * part[:, None] * f) for part in parts.T)
    return np.fft.ifft2(np.fft.fft2(probe) * rows[:, :, None] * columns[:, None, :])


def first_probe(width: int) -> NDArray[np.complex64]:
    """A disk out of focus."""
    f2 = np.add.outer(np.fft.fftfreq(width) ** 2, np.fft.fftfreq(width) ** 2)
    probe = np.fft.fftshift(np.fft.ifft2((f2 < 0.15**2) * np.exp(-1j * np.pi * 4 * width * f2)))
    return (probe / np.abs(probe).max()).astype(np.complex64)


def smooth_object(size: int) -> NDArray[np.complex64]:
    """Amplitude and phase of smooth noise."""
    f2 = np.add.outer(np.fft.fftfreq(size) ** 2, np.fft.fftfreq(size) ** 2)
    noise = np.random.default_rng(1).standard_normal((2, size, size))
    parts = np.fft.ifft2(np.fft.fft2(noise) * np.exp(-200 * f2)).real
    parts /= np.abs(parts).max((1, 2), keepdims=True)
    return ((0.8 + 0.2 * parts[0]) * np.exp(1.5j * parts[1])).astype(np.complex64)


def write_scan(path: Path, side: int, width: int, size: int) -> tuple[Any, dict[str, Any]]:
    """Frames (uint16, frequency zero in the middle) in an HDF5 file, and first guesses."""
    from dtomo.io.sources import HDF5Source
    from dtomo.ptycho.frames import to_detector_order

    positions, probe, image = raster(side, width, size), first_probe(width), smooth_object(size)
    shape = (len(positions), width, width)
    scale = 0.0
    with h5py.File(path, "w") as file:
        frames = file.create_dataset("frames", shape, np.uint16, chunks=(1, width, width))
        for first in range(0, len(positions), 128):
            some = positions[first : first + 128]
            corners = np.floor(some).astype(int)
            views = np.stack([image[r : r + width, c : c + width] for r, c in corners])
            waves = (shifted(probe, some - corners) * views).astype(np.complex64)
            counts = np.abs(scipy.fft.fft2(waves, norm="ortho", workers=environment.cores())) ** 2
            scale = scale or MOST_COUNTS / float(counts.max())
            frames[first : first + 128] = to_detector_order(np.minimum(np.round(counts * scale), 65535))
    parameters = {
        "object": np.ones((1, 1, size, size), np.complex64),
        "probe": (probe * scale**0.5)[None],
        "positions": positions,
    }
    return HDF5Source(path, "/frames", shape, np.dtype(np.uint16)), parameters


def solver(source: Any) -> Any:
    """Adam on all frames."""
    from dtomo.ptycho.engines.adam import Adam
    from dtomo.ptycho.model import PtychoModel

    return Adam(model=PtychoModel(source.shape[1:]), batch=None)


def run_on(
    workers: int, memory: int, source: Any, parameters: dict[str, Any], epochs: int, tile: int | None = None
) -> dict[str, Any]:
    """Seconds of each epoch, the result, and the peaks of the workers."""
    from dtomo.distributed.clusters import Resources, connect
    from dtomo.ptycho.driver import run
    from dtomo.recon.slab import peak_memory

    seconds: list[float] = []
    with connect(Resources(workers, 1, memory, dashboard=None)) as client:
        result = run(
            solver(source),
            source,
            parameters,
            epochs,
            client=client,
            tile=tile,
            on_epoch=lambda report: seconds.append(report.seconds),
        )
        peaks = sorted(client.run(peak_memory).values(), reverse=True)
    return {"seconds": seconds, "result": result, "peaks": peaks}


def scaling(chosen: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Seconds per epoch on more and more workers."""
    side, width, size, tile = (8, 32, 128, 64) if chosen.quick else (45, 128, 1024, chosen.tile)
    epochs = 4 if chosen.quick else 2 + chosen.epochs
    source, parameters = write_scan(folder / "scaling.h5", side, width, size)
    lines, rows = [], []
    for name, height in (("whole", None), (f"tiles of {tile} rows", tile)):
        one: dict[str, Any] | None = None
        for workers in chosen.workers:
            found = run_on(workers, 2 * 10**9, source, parameters, epochs, height)
            one = one or found
            medians = [statistics.median(run["seconds"][2:]) for run in (one, found)]  # after compilation and reading
            same = all(
                np.asarray(found["result"].parameters[name]).tobytes() == np.asarray(value).tobytes()
                for name, value in one["result"].parameters.items()
            )
            gain = medians[0] / medians[1]
            rows.append({"object": name, "workers": workers, "seconds": medians[1], "gain": gain, "same": same})
            lines.append([name, str(workers), number(medians[1]), f"{gain:.2f}", "yes" if same else "NO"])
    print(f"{side**2} frames of {width} × {width}, object {size} × {size}, Adam on all frames", flush=True)
    head = ["object", "workers", "s per epoch", f"times {chosen.workers[0]} worker", "same bits"]
    print(table(head, lines), flush=True)
    return {"rows": rows, "good": all(row["same"] for row in rows)}


def streaming(chosen: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Peaks of workers that hold a part of the frames."""
    side, width, size, limit = (10, 64, 256, 600) if chosen.quick else (chosen.side, 256, 1280, chosen.memory)
    source, parameters = write_scan(folder / "streaming.h5", side, width, size)
    found = run_on(2, limit * 10**6, source, parameters, 3)
    whole = int(np.prod(source.shape)) * 2
    falls = bool(found["result"].losses[-1] < found["result"].losses[0])
    within = max(found["peaks"]) <= limit * 10**6 and found["result"].setbacks == 0
    head = ["frames, GB", "limit of each worker, MB", "peaks of workers, MB", "s per epoch", "loss falls"]
    peaks = ", ".join(number(peak / 1e6) for peak in found["peaks"])
    seconds = number(statistics.median(found["seconds"][1:]))
    print(table(head, [[f"{whole / 1e9:.2f}", str(limit), peaks, seconds, str(falls)]]), flush=True)
    print(f"every worker {'within' if within else 'BEYOND'} its limit", flush=True)
    return {"bytes": whole, "limit": limit * 10**6, "peaks": found["peaks"], "good": within and falls}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="*", help="scaling, streaming; default both")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--epochs", type=int, default=5, help="epochs measured")
    parser.add_argument("--tile", type=int, default=448, help="rows of a tile of the object")
    parser.add_argument("--side", type=int, default=124, help="frames along a side of the streamed scan")
    parser.add_argument("--memory", type=int, default=600, help="limit of each worker that streams, in MB")
    parser.add_argument("--folder", type=Path, help="work here; default a temporary folder")
    parser.add_argument("--json", type=Path, help="also write what was measured here")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that it works")
    chosen = parser.parse_args()
    environment.restart_clean()
    sections = {"scaling": scaling, "streaming": streaming}
    names = chosen.sections or list(sections)
    for name in names:
        if name not in sections:
            parser.error(f"sections are {', '.join(sections)}, not {name}")
    print(f"{environment.processor()}, {environment.cores()} threads", flush=True)
    with tempfile.TemporaryDirectory(dir=chosen.folder) as temporary:
        found = {name: sections[name](chosen, Path(temporary)) for name in names}
    write_json(chosen.json, ["numba", "numpy", "dask", "distributed", "h5py"], **found)
    sys.exit(0 if all(section["good"] for section in found.values()) else 1)


if __name__ == "__main__":
    main()
