"""Thick objects in slices: through a slice, through free space to the next one, and back.

ψ₁ = P O₁, ψₖ₊₁ = Oₖ₊₁ H[ψₖ] (A. M. Maiden, M. J. Humphry and J. M. Rodenburg, "Ptychographic transmission microscopy
in three dimensions using a multi-slice approach", Journal of the Optical Society of America A 29 (2012) 1606;
E. H. R. Tsai et al., "X-ray ptychography with extended depth of field", Optics Express 24 (2016) 29089). Gradients are
the adjoints of these steps, last to first.
"""

from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from dtomo.kernels import exit_waves
from dtomo.operators.propagation import NearField


def through(
    probes: NDArray[Any],
    slices: Sequence[NDArray[Any]],
    corners: NDArray[Any],
    between: Sequence[NearField],
    incident: list[NDArray[Any]] | None = None,
) -> NDArray[Any]:
    """Exit waves ``(frame, object mode, mode, row, column)``.

    Parameters
    ----------
    probes, corners
        As in `dtomo.kernels.exit_waves.product`.
    slices
        Transmission of each, ``(object mode, row, column)``, as the beam meets them.
    between
        Free space from each to the next, one less.
    incident
        Receives the waves that fall on the slices but the first.
    """
    waves = exit_waves.product(probes, slices[0], corners)
    for field, image in zip(between, slices[1:], strict=True):
        waves = field.forward(waves, overwrite=True)
        if incident is not None:
            incident.append(waves.copy())
        exit_waves.times(waves, image, corners)
    return waves


def back_through(
    changes: NDArray[Any],
    slices: Sequence[NDArray[Any]],
    corners: NDArray[Any],
    between: Sequence[NearField],
    incident: Sequence[NDArray[Any]],
    products: NDArray[Any] | None = None,
) -> NDArray[Any]:
    """From ∂L/∂ψ̄ of exit waves (overwritten) to that of the waves behind the first slice.

    Parameters
    ----------
    changes
        As waves.
    slices, corners, between, incident
        As in `through`.
    products
        ``(frame, object mode, slice, row, column)``: set to ∂L/∂Ō under each frame but for the first
        slice.
    """
    for number in range(len(between), 0, -1):
        if products is not None:
            own, out = incident[number - 1], products[:, :, number]
            size = len(own) * own.shape[1]
            exit_waves.object_products(
                own.reshape(size, *own.shape[2:]),
                changes.reshape(size, 1, *own.shape[2:]),
                out.reshape(size, 1, *out.shape[2:]),
            )
        exit_waves.times(changes, slices[number], corners, conjugate=True)
        changes = between[number - 1].adjoint(changes, overwrite=True)
    return changes
