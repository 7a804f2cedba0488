"""The worked examples: the gradient that is written by hand, the fit, the network's reach, and what comes of noise."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dtomo.fitting.apply import apply
from examples import fit_aberrations

PAGE = Path(__file__).resolve().parents[2] / "docs" / "fitting.md"


def test_the_program_of_the_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    program = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE)[0]
    names: dict[str, Any] = {}
    exec(program, names)
    assert names["model"].parameters["a"] == pytest.approx(5, abs=0.05)
    assert names["model"].parameters["b"] == pytest.approx(0.3, abs=0.01)
    assert "array" in capsys.readouterr().out


def test_gradient_of_the_aberrations_is_that_of_the_loss() -> None:
    """∂L/∂z̄ by central differences: (dL/dx + i dL/dy) / 2."""
    frames, patches = fit_aberrations.measured(5, 16)
    model = fit_aberrations.Aberrations(16, fit_aberrations.beginning())
    start = {**model.parameters, "turning": np.array([0.3 - 0.2j, 0.1 + 0.4j, -0.5 + 0.1j])}
    _, count, gradients = model.loss_and_gradient(start, (frames, patches))
    assert count == frames.size

    def slope(name: str, place: int, step: complex) -> float:
        ends = []
        for sign in (1, -1):
            value = start[name].copy()
            value.reshape(-1)[place] += sign * step
            ends.append(model.loss_and_gradient({**start, name: value}, (frames, patches))[0])
        return (ends[0] - ends[1]) / (2 * abs(step))

    for name, gradient in gradients.items():
        expected = [slope(name, place, 1e-6) for place in range(start[name].size)]
        if np.iscomplexobj(gradient):
            expected = [(one + 1j * slope(name, place, 1e-6j)) / 2 for place, one in enumerate(expected)]
        np.testing.assert_allclose(np.ravel(gradient), expected, rtol=1e-5, atol=1e-3)


def test_aberrations_are_found_on_workers(fitting_client: Any) -> None:
    model = fit_aberrations.Aberrations(32, fit_aberrations.beginning())
    history = fit_aberrations.fitted(model, *fit_aberrations.measured(40, 32), epochs=8, client=fitting_client)
    assert max(fit_aberrations.errors(model.parameters).values()) < 0.03
    assert history[-1].validation_metrics["R"] < 0.1 < history[0].loss
    assert model.parameters["turning"].dtype == np.complex128


@pytest.mark.torch
def test_denoising(fitting_client: Any) -> None:
    """Noise to noise on a phantom: nearer to the truth than the mean of the halves."""
    torch = pytest.importorskip("torch")
    from examples import denoise_tomogram as example

    *measured, truth = example.phantom(32, 100.0)
    halves = example.parts_of(*measured)
    scale = halves[0].std()
    halves = [half / scale for half in halves]
    torch.manual_seed(0)
    network = example.UNet(8)
    history = example.train(*halves, network, epochs=6, side=32, batch=8, best=True, client=fitting_client)
    assert history.best is not None
    assert history.best.score < history[0].loss
    denoiser = example.Denoiser(network.eval())
    made = [apply(denoiser, half, halo=example.HALO, chunk=(8, 16, 16), multiple=example.CELL) for half in halves]
    mean, denoised = sum(halves) / 2, sum(made) / 2
    assert example.likeness(denoised, truth) > example.likeness(mean, truth) + 2


@pytest.mark.torch
def test_the_network_looks_no_further_than_the_halo() -> None:
    torch = pytest.importorskip("torch")
    from examples import denoise_tomogram as example

    torch.manual_seed(0)
    denoiser = example.Denoiser(example.UNet(4).eval())
    volume = np.random.default_rng(0).normal(size=(5, 70, 41)).astype(np.float32)
    sizes = {"multiple": example.CELL}
    whole = apply(denoiser, volume, halo=(1, 64, 64), chunk=(5, 72, 44), **sizes)
    parts = apply(denoiser, volume, halo=example.HALO, chunk=(2, 12, 16), **sizes)
    np.testing.assert_allclose(parts, whole, atol=2e-6)
    thin = apply(denoiser, volume, halo=(1, 4, 4), chunk=(2, 12, 16), **sizes)
    assert np.abs(thin - whole).max() > 1e-4
