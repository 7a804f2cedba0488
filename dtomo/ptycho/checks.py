"""Whether first guesses fit a model and one another."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from dtomo.errors import UserError
from dtomo.ptycho.views import places

NAMES = {
    "object": "(mode, slice, row, column)",
    "probe": "(mode, row, column)",
    "positions": "(frame, 2)",
    "variable_probe": "(rank, mode, row, column)",
    "probe_weights": "(frame, rank)",
    "background": "(row, column)",
    "scale": "(frame,)",
    "distance": "()",
}
"""Axes of the parameters."""

COMPLEX = ("object", "probe", "variable_probe", "probe_weights")


def check_parameters(
    frame_shape: tuple[int, int],
    probe_shape: tuple[int, int],
    slices: int,
    parameters: Mapping[str, Any],
    *,
    near_field: bool = False,
    inside: bool = True,
) -> None:
    """Refuse parameters that do not fit; see `dtomo.ptycho.model.PtychoModel.check`."""
    _names_and_kinds(parameters)
    sizes = {name: tuple(np.shape(value)) for name, value in parameters.items()}
    probe, image, frames = sizes["probe"], sizes["object"], sizes["positions"][0]
    rank = sizes.get("variable_probe", (0,))[0]
    wanted = {
        "probe": (probe[0], *probe_shape),
        "positions": (frames, 2),
        "variable_probe": (rank, *probe),
        "probe_weights": (frames, rank),
        "background": tuple(frame_shape),
        "scale": (frames,),
    }
    for name, shape in wanted.items():
        if name in sizes and sizes[name] != shape:
            raise UserError(
                f"{name} {NAMES[name]} should have shape {shape} with frames of {frame_shape}; got {sizes[name]}"
            )
    if image[1] != slices:
        raise UserError(f"the model has {slices} slices, and free space between them; the object has {image[1]}")
    if "distance" in parameters and not near_field:
        raise UserError("there is no distance to refine in the far field; leave it out of the parameters")
    if any(whole < part for whole, part in zip(image[-2:], probe[-2:])):
        raise UserError(
            f"the object of {image[-2:]} pixels is smaller than the probe of {probe[-2:]}; give it more room"
        )
    if inside:
        _inside(parameters["positions"], probe[-2:], image[-2:])


def _names_and_kinds(parameters: Mapping[str, Any]) -> None:
    missing = [name for name in ("object", "probe", "positions") if name not in parameters]
    if missing:
        raise UserError(f"the parameters lack {missing[0]} {NAMES[missing[0]]}; give a first guess")
    if ("variable_probe" in parameters) != ("probe_weights" in parameters):
        raise UserError("variable_probe and probe_weights belong together; give both or neither")
    for name, value in parameters.items():
        if name not in NAMES:
            raise UserError(f"{name} is not a parameter of the model; they are {', '.join(NAMES)}")
        if np.ndim(value) != NAMES[name].strip("(),").count(",") + (NAMES[name] != "()"):
            raise UserError(f"{name} has the axes {NAMES[name]}; got shape {np.shape(value)}")
        if name in COMPLEX and value.dtype.kind != "c":
            raise UserError(f"{name} is complex; got {value.dtype}")
    precisions = {parameters[name].dtype for name in ("object", "probe", "variable_probe") if name in parameters}
    if len(precisions) > 1:
        raise UserError(f"object and probes have one dtype; got {' and '.join(sorted(map(str, precisions)))}")


def _inside(positions: Any, patch: tuple[int, int], shape: tuple[int, int]) -> None:
    found = places(positions, patch, shape)
    given: Any = positions if isinstance(positions, np.ndarray) else positions.get()
    outside = (np.abs(found.corners + found.fractions - given) > 1e-9).any(1) | ~np.isfinite(given).all(1)
    if outside.any():
        worst = int(np.argmax(outside))
        raise UserError(
            f"frame {worst} at {tuple(map(float, given[worst]))} reaches beyond the object of {shape} pixels, and so "
            f"do {int(outside.sum()) - 1} others; make the object larger or move the positions (object_shape)"
        )
