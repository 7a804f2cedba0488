"""Fits of models of arrays: the same bits on any number of workers, complex right, the user's object left alone."""

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import dtomo
from dtomo.distributed.clusters import Resources, connect
from dtomo.errors import StoppedError, UserError
from dtomo.fitting import LBFGS, SGD, Adam, AdamW, EarlyStopping, OperatorModel
from dtomo.operators import ParallelProjector
from tests.fitting.models import C16, KillsAlways, KillsOnce, Line, Noisy, OfIm, line

OPTIMIZERS = {
    "sgd": SGD(rate=0.05, momentum=0.5),
    "adam": Adam(rate=0.1),
    "adamw": AdamW(rate=0.1),
    "lbfgs": LBFGS(),
}


def same(one: Any, other: Any) -> bool:
    return all(np.array_equal(one[name], other[name]) and one[name].dtype == other[name].dtype for name in one)


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_any_number_of_workers_gives_the_same_bits(kind: str, fitting_client: Any) -> None:
    found = []
    for workers in (0, 1, 2, 3):
        model = Noisy()
        history = dtomo.fit(
            model, line(), epochs=3, batch=17, block=4, optimizer=OPTIMIZERS[kind], validation=0.2,
            client=fitting_client if workers else None, workers=workers or None,
        )  # fmt: skip
        found.append((model.parameters, history))
    for parameters, history in found[1:]:
        assert same(parameters, found[0][0])
        assert history == found[0][1]
    assert history.losses[-1] < history.losses[0]
    assert history.validations[-1] < history.validations[0]
    assert history[-1].steps == 3 * -(-82 // 17)


@pytest.mark.parametrize("workers", [0, 1, 2, 3])
def test_c16_imaginary_parts_are_kept(workers: int, fitting_client: Any) -> None:
    where = {"client": fitting_client, "workers": workers} if workers else {}
    model = C16()
    dtomo.fit(model, np.zeros(7), epochs=40, batch=None, block=2, optimizer=SGD(rate=0.2), validation=0, **where)
    assert model.parameters["z"].dtype == np.complex64
    np.testing.assert_allclose(model.parameters["z"], 1 + 2j, atol=1e-6)


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("workers", [0, 2])
def test_a_loss_of_the_imaginary_part_falls_like_one_of_a_real_number(
    kind: str, workers: int, fitting_client: Any
) -> None:
    where = {"client": fitting_client, "workers": workers} if workers else {}
    samples = np.random.default_rng(2).normal(3, 0.1, 19).astype(np.float32)
    curves = []
    for real in (False, True):
        model = OfIm(real)
        history = dtomo.fit(
            model, samples, epochs=2 if kind == "lbfgs" else 8, batch=8, block=3, optimizer=OPTIMIZERS[kind], **where
        )
        curves.append(history.losses)
        value = model.parameters["z"]
    np.testing.assert_allclose(curves[0], curves[1], rtol=1e-5)
    assert curves[0][-1] < 0.9 * curves[0][0]
    assert value.shape == ()


def test_losses_are_sums_over_all_divided_by_the_true_count() -> None:
    points, values = line(23)
    model = Line()
    history = dtomo.fit(model, (points, values), epochs=1, batch=5, block=2, optimizer=SGD(rate=0.0), validation=[3, 7])
    kept = np.setdiff1d(np.arange(23), [3, 7])
    start = 1.0 - values  # the offset is 0.5 + 0.5
    assert history[0].loss == pytest.approx(np.mean(start[kept] ** 2), rel=1e-12)
    assert history[0].validation == pytest.approx(np.mean(start[[3, 7]] ** 2), rel=1e-12)
    assert history[0].validation_metrics["off"] == pytest.approx(np.abs(values[[3, 7]]).mean(), rel=1e-12)
    assert history[0].metrics["off"] == pytest.approx(np.abs(values[kept]).mean(), rel=1e-12)


def test_the_object_is_left_alone_and_holds_the_result() -> None:
    model = Line()
    model.optimizer, model.log = "mine", sys.stderr  # type: ignore[attr-defined]  # never pickled: no workers
    arrays = dict(model.parameters)
    names = set(vars(model))
    dtomo.fit(model, line(), epochs=5, optimizer="adam")
    assert set(vars(model)) == names
    assert model.optimizer == "mine"  # type: ignore[attr-defined]
    assert all(model.parameters[name] is array for name, array in arrays.items())
    assert model.parameters["weights"].any()


def test_an_error_leaves_the_parameters() -> None:
    def fails(epoch: Any) -> bool:
        raise RuntimeError("mine")

    model = Line()
    with pytest.raises(RuntimeError, match="mine"):
        dtomo.fit(model, line(), epochs=2, callbacks=[fails])
    assert not model.parameters["weights"].any()


def test_best_keeps_the_parameters_of_the_smallest_validation() -> None:
    data, scores = line(40), []
    grows = {"optimizer": Adam(rate=0.2), "scheduler": lambda epoch: 0.5 if epoch < 15 else 20.0, "epochs": 20}
    last, best = Line(), Line()
    history = dtomo.fit(last, data, **grows)
    dtomo.fit(best, data, best=True, **grows)
    for model in (last, best):
        points, values = data
        residual = points @ model.parameters["weights"] + model.parameters["offset"].real.sum() - values
        scores.append(float((residual**2).mean()))
    assert history.best is not None
    assert history.best.number < 20
    assert scores[1] < scores[0]


def test_early_stopping_and_functions_end_a_fit() -> None:
    stopped = dtomo.fit(Line(), line(), epochs=30, optimizer=SGD(rate=0.0), callbacks=[EarlyStopping(patience=2)])
    assert (len(stopped), stopped.reason) == (3, "EarlyStopping")
    seen: list[int] = []

    def second(epoch: Any) -> bool:
        seen.append(epoch.number)
        return epoch.number == 2

    assert dtomo.fit(Line(), line(), epochs=5, callbacks=[second]).reason == "second"
    assert seen == [1, 2]


def test_gradients_are_clipped_to_a_norm_of_real_and_imaginary_parts() -> None:
    for model, name in ((OfIm(), "z"), (OfIm(True), "z")):
        dtomo.fit(
            model, np.full(4, 1000.0, np.float32), epochs=1, batch=None, validation=0,
            optimizer=SGD(rate=1.0), gradient_clip=0.25,
        )  # fmt: skip
        assert abs(model.parameters[name]) == pytest.approx(0.25, rel=1e-5)
    with pytest.raises(UserError, match="L-BFGS"):
        dtomo.fit(Line(), line(), optimizer="lbfgs", gradient_clip=1.0)


def test_a_worker_that_dies_changes_no_bit(fitting_client: Any, tmp_path: Any) -> None:
    plain, killed = Line(), KillsOnce(tmp_path / "now")
    (tmp_path / "now").touch()
    expected = dtomo.fit(plain, line(), epochs=3, batch=17, client=fitting_client)
    found = dtomo.fit(killed, line(), epochs=3, batch=17, client=fitting_client)
    assert not (tmp_path / "now").exists()
    assert found == expected
    assert same(killed.parameters, plain.parameters)
    fitting_client.wait_for_workers(3, timeout=30)


def test_a_model_that_kills_every_worker_is_given_up() -> None:
    lost = pytest.raises(StoppedError, match="workers were lost 3 times in one step")
    with connect(Resources(1, 1, 2**30, dashboard=None)) as client, lost:
        dtomo.fit(KillsAlways(), line(), client=client)


def test_what_a_users_model_raises_is_told_with_its_place(fitting_client: Any) -> None:
    class Broken(Line):
        def loss_and_gradient(self, parameters: Any, batch: Any) -> Any:
            raise ZeroDivisionError("in my model")

    with pytest.raises(ZeroDivisionError, match="in my model") as caught:
        dtomo.fit(Broken(), line(), client=fitting_client)
    assert "loss_and_gradient" in "".join(caught.value.__notes__)


NOTEBOOK = """
import numpy as np
import dtomo

scale = 2.0
bias = 0.25

class Mine:
    def __init__(self, shift):
        self.parameters = {"a": np.zeros(2)}
        self.optimizer, self.scheduler, self.grad_clip = "mine", [1, 2], 3.0
        self.closure = lambda value: value + shift
        def power(value):
            return scale * value
        self.power = power

    def loss_and_gradient(self, parameters, batch):
        off = self.closure(self.power(parameters["a"])) + bias - batch
        return float((off ** 2).sum()), len(batch), {"a": 2 * scale * off.sum(0)}

data = np.random.default_rng(0).normal(1.0, 0.1, (11, 2))
found = []
for workers in (1, 2):
    model = Mine(0.5)
    history = dtomo.fit(model, data, epochs=3, batch=4, workers=workers)
    assert (model.optimizer, model.scheduler, model.grad_clip) == ("mine", [1, 2], 3.0)
    assert model.closure(1) == 1.5
    found.append((model.parameters["a"].tobytes(), history))
assert found[0] == found[1]

model.log = open("fit.log", "w")
try:
    dtomo.fit(model, data, workers=1)
except dtomo.UserError as error:
    print(error)
"""


def test_a_class_of_a_notebook_with_closures_works_on_processes(tmp_path: Any) -> None:
    done = subprocess.run(
        [sys.executable, "-c", NOTEBOOK], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("model cannot be sent to workers: model.log is an open file")
    assert len(done.stdout.splitlines()) == 1


def test_an_operator_and_a_loss_are_a_model(fitting_client: Any) -> None:
    geometry = dtomo.ParallelBeam(np.arange(0, 180, 7.5), columns=16)
    truth = dtomo.simulate.head().volume(16)[6:9].astype(np.float32)
    projector = ParallelProjector(geometry, 3)
    data = projector.forward(truth), geometry.angles
    solutions = []
    for client in (None, fitting_client):
        model = OperatorModel(projector)
        history = dtomo.fit(model, data, epochs=4, batch=None, block=5, optimizer="lbfgs", validation=0, client=client)
        solutions.append(model.parameters["x"])
    assert np.array_equal(*solutions)
    assert history.losses[-1] < 0.05 * history.losses[0]
    assert np.linalg.norm(solutions[0] - truth) < 0.6 * np.linalg.norm(truth)


def test_an_operator_whose_every_sample_is_measured_alike() -> None:
    projector = ParallelProjector(dtomo.ParallelBeam([0.0, 90.0], columns=4), 1, np.complex64)
    model = OperatorModel(lambda angles: ParallelProjector(projector.geometry.replace(angles=angles), 1, np.complex64),
                          "huber", start=np.zeros(projector.shape_in, np.complex64))  # fmt: skip
    truth = np.full(projector.shape_in, 0.01 + 0.02j, np.complex64)
    dtomo.fit(model, (projector.forward(truth), projector.geometry.angles), epochs=60, batch=None, validation=0,
              optimizer=SGD(rate=0.5))  # fmt: skip
    np.testing.assert_allclose(model.parameters["x"], truth, atol=1e-4)
    with pytest.raises(UserError, match="angles in degrees"):
        dtomo.fit(OperatorModel(projector), projector.forward(truth))
