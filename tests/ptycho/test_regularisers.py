"""Penalties: gradients against differences. Projections: what they allow, and that they change nothing else."""

import numpy as np
import pytest
from numpy.typing import NDArray

from dtomo.errors import UserError
from dtomo.ptycho.regularisers import (
    AmplitudeLimit,
    Constraints,
    FourierSupport,
    Penalty,
    PhaseOnly,
    ProbePower,
    ProbeSupport,
    Projection,
    Smoothness,
    TotalVariation,
)

SHAPE = (2, 3, 7, 6)


def _waves(seed: int = 0, shape: tuple[int, ...] = SHAPE) -> NDArray[np.complex128]:
    random = np.random.default_rng(seed)
    return random.normal(size=shape) + 1j * random.normal(size=shape)


@pytest.mark.parametrize("penalty", [TotalVariation(0.7, smoothing=0.3), Smoothness(1.3)], ids=["tv", "smooth"])
@pytest.mark.parametrize("part", [1, 1j, 0.6 - 0.8j], ids=["real", "imaginary", "both"])
def test_gradients_are_those_of_the_values(penalty: Penalty, part: complex) -> None:
    waves, direction = _waves(), _waves(1).real * part
    step = 1e-5
    ahead, behind = (penalty.value_and_gradient(waves + sign * step * direction)[0] for sign in (1, -1))
    predicted = 2 * np.vdot(penalty.value_and_gradient(waves)[1], direction).real
    assert (ahead - behind) / (2 * step) == pytest.approx(predicted, rel=1e-8)


@pytest.mark.parametrize("penalty", [TotalVariation(0.7, smoothing=0.3), Smoothness(1.3)], ids=["tv", "smooth"])
def test_gradients_by_real_parameters(penalty: Penalty) -> None:
    image, direction, step = _waves().real, _waves(1).real, 1e-5
    ahead, behind = (penalty.value_and_gradient(image + sign * step * direction)[0] for sign in (1, -1))
    predicted = np.vdot(penalty.value_and_gradient(image)[1], direction)
    assert (ahead - behind) / (2 * step) == pytest.approx(predicted, rel=1e-8)


@pytest.mark.parametrize("penalty", [TotalVariation(0.7), Smoothness(1.3)], ids=["tv", "smooth"])
def test_a_flat_object_costs_nothing_and_dtypes_stay(penalty: Penalty) -> None:
    value, gradient = penalty.value_and_gradient(np.full(SHAPE, 0.5 - 2j, np.complex64))
    assert value == pytest.approx(0, abs=1e-9)
    assert gradient.dtype == np.complex64
    assert not gradient.any()


def test_an_edge_costs_its_length_times_its_height() -> None:
    image = np.zeros((1, 1, 8, 8), complex)
    image[..., 3:] = 2j
    assert TotalVariation(0.5, smoothing=1e-6).value_and_gradient(image)[0] == pytest.approx(0.5 * 8 * 2, rel=1e-5)
    assert Smoothness(0.5).value_and_gradient(image)[0] == pytest.approx(0.5 * 8 * 4)


@pytest.mark.parametrize("exponential", [False, True])
def test_amplitudes_are_limited_and_phases_stay(exponential: bool) -> None:
    waves = _waves()
    limited = AmplitudeLimit(0.9, exponential)(waves)
    before, after = (np.exp(1j * one) if exponential else one for one in (waves, limited))
    assert np.abs(after) == pytest.approx(np.minimum(np.abs(before), 0.9))
    assert np.angle(after / before) == pytest.approx(0, abs=1e-12)
    assert (np.abs(before) > 0.9).any()
    assert (np.abs(before) < 0.9).any()


