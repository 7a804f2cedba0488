"""Alignment from coarse to fine: a start, then rounds of reprojection at each binning until nothing moves."""

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dtomo.align import starts
from dtomo.align.axis import put_across, turned
from dtomo.align.mixing import DEPTH, Pair, mixed
from dtomo.align.reprojection import ITERATIONS, Fit, Round, evaluate, moved, without_gauge
from dtomo.align.views import Coarse, Work
from dtomo.errors import UserError
from dtomo.geometry import Alignment
from dtomo.io.tilts import AlignedSource

if TYPE_CHECKING:
    pass

SMALLEST = 16
"""Pixels of the shorter side of a view that the coarsest binning leaves, at least."""
START_BYTES = 64 * 2**20
"""Bytes of the binned views that starts are found on."""
SETTLED = 0.004
"""Pixels of the binned views: rounds at a binning end once shifts change by less (RMS)."""
ACROSS_SETTLED, ACROSS_TIMES = 0.1, 4
"""Pixels of the binned views: rounds begin again where the axis was further off than that, so many times at most."""
MOST_STEP = 2.0
"""Pixels of the binned views that a round moves a view by at most."""
AXIS_SIDE = 64
"""Pixels that the shorter side of a view has at least where the direction of the axis is refined."""
SEARCH_SIDE, SEARCH_STEP, SEARCH_ROUNDS = 32, 15.0, 2
"""The same where it is searched; degrees between trials; rounds of shifts at each."""


@dataclasses.dataclass(frozen=True)
class Options:
    """How to align.

    Attributes
    ----------
    start
        "correlation", "mass", "none", or "auto": each of these, and the one whose reprojections fit best is taken.
    rounds
        Of reprojection at each binning, at most; 0: the start alone.
    finest
        Binning of the last rounds.
    iterations
        Of conjugate gradients in a round.
    axis
        "refine" the direction of the axis, where the views are 64 pixels wide or as they are; "search" it before that
        in all directions, too; or "keep" it.
    stretch
        Whether correlations stretch views across the axis, as for flat specimens.
    thickness
        Raw pixels of the volume along the beam of tilt 0; None: as the views are wide.
    """

    start: str = "auto"
    rounds: int = 30
    finest: int = 1
    iterations: int = ITERATIONS
    axis: str = "keep"
    stretch: bool = False
    thickness: int | None = None

    def binnings(self, alignment: Alignment) -> list[int]:
        """From coarse to fine, powers of 2 times the finest."""
        found = [self.finest]
        while min(alignment.size) // (found[-1] * 2) >= SMALLEST:
            found.append(found[-1] * 2)
        return found[::-1]


@dataclasses.dataclass(frozen=True, eq=False)
class Stage:
    """Where a run stands.

    Attributes
    ----------
    alignment
        As found so far, in raw pixels.
    history
        One dict for each step done: rounds ("change", pixels), positions ("across", pixels) and directions ("axis",
        degrees) of the axis, each with its "binning" and "misfit". What is to be done next follows from it.
    pairs
        Places and steps of the last rounds, for `dtomo.align.mixing`.
    """

    alignment: Alignment
    history: tuple[dict[str, Any], ...] = ()
    pairs: tuple[Pair, ...] = ()


def align_views(work: Work, begin: Alignment, options: Options, resumed: Stage | None = None) -> Stage:
    """Align views, from coarse to fine.

    Parameters
    ----------
    work
        Views, and who works on them.
    begin
        Where they lie as far as is known: tilts, axis, size, levels.
    options
        How.
    resumed
        Where a run before was stopped; the rest has the same bits.

    Returns
    -------
    Stage
        After the last round.

    Raises
    ------
    UserError
        Views that cannot be aligned: fewer than 3, or without anything in them.
    """
    if len(begin) < 3:
        raise UserError(f"{work.raw.location} has {len(begin)} views; an alignment needs 3 at least")
    coarse = Coarse(work)
    stage = resumed
    if stage is None:
        stage = Stage(_started(work, coarse, begin, options))
        work.kept(stage)
    while True:
        after = _next(work, coarse, stage, options)
        if after is None:
            return stage
        stage = after
        work.kept(stage)


