"""Alignments as YAML of dtomo's own (JSON is YAML too), or from IMOD's ``.xf``."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import ArrayLike

from dtomo.errors import UserError, shown
from dtomo.geometry import Alignment
from dtomo.io.tilts.imod import read_xf
from dtomo.io.tilts.text import of_file, small_text
from dtomo.yaml_text import load_yaml

KIND = "dtomo alignment"
VERSION = 1
_HEAD = ("kind", "version", "shape", "size", "axis", "views")
_VIEW = ("tilt", "row", "column", "axis_angle", "scale", "level")


def write_alignment(path: Path, alignment: Alignment, **about: Any) -> None:
    """Write an alignment as YAML, whole or not at all; `about` are more values for readers, kept under ``about``."""
    views = [
        dict(zip(_VIEW, (round(float(value), 6) for value in row)))
        for row in np.column_stack(
            [alignment.tilts, alignment.shifts, alignment.axis_angles, alignment.scales, alignment.levels]
        )
    ]
    head = {"kind": KIND, "version": VERSION, "about": about, "shape": list(alignment.shape)}
    head |= {"size": list(alignment.size), "axis": round(alignment.axis, 6)}
    text = yaml.safe_dump(head, sort_keys=False, allow_unicode=True) + "views:\n"
    text += "".join("- {" + ", ".join(f"{name}: {value!r}" for name, value in view.items()) + "}\n" for view in views)
    part = path.with_name(path.name + ".part")
    part.write_text(text, encoding="utf-8")
    part.replace(path)


def read_alignment(
    name: str | os.PathLike[str], tilts: ArrayLike | None = None, shape: tuple[int, int] | None = None
) -> Alignment:
    """Read an alignment that `write_alignment` wrote (or one in JSON), or IMOD's ``.xf``.

    Parameters
    ----------
    name
        The file; ``.xf`` for IMOD's.
    tilts, shape
        Of the series it is for: an ``.xf`` needs them; others are checked against their number and size.

    Raises
    ------
    UserError
        A file that is missing, broken, or of another series.
    """
    path = Path(name)
    if path.suffix.lower() == ".xf":
        if tilts is None or shape is None:
            raise UserError(f"{path} says nothing of tilts and of the size of views; give them with it")
        with of_file(path):
            return read_xf(path, tilts, shape)
    with of_file(path):
        alignment = _parsed(path)
    if tilts is not None and len(np.asarray(tilts)) != len(alignment):
        raise UserError(f"{path} is for {len(alignment)} views, but the series has {len(np.asarray(tilts))}")
    if shape is not None and tuple(shape) != alignment.shape:
        raise UserError(
            f"{path} is for views of {alignment.shape} (rows, columns), but the series has {tuple(shape)}; give the "
            "whole series, not cropped or binned"
        )
    return alignment


def _parsed(path: Path) -> Alignment:
    try:
        content = load_yaml(small_text(path))
    except yaml.YAMLError as error:
        raise UserError(f"{path} is not valid YAML or JSON") from error
    if not isinstance(content, dict) or content.get("kind") != KIND:
        raise UserError(f"{path} is no alignment of dtomo (it does not say 'kind: {KIND}') and no .xf file")
    if content.get("version") != VERSION:
        raise UserError(f"{path} has version {shown(content.get('version'))}; this dtomo reads version {VERSION}")
    missing = [entry for entry in _HEAD if entry not in content]
    if missing:
        raise UserError(f"{path} has no entry {missing[0]!r}")
    views = content["views"]
    if not isinstance(views, list) or not views:
        raise UserError(f"{path}: views must be a list of at least one view")
    table = np.array([_view(path, place, view) for place, view in enumerate(views)])
    sizes = [_pair(path, content, entry) for entry in ("shape", "size")]
    axis = _number(path, content["axis"], "axis")
    return Alignment(table[:, 0], sizes[0], table[:, 1:3], table[:, 3], axis, sizes[1], table[:, 4], table[:, 5])


def _view(path: Path, place: int, view: Any) -> list[float]:
    if not isinstance(view, dict) or set(view) != set(_VIEW):
        raise UserError(f"{path}: view {place} must have {', '.join(_VIEW)}, and nothing else")
    return [_number(path, view[name], f"{name} of view {place}") for name in _VIEW]


def _pair(path: Path, content: dict[str, Any], entry: str) -> tuple[int, int]:
    value = content[entry]
    whole = isinstance(value, list) and len(value) == 2
    if not whole or not all(isinstance(n, int) and not isinstance(n, bool) and 0 < n < 10**7 for n in value):
        raise UserError(f"{path}: {entry} must be rows and columns, such as [512, 512], not {shown(value)}")
    return value[0], value[1]


def _number(path: Path, value: Any, what: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e9:
        raise UserError(f"{path}: {what} must be a finite number, not {shown(repr(value))}")
    return float(value)
