"""Euler angles of the programs and rotation matrices, active, reference to particle, on (x, y, z) columns.

========= ================== ==========================================================================
program   angles             matrix
========= ================== ==========================================================================
PyTom     Z1, X, Z2          Rz(Z2) Rx(X) Rz(Z1)
AV3       phi, theta, psi    Rz(psi) Rx(theta) Rz(phi): PyTom's by other names
RELION    rot, tilt, psi     Rz(-psi) Ry(-tilt) Rz(-rot): the transpose of the intrinsic ZYZ matrix
Dynamo    tdrot, tilt, narot Rz(-tdrot) Rx(-tilt) Rz(-narot)
========= ================== ==========================================================================

Angles are in the order of the table, not in that of the files: PyTom and AV3 write Z1, Z2, X.
"""

import warnings

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

from dtomo.errors import UserError

_SEQUENCES = {"pytom": ("zxz", False), "relion": ("ZYZ", True), "dynamo": ("zxz", True)}
"""SciPy's sequence (small letters: about fixed axes), and whether the matrix is the inverse."""


def to_matrices(angles: NDArray[np.float64], program: str) -> NDArray[np.float64]:
    """Matrices ``(…, 3, 3)`` of angles ``(…, 3)`` in degrees; `program` is "pytom", "relion" or "dynamo".

    Raises
    ------
    UserError
        Angles that are not finite.
    """
    angles = np.asarray(angles, np.float64)
    if not np.isfinite(angles).all():
        raise UserError("the angles of particles are finite numbers, in degrees; some of these are not")
    if not angles.size:
        return np.zeros((*angles.shape[:-1], 3, 3))
    sequence, inverse = _SEQUENCES[program]
    found = Rotation.from_euler(sequence, angles.reshape(-1, 3), degrees=True)
    return (found.inv() if inverse else found).as_matrix().reshape(*angles.shape[:-1], 3, 3)


def to_angles(matrices: NDArray[np.float64], program: str) -> NDArray[np.float64]:
    """Angles ``(…, 3)`` in degrees of matrices ``(…, 3, 3)``; where the middle one is 0 or 180 the third is 0.

    Raises
    ------
    UserError
        What are not rotations.
    """
    matrices = np.asarray(matrices, np.float64)
    if not matrices.size:
        return np.zeros(matrices.shape[:-1])
    flat = matrices.reshape(-1, 3, 3)
    square = flat @ flat.transpose(0, 2, 1)
    if not (np.isfinite(flat).all() and np.allclose(square, np.eye(3), atol=1e-4) and (np.linalg.det(flat) > 0).all()):
        raise UserError("the orientations of particles are rotation matrices; some of these are not")
    sequence, inverse = _SEQUENCES[program]
    rotation = Rotation.from_matrix(flat)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Gimbal lock")  # any of the angles gives the matrix back
        angles = (rotation.inv() if inverse else rotation).as_euler(sequence, degrees=True)
    return angles.reshape(*matrices.shape[:-2], 3)
