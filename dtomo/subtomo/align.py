"""One pass over all particles: each is aligned to the reference of its half, and added to the sums of its half.

Particles come in small blocks, whose size follows from their number alone; whoever is free takes the next ones. A block
gives poses (a row for each of its particles) and sums, which are added by a fixed tree: the same bits whoever did what.
A particle whose box cannot be read keeps its pose, is in no sum, and is told of.
"""

import dataclasses
import uuid
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from dtomo.arrays import array_module
from dtomo.device import to_device, to_host
from dtomo.distributed.sums import tree_sum
from dtomo.errors import UserError
from dtomo.geometry.wedge import Wedge
from dtomo.kernels.cropping import fourier_crop
from dtomo.kernels.matching import Prior, Reference
from dtomo.subtomo.averaging import HalfSums, half_sums
from dtomo.subtomo.boxes import Boxes, BrokenBoxError, read_weights
from dtomo.subtomo.rotations import local_rotations, uniform_rotations
from dtomo.subtomo.symmetry import angle_between, symmetry_group
from dtomo.windows import Rows

if TYPE_CHECKING:
    from distributed import Client

LARGEST_BLOCK = 8
"""Particles of a block."""
BLOCKS = 400
"""That there are at least, if there are as many particles: for workers of different speed."""

COLUMNS = 15
"""Of a pose: rotation (9), shift (3), score, class, whether the box was read."""


@dataclasses.dataclass(frozen=True, eq=False)
class Poses:
    """Where the particles of a list are, and what they belong to.

    Attributes
    ----------
    rotations, shifts
        ``(particle, 3, 3)`` and ``(particle, 3)``, voxels, as `dtomo.io.particles.Particles` has them.
    scores
        Of the last pass; NaN: none yet.
    classes
        Number of each one's reference, int64.
    halves
        1 or 2, int8.
    read
        Whether its box could be read in the last pass.
    """

    rotations: NDArray[np.float64]
    shifts: NDArray[np.float64]
    scores: NDArray[np.float64]
    classes: NDArray[np.int64]
    halves: NDArray[np.int8]
    read: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.rotations)


@dataclasses.dataclass(frozen=True)
class Search:
    """Which rotations and shifts are tried, and what is compared.

    Attributes
    ----------
    everywhere
        All rotations, `increment` apart; else those about each particle's own.
    shells, increment
        Of local rotations; degrees.
    rotation_set
        "even" or "glocal".
    symmetry
        Point group.
    binning
        Of what is compared.
    max_shift
        Voxels of the whole box, from its middle.
    band
        Least and largest radius in voxels of the transform of the box; None: no bound.
    score
        "flcf" or "nxcf": see `dtomo.kernels.matching.Reference`.
    shift_prior, rotation_prior
        Standard deviations about the poses that a run began with, voxels and degrees; None: no prior.
    """

    everywhere: bool
    shells: int
    increment: float
    rotation_set: Literal["even", "glocal"] = "even"
    symmetry: str = "C1"
    binning: int = 1
    max_shift: float | None = None
    band: tuple[float | None, float | None] = (None, None)
    score: Literal["flcf", "nxcf"] = "flcf"
    shift_prior: float | None = None
    rotation_prior: float | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class Pass:
    """What a pass needs; sent to each worker once.

    Attributes
    ----------
    boxes, poses
        Of all particles.
    weights
        Of each: a wedge, the name of a file of CTF², or None.
    references
        ``references[class][half - 1]``, volumes ``(z, y, x)``; none: particles are added up as they lie.
    mask
        Volume of the same shape, from 0 to 1.
    search
        None: as they lie.
    starts
        Poses that priors are about; None: `poses`.
    weighting
        Particles count by exp(score - 1).
    device
        Whether workers compute on their devices.
    key
        Name of the pass.
    """

    boxes: Boxes
    poses: Poses
    weights: tuple[Wedge | str | None, ...]
    references: tuple[tuple[NDArray[np.float32], NDArray[np.float32]], ...] = ()
    mask: NDArray[np.float32] | None = None
    search: Search | None = None
    starts: Poses | None = None
    classes: int = 1
    weighting: bool = False
    device: bool = False
    key: str = dataclasses.field(default_factory=lambda: uuid.uuid4().hex)

    def blocks(self) -> list[tuple[int, ...]]:
        """Numbers of the particles of each block."""
        size = block_size(len(self.poses))
        numbers = range(len(self.poses))
        return [tuple(numbers[first : first + size]) for first in range(0, len(self.poses), size)]


