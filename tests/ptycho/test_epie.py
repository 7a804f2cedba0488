"""ePIE and rPIE: steps written out, single frames in sequence and batches, convergence, what is refused."""

import dataclasses
import itertools
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dtomo.errors import UserError
from dtomo.ptycho.blocks import cut_frames
from dtomo.ptycho.driver import LocalRunner, run
from dtomo.ptycho.engines.epie import Epie, Rpie, light_of
from dtomo.ptycho.evaluator import Problem
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


def _modulus_gap(waves: NDArray[Any], measured: NDArray[Any]) -> NDArray[Any]:
    """χ of the exit waves of a frame, written out."""
    far = np.fft.fft2(waves, norm="ortho")
    modelled = np.sqrt((np.abs(far) ** 2).sum(0))
    return np.fft.ifft2(far * (1 - np.sqrt(measured) / modelled), norm="ortho")


def _written_out(scan: SmallScan, batches: list[list[int]], engine: Epie) -> tuple[NDArray[Any], NDArray[Any]]:
    """Object and probe after some steps, in double precision, without momentum."""
    image, probe = scan.guess["object"][0, 0].astype(complex), scan.guess["probe"].astype(complex)
    frames = to_model_order(scan.source.read()).astype(float)
    size, step = probe.shape[-1], engine.lengths[0]
    for batch in batches:
        change, light = np.zeros_like(image), np.zeros(image.shape)
        probe_change, passed = np.zeros_like(probe), np.zeros(probe.shape[1:])
        for number in batch:
            row, column = np.floor(scan.guess["positions"][number] + 0.5).astype(int)
            place = np.s_[row : row + size, column : column + size]
            chi = _modulus_gap(probe * image[place], frames[number])
            change[place] += (np.conj(probe) * chi).sum(0)
            light[place] += (np.abs(probe) ** 2).sum(0)
            probe_change += np.conj(image[place]) * chi
            passed += np.abs(image[place]) ** 2
        image = image - step * change / ((1 - engine.alpha) * light + engine.alpha * light.max())
        below = (1 - engine.probe_alpha) * passed + engine.probe_alpha * passed.max()
        probe = probe - step * probe_change / below
    return image, probe


def _after(scan: SmallScan, engine: Epie, epochs: int = 1) -> tuple[dict[str, Any], list[list[int]]]:
    """Parameters after some epochs, and the frames of the steps of these."""
    blocks = cut_frames(scan.guess["positions"], scan.model.frame_shape, engine.batch)
    order = [step for epoch in range(epochs) for step in engine.steps(epoch, len(blocks.batches))]
    batches = [np.concatenate([blocks.frames[b] for k in step for b in blocks.batches[k]]).tolist() for step in order]
    return run(engine, scan.source, scan.guess, epochs, blocks=blocks).parameters, batches


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"alpha": 0.3, "probe_alpha": 0.6, "step": 0.7},
        {"batch": 4, "momentum": 0.0},
        {"batch": None, "momentum": 0.0},
    ],
    ids=["sequence", "regularised", "batch", "everything"],
)
def test_steps_are_those_of_the_papers(two_modes: SmallScan, options: dict[str, Any]) -> None:
    engine = Epie(model=two_modes.model, **options)
    found, batches = _after(two_modes, engine, epochs=2)
    image, probe = _written_out(two_modes, batches, engine)
    assert sorted(itertools.chain(*batches)) == sorted(list(range(9)) * 2)
    assert found["object"].dtype == np.complex64
    np.testing.assert_allclose(found["object"][0, 0], image, atol=2e-4 * np.abs(image).max())
    np.testing.assert_allclose(found["probe"], probe, atol=2e-4 * np.abs(probe).max())


def test_momentum_adds_the_last_changes(two_modes: SmallScan) -> None:
    """Two steps of the same batch: v ← μ v + d, z ← z + d + μ v."""
    engine = Epie(model=two_modes.model, batch=None, momentum=0.6)
    plain = dataclasses.replace(engine, momentum=0.0)
    start = two_modes.guess
    once, _ = _after(two_modes, engine)
    step, _ = _after(two_modes, plain)
    twice, _ = _after(two_modes, engine, epochs=2)
    then, _ = _after(dataclasses.replace(two_modes, guess=once), plain)
    for name in ("object", "probe"):
        first = step[name] - start[name]
        np.testing.assert_allclose(once[name] - start[name], 1.6 * first, atol=1e-5 * np.abs(first).max())
        second = then[name] - once[name]
        expected = second + 0.6 * (0.6 * first + second)
        np.testing.assert_allclose(twice[name] - once[name], expected, atol=2e-5 * np.abs(start[name]).max())


