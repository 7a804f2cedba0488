"""What `dtomo fit` is given: a model by its name, and data on disk."""

import dataclasses
import importlib
import inspect
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import zarr

from dtomo.errors import UserError, shown
from dtomo.fitting.checks import raised_by
from dtomo.fitting.data import Columns, Reader, npy_column
from dtomo.fitting.model import ArrayTrainable, optimizer_of
from dtomo.fitting.optimizers import OPTIMIZERS
from dtomo.io import open as open_scan
from dtomo.io import open_volume
from dtomo.settings import FitSettings

ARGUMENTS = (
    *("loss", "validation", "batch", "block", "epochs", "optimizer", "scheduler", "gradient_clip"),
    *("best", "callbacks"),
)
"""Of `dtomo.fit`, that a function may return beside its model."""


def open_data(path: Path, also: Sequence[Path] = ()) -> Columns:
    """Columns of files and stores, whose samples belong together.

    Raises
    ------
    UserError
        Nothing there that holds samples, or another number of them in each.
    """
    parts: list[Any] = []
    for one in (path, *also):
        parts.extend(_opened(one))
    return Columns.of(parts[0] if len(parts) == 1 else tuple(parts))


def _opened(path: Path) -> list[Any]:
    """A scan has two columns: projections and angles."""
    file = Path(str(path).rpartition(":/")[0] or path)
    if not path.exists() and not file.exists():
        raise UserError(f"there is no file or folder {path}")
    if path.suffix.lower() == ".npy":
        return [npy_column(path)]
    if path.is_dir():
        if not any((path / name).is_file() for name in ("zarr.json", ".zarray", ".zgroup")):
            return [_folder(path)]
        array = _zarr_array(path)
        if array is not None:
            return [array]
    try:
        return list(Columns.of(open_scan(path)).parts)
    except UserError:
        return [open_volume(path).source]


def _folder(path: Path) -> list[Path]:
    """Files of a folder, by name."""
    files = sorted(item for item in path.iterdir() if not item.name.startswith("."))
    kinds = {item.suffix.lower() for item in files}
    if len(kinds) != 1:
        held = f"files of several kinds ({', '.join(sorted(kinds))})" if kinds else "no files"
        raise UserError(f"{path} holds {held}; a folder of samples holds files of one kind, each a sample")
    return files


def _zarr_array(path: Path) -> Any:
    found = zarr.open(path, mode="r")
    return found if isinstance(found, zarr.Array) else None


def make_model(name: str, columns: Columns) -> tuple[Any, dict[str, Any]]:
    """Call ``package.module:function``.

    The module is looked for in the present folder, too, and travels to workers by its contents where it lies there. A
    function with an argument is given a batch of the first sample.

    Parameters
    ----------
    name
        Of module and function.
    columns
        The data.

    Returns
    -------
    tuple
        The model, and arguments of `dtomo.fit`.

    Raises
    ------
    UserError
        No such module or function, or one that returns something else.
    """
    module, _, inside = name.partition(":")
    made = _function(module, inside, name)
    needed = [
        one
        for one in inspect.signature(made).parameters.values()
        if one.default is one.empty and one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)
    ]
    if len(needed) > 1:
        raise UserError(
            f"{name} has {len(needed)} arguments without a default; dtomo fit gives it none, or one: a batch of the "
            "first sample"
        )
    first = [Reader(columns, 0).batch(np.array([0]))] * len(needed)
    try:
        given = made(*first)
    except UserError:
        raise
    except Exception as error:
        raise UserError(raised_by(name, error)) from error
    model, arguments = given if isinstance(given, tuple) and len(given) == 2 else (given, {})
    if not isinstance(arguments, dict):
        raise UserError(f"{name} returns a model, or a model and a dict; got {shown(repr(given))}")
    unknown = [key for key in arguments if key not in ARGUMENTS]
    if unknown:
        raise UserError(f"{name} returns an argument {unknown[0]!r}; dtomo fit takes {', '.join(ARGUMENTS)}")
    return model, arguments


def _function(module: str, inside: str, name: str) -> Any:
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    if module.endswith(".py"):
        raise UserError(f"MODEL names a module, not a file: {module.removesuffix('.py')}:{inside}")
    try:
        found: Any = importlib.import_module(module)
    except ImportError as error:
        raise UserError(f"{name} cannot be imported ({error}); run dtomo fit in its folder, or install it") from error
    except Exception as error:  # whatever a user's own module raises
        raise UserError(raised_by(f"the import of {module}", error)) from error
    top = sys.modules[module.partition(".")[0]]
    if str(getattr(top, "__file__", None) or "").startswith(here):
        cloudpickle.register_pickle_by_value(top)
    for part in inside.split("."):
        if not hasattr(found, part):
            raise UserError(f"{module} has no {inside}; MODEL is package.module:function")
        found = getattr(found, part)
    if not callable(found):
        raise UserError(f"{name} is no function that returns a model")
    return found


def merged(settings: FitSettings, arguments: dict[str, Any]) -> dict[str, Any]:
    """Arguments of `dtomo.fit`: those of the command line over those that came with the model."""
    names = ("epochs", "block", "validation", "gradient_clip", "best")
    given = {name: getattr(settings, name) for name in names if getattr(settings, name) is not None}
    if settings.batch is not None:
        given["batch"] = settings.batch or None
    return {**arguments, **given}


def asked_optimizer(settings: FitSettings, arguments: dict[str, Any], trainable: Any) -> Any:
    """The optimizer of the command line, else the one that came with the model.

    Raises
    ------
    UserError
        A rate for an optimizer that has its own.
    """
    if settings.optimizer is None and settings.rate is None:
        return arguments.get("optimizer")
    if settings.optimizer is None and settings.rate is not None and arguments.get("optimizer") is not None:
        if not isinstance(trainable, ArrayTrainable):
            raise UserError("--rate is of an optimizer that is named by --optimizer; the model brings one of its own")
        return dataclasses.replace(optimizer_of(arguments["optimizer"]), rate=settings.rate)
    name = settings.optimizer or "adam"
    if isinstance(trainable, ArrayTrainable):
        return OPTIMIZERS[name]() if settings.rate is None else OPTIMIZERS[name](rate=settings.rate)
    from dtomo.fitting.torch_models import named_optimizer

    return named_optimizer(name, settings.rate)
