"""Difference map and RAAR: an iteration written out, convergence, what its history means, what is refused."""

import dataclasses
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dtomo.errors import UserError
from dtomo.ptycho.driver import run
from dtomo.ptycho.engines.projections import RAAR, DifferenceMap
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


def _to_modulus(waves: NDArray[Any], measured: NDArray[Any]) -> NDArray[Any]:
    far = np.fft.fft2(waves, norm="ortho")
    return np.fft.ifft2(far * np.sqrt(measured / (np.abs(far) ** 2).sum(0)), norm="ortho")


def _written_out(scan: SmallScan, beta: float, damping: float, iterations: int) -> tuple[Any, Any, list[float]]:
    """Object, probe, and losses, with the definition of RAAR in double precision."""
    image, probe = scan.guess["object"][0, 0].astype(complex), scan.guess["probe"].astype(complex)
    frames = to_model_order(scan.source.read()).astype(float)
    corners = np.floor(scan.guess["positions"] + 0.5).astype(int)
    places = [np.s_[row : row + probe.shape[-1], column : column + probe.shape[-1]] for row, column in corners]
    waves = [probe * image[place] for place in places]
    losses = []
    for _ in range(iterations):
        projected = [probe * image[place] for place in places]
        loss, after = 0.0, []
        for wave, one, measured in zip(waves, projected, frames):
            reflected = 2 * one - wave
            target = _to_modulus(reflected, measured)
            loss += (np.abs(target - one) ** 2).sum()
            after.append(beta / 2 * (2 * target - reflected + wave) + (1 - beta) * one)
        losses.append(loss)
        waves = after
        change, light = np.zeros_like(image), np.zeros(image.shape)
        for place, wave in zip(places, waves):
            change[place] += (np.conj(probe) * (wave - probe * image[place])).sum(0)
            light[place] += (np.abs(probe) ** 2).sum(0)
        image = image + change / (light + damping * light.max())
        passed = sum(np.abs(image[place]) ** 2 for place in places)
        change = sum(np.conj(image[place]) * (wave - probe * image[place]) for place, wave in zip(places, waves))
        probe = probe + change / (passed + damping * passed.max())
    return image, probe, losses


@pytest.mark.parametrize(("engine", "beta"), [(DifferenceMap, 1.0), (RAAR, 0.75)])
def test_iterations_are_those_of_the_papers(two_modes: SmallScan, engine: type[DifferenceMap], beta: float) -> None:
    solver = engine(model=two_modes.model)
    found = run(solver, two_modes.source, two_modes.guess, 4)
    image, probe, losses = _written_out(two_modes, beta, solver.damping, 4)
    np.testing.assert_allclose(found.history[:, 0], losses, rtol=1e-4)
    np.testing.assert_allclose(found.parameters["object"][0, 0], image, atol=1e-3 * np.abs(image).max())
    np.testing.assert_allclose(found.parameters["probe"], probe, atol=1e-3 * np.abs(probe).max())


@pytest.mark.parametrize(("engine", "most"), [(DifferenceMap, 0.05), (RAAR, 0.08)])
def test_noiseless_scans_converge(scan: SmallScan, engine: type[DifferenceMap], most: float) -> None:
    """The residual falls by far more than a thousand."""
    result = run(engine(model=scan.model), scan.source, scan.guess, 60)
    assert result.losses[-1] < 1e-3 * result.losses[0]
    assert error(result.parameters["object"][0, 0], scan.truth["object"][0, 0], scan.region) < most


def test_history_is_never_below_the_loss_of_amplitudes(scan: SmallScan) -> None:
    engine = DifferenceMap(model=scan.model)
    block = FrameBlock(np.arange(64), to_model_order(scan.source.read()))
    below = []
    for epochs in range(4):
        parameters = run(engine, scan.source, scan.guess, epochs).parameters
        below.append(scan.model.loss_and_gradient(parameters, block, ())[0])
    losses = run(engine, scan.source, scan.guess, 4).history[:, 0]
    assert losses[0] == pytest.approx(below[0], rel=1e-4)
    assert (losses[1:] >= np.array(below[1:]) * (1 - 1e-4)).all()


def test_a_probe_that_waits(scan: SmallScan) -> None:
    engine = RAAR(model=scan.model, start={"probe": 2})
    early = run(engine, scan.source, scan.guess, 2).parameters
    late = run(engine, scan.source, scan.guess, 3).parameters
    assert early["probe"].tobytes() == scan.guess["probe"].tobytes()
    assert np.abs(late["probe"] - scan.guess["probe"]).max() > 1e-3 * np.abs(scan.guess["probe"]).max()
    assert np.abs(early["object"] - scan.guess["object"]).max() > 0.01


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"beta": 0.2}, "beta is from 0.5 to 1"),
        ({"batch": 16}, "projections take all frames in each step"),
        ({"wanted": ("object", "positions")}, "projections refine object and probe, not positions"),
    ],
)
def test_settings_are_checked(scan: SmallScan, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        DifferenceMap(model=scan.model, **options)
