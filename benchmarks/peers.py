"""dtomo and the packages beside it, behind one interface, each with its own conventions undone.

A peer has any of forward, back, fbp and sirt. They take and give stacks in the peer's own memory layout;
`load` and `unload` bring (slices, y, x) and (slices, angle, column) stacks into it and back, outside the
measured time. A peer that knows single slices only has them spread over the cores by threads.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.environment import cores

Stack = NDArray[np.float32]


def spread(function: Callable[[Stack], Stack], stack: Stack) -> Stack:
    """Apply a function to each slice, with one thread per core."""
    with ThreadPoolExecutor(cores()) as pool:
        return np.stack(list(pool.map(function, stack)))


class Peer:
    """What all peers share; `package` is the distribution whose version is reported."""

    package = ""
    note = ""
    compiles = False  # whether a new shape costs a compilation or a setup, which belongs to the warm-up
    whole_stack = False  # whether time per slice falls with the height of the stack, so that it must not be cut
    volume_order = (0, 1, 2)  # the peer's axes among (slice, y, x)
    sinogram_order = (0, 1, 2)  # the peer's axes among (slice, angle, column)

    def __init__(self, size: int, angles: NDArray[np.float64]) -> None:
        self.size, self.angles = size, angles

    @staticmethod
    def center(size: int) -> float:
        """Column of the axis, and pixel of a slice that it runs through."""
        return (size - 1) / 2

    def load(self, stack: Stack, task: str) -> Any:
        """What `task` takes, in the peer's layout, from a stack with its slices first."""
        return np.ascontiguousarray(stack.transpose(self.volume_order if task == "forward" else self.sinogram_order))

    def unload(self, result: Any, task: str) -> Stack:
        """What `task` gave, with its slices first."""
        order = self.sinogram_order if task == "forward" else self.volume_order
        return np.ascontiguousarray(np.asarray(result).transpose(np.argsort(order)))


class Dtomo(Peer):
    """This package: operators on arrays whose memory has z innermost, as an iteration keeps them."""

    package = "dtomo"
    note = "operators on z-innermost arrays; SIRT and FBP from the public functions"
    compiles = whole_stack = True

    def __init__(self, size: int, angles: NDArray[np.float64]) -> None:
        super().__init__(size, angles)
        from dtomo.geometry import ParallelBeam

        self.geometry = ParallelBeam(np.rad2deg(angles), size)
        self.operators: dict[int, Any] = {}

    def _operator(self, slices: int) -> Any:
        from dtomo.operators import ParallelProjector

        if slices not in self.operators:
            self.operators[slices] = ParallelProjector(self.geometry, slices)
        return self.operators[slices]

    sinogram_order = (1, 0, 2)

    def load(self, stack: Stack, task: str) -> Stack:
        from dtomo.arrays import empty_aligned

        slices, *plane = stack.shape
        memory = empty_aligned((*plane, slices))
        memory[:] = stack.transpose(1, 2, 0)
        return memory.transpose((2, 0, 1) if task == "forward" else (0, 2, 1))

    def forward(self, volume: Stack) -> Stack:
        return self._operator(volume.shape[0]).forward(volume)

    def back(self, projections: Stack) -> Stack:
        return self._operator(projections.shape[1]).adjoint(projections)

    def fbp(self, projections: Stack) -> Stack:
        from dtomo.algorithms import fbp

        return fbp(projections, self.geometry, **self.fbp_options)

    fbp_options: dict[str, str] = {}  # noqa: RUF012

    def sirt(self, projections: Stack, iterations: int) -> Stack:
        from dtomo.algorithms import sirt

        return sirt(self._operator(projections.shape[1]), projections, iterations=iterations).solution


class DtomoBackprojection(Dtomo):
    """FBP by back projection, whatever is faster."""

    note = "FBP by back projection"
    fbp_options = {"method": "backprojection"}  # noqa: RUF012


class DtomoNufft(Dtomo):
    """FBP by NUFFT, whatever is faster."""

    note = "FBP by NUFFT (finufft)"
    fbp_options = {"method": "nufft"}  # noqa: RUF012


