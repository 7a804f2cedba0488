"""What is wrong with a model is said in one sentence that names it; so is what cannot be sent to workers."""

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import dtomo
from dtomo.errors import UserError
from dtomo.fitting.travel import packed
from tests.fitting.models import Line, line


class Wrong(Line):
    """Returns what a function makes of what is right."""

    def __init__(self, change: Callable[[Any, Any, Any], Any]) -> None:
        super().__init__()
        self.change = change

    def loss_and_gradient(self, parameters: Any, batch: Any) -> Any:
        return self.change(*super().loss_and_gradient(parameters, batch))


def without(gradients: Any, name: str) -> Any:
    return {key: value for key, value in gradients.items() if key != name}


WRONG = {
    "loss of Wrong is nan": lambda loss, count, g: (np.nan, count, g),
    "loss of Wrong is one real number": lambda loss, count, g: (loss + 1j, count, g),
    "gradient of 'offset' from Wrong is not finite in epoch 1, step 1 .1 of 2 values": lambda loss, count, g: (
        loss, count, g | {"offset": np.array([0, np.nan], np.complex64)}
    ),
    "gradient of 'weights' from Wrong has shape .5, 1. but the parameter has .5,.": lambda loss, count, g: (
        loss, count, g | {"weights": g["weights"][:, None]}
    ),
    "gradient of 'offset' from Wrong is real .float32. but the parameter is complex64": lambda loss, count, g: (
        loss, count, g | {"offset": g["offset"].real}
    ),
    "gradient of 'weights' from Wrong is complex": lambda loss, count, g: (
        loss, count, g | {"weights": g["weights"] + 0j}
    ),
    "no gradient for the parameter 'offset'": lambda loss, count, g: (loss, count, without(g, "offset")),
    "'nothing', which is no parameter": lambda loss, count, g: (loss, count, g | {"nothing": 0}),
    "count of Wrong is a number from 0; got None": lambda loss, count, g: (loss, None, g),
    "counted nothing": lambda loss, count, g: (loss, 0, g),
    "loss_and_gradient returns .sum of the losses, count": lambda loss, count, g: loss,
    "gradients of Wrong are a dict": lambda loss, count, g: (loss, count, list(g.values())),
}  # fmt: skip


@pytest.mark.parametrize("sentence", WRONG)
def test_one_sentence_names_what_is_wrong(sentence: str, fitting_client: Any) -> None:
    told = []
    for client in (None, fitting_client):
        with pytest.raises(UserError, match=sentence) as caught:
            dtomo.fit(Wrong(WRONG[sentence]), line(), client=client)
        told.append(str(caught.value))
    assert told[0] == told[1]
    assert "\n" not in told[0]


def test_nan_later_on_is_told_with_its_place() -> None:
    class Late(Line):
        def loss_and_gradient(self, parameters: Any, batch: Any) -> Any:
            loss, count, gradients = super().loss_and_gradient(parameters, batch)
            return (loss if abs(parameters["weights"]).max() < 0.5 else np.inf), count, gradients

    model = Late()
    with pytest.raises(UserError, match=r"loss of Late is inf in epoch [12], step \d"):
        dtomo.fit(model, line(), batch=17, optimizer=dtomo.fitting.SGD(rate=0.05))
    assert not model.parameters["weights"].any()


@pytest.mark.parametrize(
    ("parameters", "sentence"),
    [
        ({}, "dict of at least one array"),
        ([np.zeros(2)], "dict of at least one array"),
        ({"weights": np.zeros(2, int)}, "'weights' of Line is int64"),
        ({"weights": np.full(2, np.nan)}, "'weights' of Line begins with values that are not finite"),
    ],
)
def test_parameters_that_are_none(parameters: Any, sentence: str) -> None:
    model = Line()
    model.parameters = parameters
    with pytest.raises(UserError, match=sentence):
        dtomo.fit(model, line())


def test_parameters_that_are_made_anew_are_refused() -> None:
    class Fresh(Line):
        @property  # type: ignore[override]
        def parameters(self) -> Any:
            return {"weights": np.zeros(5)}

        @parameters.setter
        def parameters(self, value: Any) -> None:
            return

    with pytest.raises(UserError, match="makes a new 'weights' each time"):
        dtomo.fit(Fresh(), line())


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"epochs": -1}, "epochs of a fit"),
        ({"batch": 0}, "batch of a fit"),
        ({"block": 1.5}, "block of a fit"),
        ({"seed": -1}, "seed of a fit"),
        ({"validation": 1.0}, "from 0 to below 1"),
        ({"validation": [500]}, "sample 500; there are 103"),
        ({"validation": range(103)}, "some must be left"),
        ({"gradient_clip": 0}, "gradient_clip"),
        ({"optimizer": "newton"}, "sgd, adam"),
        ({"optimizer": dtomo.fitting.Adam(rate={"wieghts": 1.0})}, "'wieghts', which is no parameter"),
        ({"scheduler": 3}, "scheduler of a model of arrays"),
        ({"scheduler": lambda epoch: -1.0}, "scheduler returned -1.0"),
        ({"loss": abs}, "loss= is for modules of Torch"),
        ({"callbacks": [3]}, "callback is a function"),
        ({"client": 3}, "client is a dask"),
        ({"workers": 0}, "workers of a fit"),
    ],
)
def test_settings_that_do_not_go(settings: Any, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        dtomo.fit(Line(), line(), **settings)


def test_no_model() -> None:
    with pytest.raises(UserError, match="a model has parameters"):
        dtomo.fit(object(), line())


def test_what_cannot_be_pickled_is_named() -> None:
    lock = threading.Lock()

    class Held:
        pass

    deep = Held()
    deep.parts = [1, {"inner": Held()}]  # type: ignore[attr-defined]
    deep.parts[1]["inner"].guard = lock  # type: ignore[attr-defined]
    with pytest.raises(UserError, match=r"thing.parts\[1\]\['inner'\].guard is a lock"):
        packed(deep, "thing")
    with pytest.raises(UserError, match=r"thing \(its variable lock\) is a lock"):
        packed(lambda: lock, "thing")
    deep.parts = lambda: lambda: lock  # type: ignore[attr-defined]
    with pytest.raises(UserError, match=r"thing.parts \(its variable lock\)"):
        packed(deep, "thing")


def test_a_class_that_refuses_to_be_pickled_is_named_itself() -> None:
    class Refuses:
        def __reduce__(self) -> Any:
            raise TypeError("not me")

    with pytest.raises(UserError, match=r"model\[0\] is .*Refuses"):
        packed([Refuses()], "model")
