"""Solvers that follow gradients, regularisers and gauge on device arrays against the CPU."""

import numpy as np
import pytest

from dtomo.ptycho.engines.adam import Adam
from dtomo.ptycho.engines.conjugate import ConjugateGradient
from dtomo.ptycho.frames import FrameBlock
from dtomo.ptycho.gauge import fixed
from dtomo.ptycho.model import PtychoModel
from dtomo.ptycho.nested import mapped
from dtomo.ptycho.regularisers import (
    AmplitudeLimit,
    Constraints,
    FourierSupport,
    PhaseOnly,
    ProbePower,
    ProbeSupport,
    Smoothness,
    TotalVariation,
)
from tests.ptycho.small_models import SHAPE, block, counts, parameters, single

pytestmark = pytest.mark.usefixtures("few_threads")

WANTED = ("object", "probe", "variable_probe", "probe_weights", "background", "scale", "positions")


def there(cupy, value):
    return mapped(value, cupy.asarray)


def here(value):
    return mapped(value, lambda array: array.get())


def close(found, expected, most=1e-3):
    return np.abs(found - expected).max() <= most * np.abs(expected).max()


def state_after(engine, values, frames, passes):
    state = engine.begin(values)
    for _ in range(passes):
        state = engine.update(state, engine.evaluate(state, frames, None)[0])
    return state


@pytest.mark.parametrize("kind", [Adam, ConjugateGradient])
def test_steps(cupy, kind):
    values = single(parameters(modes=2, everything=True))
    constraints = Constraints(
        (TotalVariation(0.5), Smoothness(0.1, "probe")), (AmplitudeLimit(1.5), ProbeSupport(6), ProbePower(50.0))
    )
    engine = kind(model=PtychoModel(SHAPE), wanted=WANTED, constraints=constraints, search_trials=2, position_range=1.0)
    frames = block(counts())
    expected = state_after(engine, mapped(values, np.array), frames, 3)["parameters"]
    device_frames = FrameBlock(frames.indices, cupy.asarray(frames.intensities))
    found = here(state_after(engine, there(cupy, values), device_frames, 3)["parameters"])
    for name in WANTED:
        assert found[name].dtype == values[name].dtype
        assert close(found[name], expected[name]), name
        assert not np.array_equal(found[name], values[name])


@pytest.mark.parametrize("projection", [PhaseOnly(), PhaseOnly(exponential=True), FourierSupport(3)], ids=str)
def test_projections(cupy, projection):
    waves = single(parameters())["object"]
    assert close(projection(cupy.asarray(waves)).get(), projection(waves), 1e-5)


@pytest.mark.parametrize("exponential", [False, True])
def test_gauge(cupy, exponential):
    values = single(parameters(modes=2, everything=True))
    rows, columns = np.indices(SHAPE)
    values["probe"] *= np.exp(-((rows - 5) ** 2 + (columns - 6) ** 2) / 4).astype(np.float32)
    values["variable_probe"] *= np.exp(-((rows - 5) ** 2 + (columns - 6) ** 2) / 4).astype(np.float32)
    expected = fixed(values, exponential=exponential)
    found = here(fixed(there(cupy, values), exponential=exponential))
    for name, value in expected.items():
        assert found[name].dtype == value.dtype
        assert close(found[name], value, 2e-3), name