class Astra(Peer):
    """ASTRA on the CPU."""

    package = "astra-toolbox"
    note = "CPU 'linear' projector; slices on a pool of threads (the GIL is released)"

    def __init__(self, size: int, angles: NDArray[np.float64]) -> None:
        super().__init__(size, angles)
        import astra

        self.astra = astra
        self.volume = astra.create_vol_geom(size, size)
        self.geometry = astra.create_proj_geom("parallel", 1.0, size, -angles)  # its y axis points up
        self.projector = astra.create_projector("linear", self.geometry, self.volume)

    def _run(self, name: str, sinogram: Stack, iterations: int = 1) -> Stack:
        astra = self.astra
        data = astra.data2d.create("-sino", self.geometry, sinogram)
        result = astra.data2d.create("-vol", self.volume)
        config = astra.astra_dict(name)
        config.update(ProjectorId=self.projector, ProjectionDataId=data, ReconstructionDataId=result)
        algorithm = astra.algorithm.create(config)
        astra.algorithm.run(algorithm, iterations)
        out = astra.data2d.get(result)
        astra.algorithm.delete(algorithm)
        astra.data2d.delete([data, result])
        return out

    def _forward(self, image: Stack) -> Stack:
        identifier, sinogram = self.astra.create_sino(image, self.projector)
        self.astra.data2d.delete(identifier)
        return sinogram

    def forward(self, volume: Stack) -> Stack:
        return spread(self._forward, volume)

    def back(self, sinograms: Stack) -> Stack:
        return spread(lambda s: self._run("BP", s), sinograms)

    def fbp(self, sinograms: Stack) -> Stack:
        return spread(lambda s: self._run("FBP", s), sinograms)

    def sirt(self, sinograms: Stack, iterations: int) -> Stack:
        return spread(lambda s: self._run("SIRT", s, iterations), sinograms)


class ScikitImage(Peer):
    """scikit-image's radon and iradon."""

    package = "scikit-image"
    note = "circle=True, linear; slices on a pool of threads; axis at N // 2"

    def __init__(self, size: int, angles: NDArray[np.float64]) -> None:
        super().__init__(size, angles)
        from skimage import transform

        self.transform, self.degrees = transform, np.rad2deg(-angles)

    @staticmethod
    def center(size: int) -> float:
        return size // 2

    def forward(self, volume: Stack) -> Stack:
        return spread(lambda v: self.transform.radon(v, self.degrees, circle=True).T, volume)

    def back(self, sinograms: Stack) -> Stack:
        scale = np.float32(2 * len(self.degrees) / np.pi)  # undoes the pi / (2 angles) of the reconstruction
        return spread(
            lambda s: self.transform.iradon(s.T, self.degrees, filter_name=None, circle=True) * scale,
            sinograms,
        )

    def fbp(self, sinograms: Stack) -> Stack:
        return spread(lambda s: self.transform.iradon(s.T, self.degrees, circle=True), sinograms)


class Svmbir(Peer):
    """svmbir's projectors."""

    package = "svmbir"
    note = "OpenMP over the stack; system matrix computed once and kept on disk (not timed: warm-up)"
    sinogram_order = (1, 0, 2)

    def __init__(self, size: int, angles: NDArray[np.float64]) -> None:
        super().__init__(size, angles)
        import svmbir

        self.svmbir, self.turned = svmbir, angles - np.pi / 2  # its angle 0 looks along the other axis

    def forward(self, volume: Stack) -> Stack:
        return self.svmbir.project(volume, self.turned, self.size, num_threads=cores(), verbose=0)

    def back(self, sinograms: Stack) -> Stack:
        return self.svmbir.backproject(sinograms, self.turned, num_threads=cores(), verbose=0)


class Algotom(Peer):
    """algotom's FBP."""

    package = "algotom"
    note = "Numba back projection, all cores, plain ramp; its pi / (angles - 1) undone"
    volume_order = sinogram_order = (1, 0, 2)

    def __init__(self, size: int, angles: NDArray[np.float64]) -> None:
        super().__init__(size, angles)
        from algotom.rec import reconstruction

        self.run = reconstruction.fbp_reconstruction

    def fbp(self, sinograms: Stack) -> Stack:
        count = len(self.angles)
        out = self.run(
            sinograms, (self.size - 1) / 2, -self.angles, ratio=None, filter_name=None, apply_log=False,
            gpu=False, pad_mode="constant", ncore=cores(),
        )  # fmt: skip
        return out * np.float32((count - 1) / count)