@pytest.mark.parametrize("exponential", [False, True])
def test_phase_only(exponential: bool) -> None:
    waves = _waves()
    waves[0, 0, 0, 0] = 0
    after = PhaseOnly(exponential)(waves)
    transmitted = np.exp(1j * after) if exponential else after
    assert np.abs(transmitted) == pytest.approx(1)
    assert np.angle(transmitted[0, 0, 0, 1:]) == pytest.approx(
        np.angle(np.exp(1j * waves[0, 0, 0, 1:]) if exponential else waves[0, 0, 0, 1:])
    )


def test_supports() -> None:
    probe = _waves(2, (2, 9, 8))
    rows, columns = np.indices((9, 8))
    inside = np.hypot(rows - 4, columns - 4) <= 2.6
    assert np.array_equal(ProbeSupport(2.6)(probe), np.where(inside, probe, 0))
    aperture = np.fft.ifftshift(np.hypot(rows - 4, columns - 4) <= 2.6)
    found = np.fft.fft2(FourierSupport(2.6)(probe))
    assert found == pytest.approx(np.where(aperture, np.fft.fft2(probe), 0))
    assert 0 < aperture.sum() < aperture.size


def test_power() -> None:
    probe = _waves(2, (2, 9, 8)).astype(np.complex64)
    scaled = ProbePower(1e4)(probe)
    assert (np.abs(scaled) ** 2).sum() == pytest.approx(1e4, rel=1e-5)
    assert scaled / probe == pytest.approx((scaled / probe)[0, 0, 0].real)
    assert not ProbePower(1e4)(np.zeros((1, 2, 2), np.complex64)).any()


@pytest.mark.parametrize(
    "projection",
    [
        AmplitudeLimit(),
        AmplitudeLimit(0.5, exponential=True),
        PhaseOnly(),
        PhaseOnly(exponential=True),
        ProbeSupport(2),
        FourierSupport(2),
        ProbePower(3.0),
    ],
    ids=lambda one: type(one).__name__,
)
def test_projections_keep_dtypes_and_change_nothing_twice(projection: Projection) -> None:
    waves = _waves().astype(np.complex64)
    copy = waves.copy()
    once = projection(waves)
    assert once.dtype == np.complex64
    assert np.array_equal(waves, copy)
    assert not np.array_equal(once, waves)
    assert projection(once) == pytest.approx(once, abs=3e-7)


def test_constraints_add_penalties_to_the_gradients_that_there_are() -> None:
    waves = _waves()
    constraints = Constraints((Smoothness(1.0), TotalVariation(2.0)), (PhaseOnly(), ProbeSupport(1)))
    parameters = {"object": waves, "probe": _waves(1, (1, 5, 5)), "variable_probe": _waves(2, (1, 1, 5, 5))}
    terms = [term.value_and_gradient(waves) for term in constraints.penalties]
    value, gradients = constraints.penalized(parameters, {"object": 1 + 0 * waves, "probe": 3}, 0.25)
    assert value == pytest.approx(0.25 * sum(term[0] for term in terms))
    assert gradients["object"] == pytest.approx(1 + 0.25 * (terms[0][1] + terms[1][1]))
    assert gradients["probe"] == 3
    assert constraints.penalized(parameters, {"probe": 3})[0] == 0
    assert constraints.value(parameters) == pytest.approx(sum(term[0] for term in terms))
    kept = parameters["object"]
    constraints.project(parameters, ("probe", "variable_probe"))
    assert parameters["object"] is kept
    assert (parameters["variable_probe"] != 0).sum() == 5
    constraints.project(parameters)
    assert np.abs(parameters["object"]) == pytest.approx(1)
    assert not Constraints()
    assert constraints


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: TotalVariation(-1.0),
        lambda: TotalVariation(1.0, smoothing=0),
        lambda: Smoothness(float("nan")),
        lambda: AmplitudeLimit(0),
        lambda: ProbeSupport(-3),
        lambda: FourierSupport(0),
        lambda: ProbePower(float("inf")),
    ],
)
def test_numbers_out_of_range_are_refused(wrong) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(UserError, match="number"):
        wrong()