def _next(work: Work, coarse: Coarse, stage: Stage, options: Options) -> Stage | None:
    """After the next step; None: there is none."""
    if not options.rounds:
        return None
    for binning in options.binnings(stage.alignment):
        notes = [note for note in stage.history if note["binning"] == binning and "axis" not in note]
        put = [place for place, note in enumerate(notes) if "across" in note]
        if put and (abs(notes[put[-1]]["across"]) < ACROSS_SETTLED * binning or len(put) == ACROSS_TIMES):
            if options.axis == "keep" or binning != axis_binning(stage.alignment, options):
                continue
            if any("axis" in note for note in stage.history):
                continue
            return _turned(work, coarse, stage, binning, options)
        rounds = notes[put[-1] + 1 :] if put else notes
        if len(rounds) == options.rounds or (rounds and rounds[-1]["change"] < SETTLED * binning):
            return _put_across(work, coarse, stage, binning, options)
        return _one_round(work, coarse, stage, binning, options, len(rounds))
    return None


def _one_round(work: Work, coarse: Coarse, stage: Stage, binning: int, options: Options, number: int) -> Stage:
    """After a round of shifts."""
    before = stage.alignment
    fit = _round(work, coarse, before, binning, options)
    if fit.is_empty:
        raise UserError(f"{work.raw.location}: the views hold nothing but 0 where they overlap; nothing to align")
    step = _limited(moved(before, fit.steps() * binning).shifts - before.shifts, binning)
    change = float(np.sqrt((step**2).sum(1).mean()))
    pairs = (*(stage.pairs[-DEPTH:] if number else ()), (before.shifts, step))
    work.say(
        f"binning {binning}, round {number + 1}: reprojections miss {100 * fit.misfit:.2f} %, views are off by "
        f"{change:.3f} pixels (RMS)"
    )
    note = {"binning": binning, "misfit": round(fit.misfit, 6), "change": round(change, 5)}
    return Stage(moved(before, _limited(mixed(pairs), binning)), (*stage.history, note), pairs)


def _put_across(work: Work, coarse: Coarse, stage: Stage, binning: int, options: Options) -> Stage:
    """After the position of the axis was found at a binning."""
    alignment, pixels, misfit = put_across(
        stage.alignment, lambda alignment: _round(work, coarse, alignment, binning, options), binning
    )
    work.say(f"binning {binning}: all views moved by {pixels:.3f} pixels across the axis")
    note = {"binning": binning, "misfit": round(misfit, 6), "across": round(pixels, 5)}
    return Stage(alignment, (*stage.history, note))


def _turned(work: Work, coarse: Coarse, stage: Stage, binning: int, options: Options) -> Stage:
    """After the direction of the axis was refined."""
    before = float(stage.alignment.axis_angles.mean())
    alignment, misfit = turned(
        stage.alignment, lambda alignment: _round(work, coarse, alignment, binning, options), binning
    )
    found = float(alignment.axis_angles.mean())
    work.say(f"axis {found:.2f}° from the rows' direction towards the columns' (was {before:.2f}°)")
    note = {"binning": binning, "misfit": round(misfit, 6), "axis": round(found, 4)}
    return Stage(alignment, (*stage.history, note))


