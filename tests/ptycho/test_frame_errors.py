"""Errors of single frames."""

import numpy as np
import pytest

from dtomo.io.sources import ArraySource
from dtomo.ptycho.frame_errors import frame_errors
from dtomo.ptycho.frames import FrameBlock, to_model_order
from dtomo.ptycho.model import PtychoModel
from dtomo.simulate import simulate_ptycho


@pytest.fixture(scope="module")
def scan(tmp_path_factory):
    truth = simulate_ptycho(tmp_path_factory.mktemp("scan") / "scan.cxi", size=32, positions=40, background=20.0)
    return truth.parameters, np.stack([truth.counts(number) for number in range(40)]).astype(np.uint16)


@pytest.mark.parametrize("loss", ["amplitude", "poisson"])
def test_they_add_up_to_the_loss(scan, loss):
    parameters, frames = scan
    mask = np.random.default_rng(0).uniform(size=(32, 32)) > 0.2
    model = PtychoModel((32, 32), loss=loss, mask=mask)
    errors = frame_errors(model, ArraySource(frames), parameters)
    assert errors.shape == (40,)
    assert errors.dtype == np.float64
    block = FrameBlock(np.arange(40), to_model_order(frames))
    total, count, _ = model.loss_and_gradient(parameters, block, ())
    assert count == 40 * mask.sum()
    assert errors.sum() * mask.sum() == pytest.approx(total, rel=1e-6)


def test_a_bad_frame_sticks_out_and_nothing_is_changed(scan):
    parameters, frames = scan
    bad = frames.copy()
    bad[17] = bad[17].T
    before = {name: np.array(value) for name, value in parameters.items()}
    model = PtychoModel((32, 32))
    usual, errors = (frame_errors(model, ArraySource(images), parameters) for images in (frames, bad))
    assert int(np.argmax(errors)) == 17
    assert errors[17] > 2 * np.median(errors)
    np.testing.assert_array_equal(np.delete(errors, 17), np.delete(usual, 17))
    for name, value in before.items():
        np.testing.assert_array_equal(parameters[name], value)
