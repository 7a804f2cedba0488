"""Denoise a tomogram with a small U-Net that has seen nothing but two halves of its own scan.

Every second projection makes one half-tomogram, the others make another. Both show the same object; their noise is
independent. A network that is asked to turn one into the other cannot predict the noise, so what it learns is the
object (noise to noise: J. Lehtinen et al., Proceedings of Machine Learning Research 80 (2018) 2965; for half-tomograms:
T.-O. Buchholz et al., IEEE 16th International Symposium on Biomedical Imaging (2019) 502). Some patches are held out:
their validation says when to stop. Then the network is applied to both halves, chunk by chunk with halos, and the two
results are averaged.

    python examples/denoise_tomogram.py OUT [--scan SCAN.h5] [--size 96] [--epochs 10] [--workers 2]

Without a scan, one of a phantom is simulated. The result is compared with what took no part in the training: the truth
of the phantom, or the tomogram of every third projection, which is then left out of the halves. OUT, a folder, gets the
history, a picture, the halves and the denoised tomogram.
"""

import argparse
import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

import dtomo
from dtomo import prep
from dtomo.fitting.apply import apply_files
from dtomo.fitting.callbacks import JsonLines
from dtomo.fitting.history import History
from dtomo.io import create_volume, open_volume
from dtomo.report.fit_pictures import draw_history, draw_slices

LEVELS, AROUND = 2, 1
"""How often the network halves its slices, and how many slices it sees on either side of one."""

HALO, CELL = (AROUND, 20, 20), (1, 1 << LEVELS, 1 << LEVELS)
"""Voxels that the network looks far, and its cells: for `dtomo.fitting.apply`."""


class UNet(nn.Module):
    """Three resolutions of a slice seen with its neighbours; what comes out is the slice plus a correction."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.first = nn.Sequential(_convolution(2 * AROUND + 1, width), _convolution(width, width))
        self.down = nn.ModuleList([_convolution(width << k, width << (k + 1)) for k in range(LEVELS)])
        self.up = nn.ModuleList([_convolution(3 * width << k, width << k) for k in reversed(range(LEVELS))])
        self.last = nn.Conv2d(width, 1, 3, padding=1)

    def forward(self, noisy: torch.Tensor) -> torch.Tensor:
        """From slices with their neighbours ``(slice, 3, y, x)``, sides in cells of 4, to ``(slice, 1, y, x)``."""
        seen = [self.first(noisy)]
        for step in self.down:
            seen.append(step(nn.functional.avg_pool2d(seen[-1], 2)))
        found = seen.pop()
        for step in self.up:
            finer = nn.functional.interpolate(found, scale_factor=2.0, mode="nearest")
            found = step(torch.cat([finer, seen.pop()], 1))
        return noisy[:, AROUND : AROUND + 1] + self.last(found)


def _convolution(inside: int, outside: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(inside, outside, 3, padding=1), nn.LeakyReLU(0.1))


@dataclasses.dataclass
class Denoiser:
    """The network as a function of blocks ``(z, y, x)`` with their halos; it travels to workers with its weights."""

    network: nn.Module

    def __call__(self, block: NDArray[np.float32]) -> NDArray[np.float32]:
        """A block of the same shape; the slices of the halo stay as they are."""
        found = np.array(block, np.float32)
        with torch.inference_mode():
            made = self.network(torch.from_numpy(with_neighbours(found)))
        found[AROUND:-AROUND] = made[:, 0].numpy()
        return found


def with_neighbours(block: NDArray[np.float32]) -> NDArray[np.float32]:
    """Every slice of a block but the outer ones, with those around it: ``(z - 2, 3, y, x)``."""
    count = len(block) - 2 * AROUND
    return np.stack([block[k : k + count] for k in range(2 * AROUND + 1)], 1)


def integrals_of(path: str, **options: Any) -> tuple[NDArray[np.float32], NDArray[np.float64], float]:
    """Line integrals ``(angle, row, column)`` of a scan on disk, its angles in degrees, and the column of its axis."""
    scan = dtomo.open(path, **options)
    raw = scan.read()
    values, _ = prep.normalize(raw.projections, raw.flats, raw.darks)
    values, _ = prep.minus_log(values)
    center = scan.center if scan.center is not None else prep.find_center(values, scan.angles).center
    return values, scan.angles, center


def phantom(size: int, photons: float, seed: int = 0) -> tuple[Any, ...]:
    """Line integrals of a simulated sample with photon noise, angles, axis, and the true volume ``(z, y, x)``."""
    sample = dtomo.simulate.sample(seed)
    angles = np.arange(0, 180, 180 / (2 * size))
    longest = sample.projections(angles[::16], size).max()
    sample = sample.scaled(2.0 / float(longest))
    light = photons * np.exp(-sample.projections(angles, size))
    counted = np.random.default_rng(seed).poisson(light)
    integrals = -np.log(np.maximum(counted, 1) / photons).astype(np.float32)
    return integrals, angles, (size - 1) / 2, sample.volume(size)


def parts_of(
    integrals: NDArray[np.float32], angles: NDArray[np.float64], center: float, parts: int = 2
) -> list[NDArray[np.float32]]:
    """Tomograms ``(z, y, x)`` by filtered back projection of every `parts`-th projection: of independent noise."""
    made = []
    for part in range(parts):
        beam = dtomo.ParallelBeam(angles[part::parts], integrals.shape[2], center)
        made.append(np.ascontiguousarray(dtomo.recon.fbp(integrals[part::parts], beam)))
    return made


def patches(volume: NDArray[np.float32], side: int) -> NDArray[np.float32]:
    """Squares ``(patch, 3, side, side)`` of all slices, with their neighbours; they overlap where they must."""
    whole = with_neighbours(volume)
    side = min(side, *(n // CELL[1] * CELL[1] for n in whole.shape[2:]))
    starts = [np.unique(np.linspace(0, n - side, -(-n // side)).round().astype(int)) for n in whole.shape[2:]]
    return np.concatenate([whole[:, :, y : y + side, x : x + side] for y in starts[0] for x in starts[1]])


def training_pairs(
    first: NDArray[np.float32], second: NDArray[np.float32], side: int = 64
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Patches of one half with the slice in the middle of the other's, in both directions: inputs and targets."""
    one, other = patches(first, side), patches(second, side)
    middle = slice(AROUND, AROUND + 1)
    return np.concatenate([one, other]), np.concatenate([other[:, middle], one[:, middle]])