class AlgotomDirect(Peer):
    """algotom's direct Fourier inversion."""

    package = "algotom"
    note = "direct Fourier inversion, no window; axis at N // 2, and it wants both ends of the half turn"
    volume_order = sinogram_order = (1, 0, 2)

    def __init__(self, size: int, angles: NDArray[np.float64]) -> None:
        super().__init__(size, angles)
        from algotom.rec import reconstruction

        self.run, self.ends = reconstruction.dfi_reconstruction, -np.linspace(0, np.pi, len(angles) + 1)

    @staticmethod
    def center(size: int) -> float:
        return size // 2

    def fbp(self, sinograms: Stack) -> Stack:
        last = np.roll(sinograms[:1, :, ::-1], 1, -1)
        return self.run(
            np.concatenate([sinograms, last]), self.size // 2, self.ends, ratio=None, filter_name=None,
            apply_log=False, pad_mode="constant", ncore=cores(),
        )  # fmt: skip


class SigPy(Peer):
    """A user's few lines on SigPy's NUFFT, by the central slice theorem."""

    package = "sigpy"
    note = "central slice theorem on its NUFFT, twofold padded detector, whole stack in one call"
    whole_stack = True

    def __init__(self, size: int, angles: NDArray[np.float64]) -> None:
        super().__init__(size, angles)
        import sigpy

        self.sigpy = sigpy
        self.radius = (np.arange(2 * size) - size) / 2  # cycles per `size` pixels
        direction = np.stack([np.sin(angles), np.cos(angles)], -1)
        self.points = (direction[:, None] * self.radius[:, None]).astype(np.float32)
        shift = self.points.sum(-1) / size * 0.5  # its middle is at N // 2, ours half a pixel before
        self.phase = np.exp(-2j * np.pi * (shift - self.radius / size * 0.5)).astype(np.complex64)

    def forward(self, volume: Stack) -> Stack:
        size = self.size
        spectrum = self.sigpy.nufft(volume.astype(np.complex64), self.points) * size * self.phase
        lines = np.fft.fftshift(np.fft.ifft(np.fft.ifftshift(spectrum, -1)), -1).real
        return lines[..., size // 2 : size // 2 + size].astype(np.float32)

    def _adjoint(self, sinograms: Stack, weight: Any) -> Stack:
        size = self.size
        lines = np.pad(sinograms, ((0, 0), (0, 0), (size // 2, size - size // 2)))
        spectrum = np.fft.fftshift(np.fft.fft(np.fft.ifftshift(lines, -1)), -1) * self.phase.conj() * weight
        shape = (len(sinograms), size, size)
        return self.sigpy.nufft_adjoint(spectrum.astype(np.complex64), self.points, shape).real * size

    def back(self, sinograms: Stack) -> Stack:
        return self._adjoint(sinograms, 1 / (2 * self.size))

    def fbp(self, sinograms: Stack) -> Stack:
        ramp = np.abs(self.radius) / self.size
        ramp[self.size] = 1 / (16 * self.size)  # the mean of the ramp around zero frequency
        return self._adjoint(sinograms, ramp / (2 * self.size) * np.pi / len(self.points))


class MbirJax(Peer):
    """mbirjax on the CPU."""

    package = "mbirjax"
    note = "JAX on the CPU, whole stack in one call"
    compiles = whole_stack = True
    volume_order, sinogram_order = (1, 2, 0), (1, 0, 2)

    def __init__(self, size: int, angles: NDArray[np.float64]) -> None:
        super().__init__(size, angles)
        import mbirjax

        self.mbirjax, self.models = mbirjax, {}

    def _model(self, slices: int) -> Any:
        if slices not in self.models:
            model = self.mbirjax.ParallelBeamModel((len(self.angles), slices, self.size), -self.angles)
            model.set_params(recon_shape=(self.size, self.size, slices), verbose=0)
            self.models[slices] = model
        return self.models[slices]

    def forward(self, volume: Stack) -> Stack:
        return np.asarray(self._model(volume.shape[2]).forward_project(volume))

    def back(self, sinograms: Stack) -> Stack:
        return np.asarray(self._model(sinograms.shape[1]).back_project(sinograms))

    def fbp(self, sinograms: Stack) -> Stack:
        out = self._model(sinograms.shape[1]).direct_recon(sinograms)
        return np.asarray(out[0] if isinstance(out, tuple) else out)


OTHERS: dict[str, type[Peer]] = {
    "astra": Astra,
    "scikit-image": ScikitImage,
    "algotom-fbp": Algotom,
    "algotom-dfi": AlgotomDirect,
    "svmbir": Svmbir,
    "sigpy-nufft": SigPy,
    "mbirjax": MbirJax,
}
