"""Kernels of ptychography on a device against the CPU: exit waves, spectra, probes of single frames, losses."""

import numpy as np
import pytest

from dtomo.kernels import detection, exit_waves, propagation, shifts
from dtomo.kernels.cuda.compiling import CudaKernel
from tests import laws

MODES = pytest.mark.parametrize(("layers", "modes"), [(1, 1), (2, 1), (1, 2), (2, 3)])
FRAMES, PATCH, OBJECT = 3, (4, 5), (9, 8)
CORNERS = np.array([[0, 0], [5, 3], [2, 1]])


@pytest.fixture(params=[((1, 1, 1), (3, 2)), ((2, 1, 2), (2, 1, 1))], ids=str)
def grid(request, monkeypatch):
    """Small blocks of threads, and grids that do not cover the frames."""
    launch = CudaKernel.launch
    blocks, threads = request.param

    def small(kernel, wanted, *arguments):
        axes = len(wanted)
        launch(kernel, blocks[:axes], *arguments, threads=threads[:axes])

    monkeypatch.setattr(CudaKernel, "launch", small)


@pytest.fixture(autouse=True)
def spoiled(cupy, monkeypatch):
    """New memory holds NaN."""
    monkeypatch.setattr(cupy, "empty", lambda shape, dtype: cupy.full(shape, np.nan, dtype))


def draw(seed, *shape, dtype=np.complex64):
    return laws.draw(shape, dtype, seed)


def close(found, expected, tolerance=1e-6):
    assert found.dtype == expected.dtype
    return np.abs(found.get() - expected).max() <= tolerance * np.abs(expected).max()


@MODES
@pytest.mark.parametrize("shared", [True, False])
def test_exit_waves(cupy, grid, record_error, layers, modes, shared):
    probes, image = draw(1, 1 if shared else FRAMES, modes, *PATCH), draw(2, layers, *OBJECT)
    there = [cupy.asarray(array) for array in (probes, image, CORNERS)]
    found, expected = exit_waves.product(*there), exit_waves.product(probes, image, CORNERS)
    record_error(found, expected)
    assert close(found, expected)
    changes = draw(3, FRAMES, layers, modes, *PATCH)
    everything, whole = cupy.empty((FRAMES, layers, 2, *PATCH), np.complex64), np.zeros((FRAMES, layers, 2, *PATCH))
    out = whole.astype(np.complex64)
    exit_waves.object_products(there[0], cupy.asarray(changes), everything[:, :, 1])
    exit_waves.object_products(probes, changes, out[:, :, 1])
    record_error(everything[:, :, 1], out[:, :, 1])
    assert close(everything[:, :, 1], out[:, :, 1])
    assert np.isnan(everything[:, :, 0].get()).all()


@MODES
def test_adjoints_for_the_probe(cupy, grid, record_error, layers, modes):
    image, changes = draw(2, layers, *OBJECT), draw(3, FRAMES, layers, modes, *PATCH)
    there, corners = cupy.asarray(image), cupy.asarray(CORNERS)
    found = exit_waves.probe_products(there, corners, cupy.asarray(changes))
    expected = exit_waves.probe_products(image, CORNERS, changes.copy())
    record_error(found, expected)
    assert close(found, expected)
    total, before = cupy.asarray(draw(4, modes, *PATCH)), draw(4, modes, *PATCH)
    exit_waves.probe_sum(there, corners, cupy.asarray(changes), total)
    exit_waves.probe_sum(image, CORNERS, changes, before)
    record_error(total, before)
    assert close(total, before)


@MODES
@pytest.mark.parametrize("conjugate", [True, False])
def test_times(cupy, grid, record_error, layers, modes, conjugate):
    image, waves = draw(2, layers, *OBJECT), draw(3, FRAMES, layers, modes, *PATCH)
    found = cupy.asarray(waves)
    exit_waves.times(found, cupy.asarray(image), cupy.asarray(CORNERS), conjugate=conjugate)
    exit_waves.times(waves, image, CORNERS, conjugate=conjugate)
    record_error(found, waves)
    assert close(found, waves)


@pytest.mark.parametrize("adjoint", [True, False])
@pytest.mark.parametrize("phased", [True, False])
def test_spectra_turned(cupy, grid, record_error, adjoint, phased):
    spectra, function = draw(1, FRAMES, 2, *PATCH), draw(2, *PATCH)
    phases = [draw(3, FRAMES, PATCH[0]), draw(4, FRAMES, PATCH[1])] if phased else []
    found = cupy.asarray(spectra)
    propagation.turn(found, *(cupy.asarray(array) for array in (function, *phases)), adjoint=adjoint)
    propagation.turn(spectra, function, *phases, adjoint=adjoint)
    record_error(found, spectra)
    assert close(found, spectra)


