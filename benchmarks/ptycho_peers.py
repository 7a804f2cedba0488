"""Other ptychography packages behind one function each: their defaults, one probe mode, whole-batch steps of 64 frames.

A peer takes intensities ``(frame, row, column)`` with frequency zero at [0, 0], positions ``(row, column)`` in object
pixels about 0, a first probe, and a number of epochs; it gives the amplitudes it predicts for every frame (in that
order, any scale) and its seconds per epoch. What is not an epoch (building the problem, the prediction) is not timed.
"""

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import scipy.fft
from numpy.typing import NDArray

from benchmarks.environment import cores

BATCH = 64

Outcome = tuple[Iterator[NDArray[np.float32]], float]
Peer = Callable[[NDArray[np.float32], NDArray[np.float64], NDArray[np.complex64], int], Outcome]


def seen_through(
    image: NDArray[np.complex64], probe: NDArray[np.complex64], corners: NDArray[np.float64]
) -> Iterator[NDArray[np.float32]]:
    """Amplitudes of the patches of an object at whole positions, one probe mode."""
    rows, columns = probe.shape
    for top, left in np.rint(corners).astype(int):
        yield np.abs(scipy.fft.fft2(probe * image[top : top + rows, left : left + columns]))


def pty_chi(engine: str) -> Peer:
    """pty-chi (Argonne) with one of its engines, on the CPU."""

    def run(frames: Any, positions: Any, probe: Any, epochs: int) -> Outcome:
        import ptychi.api as chi
        import torch
        from ptychi.api.task import PtychographyTask
        from ptychi.utils import get_suggested_object_size

        torch.set_num_threads(cores())
        options: Any = chi.LSQMLOptions() if engine == "lsqml" else chi.EPIEOptions()
        reconstructor = options.reconstructor_options
        reconstructor.default_device = chi.Devices.CPU
        reconstructor.batch_size, reconstructor.num_epochs = BATCH, epochs
        options.data_options.fft_shift = False
        options.object_options.optimizable = options.probe_options.optimizable = True
        options.probe_position_options.optimizable = False
        shape = get_suggested_object_size(positions, probe.shape, extra=50)
        task = PtychographyTask(
            options,
            diffraction_data=torch.as_tensor(frames),
            object_data=torch.ones((1, *shape), dtype=torch.complex64),
            probe_data=torch.as_tensor(probe[None, None]),
            probe_position_y_px=torch.as_tensor(positions[:, 0].astype(np.float32)),
            probe_position_x_px=torch.as_tensor(positions[:, 1].astype(np.float32)),
        )
        seconds = _timed(task.run)
        image = task.get_data_to_cpu("object", as_numpy=True)[0]
        found = task.get_data_to_cpu("probe", as_numpy=True)[0, 0]
        middle = (np.array(image.shape) - probe.shape) / 2
        return seen_through(image, found, positions + middle), seconds / epochs

    return run


def cdtools(frames: Any, positions: Any, probe: Any, epochs: int) -> Outcome:
    """CDTools' FancyPtycho with Adam. Lengths are made up such that an object pixel is 10 nm."""
    import torch
    from cdtools.datasets import Ptycho2DDataset
    from cdtools.models import FancyPtycho

    torch.set_num_threads(cores())
    wavelength, pixel = 1e-9, 1e-8
    detector = wavelength / (probe.shape[-1] * pixel)  # its pixel, one metre behind the object
    moves = np.zeros((len(positions), 3), np.float32)
    moves[:, :2] = positions[:, ::-1] * pixel
    basis = np.array([[0, detector], [detector, 0], [0, 0]], np.float32)
    dataset = Ptycho2DDataset(
        moves,
        np.fft.fftshift(frames, (-2, -1)).copy(),
        wavelength=wavelength,
        detector_geometry={"distance": 1.0, "basis": basis},
    )
    model = FancyPtycho.from_dataset(dataset, obj_padding=20)
    with torch.no_grad():
        first = torch.as_tensor(probe)[None] / model.probe_norm
        power = model.probe.abs().square().sum() / first.abs().square().sum()
        model.probe.data[:] = first * power.sqrt()

    def optimise() -> None:
        for _ in model.Adam_optimize(epochs, dataset, lr=0.02, batch_size=BATCH):
            pass

    seconds = _timed(optimise)

    def predicted() -> Iterator[NDArray[np.float32]]:
        with torch.no_grad():
            for start in range(0, len(frames), BATCH):
                intensities = model.forward(*dataset[start : start + BATCH][0]).numpy()
                yield from np.fft.ifftshift(np.sqrt(intensities), (-2, -1))

    return predicted(), seconds / epochs


def _timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


PEERS: dict[str, tuple[str, Peer]] = {
    "pty-chi LSQ-ML": ("ptychi", pty_chi("lsqml")),
    "pty-chi ePIE": ("ptychi", pty_chi("epie")),
    "CDTools Adam": ("cdtools-py", cdtools),
}
"""Package (for its version) and function, by name."""
