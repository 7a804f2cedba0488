"""Positions and images that the user gives: arrays, or files of them."""

import os
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import ArrayLike, NDArray

from dtomo.errors import UserError
from dtomo.io.damage import explained
from dtomo.io.hdf5_files import node, open_hdf5
from dtomo.io.ptycho.reading import small_array
from dtomo.io.units import length_factor

Given = ArrayLike | str | os.PathLike[str]
PIXELS = ("pixels", "pixel", "px")


def unit_factor(unit: str, where: str) -> tuple[str, float]:
    """``"m"`` or ``"pixels"``, and the factor to it.

    Raises
    ------
    UserError
        Neither a length nor pixels.
    """
    if unit.strip().lower() in PIXELS:
        return "pixels", 1.0
    factor = length_factor(unit, "m")
    if factor is None:
        raise UserError(f"{where} has the unit {unit!r}; m, mm, um, nm or pixels was expected (--position-unit)")
    return "m", factor


def given_array(value: Given, what: str, *, kinds: str = "uif") -> tuple[NDArray[Any], str, Path | None]:
    """An array, or what a file holds: ``FILE.h5:/dataset``, NPY, TIFF, or numbers in text.

    Returns
    -------
    array, where, file
        Where it came from in words, and the file it lies in.

    Raises
    ------
    UserError
        No such file, or not the numbers that were expected.
    """
    if not isinstance(value, str | os.PathLike):
        try:
            array = np.asarray(value)
        except ValueError as error:
            raise UserError(f"the {what} given are not an array of numbers ({error})") from error
        return _numbers(array, f"the {what} given", kinds), f"the {what} given", None
    text = os.fspath(value)
    name, _, dataset = text.rpartition(":/")
    if name and not Path(text).exists():
        return _from_hdf5(Path(name), "/" + dataset, kinds), text, Path(name)
    path = Path(text)
    if not path.is_file():
        raise UserError(f"there is no file {path} for the {what}; give an existing one, or FILE.h5:/dataset")
    return _numbers(_from_file(path, what), text, kinds), text, path


def _numbers(array: NDArray[Any], where: str, kinds: str) -> NDArray[Any]:
    if array.dtype.kind not in kinds or not array.size:
        raise UserError(f"{where}: {array.dtype} of shape {array.shape}, where numbers were expected")
    return array


def _from_hdf5(path: Path, dataset: str, kinds: str) -> NDArray[Any]:
    with open_hdf5(path) as file:
        if not isinstance(node(file, dataset), h5py.Dataset):
            raise UserError(f"{path} has no dataset {dataset}")
        array = small_array(file, dataset, f"{path}:{dataset}", kinds=kinds)
    if array is None:
        raise UserError(f"{path}:{dataset} is empty")
    return array


def _from_file(path: Path, what: str) -> NDArray[Any]:
    suffix = path.suffix.lower()
    if suffix in (".tif", ".tiff"):
        import tifffile

        with explained(str(path)):
            return np.asarray(tifffile.imread(path))
    if h5py.is_hdf5(path):
        raise UserError(f"{path} is HDF5: name the dataset of the {what}, as {path}:/dataset")
    with explained(str(path)):
        if suffix == ".npy":
            return np.asarray(np.load(path, allow_pickle=False))
        lines = path.read_text(encoding="utf-8-sig").replace(",", " ").replace(";", " ").splitlines()
    if lines and not _is_number((lines[0].split() or ["0"])[0]) and not lines[0].lstrip().startswith("#"):
        lines = lines[1:]  # a heading
    try:
        return np.loadtxt(lines, dtype=np.float64, ndmin=2)
    except ValueError as error:
        raise UserError(f"{path} is no table of numbers ({error}); give text, NPY, TIFF or FILE.h5:/dataset") from error


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def table_of_positions(array: NDArray[Any], where: str) -> NDArray[np.float64]:
    """Row and column of each frame ``(frame, 2)``, float64.

    Raises
    ------
    UserError
        Another shape.
    """
    array = np.asarray(array, np.float64)
    if array.ndim != 2 or 2 not in array.shape:
        raise UserError(f"{where} has shape {array.shape}; row and column of each frame were expected: (frame, 2)")
    return array if array.shape[1] == 2 else array.T.copy()