@dataclasses.dataclass(frozen=True, eq=False)
class Passed:
    """What came of a pass.

    Attributes
    ----------
    poses
        New ones.
    sums
        Of each class: halves ``"1"`` and ``"2"``, see `dtomo.subtomo.averaging`.
    """

    poses: Poses
    sums: list[dict[str, HalfSums]]

    @property
    def left_out(self) -> list[int]:
        """Particles whose box could not be read."""
        return [int(number) for number in np.flatnonzero(~self.poses.read)]


def block_size(particles: int) -> int:
    """Particles of a block, by their number alone."""
    return max(1, min(LARGEST_BLOCK, particles // BLOCKS))


def run_pass(work: Pass, client: "Client | None" = None, on_block: Callable[[int], None] | None = None) -> Passed:
    """Do a pass, here or on a cluster.

    Parameters
    ----------
    work
        Which.
    client
        Of a cluster, whose workers take blocks; None: this process.
    on_block
        Told how many particles are done, after each block.

    Raises
    ------
    TaskFailed, StoppedError
        A block failed again and again, or no worker is left.
    """
    blocks = work.blocks()
    if client is None:

        def results() -> Iterator[dict[str, Any]]:
            for block in blocks:
                yield align_block(work, block)
                if on_block is not None:
                    on_block(len(block))

        total = tree_sum(results())
    else:
        from dtomo.distributed.queue import map_reduce

        told = None if on_block is None else lambda block: on_block(len(block))
        future = map_reduce(client, align_block, work, blocks, told)
        total = client.submit(_on_host, future, pure=False).result()
    _forget(work.key)
    return Passed(_poses(work.poses, total["poses"]), _on_host(total["sums"]))


def align_block(work: Pass, block: tuple[int, ...]) -> dict[str, Any]:
    """Poses and sums of some particles, added up by `run_pass`."""
    size, poses = work.boxes.size, work.poses
    rows = np.zeros((len(block), COLUMNS))
    boxes: list[NDArray[Any] | None] = []
    weights: list[Wedge | NDArray[np.float32] | None] = []
    for row, number in enumerate(block):
        rotation, shift = poses.rotations[number], poses.shifts[number]
        score, kind = float("nan"), int(poses.classes[number])
        box, seen = _read(work, number, size)
        if box is not None and work.search is not None:
            try:
                rotation, shift, score, kind = _aligned(work, number, box, seen)
            except BrokenBoxError:
                box = None
        boxes.append(box)
        weights.append(seen)
        rows[row] = [*np.ravel(rotation), *shift, score, kind, box is not None]
    return {"poses": Rows(np.array(block, np.int64), rows), "sums": _sums(work, block, rows, boxes, weights)}


def _read(work: Pass, number: int, size: int) -> tuple[NDArray[Any] | None, Wedge | NDArray[np.float32] | None]:
    """The box of a particle where the process computes, and its weights; None: it cannot be read."""
    given = work.weights[number]
    try:
        box = work.boxes.read(number)
        weights = read_weights(given, size) if isinstance(given, str) else given
    except BrokenBoxError:
        return None, None
    return (to_device(box) if work.device else box), weights


def _aligned(
    work: Pass, number: int, box: NDArray[Any], weights: Wedge | NDArray[np.float32] | None
) -> tuple[NDArray[np.float64], NDArray[np.float64], float, int]:
    """Rotation, shift, score and class of the best match of a particle."""
    search = work.search
    assert search is not None
    small = fourier_crop(box, search.binning)
    seen = _seen(weights, small)
    if search.everywhere:
        rotations = uniform_rotations(search.increment, search.symmetry)
    else:
        start = work.poses.rotations[number]
        rotations = local_rotations(start, search.shells, search.increment, kind=search.rotation_set)
    prior = _prior(work, number, rotations)
    found = []
    for kind in range(len(work.references)):
        reference = _reference(work, kind, int(work.poses.halves[number]))
        try:
            prepared = reference.prepare(small, *seen)
        except UserError as error:  # nothing is left of it within its wedge and the band
            raise BrokenBoxError(str(error)) from error
        match = reference.match(prepared, rotations, prior=prior)
        found.append((float(match.score), -kind, match))
    score, kind, match = max(found, key=lambda one: one[:2])
    return rotations[match.index], np.asarray(match.shift) * search.binning, score, -kind


def _prior(work: Pass, number: int, rotations: NDArray[np.float64]) -> Prior | None:
    """About the pose that a particle began with."""
    search = work.search
    assert search is not None
    if search.shift_prior is None and search.rotation_prior is None:
        return None
    starts, weights = work.poses if work.starts is None else work.starts, None
    if search.rotation_prior is not None:
        off = angle_between(rotations, starts.rotations[number][None], symmetry_group(search.symmetry))
        weights = np.exp((off.min() ** 2 - off**2) / (2 * search.rotation_prior**2))  # 1 for the likeliest
    spread = None if search.shift_prior is None else search.shift_prior / search.binning
    return Prior(starts.shifts[number] / search.binning, spread, weights)


_REFERENCES: dict[tuple[str, int, int], Reference] = {}
"""Of the pass that this process works at."""


def _reference(work: Pass, kind: int, half: int) -> Reference:
    key = work.key, kind, half
    if key not in _REFERENCES:
        for other in [one for one in _REFERENCES if one[0] != work.key]:
            _REFERENCES.pop(other, None)
        search, mask = work.search, work.mask
        assert search is not None
        assert mask is not None
        place = to_device if work.device else np.asarray
        volume = fourier_crop(place(work.references[kind][half - 1]), search.binning)
        window = place(mask) if search.binning == 1 else fourier_crop(place(mask), search.binning).clip(0, 1)
        reach = None if search.max_shift is None else search.max_shift / search.binning
        band = tuple(None if radius is None else radius / volume.shape[0] for radius in search.band)
        _REFERENCES[key] = Reference(volume, window, band=band, max_shift=reach, local=search.score == "flcf")  # type: ignore[arg-type]
    return _REFERENCES[key]


def _forget(key: str) -> None:
    for one in [one for one in _REFERENCES if one[0] == key]:
        _REFERENCES.pop(one, None)


def _seen(weights: Wedge | NDArray[np.float32] | None, small: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """What filters a particle, and what filters the reference, on the transform of the smaller box.

    Under a wedge both are the same; a particle with CTF² was multiplied by its CTF already.
    """
    length, xp = small.shape[0], array_module(small)
    if weights is None:
        weights = Wedge((-90.0, 90.0))
    if isinstance(weights, Wedge):
        seen = dataclasses.replace(weights, cutoff=min(weights.cutoff, length / 2)).weights(small.shape, like=small)
        return seen, seen
    keep = np.fft.fftfreq(length, 1 / length).astype(int)
    part = xp.asarray(weights[np.ix_(keep, keep, np.arange(length // 2 + 1))])
    return (part > 0).astype(np.float32), part


def _sums(
    work: Pass, block: tuple[int, ...], rows: NDArray[np.float64], boxes: list[Any], weights: list[Any]
) -> list[dict[str, HalfSums]]:
    """Of each class and half."""
    rotations, shifts = rows[:, :9].reshape(-1, 3, 3), rows[:, 9:12]
    scores, classes = rows[:, 12], rows[:, 13].astype(int)
    factors = np.exp(np.where(np.isfinite(scores), scores, 1.0) - 1) if work.weighting else np.ones(len(rows))
    xp: Any = np
    if work.device:
        import cupy

        xp = cupy
    found = []
    for kind in range(work.classes):
        chosen = [box if cls == kind else None for box, cls in zip(boxes, classes)]
        found.append(
            half_sums(
                chosen,
                rotations,
                shifts,
                weights,
                work.poses.halves[list(block)],
                size=work.boxes.size,
                factors=list(factors),
                xp=xp,
            )
        )
    return found


def _poses(before: Poses, rows: Rows) -> Poses:
    table = rows.put_into((len(before), COLUMNS))
    return Poses(
        table[:, :9].reshape(-1, 3, 3),
        table[:, 9:12],
        table[:, 12],
        table[:, 13].astype(np.int64),
        before.halves,
        table[:, 14] > 0,
    )


def _on_host(total: Any) -> Any:
    if isinstance(total, dict):
        return {name: _on_host(value) for name, value in total.items()}
    if isinstance(total, list):
        return [_on_host(value) for value in total]
    return to_host(total) if not isinstance(total, Rows | int) else total
