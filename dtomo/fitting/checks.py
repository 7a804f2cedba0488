"""What a model may be and return, said in one sentence where it is not."""

import math
import sysconfig
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtomo.device import to_host
from dtomo.errors import UserError, shown

DYNAMIC = "<dynamic-code>"
"""The file of code that cloudpickle has sent by its contents."""

PLACE = "place_in_a_model"
"""Attribute of an exception that a model raised: file and line, which do not travel otherwise."""

Arrays = dict[str, NDArray[Any]]


def checked_parameters(model: Any) -> Arrays:
    """Copies of the parameters of a model, by name.

    Raises
    ------
    UserError
        None, not a dict, or one that is no array of real or complex floating-point numbers; or the model makes new
        ones each time it is asked, so that there is nothing that fitted ones could be put into.
    """
    name, held = type(model).__name__, model.parameters
    if not isinstance(held, Mapping) or not held:
        raise UserError(f"{name}.parameters is a dict of at least one array by name; got {shown(repr(held))}")
    found: Arrays = {}
    for key, value in held.items():
        array = np.array(to_host(value))
        if not isinstance(key, str) or array.dtype.kind not in "fc" or array.dtype.char in "gG":
            raise UserError(
                f"the parameter {shown(repr(key))} of {name} is {shown(array.dtype)}; parameters have names and are "
                "arrays of real or complex floating-point numbers"
            )
        if not np.isfinite(array).all():
            raise UserError(f"the parameter {key!r} of {name} begins with values that are not finite")
        found[key] = array
    _check_held(model, held)
    return found


def _check_held(model: Any, held: Mapping[str, Any]) -> None:
    again = model.parameters
    if again is held:
        return
    for key, value in held.items():
        if not (isinstance(value, np.ndarray) and np.shares_memory(value, again.get(key))) and np.size(value):
            raise UserError(
                f"{type(model).__name__}.parameters makes a new {key!r} each time it is asked for, so there is nothing "
                "to put the fitted one into: let it return the dict that the model keeps"
            )


def checked_result(name: str, result: Any, parameters: Mapping[str, NDArray[Any]]) -> tuple[float, float, Arrays]:
    """Loss, count and gradients that a model returned for a block, the gradients in the dtypes of the parameters.

    Parameters
    ----------
    name
        Of the model's class, for messages.
    result
        What its ``loss_and_gradient`` returned.
    parameters
        What it was given.

    Raises
    ------
    UserError
        Not three things; a gradient that is missing, of another shape, real for a complex parameter, complex for a
        real one, or of a parameter that does not exist.
    """
    if not isinstance(result, tuple | list) or len(result) != 3:
        raise UserError(
            f"{name}.loss_and_gradient returns (sum of the losses, count, gradients by name); got {shown(repr(result))}"
        )
    loss, count, gradients = result
    if not isinstance(gradients, Mapping):
        raise UserError(f"the gradients of {name} are a dict by name of the parameter; got {shown(repr(gradients))}")
    unknown = [key for key in gradients if key not in parameters]
    if unknown:
        raise UserError(
            f"{name} returns a gradient for {shown(repr(unknown[0]))}, which is no parameter; it has "
            f"{', '.join(parameters)}"
        )
    found = {key: _checked_gradient(name, key, value, gradients.get(key)) for key, value in parameters.items()}
    return checked_loss(name, loss), checked_count(name, count), found


def _checked_gradient(name: str, key: str, parameter: NDArray[Any], given: Any) -> NDArray[Any]:
    if given is None:
        raise UserError(
            f"{name} returns no gradient for the parameter {key!r}; return zeros if the loss does not depend on it"
        )
    gradient = np.asarray(to_host(given))
    if gradient.dtype.kind not in "fciub":
        raise UserError(f"the gradient of {key!r} from {name} is an array of numbers; got {shown(gradient.dtype)}")
    if gradient.shape != parameter.shape:
        raise UserError(
            f"the gradient of {key!r} from {name} has shape {gradient.shape} but the parameter has {parameter.shape}"
        )
    if (gradient.dtype.kind == "c") != (parameter.dtype.kind == "c"):
        kind = "complex" if gradient.dtype.kind == "c" else "real"
        needed = "∂L/∂z̄, a complex array" if parameter.dtype.kind == "c" else "a real array"
        raise UserError(
            f"the gradient of {key!r} from {name} is {kind} ({gradient.dtype}) but the parameter is "
            f"{parameter.dtype}: return {needed}"
        )
    return gradient.astype(parameter.dtype, copy=False)


