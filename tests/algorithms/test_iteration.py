"""Iterative methods go on from a checkpoint with the same bits, whatever they are and wherever they were stopped."""

import numpy as np
import pytest

from dtomo.algorithms import HeldOut, IterativeMethod, State, cgls, iterate, lsqr, mlem, os_sart, osem, sirt, tv
from dtomo.errors import UserError
from dtomo.geometry import ParallelBeam
from dtomo.io import Checkpoints, Schedule
from dtomo.operators import ParallelProjector
from tests import laws

GEOMETRY = ParallelBeam(np.arange(14) * 180 / 14 + 1, 15, 6.8, width=10, height=9)
WEIGHTS = np.random.default_rng(2).uniform(0, 2, (14, 3, 15)).astype(np.float32)


class Died(Exception):
    """Stands for a killed process."""


def problem(dtype=np.float32, slices=3):
    operator = ParallelProjector(GEOMETRY, slices, dtype)
    data = operator.forward(laws.draw(operator.shape_in, dtype)) + laws.draw(operator.shape_out, dtype, 1)
    return operator, data


def dies_at(number):
    """A callback that raises before iteration `number`."""

    def callback(n, norms):
        if n == number:
            raise Died

    return callback


def same(one, two):
    return (
        np.array_equal(one.solution, two.solution)
        and np.array_equal(one.residuals, two.residuals)
        and (one.iterations, one.reason) == (two.iterations, two.reason)
        and np.array_equal(one.held_out, two.held_out)
    )


CASES = [
    (sirt, {}), (sirt, {"weights": WEIGHTS}), (sirt, {"lower": 0.0, "upper": 0.5}), (sirt, {"initial": True}),
    (sirt, {"relaxation": 1.5, "tolerance": 0.5}),
    (cgls, {}), (cgls, {"weights": WEIGHTS}), (cgls, {"damping": 0.7}), (cgls, {"initial": True}),
    (cgls, {"initial": True, "damping": 0.7, "weights": WEIGHTS}), (cgls, {"tolerance": 0.3}),
    (tv, {"strength": 0.5, "weights": WEIGHTS}), (tv, {"strength": 0.1, "initial": True}),
    (mlem, {}), (mlem, {"weights": WEIGHTS, "background": 0.5}),
    (lsqr, {}), (lsqr, {"initial": True, "damping": 0.7, "weights": WEIGHTS}), (lsqr, {"tolerance": 0.3}),
    (os_sart, {"subsets": 3}), (os_sart, {"subsets": 4, "weights": WEIGHTS, "lower": 0.0, "initial": True}),
    (osem, {"subsets": 3}), (osem, {"subsets": 14, "weights": WEIGHTS, "background": 0.5}),
    (cgls, {"stop": HeldOut(0.3, 3)}), (tv, {"strength": 0.5, "stop": HeldOut(0.1, 1)}),
]  # fmt: skip


@pytest.mark.parametrize("dtype", [np.float32, np.complex64])
@pytest.mark.parametrize(("method", "options"), CASES, ids=lambda value: getattr(value, "__name__", None))
def test_the_same_bits_after_any_stop(tmp_path, method, options, dtype):
    if np.dtype(dtype).kind == "c" and "lower" in options:
        pytest.skip("bounds need a real solution")
    if np.dtype(dtype).kind == "c" and method in (mlem, osem):
        pytest.skip("counts are real")
    operator, data = problem(dtype)
    options, data = dict(options), abs(data) if method in (mlem, osem) else data
    if "initial" in options:
        options["initial"] = laws.draw(operator.shape_in, dtype, 5)
    whole = method(operator, data, iterations=7, **options)
    assert len(whole.residuals) >= 3
    options |= {"iterations": 7, "checkpoints": Checkpoints(tmp_path, schedule=Schedule(iterations=2))}
    # three deaths in one run: before there is a checkpoint, soon after, and one before the end
    for last in (1, 3, len(whole.residuals) - 1):
        with pytest.raises(Died):
            method(operator, data, callback=dies_at(last), **options)
    seen = []
    assert same(method(operator, data, callback=lambda n, norms: seen.append(n), **options), whole)
    made_before = (len(whole.residuals) - 1) // 2 * 2
    assert seen == list(range(made_before, len(whole.residuals) - (whole.reason in ("tolerance", "held out"))))


@pytest.mark.parametrize("method", [sirt, cgls])
def test_layout_and_threads_before_and_after_do_not_matter(tmp_path, method):
    operator, data = problem()
    whole = method(operator, data, iterations=6)
    for number, (_, moved) in enumerate(list(laws.layouts(data))[::3]):
        folder = tmp_path / str(number)
        options = {"iterations": 6, "checkpoints": Checkpoints(folder, schedule=Schedule(iterations=1))}
        with pytest.raises(Died), laws.thread_count(1 + number % 3):
            method(operator, moved, callback=dies_at(4), **options)
        assert same(method(operator, data, **options), whole)


