"""Weighted averages of particles: sums in Fourier space, which add over blocks, halves and workers, divided once.

A particle is taken for truth × weights + noise in Fourier space. It is filtered by its weights, brought into the frame
of the reference, and added up, and so are its weights there: average = Σ filtered particles / max(Σ weights, floor),
nothing beyond the Nyquist sphere. A wedge is evaluated at the rotated frequencies themselves. Volumes of CTF² belong to
particles that were multiplied by their CTF already: those are not filtered again (D. Tegunov and P. Cramer, Nature
Methods 16 (2019) 1146; A. Bartesaghi et al., Structure 20 (2012) 2003).

Sums are plain dicts that `dtomo.distributed.sums.tree_sum` and `map_reduce` add: ``data`` complex64 and ``weights``
float32, both ``(z, y, x // 2 + 1)``, and ``count``. Particles are added one after the other in blocks of `BLOCK`, from
the first particle of the list on, and blocks by a fixed tree: the same bits on any number of workers, and on one.
"""

from collections.abc import Iterable, Sequence
from typing import Any, TypedDict

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dtomo.arrays import array_module
from dtomo.distributed.sums import tree_sum
from dtomo.errors import UserError
from dtomo.geometry.wedge import Wedge
from dtomo.subtomo.fourier import (
    OVERSAMPLING,
    box_of,
    by_radius,
    check_box,
    forward,
    inverse,
    radii,
    shell_means,
    turned,
    turned_weights,
)

BLOCK = 16
"""Particles of a block."""
FLOOR = 0.05
"""Least weight that is divided by, as part of the mean weight of the shell."""
EDGE = 0.1
"""Part of the Nyquist sphere's radius over which an average falls to zero."""

Weights = Wedge | NDArray[Any] | None
"""Of a particle: the wedge of its tilt series, a volume of CTF² (zero where nothing was measured), or None: all 1."""


class HalfSums(TypedDict):
    """Sums over particles in the frame of the reference; see the module."""

    data: NDArray[np.complex64]
    weights: NDArray[np.float32]
    count: int