def not_finite(columns: Any, samples: NDArray[Any]) -> str | None:
    """The first of some samples of `dtomo.fitting.data.Columns` that is not finite, in words."""
    for part in columns.parts:
        if np.dtype(part.dtype).kind in "fc":
            for number in np.sort(samples):
                if not np.isfinite(part.read(np.array([number]))).all():
                    return f"sample {number} of {part.location} holds values that are NaN or infinite"
    return None


def raised_by(called: str, error: BaseException) -> str:
    """What a user's own code raised, in one sentence: what was called, the error, and the line of that code.

    Lines of this package, of the standard library and of installed packages are passed over: ``make raised ValueError
    (no such file) in mine.py, line 12``.
    """
    said = str(error).strip().split("\n")[0]
    place = getattr(error, PLACE, None) or users_line(error)
    words = f" ({shown(said, 200)})" * bool(said) + f" in {place}" * bool(place)
    return f"{called} raised {type(error).__name__}{words}"


def users_line(error: BaseException) -> str:
    """File (of code that travelled: module) and line of the innermost of a user's own code that an error came from."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}, line {error.lineno}"
    foreign = (str(Path(__file__).parents[1]), *map(sysconfig.get_path, ("stdlib", "purelib", "platlib")))
    place = ""
    for frame, line in traceback.walk_tb(error.__traceback__):
        file = frame.f_code.co_filename
        if file == DYNAMIC:
            place = f"{frame.f_globals.get('__name__', file)}, line {line}"
        elif Path(file).is_absolute() and not file.startswith(foreign):
            place = f"{file}, line {line}"
    return place


def checked_loss(name: str, loss: Any) -> float:
    """A loss as a number; it may be NaN or infinite.

    Raises
    ------
    UserError
        No real number.
    """
    value = np.asarray(to_host(loss))
    if value.size != 1 or value.dtype.kind not in "fiub":
        raise UserError(f"the loss of {name} is one real number, a sum; got {shown(repr(loss))}")
    return float(value.reshape(()))


def checked_count(name: str, count: Any) -> float:
    """What a sum of losses is counted over, from 0.

    Raises
    ------
    UserError
        No such number.
    """
    value = np.asarray(to_host(count))
    if value.size != 1 or value.dtype.kind not in "fiub" or not 0 <= float(value.reshape(())) < math.inf:
        raise UserError(f"the count of {name} is a number from 0; got {shown(repr(count))}")
    return float(value.reshape(()))


def checked_metrics(name: str, metrics: Any) -> dict[str, float]:
    """Sums by name.

    Raises
    ------
    UserError
        Anything else.
    """
    if not isinstance(metrics, Mapping):
        raise UserError(f"{name}.metrics returns a dict of sums by name; got {shown(repr(metrics))}")
    return {str(key): checked_loss(f"{name} (its metric {key!r})", value) for key, value in metrics.items()}


def refuse_not_finite(name: str, sums: Mapping[str, Any], where: str) -> None:
    """Refuse sums over a batch that are not finite, naming the first.

    Raises
    ------
    UserError
        The loss, or the gradient of a parameter, is NaN or infinite; or nothing was counted.
    """
    if not math.isfinite(sums["loss"]):
        raise UserError(f"the loss of {name} is {sums['loss']} in {where}; look at the data, or take smaller steps")
    for key, gradient in sums.get("gradients", {}).items():
        if not np.isfinite(gradient).all():
            bad = int(gradient.size - np.isfinite(gradient).sum())
            raise UserError(
                f"the gradient of {key!r} from {name} is not finite in {where} ({bad} of {gradient.size} values)"
            )
    if not sums["count"] > 0:
        raise UserError(f"{name} counted nothing in {where}: its count is 0, so there is no mean of its losses")