@pytest.mark.parametrize("method", [sirt, cgls])
def test_more_iterations_after_the_end(tmp_path, method):
    operator, data = problem()
    keep = {"checkpoints": Checkpoints(tmp_path, schedule=Schedule(iterations=1))}
    method(operator, data, iterations=4, **keep)
    assert same(method(operator, data, iterations=9, **keep), method(operator, data, iterations=9))


class Counted:
    """Keeps states in memory, and counts."""

    def __init__(self):
        self.offered, self.last = [], None

    def restore(self):
        return self.last

    def offer(self, state):
        parts = {name: np.array(value, copy=True) for name, value in state.parts.items()}
        self.offered.append(state.iteration)
        self.last = State(parts, state.residuals.copy())


@pytest.mark.parametrize("method", [sirt, cgls])
def test_a_state_is_offered_before_each_iteration_but_the_first_and_not_twice(method):
    operator, data = problem()
    keeper = Counted()
    method(operator, data, iterations=4, checkpoints=keeper)
    assert keeper.offered == [1, 2, 3]
    method(operator, data, iterations=6, checkpoints=keeper)
    assert keeper.offered == [1, 2, 3, 4, 5]
    method(operator, data, iterations=3, checkpoints=Counted())  # nothing is left over from another run


def test_states_are_the_arrays_themselves():
    """Not copies: a checkpoint takes no memory but its own."""
    operator, data = problem()
    seen = []

    class Looks(Counted):
        def offer(self, state):
            seen.append(state.parts["solution"])

    found = cgls(operator, data, iterations=3, checkpoints=Looks())
    assert all(np.shares_memory(part, found.solution) for part in seen)


def test_the_state_of_another_algorithm_or_problem_is_refused(tmp_path):
    operator, data = problem()
    keep = {"checkpoints": Checkpoints(tmp_path, schedule=Schedule(iterations=1))}
    sirt(operator, data, iterations=3, **keep)
    with pytest.raises(UserError, match="another one"):
        cgls(operator, data, iterations=3, **keep)
    smaller, less = problem(slices=2)
    with pytest.raises(UserError, match=r"shape \(3, 9, 10\)"):
        sirt(smaller, less, iterations=3, **keep)
    wider, complex_data = problem(np.complex64)
    with pytest.raises(UserError, match="complex64"):
        sirt(wider, complex_data, iterations=3, **keep)
    Checkpoints(tmp_path / "other").save({"something": 1})
    with pytest.raises(UserError, match="no state of an iterative algorithm"):
        sirt(operator, data, checkpoints=Checkpoints(tmp_path / "other"))


class Landweber(IterativeMethod):
    """As in the documentation of `dtomo.algorithms.iteration`."""

    def __init__(self, operator, data, step):
        self.operator, self.data, self.step = operator, operator.arrange(data), step

    def begin(self):
        self.solution = self.operator.zeros()

    def misfit(self):
        self.residual = self.operator.forward(self.solution) - self.data
        return self.operator.dot_out(self.residual, self.residual)

    def advance(self, active):
        self.solution -= self.step * self.operator.factor_in(active) * self.operator.adjoint(self.residual)


class RandomAngles(Landweber):
    """With momentum, on half of the angles, drawn anew each time: state of all kinds."""

    state = ("solution", "moved", "rng", "steps")

    def begin(self):
        super().begin()
        self.moved, self.rng, self.steps = self.operator.zeros(), np.random.default_rng(4), 0

    def advance(self, active):
        self.steps += 1
        self.residual *= self.rng.integers(2, size=(len(self.residual), 1, 1)).astype(np.float32)
        self.moved = 0.5 * self.moved - self.step / self.steps * self.operator.adjoint(self.residual)
        self.solution += self.moved


@pytest.mark.parametrize("kind", [Landweber, RandomAngles])
def test_a_method_of_ones_own_resumes_without_more_code(tmp_path, kind):
    operator, data = problem()
    step = np.float32(1 / operator.norm() ** 2)
    whole = iterate(kind(operator, data, step), 9)
    assert (whole.residuals[-1] < whole.residuals[0]).all()
    keep = Checkpoints(tmp_path, schedule=Schedule(iterations=2))
    for last in (3, 4, 7):
        with pytest.raises(Died):
            iterate(kind(operator, data, step), 9, callback=dies_at(last), checkpoints=keep)
    assert same(iterate(kind(operator, data, step), 9, checkpoints=keep), whole)
