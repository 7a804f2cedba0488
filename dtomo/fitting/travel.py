"""What is sent to workers: classes of a notebook, closures and lambdas travel; what cannot is named."""

import pickle
import types
from collections.abc import Iterator
from typing import Any

import cloudpickle

from dtomo.errors import UserError, shown

DEPTH = 12
"""How deep an object is looked into for what cannot be pickled."""

_PLAIN = (str, bytes, int, float, complex, bool, type(None))


def packed(value: Any, called: str) -> bytes:
    """An object as bytes, with what its class, closures and lambdas need where these are of ``__main__``.

    Parameters
    ----------
    value, called
        The object, and its name for messages: ``"model"``.

    Raises
    ------
    UserError
        Something in it cannot be pickled; the message says what and where: ``model.log is an open file``.
    """
    try:
        return bytes(cloudpickle.dumps(value))
    except Exception as error:
        # whatever an object's own code for pickling raises
        path, culprit = find_unpicklable(value, called)
        raise UserError(
            f"{called} cannot be sent to workers: {path} is {_described(culprit)}, which cannot be pickled; make it "
            "where it is used, or leave it out of the object"
        ) from error


def unpacked(data: bytes) -> Any:
    """The object again."""
    return pickle.loads(data)


def find_unpicklable(value: Any, path: str) -> tuple[str, Any]:
    """The innermost part that cannot be pickled, and where it is: ``"model.log"``."""
    seen: set[int] = set()
    for _ in range(DEPTH):
        seen.add(id(value))
        inside = next(
            ((name, part) for name, part in _parts(value, path) if id(part) not in seen and not _picklable(part)), None
        )
        if inside is None:
            break
        path, value = inside
    return path, value


def _picklable(value: Any) -> bool:
    if isinstance(value, _PLAIN):
        return True
    try:
        cloudpickle.dumps(value)
    except Exception:  # noqa: BLE001 - whatever an object's own code raises says the same
        return False
    return True


def _parts(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """What an object takes with it, by the name that a user knows it by."""
    if isinstance(value, dict):
        yield from ((f"{path}[{shown(repr(key))}]", part) for key, part in value.items())
    elif isinstance(value, list | tuple | set | frozenset):
        yield from ((f"{path}[{index}]", part) for index, part in enumerate(value))
    elif isinstance(value, types.MethodType):
        yield path, value.__func__
        yield f"{path}.__self__", value.__self__
    elif isinstance(value, types.FunctionType):
        yield from _of_function(value, path)
    elif isinstance(value, type):
        yield from ((f"{path}.{name}", part) for name, part in vars(value).items() if name != "__dict__")
    else:
        yield from ((f"{path}.{name}", part) for name, part in _attributes(value))
        kind = type(value)
        if kind.__module__ != "builtins":
            yield from ((f"{path}.{name}", part) for name, part in vars(kind).items() if _own(part))


def _attributes(value: Any) -> Iterator[tuple[str, Any]]:
    yield from getattr(value, "__dict__", {}).items()
    for kind in type(value).__mro__:
        slots = vars(kind).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__") and hasattr(value, name):
                yield name, getattr(value, name)


def _own(part: Any) -> bool:
    """Whether a member of a class is one that its writer put there."""
    return isinstance(part, types.FunctionType) or not isinstance(
        part, types.GetSetDescriptorType | types.MemberDescriptorType | types.BuiltinFunctionType
    )


def _of_function(function: types.FunctionType, path: str) -> Iterator[tuple[str, Any]]:
    names = function.__code__.co_freevars
    for name, cell in zip(names, function.__closure__ or ()):
        try:
            yield f"{path} (its variable {name})", cell.cell_contents
        except ValueError:  # a variable that has no value yet
            continue
    used = _names(function.__code__)
    yield from ((f"{path} (the global {name})", part) for name, part in function.__globals__.items() if name in used)
    for index, part in enumerate(function.__defaults__ or ()):
        yield f"{path} (its default {index})", part


def _names(code: types.CodeType) -> set[str]:
    inside = (_names(part) for part in code.co_consts if isinstance(part, types.CodeType))
    return set(code.co_names).union(*inside)


def _described(value: Any) -> str:
    kind = type(value)
    if hasattr(value, "fileno") and hasattr(value, "read"):
        return f"an open file ({kind.__name__})"
    if kind.__module__ in ("_thread", "threading"):
        return f"a lock or thread ({kind.__name__})"
    return f"{shown(repr(value))} ({kind.__module__}.{kind.__qualname__})"
