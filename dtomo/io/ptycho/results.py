"""Results of ptychography in HDF5 or Zarr, under the names that CDTools gives them, written whole or not at all.

At the top, as CDTools' ``save_to_h5`` has it:

=========================== ===================================================================================
``obj``                     ``(row, column)``, with a leading axis for modes or slices, or for modes and slices
``probe``                   ``(mode, row, column)``; modes of the variable probes (OPR) follow after those of the probe
``weights``                 ``(frame,)`` amplitudes; with OPR ``(frame, mode, all modes)``, complex
``background``              counts ``(row, column)``, frequency zero in the middle
``obj_basis, probe_basis``  ``(3, 2)``: metres (x, y, z) per row and per column
``translations``            of the probe, (x, y, z) in metres, ``(frame, 3)``, refined
``original_translations``   the same, as the run began
``wavelength``              metres
``oversampling``            pixels of the probe per pixel of the detector
``loss_history``            loss of each epoch, normalised
``epoch``                   how many there were
``loss_function``           CDTools' name of the loss
``training_history``        one line of text
``model_class``             ``FancyPtycho``
``state_dict``              what CDTools makes this model from (`dtomo.io.ptycho.cdtools`); in HDF5, far field,
                            one slice, lengths known; largest arrays are links
=========================== ===================================================================================

What dtomo knows besides lies in the group ``dtomo``: ``positions`` and ``start_positions`` in pixels ``(frame, 2)``,
``settings`` (YAML), ``versions``, ``frc/…``, and what else is needed to read back every bit. In Zarr texts are
attributes.
"""

import dataclasses
import json
import os
import platform
import shutil
from importlib.metadata import version
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import yaml
import zarr
from numpy.typing import NDArray

import dtomo
from dtomo.algorithms.resolution import FourierCorrelation
from dtomo.errors import UserError
from dtomo.io.hdf5_files import new_hdf5, open_hdf5
from dtomo.io.output import check_output, writing
from dtomo.io.ptycho import cdtools
from dtomo.io.ptycho.result import PtychoResult
from dtomo.yaml_text import load_yaml

FORMAT = 1
"""Of the group ``dtomo``."""

_ARRAYS = ("positions", "start_positions", "scale", "probe_weights", "frame_error")
_NUMBERS = ("distance", "pixel_size", "wavelength", "origin", "oversampling", "exponential", "near_field")
_CHUNK = 1024


def write_results(path: str | os.PathLike[str], result: PtychoResult, *, overwrite: bool = False) -> Path:
    """Write a result; it appears under its name only when whole.

    Parameters
    ----------
    path
        ``….zarr``, or an HDF5 file.
    result
        What to write.
    overwrite
        Replace an output that exists.

    Returns
    -------
    Path
        The path written.

    Raises
    ------
    UserError
        The output is refused (see `dtomo.io.check_output`), or settings hold more than text, numbers, lists, mappings.
    """
    arrays, texts = _arrays(result), _texts(result)
    needed = sum(array.nbytes for array in arrays.values())
    target = check_output(path, overwrite=overwrite, bytes_needed=needed)
    if target.suffix.lower() == ".zarr":
        _write_zarr(target, arrays, texts)
    else:
        _write_hdf5(target, arrays, texts, cdtools.state_of(result, arrays["probe"]))
    return target


def read_results(path: str | os.PathLike[str]) -> PtychoResult:
    """What `write_results` wrote, with the same bits; or what CDTools' ``FancyPtycho`` wrote in HDF5.

    Raises
    ------
    UserError
        There is no such file, or it is no result of theirs.
    """
    path = Path(path)
    if path.is_dir():
        arrays, texts = _read_zarr(path)
    else:
        with open_hdf5(path) as file:
            arrays, texts = _read_hdf5(file)
    if "dtomo/positions" not in arrays and cdtools.is_cdtools(arrays):
        return cdtools.result_from(arrays, texts, str(path))
    if "dtomo/positions" not in arrays or "obj" not in arrays:
        raise UserError(f"{path} holds no ptychographic result of dtomo's; give what `dtomo ptycho` wrote")
    stored = int(arrays.get("dtomo/format", np.array(0)))
    if stored > FORMAT:
        raise UserError(f"{path} was written by a newer dtomo (format {stored}); update dtomo to read it")
    return _result(arrays, texts)


