"""Gauges: what is fixed changes no intensity and is fixed the second time; objects brought to that of a reference."""

import numpy as np
import pytest
from numpy.typing import NDArray

from dtomo.errors import UserError
from dtomo.ptycho.gauge import aligned, centered, error, fixed, fourier_shifted, position_error, scaled, without_ramp
from dtomo.ptycho.modes import orthogonal, powers

PATCH, SHAPE, FRAMES = 40, (75, 70), 6


def _smooth(shape: tuple[int, int], seed: int, width: float = 2.5) -> NDArray[np.complex128]:
    """A band-limited random image of mean square one."""
    random = np.random.default_rng(seed)
    noise = random.normal(size=shape) + 1j * random.normal(size=shape)
    rows, columns = (np.fft.fftfreq(size) for size in shape)
    image = np.fft.ifft2(np.fft.fft2(noise) * np.exp(-2 * (np.pi * width) ** 2 * (rows[:, None] ** 2 + columns**2)))
    return image / np.sqrt((np.abs(image) ** 2).mean())


def _probe(seed: int, middle: tuple[float, float] = (22.3, 17.9), width: float = 3.0) -> NDArray[np.complex128]:
    rows, columns = np.indices((PATCH, PATCH), float)
    envelope = np.exp(-((rows - middle[0]) ** 2 + (columns - middle[1]) ** 2) / (2 * width**2))
    return 30 * envelope * (1 + 0.4 * _smooth((PATCH, PATCH), seed))


def _parameters(
    modes: int = 2, rank: int = 0, slices: int = 1, *, scale: bool = False, exponential: bool = False
) -> dict[str, NDArray[np.generic]]:
    random = np.random.default_rng(5)
    u = np.stack([0.3 * _smooth(SHAPE, 10 + k) for k in range(slices)])
    u = u.real + 0.3j * np.abs(u)
    rows, columns = np.indices(SHAPE)
    u[0] += 0.7 + 0.05 * rows - 0.03 * columns - 0.2j
    found = {
        "object": (u if exponential else np.exp(1j * u))[None],
        "probe": np.stack([_probe(k) for k in range(modes)]),
        "positions": random.uniform(8, 27, (FRAMES, 2)),
    }
    if rank:
        found["variable_probe"] = np.stack(
            [[0.3 * _probe(20 + modes * k + m) for m in range(modes)] for k in range(rank)]
        )
        found["probe_weights"] = random.normal(size=(FRAMES, rank)) + 1j * random.normal(size=(FRAMES, rank)) + 0.5
    if scale:
        found["scale"] = random.uniform(0.5, 1.5, FRAMES)
    return found


def _intensities(parameters: dict[str, NDArray[np.generic]], exponential: bool = False) -> NDArray[np.float64]:
    """Of all frames, far field, slice after slice without propagation, written down as plainly as can be."""
    result = []
    waves = np.exp(1j * parameters["object"]) if exponential else parameters["object"]
    for frame, position in enumerate(parameters["positions"]):
        corner = np.floor(position).astype(int)
        probe = parameters["probe"]
        if "variable_probe" in parameters:
            probe = probe + np.tensordot(parameters["probe_weights"][frame], parameters["variable_probe"], 1)
        probe = np.stack([fourier_shifted(mode, tuple(position - corner)) for mode in probe])
        probe = probe * parameters.get("scale", np.ones(FRAMES))[frame]
        patch = waves[:, :, corner[0] : corner[0] + PATCH, corner[1] : corner[1] + PATCH].prod(axis=1)
        exits = probe[:, None] * patch[None]
        result.append((np.abs(np.fft.fft2(exits, norm="ortho")) ** 2).sum(axis=(0, 1)))
    return np.array(result)


