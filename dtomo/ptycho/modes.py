"""Modes of a probe turned into orthogonal ones, by power; so are those that a probe varies in from frame to frame.

Modes of an incoherent probe may be mixed by any unitary matrix (P. Thibault and A. Menzel, Nature 494 (2013) 68), and
the variable part of a probe is a product of weights and modes (M. Odstrcil et al., Opt. Express 24 (2016) 8360):
neither changes an intensity.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtomo.arrays import array_module


def orthogonal(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Probe modes orthogonal over all frames and sorted by power, the strongest first; new arrays.

    The variable part, if there is one, has weights of mean zero, mean square one and no correlation, and orthogonal
    modes sorted by power (no more of them than frames); its mean is in the probe. Of each mode the brightest pixel is
    real and positive.

    Parameters
    ----------
    parameters
        Of a `dtomo.ptycho.model.PtychoModel`; others than the probe's are passed through.
    """
    result = dict(parameters)
    variable = "variable_probe" in parameters and len(parameters["variable_probe"]) > 0
    if variable:
        result |= _mean_in_probe(parameters)
    result |= _modes_turned(result, variable)
    if variable:
        result |= _variable_turned(result)
    return result


def powers(modes: NDArray[Any]) -> NDArray[Any]:
    """Σ |P|² of each mode, from ``(mode, row, column)``."""
    return (modes.real**2 + modes.imag**2).sum(axis=(-2, -1))


def _mean_in_probe(parameters: Mapping[str, Any]) -> dict[str, Any]:
    weights, modes = parameters["probe_weights"], parameters["variable_probe"]
    mean = weights.mean(axis=0)
    added = _mixed(mean[None], modes)[0]
    return {"probe": parameters["probe"] + added.astype(modes.dtype), "probe_weights": weights - mean}


def _modes_turned(parameters: Mapping[str, Any], variable: bool) -> dict[str, Any]:
    """Modes mixed by the eigenvectors of their mean products over the frames, and their phases set."""
    probe = parameters["probe"]
    products = _products(probe)
    if variable:
        weights, changes = parameters["probe_weights"], parameters["variable_probe"]
        together = weights.astype(complex).conj().T @ weights.astype(complex) / len(weights)
        for left in range(len(changes)):
            for right in range(len(changes)):
                products = products + together[left, right] * _products(changes[right], changes[left])
    turn = _eigenvectors(products).conj().T
    turned = _mixed(turn, probe)
    phases = _phases(turned)
    result = {"probe": (turned * phases[:, None, None]).astype(probe.dtype)}
    if variable:
        changes = parameters["variable_probe"]
        mixed = array_module(changes).stack([_mixed(turn, one) for one in changes])
        result["variable_probe"] = (mixed * phases[:, None, None]).astype(changes.dtype)
    return result


def _variable_turned(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The product of weights and modes as weights without correlation times orthogonal modes."""
    weights, modes = parameters["probe_weights"].astype(complex), parameters["variable_probe"].astype(complex)
    xp = array_module(modes)
    flat = modes.reshape(len(modes), -1)
    left, weights_part = xp.linalg.qr(weights)
    right, modes_part = xp.linalg.qr(flat.T)
    one, sizes, other = xp.linalg.svd(weights_part @ modes_part.T)
    root = float(len(weights)) ** 0.5
    turned = (sizes[:, None] / root) * (other @ right.T)
    phases = _phases(turned)
    weights = (left @ one) * root * phases.conj()
    shape = (len(turned), *modes.shape[1:])
    return {
        "variable_probe": (turned * phases[:, None]).reshape(shape).astype(parameters["variable_probe"].dtype),
        "probe_weights": weights.astype(parameters["probe_weights"].dtype),
    }


def _products(left: NDArray[Any], right: NDArray[Any] | None = None) -> NDArray[Any]:
    """Products ⟨right_n, left_m⟩ of modes ``(mode, row, column)``, complex128."""
    rows = left.reshape(len(left), -1).astype(complex)
    columns = rows if right is None else right.reshape(len(right), -1).astype(complex)
    return rows @ columns.conj().T


def _eigenvectors(products: NDArray[Any]) -> NDArray[Any]:
    """Those of a Hermitian matrix as columns, the largest first."""
    _, vectors = array_module(products).linalg.eigh(products)
    return vectors[:, ::-1]


def _mixed(matrix: NDArray[Any], modes: NDArray[Any]) -> NDArray[Any]:
    """Σₙ matrix[m, n] · modes[n], in the precision of the matrix."""
    flat = modes.reshape(len(modes), -1)
    return (matrix @ flat.astype(matrix.dtype)).reshape(len(matrix), *modes.shape[1:])


def _phases(modes: NDArray[Any]) -> NDArray[Any]:
    """Factors of modulus one that make the brightest pixel of each mode real and positive."""
    flat = modes.reshape(len(modes), -1)
    brightest = array_module(flat).take_along_axis(flat, np.abs(flat).argmax(axis=1)[:, None], 1)[:, 0]
    size = np.abs(brightest)
    return np.where(size > 0, brightest.conj() / np.where(size > 0, size, 1), 1)
