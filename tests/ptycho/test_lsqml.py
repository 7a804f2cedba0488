"""LSQ-ML: a step written out with a least-squares solver, convergence, what is refused."""

import dataclasses
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dtomo.errors import UserError
from dtomo.ptycho.driver import run
from dtomo.ptycho.engines.lsqml import LeastSquaresML, step_lengths
from dtomo.ptycho.frames import FrameBlock, to_model_order
from dtomo.ptycho.gauge import error
from tests.ptycho.scans import SmallScan, small_scan


@pytest.fixture(scope="module")
def scan() -> SmallScan:
    return small_scan(side=8, step=4.0)


@pytest.fixture(scope="module")
def two_modes() -> SmallScan:
    """Two modes, no sub-pixel shifts."""
    scan = small_scan(size=16, side=3, step=4.0, modes=2)
    return dataclasses.replace(scan, model=dataclasses.replace(scan.model, subpixel=False))


def _residuals(scan: SmallScan) -> tuple[list[tuple[Any, ...]], list[NDArray[Any]]]:
    """Where the frames lie on the object, and χ of their waves, of the first guess, written out in double precision."""
    image, probe = scan.guess["object"][0, 0].astype(complex), scan.guess["probe"].astype(complex)
    places, residuals = [], []
    for position, measured in zip(scan.guess["positions"], to_model_order(scan.source.read()).astype(float)):
        row, column = np.floor(position + 0.5).astype(int)
        place = np.s_[row : row + probe.shape[-1], column : column + probe.shape[-1]]
        far = np.fft.fft2(probe * image[place], norm="ortho")
        modelled = np.sqrt((np.abs(far) ** 2).sum(0))
        places.append(place)
        residuals.append(np.fft.ifft2(far * (1 - np.sqrt(measured) / modelled), norm="ortho"))
    return places, residuals


def _lengths(columns: list[NDArray[Any]], residual: NDArray[Any]) -> NDArray[np.float64]:
    """Real factors of the columns that bring residual + Σ factor · column nearest to zero."""
    matrix = np.stack([np.concatenate([c.real.ravel(), c.imag.ravel()]) for c in columns], 1)
    target = -np.concatenate([residual.real.ravel(), residual.imag.ravel()])
    return np.linalg.lstsq(matrix, target, rcond=None)[0]


@pytest.mark.parametrize("wanted", [("object", "probe"), ("object",), ("probe",)], ids="-".join)
def test_a_step_is_that_of_the_paper(two_modes: SmallScan, wanted: tuple[str, ...]) -> None:
    engine = LeastSquaresML(model=two_modes.model, batch=None, wanted=wanted, step=0.8, momentum=0.0)
    found = run(engine, two_modes.source, two_modes.guess, 1).parameters
    image, probe = two_modes.guess["object"][0, 0].astype(complex), two_modes.guess["probe"].astype(complex)
    places, residuals = _residuals(two_modes)
    change, light = np.zeros_like(image), np.zeros(image.shape)
    for place, chi in zip(places, residuals):
        change[place] -= (np.conj(probe) * chi).sum(0)
        light[place] += (np.abs(probe) ** 2).sum(0)
    change /= light + engine.damping * light.max()
    passed = sum(np.abs(image[place]) ** 2 for place in places)
    probe_change = -sum(np.conj(image[place]) * chi for place, chi in zip(places, residuals))
    probe_change /= passed + engine.damping * passed.max()
    lengths = []
    for place, chi in zip(places, residuals):
        columns = {"object": probe * change[place], "probe": probe_change * image[place]}
        lengths.append(_lengths([columns[name] for name in wanted], chi))
    mean = dict(zip(wanted, np.mean(lengths, 0)))
    expected = image + engine.step * mean.get("object", 0) * change
    np.testing.assert_allclose(found["object"][0, 0], expected, atol=3e-4 * np.abs(change).max())
    expected = probe + engine.step * mean.get("probe", 0) * probe_change
    np.testing.assert_allclose(found["probe"], expected, atol=3e-4 * np.abs(probe).max())


def test_step_lengths_with_shifts_are_close_to_the_best(scan: SmallScan) -> None:
    """Shifts of the probe's change are left out there: lengths must stay within a quarter of those with them."""
    block = FrameBlock(np.arange(64), to_model_order(scan.source.read()))
    engine = LeastSquaresML(model=scan.model, batch=None)
    state = engine.begin(scan.guess)
    sums, kept = engine.evaluate(state, block, None)
    directions = engine.update(state, sums)["shared"]["directions"]
    found = step_lengths(scan.guess, directions, kept) / 64
    lengths = []
    along = {name: scan.model.views({**scan.guess, name: directions[name]}, block.indices).waves for name in directions}
    for x, y, chi in zip(along["object"], along["probe"], kept["waves"]):
        lengths.append(_lengths([x, y], chi))
    np.testing.assert_allclose(found, np.mean(lengths, 0), rtol=0.25)


def test_batches_converge(scan: SmallScan) -> None:
    result = run(LeastSquaresML(model=scan.model, batch=16), scan.source, scan.guess, 40)
    assert result.losses[-1] < 1e-3 * result.losses[0]
    assert error(result.parameters["object"][0, 0], scan.truth["object"][0, 0], scan.region) < 0.07


def test_modes_of_the_probe_converge() -> None:
    scan = small_scan(side=8, step=4.0, modes=2, photons=1e5)
    result = run(LeastSquaresML(model=scan.model, batch=16), scan.source, scan.guess, 30)
    assert result.losses[-1] < 0.3  # Poisson noise alone: 1/4 a pixel at most
    assert error(result.parameters["object"][0, 0], scan.truth["object"][0, 0], scan.region) < 0.2


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"damping": 0.0}, "damping and rate are above 0"),
        ({"step": 1.5}, "the step above 0 and at most 1"),
        ({"momentum": -0.1}, "momentum from 0 to below 1"),
    ],
)
def test_settings_are_checked(scan: SmallScan, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        LeastSquaresML(model=scan.model, **options)


def test_a_distance_is_refused(scan: SmallScan) -> None:
    engine = LeastSquaresML(model=scan.model, wanted=("object", "distance"))
    with pytest.raises(UserError, match="LSQ-ML does not refine the distance, or use adam"):
        engine.begin(scan.guess)
