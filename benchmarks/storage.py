"""Compression of what is really stored, and frames compressed whole: ``python -m benchmarks.storage``.

codecs   size, and seconds of processor time to write and to read, of candidate codecs on reconstructed volumes
         (through the OME-Zarr writer and reader) and on raw counts in bands (through the staging store), and what
         they come to on disks of 0.2 to 2 GB/s.
staging  ``dtomo recon`` of a scan with one compressed chunk per frame: directly, and staged; same bits.
ahead    slabs of a scan on disks throttled to some speed, read ahead and not.
"""

import argparse
import dataclasses
import fcntl
import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import hdf5plugin
import numpy as np
import zarr
from numpy.typing import NDArray
from zarr.abc.codec import BytesBytesCodec
from zarr.codecs import BloscCodec, GzipCodec, ZstdCodec

from benchmarks import environment
from benchmarks.measure import Row, number, table, write_json
from dtomo.io.sources import Frames, Source

CODECS: dict[str, BytesBytesCodec | None] = {
    "none": None,
    "lz4": BloscCodec(cname="lz4", clevel=1, shuffle="noshuffle"),
    "lz4, shuffle": BloscCodec(cname="lz4", clevel=1, shuffle="shuffle"),
    "lz4, shuffle, level 5": BloscCodec(cname="lz4", clevel=5, shuffle="shuffle"),
    "lz4, bitshuffle": BloscCodec(cname="lz4", clevel=1, shuffle="bitshuffle"),
    "blosclz, shuffle": BloscCodec(cname="blosclz", clevel=1, shuffle="shuffle"),
    "zstd 1, shuffle": BloscCodec(cname="zstd", clevel=1, shuffle="shuffle"),
    "zstd 1, bitshuffle": BloscCodec(cname="zstd", clevel=1, shuffle="bitshuffle"),
    "zstd 3, bitshuffle": BloscCodec(cname="zstd", clevel=3, shuffle="bitshuffle"),
    "zstd 5, bitshuffle": BloscCodec(cname="zstd", clevel=5, shuffle="bitshuffle"),
    "zstd 3": ZstdCodec(level=3),
    "gzip 1": GzipCodec(level=1),
}

LIMIT = 2.0
"""Seconds of processor time after which a measurement is not repeated again."""

PARTS = ("codecs", "staging", "ahead")

DISKS = (0.2e9, 0.5e9, 1.0e9, 2.0e9)
"""Bytes per second of the disks that the choice is for."""


def spent(function: Callable[[], Any], repeats: int) -> tuple[Any, float]:
    """Result, and the least processor time of all threads in seconds; fewer runs if they take long."""
    samples: list[float] = []
    out = None
    while len(samples) < repeats and sum(samples) < LIMIT:
        start = time.process_time()
        out = function()
        samples.append(time.process_time() - start)
    return out, min(samples)


def scan_frames(size: int, rows: int) -> tuple[NDArray[np.uint16], NDArray[np.float32], NDArray[np.float64]]:
    """Raw counts (angle, row, column) with noise, their line integrals, and the angles in degrees."""
    from dtomo import io, prep
    from dtomo.simulate import simulate_scan

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "scan.h5"
        simulate_scan(path, size=size, rows=rows, angles=round(np.pi / 2 * size), photons=2e4)
        scan = io.open(path)
        raw = scan.read()
    values, _ = prep.normalize(raw.projections, raw.flats, raw.darks)
    values, _ = prep.minus_log(values, out=values)
    return raw.projections, prep.remove_stripes(values), scan.angles


def stored(size: int, rows: int) -> dict[str, NDArray[Any]]:
    """What is to be stored: a reconstructed volume (z, y, x), the same complex, and raw counts in a band."""
    from dtomo import recon
    from dtomo.geometry import ParallelBeam

    counts, values, angles = scan_frames(size, rows)
    geometry = ParallelBeam(angles, values.shape[2])
    volume = np.asarray(recon.fbp(values, geometry))
    blurred = np.asarray(recon.fbp(values, geometry, filter="hann"))
    first = (values.shape[2] - size) // 2
    volume, blurred = (
        np.ascontiguousarray(v[:, first : first + size, first : first + size]) for v in (volume, blurred)
    )
    complex_volume = (-10 * volume + 1j * blurred).astype(np.complex64)
    return {"volume, float32": volume, "volume, complex64": complex_volume, "counts, uint16": counts}