def _arrays(result: PtychoResult) -> dict[str, NDArray[Any]]:
    """All that is numbers, by name."""
    shape = result.object.shape
    start = result.positions if result.start_positions is None else result.start_positions
    probe, weights = _probe_and_weights(result)
    arrays = {
        "obj": result.object.reshape(*(size for size in shape[:2] if size > 1), *shape[2:]),
        "probe": probe,
        "weights": weights,
        "obj_basis": result.metres,
        "probe_basis": result.metres,
        "translations": result.translations(),
        "original_translations": result.translations(start),
        "oversampling": np.array(result.oversampling),
        "loss_history": result.history,
        "epoch": np.array(len(result.history)),
        "dtomo/format": np.array(FORMAT),
        "dtomo/object_shape": np.array(shape),
        "dtomo/probe_modes": np.array(len(result.probe)),
    }
    if result.wavelength is not None:
        arrays["wavelength"] = np.array(result.wavelength)
    if result.background is not None:
        square = result.background**2
        arrays["background"] = square if result.near_field else np.fft.fftshift(square)
        arrays["dtomo/background_root"] = result.background
    for name in (*_ARRAYS, *_NUMBERS, "basis"):
        value = getattr(result, name)
        if value is not None:
            arrays[f"dtomo/{name}"] = np.asarray(value)
    if result.frc is not None:
        for field in dataclasses.fields(result.frc):
            arrays[f"dtomo/frc/{field.name}"] = np.asarray(getattr(result.frc, field.name))
    return arrays


def _probe_and_weights(result: PtychoResult) -> tuple[NDArray[Any], NDArray[Any]]:
    """As CDTools has them: probes of a frame are its weights times a basis of modes."""
    probe, frames = result.probe, len(result.positions)
    scale = np.ones(frames, probe.real.dtype) if result.scale is None else result.scale
    if result.variable_probe is None or result.probe_weights is None:
        return probe, scale
    modes, rank = len(probe), len(result.variable_probe)
    basis = np.concatenate([probe, result.variable_probe.reshape(rank * modes, *probe.shape[1:])])
    weights = np.zeros((frames, modes, len(basis)), probe.dtype)
    for mode in range(modes):
        weights[:, mode, mode] = scale
        weights[:, mode, modes + mode :: modes] = scale[:, None] * result.probe_weights
    return basis, weights


def _texts(result: PtychoResult) -> dict[str, str]:
    """All that is text, by name."""
    try:
        settings = yaml.safe_dump(dict(result.settings), sort_keys=False, allow_unicode=True)
    except yaml.representer.RepresenterError as error:
        raise UserError(
            f"settings of a result are text, numbers, lists and mappings; got {error.args[-1]!r}"
        ) from error
    packages = {name: version(name) for name in ("numpy", "scipy", "numba", "h5py", "zarr")}
    versions = {"dtomo": dtomo.__version__, "python": platform.python_version(), **packages}
    return {
        "loss_function": cdtools.LOSSES.get(result.loss, result.loss),
        "training_history": f"dtomo {dtomo.__version__}: {len(result.history)} epochs, loss {result.loss}",
        "model_class": "FancyPtycho",
        "dtomo/loss": result.loss,
        "dtomo/settings": settings,
        "dtomo/versions": json.dumps(versions),
        "dtomo/units": "m" if result.basis is not None or result.pixel_size is not None else "pixels",
    }