def axis_binning(alignment: Alignment, options: Options, side: int = AXIS_SIDE) -> int:
    """The coarsest binning that leaves so many pixels of the shorter side."""
    enough = [b for b in options.binnings(alignment) if min(alignment.size) // b >= side]
    return max(enough, default=options.finest)


def _round(work: Work, coarse: Coarse, alignment: Alignment, binning: int, options: Options) -> Fit:
    """Evaluate an alignment at a binning, here where its views are held."""
    thick = None if options.thickness is None else max(1, options.thickness // binning)
    if coarse.has(binning):
        return evaluate(Round(coarse.source(alignment, binning), options.iterations, thick))
    views = AlignedSource(work.raw, alignment, binning)
    return evaluate(Round(views, options.iterations, thick, work.threads), work.client)


def _started(work: Work, coarse: Coarse, begin: Alignment, options: Options) -> Alignment:
    """The start that reprojects best, at the coarsest binning."""
    b = coarse.binning
    count, *shape = work.raw.shape
    while count * np.prod([n // b for n in shape]) * 4 > START_BYTES:
        b *= 2
    views = coarse.at(b) - begin.levels.astype(np.float32)[:, None, None]
    if options.axis == "search":
        begin = _searched(work, coarse, begin, options)
    binning = options.binnings(begin)[0]
    return _best_start(work, coarse, begin, options, binning if coarse.has(binning) else coarse.binning, views, True)


def _limited(steps: NDArray[np.float64], binning: int) -> NDArray[np.float64]:
    """Steps of raw pixels, none longer than `MOST_STEP` binned ones."""
    longest = np.linalg.norm(steps, axis=1, keepdims=True) / (MOST_STEP * binning)
    return steps / np.maximum(longest, 1)


def _best_start(
    work: Work, coarse: Coarse, begin: Alignment, options: Options, binning: int, views: NDArray[np.float32], tell: bool
) -> Alignment:
    """Of the starts asked for, the one that reprojects best; `views` are binned by a whole factor."""
    b = begin.shape[0] // views.shape[1]
    small = _binned(begin, b)
    found = {}
    for name in ("correlation", "mass", "none") if options.start == "auto" else (options.start,):
        if name == "correlation":
            at = starts.by_correlation(views, small, options.stretch)
        else:
            at = starts.by_mass(views, small) if name == "mass" else small
        found[name] = begin.replace(shifts=without_gauge(at.shifts * b, begin.tilts))
    if len(found) == 1:
        return next(iter(found.values()))
    fits = {name: _round(work, coarse, alignment, binning, options).misfit for name, alignment in found.items()}
    best = min(fits, key=fits.__getitem__)
    if tell:
        told = ", ".join(f"{name} {100 * misfit:.2f} %" for name, misfit in fits.items())
        work.say(f"start: {best} (reprojections miss: {told})")
    return found[best]


def _searched(work: Work, coarse: Coarse, begin: Alignment, options: Options) -> Alignment:
    """The axis in the direction, of all, at which reprojections of small views fit best."""
    b = axis_binning(begin, options, SEARCH_SIDE)
    b = b if coarse.has(b) else coarse.binning
    views = coarse.at(b) - begin.levels.astype(np.float32)[:, None, None]
    lines = starts.find_axis(views)
    tried: list[tuple[float, float]] = []
    for angle in sorted({*np.arange(-45.0, 135.0, SEARCH_STEP).tolist(), lines.angle}):
        at = begin.replace(axis_angles=angle, size=None, axis=None)
        at = _best_start(work, coarse, at, options, b, views, False)
        for _ in range(SEARCH_ROUNDS):
            at = moved(at, np.clip(_round(work, coarse, at, b, options).steps(), -MOST_STEP, MOST_STEP) * b)
        tried.append((_round(work, coarse, at, b, options).misfit, angle))
    misfit, angle = min(tried)
    work.say(
        f"axis {angle:.1f}° from the rows' direction towards the columns' (reprojections miss {100 * misfit:.2f} %; at "
        f"the worst angle {100 * max(tried)[0]:.2f} %; common lines say {lines.angle:.1f}°)"
    )
    return begin.replace(axis_angles=angle, size=None, axis=None)


def _binned(alignment: Alignment, b: int) -> Alignment:
    """Of binned views, for starts: middles may differ by a part of a pixel, which rounds of reprojection mend."""
    return Alignment(
        alignment.tilts, (alignment.shape[0] // b, alignment.shape[1] // b), alignment.shifts / b,
        alignment.axis_angles, (alignment.axis - (b - 1) / 2) / b, (alignment.size[0] // b, alignment.size[1] // b),
        alignment.scales,
    )  # fmt: skip
