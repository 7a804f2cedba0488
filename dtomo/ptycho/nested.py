"""States of solvers: dicts and lists of arrays and numbers, mapped, measured, and flattened for checkpoints."""

from collections.abc import Callable
from typing import Any

import numpy as np

from dtomo.arrays import is_array


def mapped(value: Any, function: Callable[[Any], Any]) -> Any:
    """The same dicts, lists and tuples with `function` of each array; all else as it is."""
    if isinstance(value, dict):
        return {name: mapped(item, function) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(mapped(item, function) for item in value)
    return function(value) if is_array(value) else value


def bytes_of(value: Any) -> int:
    """Bytes of all arrays in it."""
    sizes: list[int] = []
    mapped(value, lambda array: sizes.append(int(array.nbytes)))
    return sum(sizes)


def flatten(value: Any, name: str) -> tuple[Any, dict[str, Any]]:
    """What JSON takes, and arrays and numbers by name.

    Parameters
    ----------
    value
        Arrays, numbers, texts, None, and dicts (of texts or whole numbers), lists and tuples of them.
    name
        That the names of the arrays begin with.

    Raises
    ------
    TypeError
        Anything else.
    """
    if isinstance(value, dict):
        pairs = [(key, *flatten(item, f"{name}.{key}")) for key, item in value.items()]
        return {"dict": [[key, form] for key, form, _ in pairs]}, _joined(leaves for _, _, leaves in pairs)
    if isinstance(value, list | tuple):
        parts = [flatten(item, f"{name}.{index}") for index, item in enumerate(value)]
        return {type(value).__name__: [form for form, _ in parts]}, _joined(leaves for _, leaves in parts)
    if value is None or isinstance(value, str):
        return {"text": value}, {}
    if is_array(value):
        return {"array": name}, {name: value}
    if isinstance(value, bool | int | float | complex | np.generic):
        return {"number": name}, {name: value}
    raise TypeError(f"a state is made of arrays, numbers and texts; {name} is {type(value).__name__}")


def unflatten(form: Any, leaves: dict[str, Any]) -> Any:
    """What `flatten` was given."""
    ((kind, content),) = form.items()
    if kind == "dict":
        return {key: unflatten(item, leaves) for key, item in content}
    if kind in ("list", "tuple"):
        parts = [unflatten(item, leaves) for item in content]
        return parts if kind == "list" else tuple(parts)
    if kind == "text":
        return content
    found = leaves[content]
    return np.asarray(found) if kind == "array" and isinstance(found, np.generic) else found


def _joined(parts: Any) -> dict[str, Any]:
    return {name: leaf for part in parts for name, leaf in part.items()}