def empty_sums(size: int, xp: Any = np) -> HalfSums:
    """Sums over no particles of boxes ``(size, size, size)``, of a module of arrays."""
    shape = (size, size, size // 2 + 1)
    return {"data": xp.zeros(shape, np.complex64), "weights": xp.zeros(shape, np.float32), "count": 0}


def particle_sums(
    particle: NDArray[Any],
    rotation: ArrayLike,
    shift: ArrayLike = (0.0, 0.0, 0.0),
    weights: Weights = None,
    *,
    factor: float = 1.0,
    oversampling: float = OVERSAMPLING,
) -> HalfSums:
    """What one particle adds to the sums.

    Parameters
    ----------
    particle
        Box ``(z, y, x)``, a cube, in host memory or on a device; multiplied by its CTF where `weights` are CTF².
    rotation, shift
        R ``(3, 3)`` and s ``(3,)`` in voxels, on (x, y, z) and on the host: what the reference has at x, the particle
        has at ``R (x - c) + c + s``, c = n // 2.
    weights
        See `Weights`.
    factor
        How much the particle counts.
    oversampling
        See `dtomo.subtomo.fourier`.

    Raises
    ------
    UserError
        Boxes or weights that do not fit, values that are not finite.
    """
    size = check_box(particle, "a particle")
    xp = array_module(particle)
    spectrum = forward(particle)
    if not bool(np.isfinite(spectrum).all()):
        raise UserError("a particle holds values that are no finite numbers; leave it out")
    if isinstance(weights, Wedge):
        box = (size, size, size)
        spectrum *= weights.weights(box, like=particle)
        seen = weights.weights(box, np.asarray(rotation, np.float64).T, like=particle)
    elif weights is None:
        seen = xp.ones(spectrum.shape, np.float32)
    else:
        if weights.shape != spectrum.shape:
            raise UserError(f"weights of a box of {size}³ voxels have shape {spectrum.shape}, not {weights.shape}")
        given = xp.asarray(weights, np.float32)
        spectrum *= given > 0
        seen = turned_weights(given, rotation)
    seen = seen * xp.asarray((radii(size) < size / 2) * np.float32(factor))
    data = turned(spectrum, rotation, shift, oversampling)
    data *= np.float32(factor)
    return {"data": data, "weights": seen, "count": 1}


def half_sums(
    particles: Iterable[NDArray[Any] | None],
    rotations: ArrayLike,
    shifts: ArrayLike,
    weights: Sequence[Weights],
    halves: ArrayLike,
    *,
    size: int,
    factors: Sequence[float] | None = None,
    xp: Any = np,
    oversampling: float = OVERSAMPLING,
) -> dict[str, HalfSums]:
    """Sums over a block of particles for each half, ``{"1": sums, "2": sums}``: what `map_reduce` adds up.

    Parameters
    ----------
    particles
        Boxes ``(z, y, x)``, or None for one that cannot be read: it is neither in the sums nor in the count. One is in
        memory at a time.
    rotations, shifts, weights, factors
        Of each particle, see `particle_sums`: ``(particle, 3, 3)``, ``(particle, 3)``, a list, a list.
    halves
        1 or 2 for each particle.
    size, xp
        Side of the boxes, and the module of their arrays.
    oversampling
        See `dtomo.subtomo.fourier`.

    Raises
    ------
    UserError
        Other halves; particles that do not fit.
    """
    turns, moves, half = np.asarray(rotations, np.float64), np.asarray(shifts, np.float64), np.asarray(halves)
    if half.shape != (len(turns),) or not np.isin(half, (1, 2)).all():
        raise UserError("each particle is in half 1 or 2")
    found = {"1": empty_sums(size, xp), "2": empty_sums(size, xp)}
    for k, particle in enumerate(particles):
        if particle is None:
            continue
        if check_box(particle, "a particle") != size:
            raise UserError(f"particles have boxes of {size}³ voxels; one has shape {particle.shape}")
        one = particle_sums(
            particle, turns[k], moves[k], weights[k], factor=1.0 if factors is None else factors[k],
            oversampling=oversampling,
        )  # fmt: skip
        total = found[str(half[k])]
        total["data"] += one["data"]
        total["weights"] += one["weights"]
        total["count"] += 1
    return found


def symmetrized(sums: HalfSums, group: NDArray[np.float64], oversampling: float = 2.0) -> HalfSums:
    """Sums as if every particle had come in each of its equivalent orientations.

    Parameters
    ----------
    sums
        Data and weights.
    group
        Rotations ``(k, 3, 3)`` that leave the particle as it is, on (x, y, z), about the center n // 2.
    oversampling
        See `dtomo.subtomo.fourier`.
    """
    parts = [
        sums
        if np.allclose(rotation, np.eye(3), atol=1e-12)
        else {
            "data": turned(sums["data"], rotation, oversampling=oversampling),
            "weights": turned_weights(sums["weights"], rotation),
            "count": sums["count"],
        }
        for rotation in group
    ]
    total: HalfSums = tree_sum(parts)
    return {**total, "count": sums["count"]}


def average(
    sums: HalfSums,
    symmetry: str | NDArray[np.float64] | None = None,
    *,
    floor: float = FLOOR,
    edge: float = EDGE,
) -> NDArray[np.float32]:
    """The average ``(z, y, x)``, float32, where the sums lie.

    Parameters
    ----------
    sums
        Of all particles; `tree_sum` of blocks.
    symmetry
        Name of a point group such as "C4", or its rotations ``(k, 3, 3)``; None: none.
    floor
        Frequencies whose weight is less than this part of the mean over their shell are damped, not divided by next to
        nothing.
    edge
        Part of the Nyquist sphere's radius over which the average falls to zero, as a raised cosine.

    Raises
    ------
    UserError
        No particle was counted, an unknown symmetry, a floor or an edge out of range.
    """
    if sums["count"] < 1:
        raise UserError("there is no particle to average: none of them could be read")
    if not (0 < floor <= 1 and 0 <= edge < 1):
        raise UserError(f"the floor lies above 0 and the edge below 1; got {floor} and {edge}")
    if symmetry is not None:
        sums = symmetrized(sums, _group(symmetry))
    size, xp = box_of(sums["data"]), array_module(sums["data"], sums["weights"])
    least = by_radius(floor * shell_means(sums["weights"]), size, xp)
    divisor = np.maximum(sums["weights"], least)
    spectrum = np.where(divisor > 0, sums["data"] / np.where(divisor > 0, divisor, 1), 0)
    return inverse((spectrum * xp.asarray(_ball(size, edge))).astype(np.complex64, copy=False), size)


def _group(symmetry: str | NDArray[np.float64]) -> NDArray[np.float64]:
    if not isinstance(symmetry, str):
        return np.asarray(symmetry, np.float64).reshape(-1, 3, 3)
    from dtomo.subtomo.symmetry import symmetry_group

    return symmetry_group(symmetry)


def _ball(size: int, edge: float) -> NDArray[np.float32]:
    """One inside the Nyquist sphere, falling to zero on it, float32."""
    part = radii(size) / (size / 2)
    ramp = np.clip((1 - part) / max(edge, 1e-6), 0, 1)
    return np.asarray(np.sin(np.pi / 2 * ramp) ** 2 * (part < 1), np.float32)
