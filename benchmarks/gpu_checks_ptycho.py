"""Models of ptychography on a device against the CPU, for `benchmarks.gpu`."""

from typing import Any

import numpy as np

from benchmarks.gpu_checks import Checker
from dtomo.ptycho.frames import FrameBlock
from dtomo.ptycho.model import NearField, PtychoModel
from dtomo.windows import Rows, Window

NAMES = ("object", "probe", "variable_probe", "probe_weights", "background", "scale", "positions")
ALLOWED = 1e-4
"""Of gradients in float32, relative to the largest value."""


def check_ptychography(check: Checker) -> None:
    """Losses, gradients, intensities and exit waves of far and near fields, several slices, oversampled detectors."""
    size = max(8, min(check.extent.columns, 64) // 4 * 4)
    field = NearField((size, size + 2), (1.0, 1.2), 0.1, 4.0)
    ways: dict[str, dict[str, Any]] = {
        "far field": {"loss": "poisson", "saturation": 500.0},
        "whole pixels": {"loss": "intensity", "subpixel": False},
        "near field": {"propagation": field},
        "three slices": {"between": (field, field.at(2.0)), "exponential": True},
        "oversampled": {"oversampling": 2},
    }
    for name, options in ways.items():
        fold = options.get("oversampling", 1)
        model = PtychoModel((size // fold, (size + 2) // fold), mask=_mask(check, size, fold), **options)
        _check_model(check, name, model)


def _mask(check: Checker, size: int, fold: int) -> Any:
    return check.rng.random((size // fold, (size + 2) // fold)) < 0.9


def _check_model(check: Checker, name: str, model: PtychoModel) -> None:
    place, values = check.place, _parameters(check, model)
    there = {key: place.put(value) for key, value in values.items()}
    indices = np.arange(len(values["positions"]))
    counts = check.rng.poisson(300, (len(indices), *model.frame_shape)).astype(np.uint16)
    wanted = [key for key in values if key != "positions" or model.subpixel]
    blocks = [FrameBlock(indices, where(counts)) for where in (place.put, np.asarray)]
    found, expected = (model.loss_and_gradient(*pair, wanted) for pair in zip((there, values), blocks, strict=True))
    check.value(f"{name}, loss", found[0], expected[0], 1e-5)
    for key in wanted:
        check.close(f"{name}, gradient of {key}", _values(found[2][key]), _values(expected[2][key]), ALLOWED)
    again = model.loss_and_gradient(there, blocks[0], wanted)[2]
    check.same(f"{name}, twice", _values(again["object"]), place.get(_values(found[2]["object"])))
    check.close(f"{name}, intensities", model.intensities(there, indices), model.intensities(values, indices), ALLOWED)
    views = [model.views(parameters, indices) for parameters in (there, values)]
    check.close(f"{name}, exit waves", views[0].waves, views[1].waves, ALLOWED)
    light = [model.illumination(*pair).values for pair in zip((there, values), views, strict=True)]
    check.close(f"{name}, light", light[0], light[1], ALLOWED)
    if not model.subpixel:  # one probe for all frames
        for key in ("scale", "variable_probe", "probe_weights"):
            del there[key], values[key]
        found, expected = (model.loss_and_gradient(*pair) for pair in zip((there, values), blocks, strict=True))
        check.close(f"{name}, one probe", found[2]["probe"], expected[2]["probe"], ALLOWED)


def _parameters(check: Checker, model: PtychoModel) -> dict[str, Any]:
    """Two modes of object and probe, one variable probe, and all that a model knows beside."""
    frames, (rows, columns) = 5, model.probe_shape
    shape = 2, len(model.between) + 1, rows + 7, columns + 9
    found = {
        "object": np.complex64(0.5) * check.random(shape, np.complex64),
        "probe": np.complex64(4) * check.random((2, rows, columns), np.complex64),
        "variable_probe": check.random((1, 2, rows, columns), np.complex64),
        "probe_weights": check.random((frames, 1), np.complex64),
        "background": np.float32(1) + np.abs(check.random(model.frame_shape, np.float32)),
        "scale": np.float32(1) + np.float32(0.1) * check.random((frames,), np.float32),
        "positions": check.rng.uniform(0, 6, (frames, 2)),
    }
    if isinstance(model.propagation, NearField):
        found["distance"] = np.array(4.5)
    return found


def _values(gradient: Any) -> Any:
    return gradient.values if isinstance(gradient, Window | Rows) else np.reshape(gradient, (-1,))