def write_volume(folder: Path, data: NDArray[Any], codec: BytesBytesCodec | None) -> Path:
    """Through the writer of OME-Zarr, without coarser levels."""
    from dtomo.io.ome_zarr import OmeZarrWriter

    writer = OmeZarrWriter.create(
        folder / "v.zarr",
        (data.shape[0], data.shape[1], data.shape[2]),
        data.dtype,
        slab=64,
        voxel_size_um=None,
        origin_um=(0, 0, 0),
        attributes={},
        levels=1,
        compressor=codec,
    )
    for start in range(0, len(data), 64):
        writer.write_slab(start, data[start : start + 64])
    return writer.finish()


def read_volume(path: Path) -> NDArray[Any]:
    """Level 0, slab by slab."""
    array = zarr.open_array(path / "0", mode="r")
    out = np.empty(array.shape, array.dtype)
    for start in range(0, len(out), 64):
        out[start : start + 64] = array[start : start + 64]
    return out


def write_counts(folder: Path, data: NDArray[Any], codec: BytesBytesCodec | None) -> Path:
    """As staging does: blocks of frames, cut into bands of rows."""
    path = folder / "staged"
    frames, band = 32, 64
    array = zarr.create_array(
        path,
        shape=data.shape,
        dtype=data.dtype,
        chunks=(frames, band, data.shape[2]),
        compressors=codec,
        overwrite=True,
    )
    for first in range(0, data.shape[0], frames):
        for row in range(0, data.shape[1], band):
            array[first : first + frames, row : row + band] = data[first : first + frames, row : row + band]
    return path


def read_counts(path: Path) -> NDArray[Any]:
    """Block by block."""
    array = zarr.open_array(path, mode="r")
    out, step = np.empty(array.shape, array.dtype), array.chunks[0]
    for first in range(0, len(out), step):
        out[first : first + step] = array[first : first + step]
    return out


def measure_codecs(size: int, rows: int, repeats: int, folder: Path) -> list[Row]:
    """A row for each kind of data and codec."""
    found: list[Row] = []
    for kind, data in stored(size, rows).items():
        write, read = (write_counts, read_counts) if kind.startswith("counts") else (write_volume, read_volume)
        for name, codec in CODECS.items():
            path, writing = spent(partial(write, folder, data, codec), repeats)
            back, reading = spent(partial(read, path), repeats)
            if back.tobytes() != data.tobytes():
                raise SystemExit(f"{kind}, {name}: what was read is not what was written")
            ratio = sum(file.stat().st_size for file in path.rglob("*") if file.is_file()) / data.nbytes
            shutil.rmtree(path)
            found.append(
                {
                    "kind": kind,
                    "codec": name,
                    "ratio": ratio,
                    "write": writing / data.nbytes,
                    "read": reading / data.nbytes,
                }
            )
            print(
                f"  {kind}, {name}: {ratio:.3f}, {1e9 * found[-1]['write']:.2f} and {1e9 * found[-1]['read']:.2f} s/GB",
                flush=True,
            )
    return found


def regrets(rows: list[Row]) -> None:
    """Add to each row seconds per GB, written and read once on each disk, and how much that is over the best codec.

    The cores share the processor time, and all wait for the one disk; nothing is done at the same time.
    """
    for kind in dict.fromkeys(row["kind"] for row in rows):
        here = [row for row in rows if row["kind"] == kind]
        for row in here:
            row["wall"] = [
                1e9 * ((row["write"] + row["read"]) / environment.cores() + 2 * row["ratio"] / disk) for disk in DISKS
            ]
        best = [min(row["wall"][n] for row in here) for n in range(len(DISKS))]
        for row in here:
            row["regret"] = max(wall / least for wall, least in zip(row["wall"], best))