def test_light_counts_scales_and_all_modes(two_modes: SmallScan) -> None:
    scale = np.linspace(0.5, 2, 9).astype(np.float32)
    indices = np.array([1, 4, 7])
    light = light_of({**two_modes.truth, "scale": scale}, indices, ("object", "probe"))
    views = two_modes.model.views({**two_modes.truth, "scale": scale}, indices)
    exact = two_modes.model.illumination(two_modes.truth, views)
    assert light["object"].origin == exact.origin
    np.testing.assert_allclose(light["object"].values, exact.values, rtol=1e-4, atol=1e-3)
    passed = sum(s**2 * np.abs(p) ** 2 for s, p in zip(scale[indices], views.patches[:, 0, 0]))
    np.testing.assert_allclose(light["probe"], passed, rtol=1e-5)


@pytest.mark.parametrize(
    ("engine", "epochs", "most"),
    [(Epie, 12, 0.22), (Rpie, 12, 0.2)],
)
def test_frames_in_sequence_converge(scan: SmallScan, engine: type[Epie], epochs: int, most: float) -> None:
    result = run(engine(model=scan.model), scan.source, scan.guess, epochs)
    assert result.losses[-1] < 0.05 * result.losses[0]
    before = error(scan.guess["object"][0, 0], scan.truth["object"][0, 0], scan.region)
    after = error(result.parameters["object"][0, 0], scan.truth["object"][0, 0], scan.region)
    assert after < most < 0.6 * before


def test_batches_converge(scan: SmallScan) -> None:
    result = run(Rpie(model=scan.model, batch=12), scan.source, scan.guess, 40)
    assert result.losses[-1] < 3e-3 * result.losses[0]
    assert error(result.parameters["object"][0, 0], scan.truth["object"][0, 0], scan.region) < 0.1


def test_single_frames_change_what_they_see_alone(scan: SmallScan) -> None:
    engine = Epie(model=scan.model)
    assert engine.sequential
    assert not Epie(model=scan.model, batch=2).sequential
    blocks = cut_frames(scan.guess["positions"], scan.model.frame_shape, 1)
    assert blocks.sequential
    runner = LocalRunner(Problem(dataclasses.replace(engine, wanted=("object",)), scan.source, blocks))
    runner.begin(scan.guess)
    sums = {"loss": 0.0, "count": 1, "frames": 1, **_change_of(scan, engine, 3)}
    runner.update(sums, True)
    changed = np.argwhere(runner.result()["object"][0, 0] != scan.guess["object"][0, 0])
    corner = np.floor(scan.guess["positions"][3] + 0.5)
    assert changed.min(0).tolist() == corner.tolist()
    assert changed.max(0).tolist() == (corner + 31).tolist()
    runner.close()


def _change_of(scan: SmallScan, engine: Epie, number: int) -> dict[str, Any]:
    frames = to_model_order(scan.source.read())
    block = FrameBlock(np.array([number]), frames[number : number + 1])
    only = dataclasses.replace(engine, wanted=("object",))
    return only.evaluate({"parameters": scan.guess, "shared": {"epoch": 0}}, block, None)[0]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"alpha": 0.0}, "alpha is above 0"),
        ({"step": 3.0}, "the step is above 0 and at most 2"),
        ({"momentum": 1.0}, "momentum from 0 to below 1"),
        ({"wanted": ("sample",)}, "sample is not a parameter"),
    ],
)
def test_settings_are_checked(scan: SmallScan, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        Epie(model=scan.model, **options)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [({"loss": "poisson"}, "no poisson loss"), ({"exponential": True}, "leave exponential out")],
)
def test_models_of_another_kind_are_refused(scan: SmallScan, change: dict[str, Any], sentence: str) -> None:
    engine = Epie(model=dataclasses.replace(scan.model, **change))
    with pytest.raises(UserError, match=sentence):
        engine.begin(scan.guess)


def test_several_slices_are_refused(scan: SmallScan) -> None:
    slices = np.repeat(scan.guess["object"], 3, axis=1)
    with pytest.raises(UserError, match="takes one slice; the object has 3"):
        Epie(model=scan.model).begin({**scan.guess, "object": slices})