CASES = [
    {},
    {"modes": 1},
    {"modes": 3, "rank": 2},
    {"scale": True},
    {"exponential": True, "scale": True, "rank": 1},
    {"slices": 2},
    {"slices": 2, "exponential": True},
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_intensities_stay_and_what_is_fixed_stays(case: dict[str, object]) -> None:
    exponential = bool(case.get("exponential", False))
    before = _parameters(**case)  # type: ignore[arg-type]
    kept = {name: value.copy() for name, value in before.items()}
    after = fixed(before, exponential=exponential)
    expected = _intensities(before, exponential)
    assert np.abs(_intensities(after, exponential) - expected).max() <= 1e-5 * expected.max()
    again = fixed(after, exponential=exponential)
    for name, value in again.items():
        assert value.dtype == before[name].dtype
        assert np.abs(value - after[name]).max() <= 1e-3 * np.abs(after[name]).max(), name
        assert np.array_equal(before[name], kept[name])
        assert not np.array_equal(before[name], after[name])


def test_modes_are_orthogonal_and_sorted() -> None:
    found = orthogonal(_parameters(modes=3))["probe"]
    flat = found.reshape(3, -1)
    products = flat.conj() @ flat.T
    assert np.abs(products - np.diag(np.diag(products))).max() < 1e-10 * products[0, 0].real
    assert (np.diff(powers(found)) < 0).all()


def test_modes_of_a_probe_that_varies() -> None:
    before = _parameters(modes=2, rank=2)
    found = orthogonal(before)
    weights = found["probe_weights"]
    assert weights.mean(axis=0) == pytest.approx(0, abs=1e-12)
    assert weights.conj().T @ weights / FRAMES == pytest.approx(np.eye(2), abs=1e-12)
    flat = found["variable_probe"].reshape(2, -1)
    products = flat.conj() @ flat.T
    assert abs(products[0, 1]) < 1e-10 * products[0, 0].real
    assert products[0, 0].real > products[1, 1].real
    each = found["probe"] + np.tensordot(weights, found["variable_probe"], 1)
    mean = np.einsum("jmyx,jnyx->mn", each, each.conj())
    assert abs(mean[0, 1]) < 1e-10 * mean[0, 0].real
    assert mean[0, 0].real > mean[1, 1].real


def test_the_probe_is_centered_and_ramp_scale_and_phase_are_gone() -> None:
    found = fixed(_parameters(modes=1))
    power = np.abs(found["probe"][0]) ** 2
    rows, columns = np.indices(power.shape)
    assert (power * rows).sum() / power.sum() == pytest.approx(PATCH // 2, abs=0.01)
    assert (power * columns).sum() / power.sum() == pytest.approx(PATCH // 2, abs=0.01)
    again = without_ramp(found)["object"]
    assert again == pytest.approx(found["object"], abs=1e-5)
    assert power.sum() == pytest.approx(_intensities(found).sum() / FRAMES, rel=2e-2)


def test_a_probe_near_the_border_makes_the_object_grow() -> None:
    before = _parameters(modes=1)
    before["probe"] = _probe(0, (27.3, 18.4), width=2.0)[None]
    before["positions"] = np.array([[0.0, 3.0], [35.0, 30.0]])
    after = centered(before)
    assert 7 <= after["object"].shape[-2] - SHAPE[0] <= 9
    assert after["object"].shape[-1] == SHAPE[1]
    assert after["positions"].min() >= 0
    assert (after["positions"].max(axis=0) + PATCH <= after["object"].shape[-2:]).all()
    expected = _intensities(before)[:2]
    assert np.abs(_intensities(after)[:2] - expected).max() <= 1e-5 * expected.max()


def test_scaled_by_the_power_of_the_data() -> None:
    before = _parameters(scale=True)
    after = scaled(before)
    assert (after["scale"] ** 2).mean() == pytest.approx(1)
    assert _intensities(after) == pytest.approx(_intensities(before), rel=1e-9)


def test_whole_shifts_are_exact() -> None:
    image = _smooth((9, 8), 3)
    assert np.array_equal(fourier_shifted(image, (2.0, -3.0)), np.roll(image, (2, -3), (0, 1)))
    back = fourier_shifted(fourier_shifted(image, (0.3, -1.7)), (-0.3, 1.7))
    assert back == pytest.approx(image, abs=1e-12)


@pytest.mark.parametrize("shift", [(0.0, 0.0), (0.37, -0.21), (3.6, -2.2)])
@pytest.mark.parametrize("slopes", [(0.0, 0.0), (0.04, -0.11), (0.9, 0.4)])
def test_an_object_is_brought_to_its_reference(shift: tuple[float, float], slopes: tuple[float, float]) -> None:
    rows, columns = np.indices((64, 60))
    reference = np.exp(0.8j * _smooth((64, 60), 1).real) * (0.8 + 0.1 * _smooth((64, 60), 2).real)
    image = fourier_shifted(reference, shift) * np.exp(1j * (slopes[0] * rows + slopes[1] * columns)) * (0.3 - 2j)
    region = np.zeros(reference.shape, bool)
    region[10:50, 12:48] = True
    image[:3] = 0  # what is outside is not looked at
    assert error(image.astype(np.complex64), reference.astype(np.complex64), region) < 0.01
    assert np.abs(aligned(image, reference, region) - reference)[region].max() < 0.1


def test_noise_is_not_aligned_away() -> None:
    random = np.random.default_rng(3)
    reference = np.exp(0.8j * _smooth((64, 60), 1).real)
    noise = 0.1 * (random.normal(size=reference.shape) + 1j * random.normal(size=reference.shape)) / np.sqrt(2)
    assert error(reference + noise, reference) == pytest.approx(0.1, rel=0.05)


def test_shapes_that_differ_are_refused() -> None:
    with pytest.raises(UserError, match="one shape"):
        aligned(np.ones((3, 4), complex), np.ones((4, 4), complex))
    with pytest.raises(UserError, match="not empty"):
        error(np.ones((4, 4), complex), np.ones((4, 4), complex), np.zeros((4, 4), bool))


def test_errors_of_positions() -> None:
    random = np.random.default_rng(3)
    there = random.uniform(0, 50, (200, 2))
    noise = random.normal(size=there.shape)
    assert position_error(there + np.array([3, -4]), there) == pytest.approx(0, abs=1e-12)
    assert position_error(there + 0.2 * noise, there) == pytest.approx(0.2 * np.sqrt(2), rel=0.1)
    turned = there @ [[1.02, 0.03], [-0.01, 0.97]]
    assert position_error(turned, there) > 0.5
    assert position_error(turned, there, affine=True) == pytest.approx(0, abs=1e-9)