@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
def test_slopes(cupy, grid, record_error, dtype):
    psi, changes = draw(1, FRAMES, 2, 2, *PATCH, dtype=dtype), draw(2, FRAMES, 2, 2, *PATCH, dtype=dtype)
    kappa = laws.draw(PATCH, np.float32, 3).astype(np.float64)
    kappa[1, 2] = np.nan
    found, expected = cupy.zeros((FRAMES, 3), np.float64), np.zeros((FRAMES, 3))
    propagation.slopes(cupy.asarray(psi), cupy.asarray(changes), kappa, found)
    propagation.slopes(psi, changes, kappa, expected)
    record_error(found, expected)
    assert close(found, expected, 1e-12 if dtype == np.complex128 else 1e-6)


def mixture(modes, ranks):
    scale = np.abs(laws.draw((FRAMES,), np.float32, 9)) + np.float32(0.5)
    parts = draw(1, modes, *PATCH), draw(2, ranks, modes, *PATCH), draw(3, FRAMES, ranks)
    return shifts.Mixture(*parts, scale, draw(5, FRAMES, PATCH[0]), draw(6, FRAMES, PATCH[1]))


@pytest.mark.parametrize(("modes", "ranks"), [(1, 0), (2, 0), (1, 2), (2, 1)])
def test_probes_of_frames(cupy, grid, record_error, modes, ranks):
    here = mixture(modes, ranks)
    there = shifts.Mixture(*map(cupy.asarray, here))
    found, expected = shifts.mix(there), shifts.mix(here)
    record_error(found, expected)
    assert close(found, expected)


@pytest.mark.parametrize("wanted", ["all", "base", "variable", "weights", "tables"])
@pytest.mark.parametrize(("modes", "ranks"), [(1, 2), (2, 1)])
def test_what_probes_of_frames_are_made_of(cupy, grid, record_error, modes, ranks, wanted):
    here, gradients = mixture(modes, ranks), draw(7, FRAMES, modes, *PATCH)
    shapes = {
        "base": ((modes, *PATCH), np.complex64),
        "variable": ((ranks, modes, *PATCH), np.complex64),
        "weights": ((FRAMES, ranks), np.complex128),
        "tables": ((FRAMES, 3), np.float64),
    }
    rooms = [
        np.zeros(shape if wanted in ("all", name) else (0,) * len(shape), dtype)
        for name, (shape, dtype) in shapes.items()
    ]
    sums = shifts.MixtureSums(*rooms)
    found = shifts.MixtureSums(*map(cupy.asarray, rooms))
    shifts.unmix(cupy.asarray(gradients), shifts.Mixture(*map(cupy.asarray, here)), found)
    shifts.unmix(gradients, here, sums)
    for one, other in zip(found, sums):
        assert one.shape == other.shape
        if other.size:
            record_error(one, other)
            assert close(one, other, 2e-6)


@pytest.mark.parametrize("loss", detection.LOSSES)
@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
def test_losses_and_weights(cupy, grid, record_error, loss, dtype):
    real = np.zeros(0, dtype).real.dtype
    random = np.random.default_rng(5)
    waves, counts = (
        draw(1, FRAMES, 2, 2, *PATCH, dtype=dtype),
        random.integers(0, 9, (FRAMES, *PATCH)).astype(np.uint16),
    )
    good, background = random.random(PATCH) < 0.8, random.random(PATCH).astype(real)
    waves[0, :, :, 1, 2], background[1, 2] = 0, 0
    here = detection.Detector(loss, good, background, 6.0)
    there = detection.Detector(loss, cupy.asarray(good), cupy.asarray(background), 6.0)
    found, sums, expected = cupy.asarray(waves), cupy.zeros(PATCH, real), np.zeros(PATCH, real)
    value = detection.residual(found, cupy.asarray(counts), there, sums)
    assert value == pytest.approx(detection.residual(waves, counts, here, expected), rel=1e-5)
    record_error(found, waves)
    tolerance = 1e-5 if dtype == np.complex64 else 1e-12
    assert close(found, waves, tolerance)
    assert close(sums, expected, tolerance)