def codec_table(rows: list[Row]) -> str:
    """Size, times, and what they come to on the disks."""
    head = [
        "data",
        "codec",
        "size",
        "write, s/GB",
        "read, s/GB",
        *(f"on {disk / 1e9:g} GB/s" for disk in DISKS),
        "worst of best",
    ]
    return table(
        head,
        [
            [
                row["kind"],
                row["codec"],
                f"{row['ratio']:.2f}",
                number(1e9 * row["write"]),
                number(1e9 * row["read"]),
                *(number(wall) for wall in row["wall"]),
                f"{row['regret']:.2f}×",
            ]
            for row in rows
        ],
    )


FILTERS: dict[str, dict[str, Any]] = {
    "gzip": {"compression": "gzip", "compression_opts": 4, "shuffle": True},
    "bitshuffle": dict(hdf5plugin.Bitshuffle()),
}


def whole_frames(path: Path, counts: NDArray[np.uint16], angles: NDArray[np.float64], options: dict[str, Any]) -> None:
    """A Data Exchange scan with one compressed chunk per frame."""
    with h5py.File(path, "w") as file:
        file.create_dataset("/exchange/data", data=counts, chunks=(1, *counts.shape[1:]), **options)
        flats = np.full((4, *counts.shape[1:]), int(np.percentile(counts, 99)), np.uint16)
        file.create_dataset("/exchange/data_white", data=flats, chunks=(1, *counts.shape[1:]), **options)
        file.create_dataset(
            "/exchange/data_dark", data=np.zeros_like(flats[:2]), chunks=(1, *counts.shape[1:]), **options
        )
        file.create_dataset("/exchange/theta", data=angles).attrs["units"] = "degrees"


def digest(path: Path) -> str:
    """Of the voxels of level 0."""
    array = zarr.open_array(path / "0", mode="r")
    found = hashlib.sha256()
    for start in range(0, array.shape[0], 64):
        found.update(np.ascontiguousarray(array[start : start + 64]).tobytes())
    return found.hexdigest()


