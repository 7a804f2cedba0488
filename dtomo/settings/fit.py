"""What a run of `dtomo fit` does."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, PlainSerializer

from dtomo.settings.base import AbsolutePath, Positive, RunSettings, finite
from dtomo.settings.ptycho import Count

Optimizer = Literal["sgd", "adam", "adamw", "lbfgs"]


def _model(value: Any) -> Any:
    """``package.module:function``."""
    module, colon, name = str(value).partition(":")
    if not colon or not all(part.isidentifier() for part in (*module.split("."), *name.split("."))):
        raise ValueError("must be package.module:function, which returns a model")
    return value


def _batch(value: Any) -> Any:
    """A number of samples, or all of them; 0 stands for all inside."""
    if value == "all":
        return 0
    if not str(value).isdecimal() or not int(value):
        raise ValueError("must be a whole number from 1, or all")
    return value


Batch = Annotated[
    int, BeforeValidator(_batch), Field(ge=0), PlainSerializer(lambda value: value or "all", return_type=Any)
]
Paths = Annotated[
    tuple[AbsolutePath, ...], BeforeValidator(lambda value: (value,) if isinstance(value, str) else value)
]


class FitSettings(RunSettings):
    """Everything that decides what `dtomo.fitting.job.run` does.

    `model` is ``package.module:function``; the function returns a model, or a model and a dict of arguments of
    `dtomo.fit`; what is not given here (None) is as that says, else as `dtomo.fit` does. `scan` is the data, `also`
    more of it, whose samples belong to those of `scan`; `output` a folder. `batch`: samples of a step, 0: all; `block`:
    samples that the model is given at once. `rate` is that of `optimizer`. `patience`: epochs without a smaller
    validation after which the run ends. `best` keeps the parameters of the smallest validation.

    Raises
    ------
    UserError
        See `RunSettings`.
    """

    asked: ClassVar[dict[str, str]] = {"scan": "must be the name of a file or store of data"}
    spelled: ClassVar[dict[str, str]] = {"scan": "DATA", "model": "MODEL"}
    where: ClassVar[tuple[str, ...]] = (*RunSettings.where, "epochs", "patience")

    model: Annotated[str, BeforeValidator(_model)]
    also: Paths = ()
    epochs: Count | None = None
    batch: Batch | None = None
    block: Count | None = None
    validation: Annotated[float, BeforeValidator(finite), Field(ge=0, lt=1)] | None = None
    optimizer: Optimizer | None = None
    rate: Positive | None = None
    gradient_clip: Positive | None = None
    best: bool | None = None
    patience: Count | None = None
    seed: Annotated[int, Field(ge=0)] = 0
