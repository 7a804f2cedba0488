"""The solvers of this package in the form of `benchmarks.ptycho_peers`, with their default settings."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.ptycho_peers import BATCH, Outcome, Peer
from dtomo.io.sources import ArraySource
from dtomo.ptycho import driver
from dtomo.ptycho.frames import to_detector_order
from dtomo.ptycho.setup import Data, Setup, prepare
from dtomo.settings import PtychoSettings


def own(engine: str, **settings: Any) -> Peer:
    """A solver of this package; what is compiled is compiled on the first frames, before."""

    def run(frames: Any, positions: Any, probe: Any, epochs: int) -> Outcome:
        asked = PtychoSettings(
            scan=Path("frames"), output=Path("result.h5"), engine=engine, epochs=epochs, probe="file", **settings
        )
        few = min(len(frames), 2 * BATCH)
        _reconstruct(asked, frames[:few], positions[:few], probe, 1)
        setup, parameters, seconds = _reconstruct(asked, frames, positions, probe, epochs)
        return _amplitudes(setup, parameters, len(frames)), seconds / epochs

    return run


def _reconstruct(
    asked: PtychoSettings, frames: Any, positions: Any, probe: Any, epochs: int
) -> tuple[Setup, dict[str, Any], float]:
    source = ArraySource(np.ascontiguousarray(to_detector_order(frames)), "the frames")
    data = Data(source, positions, probe=probe[None])
    setup = prepare(data, asked)
    seconds: list[float] = []
    done = driver.run(
        setup.engine,
        source,
        setup.parameters,
        epochs,
        seed=asked.seed,
        on_epoch=lambda report: seconds.append(report.seconds),
    )
    return setup, done.parameters, sum(seconds)


def _amplitudes(setup: Setup, parameters: dict[str, Any], frames: int) -> Iterator[NDArray[np.float32]]:
    for start in range(0, frames, BATCH):
        indices = np.arange(start, min(frames, start + BATCH))
        yield from np.sqrt(setup.model.intensities(parameters, indices))


OWN: dict[str, Callable[..., Outcome]] = {
    "dtomo LSQ-ML": own("lsqml"),
    "dtomo LSQ-ML, whole pixels": own("lsqml", subpixel=False),
    "dtomo ePIE, batches": own("epie", batch=BATCH),
    "dtomo ePIE, batches, whole pixels": own("epie", batch=BATCH, subpixel=False),
    "dtomo ePIE, one by one": own("epie"),
    "dtomo Adam": own("adam", batch=BATCH),
    "dtomo Adam, whole pixels": own("adam", batch=BATCH, subpixel=False),
    "dtomo CG": own("cg"),
}
"""With sub-pixel shifts of the probe, which double the transforms, where it is not said otherwise."""