def _result(arrays: dict[str, NDArray[Any]], texts: dict[str, str]) -> PtychoResult:
    """The inverse of `_arrays` and `_texts`."""
    own = {name.removeprefix("dtomo/"): value for name, value in arrays.items() if name.startswith("dtomo/")}
    values: dict[str, Any] = {name: own.get(name) for name in (*_ARRAYS, "basis")}
    for name in _NUMBERS:
        values[name] = None if name not in own else tuple(own[name].tolist()) if own[name].ndim else own[name].item()
    modes = int(own["probe_modes"])
    probe = arrays["probe"]
    if len(probe) > modes:
        values["variable_probe"] = probe[modes:].reshape(-1, modes, *probe.shape[1:])
    if "frc/nyquist" in own:
        frequency, correlation, count = (own[f"frc/{name}"] for name in ("frequency", "correlation", "count"))
        values["frc"] = FourierCorrelation(frequency, correlation, count, float(own["frc/nyquist"]))
    return PtychoResult(
        object=arrays["obj"].reshape(own["object_shape"]),
        probe=probe[:modes],
        history=arrays["loss_history"],
        background=own.get("background_root"),
        loss=texts["dtomo/loss"],
        settings=load_yaml(texts["dtomo/settings"]),
        **values,
    )


def _write_hdf5(
    target: Path, arrays: dict[str, NDArray[Any]], texts: dict[str, str], state: dict[str, NDArray[Any]]
) -> None:
    with new_hdf5(target) as file:
        for name, array in arrays.items():
            file.create_dataset(name, data=array)
            file.flush()
        for name, array in state.items():
            file.create_dataset(f"{cdtools.GROUP}/{name}", data=array)
        for name, top in (cdtools.linked() if state else {}).items():
            file[name] = h5py.SoftLink(top)
        for name, text in texts.items():
            file.create_dataset(name, data=text, dtype=h5py.string_dtype())
        file.flush()


def _read_hdf5(file: h5py.File) -> tuple[dict[str, NDArray[Any]], dict[str, str]]:
    arrays: dict[str, NDArray[Any]] = {}
    texts: dict[str, str] = {}

    def take(name: str, item: h5py.Group | h5py.Dataset) -> None:
        if isinstance(item, h5py.Dataset) and h5py.check_string_dtype(item.dtype) is not None:
            texts[name] = str(item.asstr()[()])
        elif isinstance(item, h5py.Dataset):
            arrays[name] = np.asarray(item[()])

    file.visititems(take)
    return arrays, texts


def _write_zarr(target: Path, arrays: dict[str, NDArray[Any]], texts: dict[str, str]) -> None:
    part = target.with_name(f".{target.name}.{os.getpid()}.part.zarr")
    old = target.with_name(f".{target.name}.{os.getpid()}.old.zarr")
    try:
        with writing(target):
            group = zarr.create_group(part)
            for name, array in arrays.items():
                chunks = tuple(min(size, _CHUNK) for size in array.shape)
                group.create_array(name, data=np.ascontiguousarray(array) if array.ndim else array, chunks=chunks)
            group.attrs.update({"dtomo": {"complete": True}, "texts": texts})
            if target.exists():
                os.replace(target, old)
            os.replace(part, target)
    finally:
        if old.exists() and not target.exists():
            os.replace(old, target)
        for folder in (part, old):
            shutil.rmtree(folder, ignore_errors=True)


def _read_zarr(path: Path) -> tuple[dict[str, NDArray[Any]], dict[str, str]]:
    try:
        group = zarr.open_group(path, mode="r")
    except (FileNotFoundError, ValueError) as error:
        raise UserError(f"{path} is no Zarr group; give what `dtomo ptycho` wrote") from error
    found = {name: item for name, item in group.members(max_depth=None) if isinstance(item, zarr.Array)}
    stored: Any = group.attrs.get("texts", {})
    return {name: np.asarray(item[...]) for name, item in found.items()}, dict(stored)
