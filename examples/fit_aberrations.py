"""Fit the aberrations of a probe to diffraction frames, with a gradient of one's own.

A lens makes a probe whose phase over the aperture is χ(ω) = Σ Re(c_n B_n(ω)): defocus and spherical aberration are
real, astigmatism, coma and threefold astigmatism are complex, as they have a direction (O. L. Krivanek, N. Dellby and
A. R. Lupini, Ultramicroscopy 78 (1999) 1). It falls on a known object at many places; far behind it frames are counted.
The loss is that of amplitudes, Σ (|F(P O_j)| − √I_j)².

What a developer writes is the class `Aberrations`: parameters, and the loss and gradient of some frames. `dtomo.fit`
does the rest: blocks over workers, sums, steps, held-out frames.

    python examples/fit_aberrations.py OUT [--frames 200] [--size 64] [--workers 2]
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import scipy.fft
from numpy.typing import NDArray

import dtomo
from dtomo.fitting.callbacks import EarlyStopping, JsonLines
from dtomo.fitting.history import History
from dtomo.fitting.optimizers import LBFGS
from dtomo.report.fit_pictures import draw_history

ROUND = ("defocus", "spherical")
TURNING = ("astigmatism", "coma", "threefold astigmatism")

TRUTH = {
    "round": np.array([6.0, -2.0]),
    "turning": np.array([1.5 - 0.8j, -0.9 + 1.2j, 0.4 + 0.5j]),
    "brightness": np.array(20.0),
}
"""Radians at the edge of the aperture; and the amplitude of the probe's spectrum."""


class Aberrations:
    """The probe of a lens in front of a known object.

    Parameters
    ----------
    size
        Pixels of a frame.
    start
        Parameters to begin with: ``round`` (2,) and ``brightness`` () real, ``turning`` (3,) complex.
    aperture
        Its radius, as a part of the frame.

    Attributes
    ----------
    parameters
        What is fitted.
    """

    def __init__(self, size: int, start: dict[str, NDArray[Any]], aperture: float = 0.25) -> None:
        self.parameters = {name: np.array(value) for name, value in start.items()}
        row, column = np.meshgrid(*[np.fft.fftfreq(size)] * 2, indexing="ij")
        omega = (column + 1j * row) / aperture
        self.inside = (np.abs(omega) <= 1).astype(float)
        square = np.abs(omega) ** 2
        self.round = np.stack([square, square**2]) * self.inside
        self.turning = np.stack([omega.conj() ** 2, square * omega.conj(), omega.conj() ** 3]) * self.inside

    def spectrum(self, parameters: dict[str, NDArray[Any]]) -> NDArray[np.complex128]:
        """The wave in the aperture ``(row, column)``, frequency zero first."""
        phase = np.tensordot(parameters["round"], self.round, 1)
        phase = phase + np.tensordot(parameters["turning"], self.turning, 1).real
        return parameters["brightness"] * self.inside * np.exp(-1j * phase)

    def waves(self, parameters: dict[str, NDArray[Any]], patches: NDArray[Any]) -> NDArray[np.complex128]:
        """Waves on the detector ``(frame, row, column)``, frequency zero first, behind patches of the object."""
        return scipy.fft.fft2(scipy.fft.ifft2(self.spectrum(parameters)) * patches)

    def loss_and_gradient(
        self, parameters: dict[str, NDArray[Any]], batch: tuple[NDArray[Any], NDArray[Any]]
    ) -> tuple[float, float, dict[str, NDArray[Any]]]:
        """Sum over the pixels of some frames and patches, their number, and the gradients of the sum."""
        frames, patches = batch
        spectrum = self.spectrum(parameters)
        waves = self.waves(parameters, patches)
        length = np.abs(waves)
        off = length - np.sqrt(frames)
        slope = off * waves / np.maximum(length, 1e-12)  # ∂L/∂w̄ of the waves
        # back through both transforms: the adjoint of fft2 is N² ifft2, that of ifft2 is fft2 / N²
        back = scipy.fft.fft2((patches.conj() * scipy.fft.ifft2(slope)).sum(0))  # ∂L/∂s̄ of the spectrum
        by_phase = 2 * (back.conj() * spectrum).imag  # ds/dχ = −is
        return (
            float(np.sum(off**2)),
            float(frames.size),
            {
                "round": np.tensordot(self.round, by_phase, 2),
                "turning": np.tensordot(self.turning.conj(), by_phase, 2) / 2,  # ∂χ/∂c̄ = B̄ / 2
                "brightness": 2 * np.sum(back.conj() * spectrum).real / parameters["brightness"],
            },
        )

    def metrics(self, parameters: dict[str, NDArray[Any]], batch: tuple[Any, Any]) -> dict[str, float]:
        """Part of the counts that the model puts elsewhere, as a sum over pixels: the R factor times their number."""
        frames, patches = batch
        off = np.abs(np.abs(self.waves(parameters, patches)) - np.sqrt(frames))
        return {"R": float(frames[0].size * np.sum(off.sum((1, 2)) / np.sqrt(frames).sum((1, 2))))}


