"""CDTools' own form of a result: the ``state_dict`` that its models are made from, and results that it wrote.

Formats of CDTools 0.3 (``FancyPtycho.save_results`` and ``from_results_h5``). A detector has no size in a result of
dtomo's; the one written here lies at 1 m and sees the same angles, which is all that CDTools' model asks of it.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtomo.errors import UserError
from dtomo.io.ptycho.result import PtychoResult

GROUP = "state_dict"
NO_BACKGROUND = 1e-6
"""Root of a background where there is none, as CDTools has it."""
LOSSES = {"amplitude": "amplitude_mse", "intensity": "intensity_mse", "poisson": "poisson_nll"}
"""CDTools' names."""

Arrays = dict[str, NDArray[Any]]


def state_of(result: PtychoResult, probe: NDArray[Any]) -> Arrays:
    """What ``FancyPtycho.from_results_h5`` needs beside the arrays at the top, by name.

    Empty for what its model does not have as dtomo does: a near field (its propagator is an array there), several
    slices, modes of the object, an oversampled detector, lengths that are not known.

    Parameters
    ----------
    result
        Of a run.
    probe
        As it is written, ``(mode, row, column)``.
    """
    other = result.near_field or result.oversampling > 1 or result.object.shape[:2] != (1, 1)
    if other or result.wavelength is None or (result.basis is None and result.pixel_size is None):
        return {}
    largest = float(np.abs(probe[0]).max())
    norm = largest if largest > 0 else 1.0
    sizes = np.linalg.norm(result.metres, axis=0)
    shape = np.array(probe.shape[-2:])
    root = np.full(probe.shape[-2:], NO_BACKGROUND, np.float32)
    if result.background is not None:
        root = np.asarray(np.fft.fftshift(result.background), np.float32)
    start = result.positions if result.start_positions is None else result.start_positions
    return {
        "wavelength": np.array(result.wavelength, np.float32),
        "det_basis": (result.metres / sizes * (result.wavelength / (shape * sizes))).astype(np.float32),
        "det_distance": np.array(1.0, np.float32),
        "surface_normal": _normal(result.metres),
        "min_translation": np.array(result.origin, np.float32),
        "translation_offsets": (result.positions - start).astype(np.float32),
        "translation_scale": np.array(1.0, np.float32),
        "probe": probe / np.float32(norm),
        "probe_norm": np.array(norm, np.float32),
        "background": root,
        "exponentiate_obj": np.array(result.exponential),
        "oversampling": np.array(1),
    }


def linked() -> dict[str, str]:
    """Further names of the ``state_dict``, and the arrays at the top that they are."""
    names = ("obj", "obj_basis", "probe_basis", "weights", "original_translations")
    return {f"{GROUP}/{name}": f"/{name}" for name in names}


def _normal(basis: NDArray[np.float64]) -> NDArray[np.float32]:
    """Of the plane that rows and columns span, along the beam."""
    normal = np.cross(basis[:, 0], basis[:, 1])
    length = float(np.linalg.norm(normal))
    if not length > 0 or not abs(normal[2]) > 1e-6 * length:
        return np.array([0, 0, 1], np.float32)
    return np.asarray(normal / length * np.sign(normal[2]), np.float32)


def is_cdtools(arrays: Arrays) -> bool:
    """Whether CDTools wrote these."""
    return {"obj", "probe", "translations", "obj_basis", f"{GROUP}/probe_norm"} <= arrays.keys()


def result_from(arrays: Arrays, texts: dict[str, str], where: str) -> PtychoResult:
    """A result that CDTools' ``FancyPtycho`` wrote.

    Parameters
    ----------
    arrays, texts
        By name, those in groups as ``state_dict/…``.
    where
        For messages.

    Raises
    ------
    UserError
        Weights that mix modes from frame to frame in a way that dtomo's model does not have; other shapes.
    """
    weights = arrays.get("weights")
    if weights is not None and weights.ndim != 1:
        raise UserError(f"{where} has weights of shape {weights.shape} that mix modes (dm_rank), which is not read")
    obj, probe = arrays["obj"], np.asarray(arrays["probe"], np.complex64)
    if obj.ndim not in (2, 3) or probe.ndim not in (2, 3) or arrays["obj_basis"].shape != (3, 2):
        raise UserError(
            f"{where} has obj of shape {obj.shape}, probe {probe.shape}, obj_basis {arrays['obj_basis'].shape}; rows "
            "and columns, with one more axis at most, and a basis (3, 2) were expected"
        )
    more = obj.shape[:-2]
    if texts.get("model_class", "").startswith("Multislice"):
        more = (1, *more)
    basis = np.asarray(arrays["obj_basis"], np.float64)
    origin = np.asarray(arrays.get(f"{GROUP}/min_translation", np.zeros(2)), np.float64)
    near = bool(arrays.get(f"{GROUP}/near_field", np.array(False)))
    sizes = np.linalg.norm(basis, axis=0)

    def places(name: str) -> NDArray[np.float64]:
        return np.asarray(np.asarray(arrays[name], np.float64) @ np.linalg.pinv(basis).T - origin)

    root = arrays.get(f"{GROUP}/background")
    loss = {name: own for own, name in LOSSES.items()}.get(texts.get("loss_function", ""), "amplitude")
    return PtychoResult(
        object=np.asarray(obj.reshape(*more, *(1,) * (2 - len(more)), *obj.shape[-2:]), np.complex64),
        probe=probe if probe.ndim == 3 else probe[None],
        positions=places("translations"),
        start_positions=places("original_translations") if "original_translations" in arrays else None,
        history=np.asarray(arrays.get("loss_history", np.zeros(0)), np.float64),
        loss=loss,
        exponential=bool(arrays.get(f"{GROUP}/exponentiate_obj", np.array(False))),
        near_field=near,
        background=None if root is None else np.asarray(root if near else np.fft.ifftshift(root), np.float32),
        scale=None if weights is None else np.asarray(weights, np.float32),
        pixel_size=(float(sizes[0]), float(sizes[1])),
        wavelength=float(arrays["wavelength"]) if "wavelength" in arrays else None,
        oversampling=int(arrays.get("oversampling", np.array(1))),
        basis=basis,
        origin=(float(origin[0]), float(origin[1])),
        settings={"cdtools": texts.get("cdtools_version", ""), "training_history": texts.get("training_history", "")},
    )