def train(
    first: NDArray[np.float32], second: NDArray[np.float32], network: UNet, *, side: int = 64, **options: Any
) -> History:
    """Fit the network to patches of two halves; `options` go to `dtomo.fit`."""
    settings: dict[str, Any] = {
        "batch": 16,
        "epochs": 10,
        "optimizer": lambda parameters: torch.optim.Adam(parameters, lr=2e-3),
        "scheduler": lambda optimizer: torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.8),
        "validation": 0.1,
        "seed": 0,
    }
    return dtomo.fit(network, training_pairs(first, second, side), loss=nn.MSELoss(), **{**settings, **options})


def likeness(volume: NDArray[np.float32], reference: NDArray[np.float32]) -> float:
    """Peak signal-to-noise ratio in dB, the peak being the range of the reference, after the best linear scaling."""
    flat, wanted = volume.ravel().astype(np.float64), reference.ravel().astype(np.float64)
    slope, offset = np.polyfit(flat, wanted, 1)
    return float(20 * np.log10(np.ptp(wanted)) - 10 * np.log10(np.mean((slope * flat + offset - wanted) ** 2)))


def write(path: Path, volume: NDArray[np.float32], slab: int = 32) -> None:
    """As OME-Zarr."""
    writer = create_volume(path, volume.shape, slab=slab, overwrite=True)
    for first in range(0, len(volume), slab):
        writer.write_slab(first, volume[first : first + slab])
    writer.finish()


def denoise(folder: Path, network: UNet, halves: list[NDArray[np.float32]], workers: int) -> NDArray[np.float32]:
    """Both halves from disk to disk, and the mean of the two."""
    results = []
    for number, half in enumerate(halves):
        given, made = folder / f"half-{number}.zarr", folder / f"half-{number}-denoised.zarr"
        write(given, half)
        apply_files(
            Denoiser(network.eval()), given, made, halo=HALO, multiple=CELL, chunk=(16, 256, 256), workers=workers,
            overwrite=True,
        )  # fmt: skip
        results.append(open_volume(made).source.read(slice(None)))
    mean = (results[0] + results[1]) / 2
    write(folder / "denoised.zarr", mean)
    return mean


def main() -> None:
    """Run the example."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--scan", help="a raw scan; else one is simulated")
    parser.add_argument("--size", type=int, default=96, help="of the simulated object")
    parser.add_argument("--photons", type=float, default=500, help="of each simulated pixel")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--workers", type=int, default=2)
    chosen = parser.parse_args()
    chosen.out.mkdir(parents=True, exist_ok=True)

    if chosen.scan:
        *halves, reference = parts_of(*integrals_of(chosen.scan), parts=3)
    else:
        *measured, reference = phantom(chosen.size, chosen.photons)
        halves = parts_of(*measured)
    scale = halves[0].std()  # networks like numbers of about 1
    halves, reference = [half / scale for half in halves], reference / scale

    torch.manual_seed(0)
    network = UNet()
    history = train(
        *halves, network, epochs=chosen.epochs, workers=chosen.workers, callbacks=[JsonLines(chosen.out / "fit.jsonl")]
    )
    torch.save(network.state_dict(), chosen.out / "network.pt")
    denoised = denoise(chosen.out, network, halves, chosen.workers)
    mean = (halves[0] + halves[1]) / 2
    draw_history(chosen.out / "training.png", history)
    draw_slices(
        chosen.out / "slices.png", {"mean of the halves": mean, "denoised": denoised, "not trained on": reference}
    )
    print(f"mean of the halves {likeness(mean, reference):.2f} dB, denoised {likeness(denoised, reference):.2f} dB")


if __name__ == "__main__":
    main()
