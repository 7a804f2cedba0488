"""YAML of files that anybody may have written: plain values alone, nested as deep and as large as their text."""

from typing import Any

import yaml

_GROWTH = 20
"""Characters and values that a document may stand for, over the length of its text."""


def load_yaml(text: str) -> Any:
    """Numbers, texts, lists and dicts from YAML or JSON; no tags that make other objects.

    A document whose aliases repeat each other until they fill the memory is not let in, and neither is one that
    contains itself.

    Raises
    ------
    yaml.YAMLError
        Whatever is wrong with the text.
    """
    try:
        content = yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        large = _size(content, {}) > _GROWTH * len(text) + 1000
    except (RecursionError, ValueError, TypeError, LookupError, ArithmeticError, AttributeError) as error:
        raise yaml.YAMLError(f"a value is malformed ({error})") from error
    if large:
        raise yaml.YAMLError("its aliases stand for far more than is written")
    return content


def _size(value: Any, known: dict[int, int]) -> int:
    """Values and characters, each counted as often as it would be printed."""
    if isinstance(value, str | bytes):
        return 1 + len(value)
    if not isinstance(value, dict | list | set | tuple):
        return 1
    if id(value) in known:
        if known[id(value)] < 0:
            raise ValueError("it contains itself")
        return known[id(value)]
    known[id(value)] = -1
    parts = [*value, *value.values()] if isinstance(value, dict) else value
    known[id(value)] = 1 + sum(_size(part, known) for part in parts)
    return known[id(value)]