def measured(count: int, size: int, seed: int = 0) -> tuple[NDArray[np.uint16], NDArray[np.complex64]]:
    """Counted frames ``(frame, row, column)``, frequency zero first, and the patches of the object in front of them."""
    rng = np.random.default_rng(seed)
    cells = scipy.fft.ifft2(scipy.fft.fft2(rng.normal(size=(3 * size, 3 * size))) * _smooth(3 * size))
    thing = np.exp(2j * cells.real / cells.real.std()).astype(np.complex64)
    places = rng.integers(0, 2 * size, (count, 2))
    patches = np.stack([thing[y : y + size, x : x + size] for y, x in places])
    expected = np.abs(Aberrations(size, TRUTH).waves(TRUTH, patches)) ** 2
    return rng.poisson(expected).astype(np.uint16), patches


def _smooth(size: int) -> NDArray[np.float64]:
    row, column = np.meshgrid(*[np.fft.fftfreq(size)] * 2, indexing="ij")
    return np.exp(-(row**2 + column**2) / (2 * 0.08**2))


def beginning() -> dict[str, NDArray[Any]]:
    """What is known before: about where the focus is, and about how bright the probe is."""
    return {"round": np.array([4.5, 0.0]), "turning": np.zeros(3, complex), "brightness": np.array(17.0)}


def errors(parameters: dict[str, NDArray[Any]]) -> dict[str, float]:
    """Distance of each aberration from the truth, radians."""
    off = {name: np.abs(parameters[name] - value) for name, value in TRUTH.items()}
    return dict(zip((*ROUND, *TURNING), map(float, (*off["round"], *off["turning"]))))


def fitted(model: Aberrations, frames: NDArray[Any], patches: NDArray[Any], **options: Any) -> History:
    """Fit the model; `options` go to `dtomo.fit`."""
    settings: dict[str, Any] = {"batch": len(frames), "epochs": 12, "optimizer": LBFGS(), "validation": 0.1, "seed": 0}
    return dtomo.fit(model, (frames, patches), **{**settings, **options})


def main() -> None:
    """Run the example."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--frames", type=int, default=200)
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--workers", type=int, default=2)
    chosen = parser.parse_args()
    chosen.out.mkdir(parents=True, exist_ok=True)
    model = Aberrations(chosen.size, beginning())
    history = fitted(
        model, *measured(chosen.frames, chosen.size), workers=chosen.workers,
        callbacks=[JsonLines(chosen.out / "fit.jsonl"), EarlyStopping(patience=4)],
    )  # fmt: skip
    np.savez(chosen.out / "aberrations.npz", **model.parameters)
    draw_history(chosen.out / "fit.png", history, "aberrations")
    for name, off in errors(model.parameters).items():
        print(f"{name:24s} off by {off:.4f} rad")


if __name__ == "__main__":
    main()
