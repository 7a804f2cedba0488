"""What holds for models of every kind: gradients, their second form, threads."""

from typing import Any

import numpy as np
import pytest

from dtomo.ptycho.model import PtychoModel
from dtomo.threads import get_threads, set_threads
from tests.ptycho import small_models
from tests.ptycho.small_models import FRAMES, block
from tests.ptycho.test_gradients import directions, product, slopes, whole


def single(values: dict[str, Any]) -> dict[str, Any]:
    """The same in single precision, positions and the distance excepted."""
    return {n: values[n] if n == "distance" else value for n, value in small_models.single(values).items()}


def gradients_are_right(model: PtychoModel, values: dict[str, Any], frames: Any, names: tuple[str, ...]) -> None:
    """Against central differences in double precision, and single precision against double."""
    found = whole(model.loss_and_gradient(values, block(frames), names)[2], values)
    small = whole(model.loss_and_gradient(single(values), block(frames), names)[2], values)
    for name in names:
        assert found[name].dtype == values[name].dtype
        assert small[name].dtype == single(values)[name].dtype
        assert np.linalg.norm(small[name] - found[name]) <= 1e-3 * np.linalg.norm(found[name]), name
        for along in directions(name, values[name].shape):
            expected = slopes(model, values, frames, name, along)
            assert abs(product(found[name], along) - expected) <= 1e-6 * abs(expected), (name, np.iscomplexobj(along))


def residual_and_adjoint_are_the_gradient(
    model: PtychoModel, values: dict[str, Any], frames: Any, names: tuple[str, ...]
) -> None:
    """The two ways to the same."""
    views = model.views(values, np.arange(FRAMES))
    loss, count, chi = model.residual(values, views, block(frames))
    kept = chi.copy()
    found = model.adjoint(values, views, chi, names)
    expected = model.loss_and_gradient(values, block(frames), names)
    assert np.array_equal(chi, kept)
    assert (loss, count) == (pytest.approx(expected[0], rel=1e-12), expected[1])
    for name in names:
        one, other = (getattr(part[name], "values", part[name]) for part in (found, expected[2]))
        assert np.allclose(one, other, rtol=1e-9, atol=1e-9 * np.abs(other).max()), name


def bits_do_not_depend_on_threads(model: PtychoModel, values: dict[str, Any], frames: Any, names: Any) -> None:
    """Two frames make a group."""
    before, found = get_threads(), []
    for threads in (1, 2, 3):
        set_threads(threads)
        try:
            loss, _, gradients = model.loss_and_gradient(single(values), block(frames), names)
        finally:
            set_threads(before)
        found.append((loss, {n: np.asarray(g).tobytes() for n, g in whole(gradients, values).items()}))
    assert found[0] == found[1] == found[2]