def measure_staging(size: int, rows: int, workers: int, folder: Path) -> list[Row]:
    """Runs of a scan of each filter, directly and staged."""
    import json

    from dtomo.recon import run
    from dtomo.settings import ReconSettings

    counts, _, angles = scan_frames(size, 64)
    counts = np.tile(counts, (1, -(-rows // 64), 1))[:, :rows]
    found: list[Row] = []
    for name, options in FILTERS.items():
        path = folder / f"{name}.h5"
        whole_frames(path, counts, angles, options)
        digests = set()
        for stage in ("no", "yes"):
            output = folder / "v.zarr"
            settings = ReconSettings(
                scan=path, output=output, center=(counts.shape[2] - 1) / 2, workers=workers, stage=stage
            )
            run(settings, overwrite=True, quiet=True)
            summary = json.loads((folder / "v.zarr.summary.json").read_text())
            digests.add(digest(output))
            found.append(
                {
                    "filter": name,
                    "stage": stage,
                    "seconds": summary["seconds"],
                    **summary["seconds_by_stage"],
                }
            )
            print(f"  {found[-1]}", flush=True)
        if len(digests) != 1:
            raise SystemExit(f"{name}: staged and direct volumes differ")
        path.unlink()
    return found


def staging_table(rows: list[Row]) -> str:
    """Seconds of whole runs and of their reading."""
    head = [
        "compression",
        "staged",
        "whole run, s",
        "reading in all tasks, s",
        "computing in all tasks, s",
    ]
    return table(
        head,
        [
            [
                row["filter"],
                row["stage"],
                number(row["seconds"]),
                number(row["reading"]),
                number(row["computing"]),
            ]
            for row in rows
        ],
    )


@dataclasses.dataclass(frozen=True)
class Throttled:
    """A source on a disk of so many bytes per second, which serves one reading after another."""

    base: Source
    speed: float
    lock: Path

    @property
    def shape(self) -> tuple[int, int, int]:
        """(frame, row, column)"""
        return self.base.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """As the base."""
        return self.base.dtype

    @property
    def location(self) -> str:
        """As the base."""
        return self.base.location

    def read(
        self, frames: Frames = slice(None), rows: slice = slice(None), columns: slice = slice(None)
    ) -> NDArray[Any]:
        """Wait as long as that disk would, alone with it."""
        with open(self.lock, "w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            start = time.perf_counter()
            found = self.base.read(frames, rows, columns)
            time.sleep(max(0.0, found.nbytes / self.speed - (time.perf_counter() - start)))
        return found


def measure_ahead(size: int, rows: int, workers: int, folder: Path) -> list[Row]:
    """Slabs of an uncompressed scan on slow disks, read ahead and not."""
    from dtomo import io
    from dtomo.distributed import clusters, queue
    from dtomo.distributed.slabs import cut
    from dtomo.recon.scans import geometry_of, open_scan
    from dtomo.recon.slab import Job, reconstruct_slab
    from dtomo.settings import ReconSettings
    from dtomo.simulate import simulate_scan

    simulate_scan(folder / "scan.h5", size=size, rows=rows, angles=round(np.pi / 2 * size), photons=2e4)
    settings = ReconSettings(scan=folder / "scan.h5", output=folder / "v.zarr", center=size / 2)
    scan = open_scan(settings)
    geometry = geometry_of(scan, size / 2, False)
    slabs = cut(rows, 16)
    found: list[Row] = []
    with clusters.connect(workers=workers, threads=1) as client:
        for speed in (1e12, *(speed * 1e6 for speed in (800, 400, 200, 100, 50))):
            slow = Throttled(scan.projection_source, speed, folder / "lock")
            for ahead in (False, True):
                shape = (rows, geometry.height, geometry.width)
                writer = io.create_volume(settings.output, shape, slab=16, overwrite=True, levels=1)
                throttled = dataclasses.replace(scan, projection_source=slow)
                job = Job(throttled, settings, None, geometry, 1.0, 16, 1, writer.path, ahead=ahead)
                start = time.perf_counter()
                queue.run_tasks(client, reconstruct_slab, job, slabs, lambda *_: None, ahead=ahead)
                found.append({"speed": speed, "ahead": ahead, "seconds": time.perf_counter() - start})
                writer.finish()
                print(f"  {found[-1]}", flush=True)
    return found


def ahead_table(rows: list[Row]) -> str:
    """Seconds with and without, disk by disk."""
    lines = []
    for plain, ahead in zip(rows[::2], rows[1::2]):
        disk = "no limit" if plain["speed"] > 1e11 else f"{plain['speed'] / 1e6:.0f} MB/s"
        ratio = f"{plain['seconds'] / ahead['seconds']:.2f}×"
        lines.append([disk, number(plain["seconds"]), number(ahead["seconds"]), ratio])
    return table(["disk", "read when needed, s", "read ahead, s", "faster by"], lines)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=PARTS)
    parser.add_argument("--size", type=int, default=512, help="width of a slice")
    parser.add_argument("--rows", type=int, default=512, help="rows of the scan that is staged")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--folder", type=Path, help="where to write; default: memory if there is a disk of it")
    parser.add_argument("--json", type=Path, help="also write what was measured here")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that it works")
    chosen = parser.parse_args()
    if chosen.quick:
        chosen.size, chosen.rows, chosen.repeats = 64, 64, 1
    environment.restart_clean()
    packages = ["zarr", "numcodecs", "h5py", "hdf5plugin"]
    print(f"{environment.processor()}, {environment.cores()} threads, {environment.versions(packages)}", flush=True)
    memory = Path("/dev/shm")
    default = memory if os.access(memory, os.W_OK) else None
    codecs: list[Row] = []
    staging: list[Row] = []
    ahead: list[Row] = []
    with tempfile.TemporaryDirectory(dir=chosen.folder or default, prefix="dtomo-storage-") as folder:
        if "codecs" in chosen.parts:
            codecs = measure_codecs(chosen.size, 64, chosen.repeats, Path(folder))
            regrets(codecs)
            print("\n" + codec_table(codecs))
        if "staging" in chosen.parts:
            staging = measure_staging(chosen.size, chosen.rows, chosen.workers, Path(folder))
            print("\n" + staging_table(staging))
        if "ahead" in chosen.parts:
            ahead = measure_ahead(chosen.size, chosen.rows, chosen.workers, Path(folder))
            print("\n" + ahead_table(ahead))
    write_json(chosen.json, packages, codecs=codecs, staging=staging, ahead=ahead)


if __name__ == "__main__":
    main()
