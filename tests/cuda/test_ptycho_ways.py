"""Near fields, slices and oversampled detectors on device arrays against the CPU."""

import numpy as np
import pytest

from dtomo.operators.propagation import FarField
from dtomo.ptycho.frames import FrameBlock
from dtomo.ptycho.model import NearField, PtychoModel
from dtomo.windows import Rows, Window
from tests.ptycho.any_models import single
from tests.ptycho.small_models import FRAMES, SHAPE, block, counts, parameters

pytestmark = pytest.mark.usefixtures("few_threads")

NAMES = ("object", "probe", "variable_probe", "probe_weights", "background", "scale", "positions")
FIELD = NearField(SHAPE, (1.0, 1.2), 0.1, 4.0)
KINDS = {
    "near": {"propagation": FIELD},
    "slices": {"between": (FIELD, FIELD.at(2.0)), "exponential": True},
    "oversampled": {"oversampling": 2},
    "all": {"between": (FIELD,), "oversampling": 2, "propagation": FIELD.at(3.0)},
}


def case(kind):
    """A model, its parameters here, counts."""
    options = KINDS[kind]
    fold = options.get("oversampling", 1)
    shape = SHAPE[0] // fold, SHAPE[1] // fold
    values = parameters(modes=2, object_modes=2, slices=len(options.get("between", ())) + 1, everything=True)
    values["object"] *= 0.5
    values["background"] = values["background"][: shape[0], : shape[1]].copy()
    if "propagation" in options:
        values["distance"] = np.array(4.5)
    return PtychoModel(shape, **options), single(values), np.ascontiguousarray(counts()[:, : shape[0], : shape[1]])


def host(value):
    array = value.values if isinstance(value, Window | Rows) else value
    return array.get()


def close(found, expected):
    return np.abs(found - expected).max() <= 1e-4 * np.abs(expected).max()


@pytest.mark.parametrize("kind", KINDS)
def test_the_model(cupy, kind):
    model, values, frames = case(kind)
    there = {name: cupy.asarray(value) for name, value in values.items()}
    names = (*NAMES, "distance") if "distance" in values else NAMES
    found, count, gradients = model.loss_and_gradient(there, FrameBlock(np.arange(FRAMES), cupy.asarray(frames)), names)
    expected = model.loss_and_gradient(values, block(frames), names)
    assert found == pytest.approx(expected[0], rel=1e-5)
    assert count == expected[1]
    for name in names:
        assert close(host(gradients[name]), getattr(expected[2][name], "values", expected[2][name])), name
    indices = np.arange(FRAMES)
    assert close(model.intensities(there, indices).get(), model.intensities(values, indices))
    views, wanted = model.views(there, indices), tuple(name for name in names if name != "background")
    chi = model.residual(there, views, FrameBlock(indices, cupy.asarray(frames)))[2]
    back = model.adjoint(there, views, chi, wanted)
    for name in wanted:
        assert close(host(back[name]), getattr(expected[2][name], "values", expected[2][name])), name


@pytest.mark.parametrize("operator", [FarField(), FIELD], ids=["far", "near"])
def test_operators(cupy, operator):
    random = np.random.default_rng(1)
    x = (random.normal(size=(2, *SHAPE)) + 1j * random.normal(size=(2, *SHAPE))).astype(np.complex64)
    there = cupy.asarray(x)
    for name in ("forward", "adjoint"):
        found = getattr(operator, name)(there)
        assert found.dtype == np.complex64
        assert close(found.get(), getattr(operator, name)(x))
    assert np.array_equal(there.get(), x)
    if operator is FIELD:
        found = FIELD.distance_gradient(there, cupy.asarray(x[::-1].copy()))
        assert found == pytest.approx(FIELD.distance_gradient(x, x[::-1].copy()), rel=1e-4)
