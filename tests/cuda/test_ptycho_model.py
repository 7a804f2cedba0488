"""The model of ptychography on device arrays against the CPU."""

import numpy as np
import pytest

from dtomo.kernels.detection import LOSSES
from dtomo.ptycho.frames import FrameBlock
from dtomo.ptycho.model import PtychoModel
from dtomo.windows import Rows, Window
from tests.ptycho.small_models import FRAMES, SHAPE, block, counts, parameters, single

pytestmark = pytest.mark.usefixtures("few_threads")

NAMES = ("object", "probe", "variable_probe", "probe_weights", "background", "scale", "positions")
ALL = np.arange(FRAMES, dtype=np.int64)


def host(value):
    """Values of an array, a window or rows, on the host."""
    array = value.values if isinstance(value, Window | Rows) else value
    return array.get()


def close(found, expected):
    return np.abs(found - expected).max() <= 1e-4 * np.abs(expected).max()


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("subpixel", [True, False])
def test_loss_and_gradients(cupy, loss, subpixel):
    values = single(parameters(modes=2, object_modes=2, everything=True))
    there = {name: cupy.asarray(value) for name, value in values.items()}
    good = np.random.default_rng(2).random(SHAPE) < 0.8
    model = PtychoModel(SHAPE, loss, mask=good, saturation=60, subpixel=subpixel)
    names = NAMES if subpixel else NAMES[:-1]
    frames = FrameBlock(ALL, cupy.asarray(counts()))
    found, count, gradients = model.loss_and_gradient(there, frames, names)
    expected = model.loss_and_gradient(values, block(counts()), names)
    assert isinstance(found, float)
    assert found == pytest.approx(expected[0], rel=1e-5)
    assert count == expected[1]
    for name in names:
        assert close(host(gradients[name]), getattr(expected[2][name], "values", expected[2][name])), name


@pytest.mark.parametrize("everything", [True, False])
def test_views_residual_and_adjoint(cupy, everything):
    values = single(parameters(modes=2, everything=everything))
    there = {name: cupy.asarray(value) for name, value in values.items()}
    model = PtychoModel(SHAPE, subpixel=everything)
    views, expected = model.views(there, ALL), model.views(values, ALL)
    for name in ("probes", "patches", "waves"):
        assert close(getattr(views, name).get(), getattr(expected, name))
    found = model.residual(there, views, FrameBlock(ALL, cupy.asarray(counts())))
    residual = model.residual(values, expected, block(counts()))
    assert found[0] == pytest.approx(residual[0], rel=1e-5)
    assert close(found[2].get(), residual[2])
    gradients = model.adjoint(there, views, found[2], ("object", "probe"))
    wanted = model.adjoint(values, expected, residual[2], ("object", "probe"))
    assert close(gradients["object"].values.get(), wanted["object"].values)
    assert close(gradients["probe"].get(), wanted["probe"])
    light = model.illumination(there, views)
    assert close(light.values.get(), model.illumination(values, expected).values)
    assert close(model.coverage(there, views).get(), model.coverage(values, expected))
    assert close(model.intensities(there, ALL).get(), model.intensities(values, ALL))
