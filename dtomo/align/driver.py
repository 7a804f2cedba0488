"""Alignment from coarse to fine: a start, then rounds of reprojection at each binning until nothing moves."""

import dataclasses
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtomo.align import starts
from dtomo.align.axis import put_across, turned
from dtomo.align.mixing import DEPTH, Pair, mixed
from dtomo.align.reprojection import Fit, Round, evaluate, moved, without_gauge
from dtomo.align.views import Coarse, Work
from dtomo.errors import UserError
from dtomo.geometry import Alignment
from dtomo.io.tilts import AlignedSource

SMALLEST = 16
"""Pixels of the shorter side of a view that the coarsest binning leaves, at least."""
START_BYTES = 64 * 2**20
"""Bytes of the binned views that starts are found on."""
SETTLED = 0.004
"""Pixels of the binned views: rounds at a binning end once shifts change by less (RMS)."""
PATIENCE = 3
"""Rounds without a smaller misfit after which those at a binning end."""
BETTER = 1e-4
"""Part of a misfit by which the best one must be smaller than the last, to be gone back to."""
NEGATIVE = 0.2
"""Part of what views hold that may lie below empty space, of samples that are positive."""
ACROSS_SETTLED, ACROSS_TIMES = 0.1, 4
"""Pixels of the binned views: rounds begin again where the axis was further off than that, so many times at most."""
MOST_STEP = 2.0
"""Pixels of the binned views that a round moves a view by at most."""
AXIS_SIDE = 64
"""Pixels that the shorter side of a view has at least where the direction of the axis is refined."""
AXIS_SETTLED, AXIS_TIMES = 0.1, 3
"""Degrees: the direction is refined again, after rounds that begin at it, where it turned by more, so many times."""
SEARCH_SIDE, SEARCH_STEP, SEARCH_ROUNDS = 32, 15.0, 2
"""The same where it is searched; degrees between trials; rounds of shifts at each."""


@dataclasses.dataclass(frozen=True)
class Options:
    """How to align.

    Attributes
    ----------
    start
        "correlation", "mass", "none", or "auto": each of these (but mass, where samples have both signs), and the one
        whose reprojections fit best is taken.
    rounds
        Of reprojection at each binning, at most; 0: the start alone.
    finest
        Binning of the last rounds.
    iterations
        Of the reconstruction in a round; None: 20, or 8 of samples with both signs.
    axis
        "refine" the direction of the axis, where the views are 64 pixels wide or as they are; "search" it before that
        in all directions, too; or "keep" it.
    stretch
        Whether correlations stretch views across the axis, as for flat specimens.
    thickness
        Raw pixels of the volume along the beam of tilt 0; None: as the views are wide.
    signed
        Whether samples are below empty space as well as above it. None: where more than a fifth of what the views hold
        lies below.
    """

    start: str = "auto"
    rounds: int = 30
    finest: int = 1
    iterations: int | None = None
    axis: str = "keep"
    stretch: bool = False
    thickness: int | None = None
    signed: bool | None = None

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
        One dict for each step done: rounds ("change", pixels), positions ("across", pixels) and directions ("axis"
        and "turn", degrees) of the axis, each with its "binning" and "misfit". What is to be done next follows from it.
    pairs
        Places and steps of the last rounds, for `dtomo.align.mixing`.
    best
        The least misfit of the present rounds, and the shifts it was met at; None before the first of them.
    """

    alignment: Alignment
    history: tuple[dict[str, Any], ...] = ()
    pairs: tuple[Pair, ...] = ()
    best: tuple[float, NDArray[np.float64]] | None = None

    def settled(self) -> Alignment:
        """After rounds: as the last of them says, or where the misfit was less."""
        if self.best is None or self.best[0] > self.history[-1]["misfit"] * (1 - BETTER):
            return self.alignment
        return self.alignment.replace(shifts=self.best[1])


def align_views(
    work: Work, begin: Alignment, options: Options, resumed: Stage | None = None, coarse: Coarse | None = None
) -> Stage:
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
    coarse
        Binned views that are held already.

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
    coarse = coarse or Coarse(work)
    options = with_sign(work, coarse, begin, options)
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


def with_sign(work: Work, coarse: Coarse, begin: Alignment, options: Options) -> Options:
    """Options that say whether the sample is signed."""
    if options.signed is not None:
        return options
    return dataclasses.replace(options, signed=_is_signed(_small(work, coarse, begin)))


def _next(work: Work, coarse: Coarse, stage: Stage, options: Options) -> Stage | None:
    """After the next step; None: there is none."""
    if not options.rounds:
        return None
    for binning in options.binnings(stage.alignment):
        notes = [note for note in stage.history if note["binning"] == binning]
        turns = [place for place, note in enumerate(notes) if "axis" in note]
        notes = notes[turns[-1] + 1 :] if turns else notes
        put = [place for place, note in enumerate(notes) if "across" in note]
        if put and (abs(notes[put[-1]]["across"]) < ACROSS_SETTLED * binning or len(put) == ACROSS_TIMES):
            if options.axis != "keep" and binning == axis_binning(stage.alignment, options):
                done = [note["turn"] for note in stage.history if "axis" in note]
                if not done or (abs(done[-1]) > AXIS_SETTLED and len(done) < AXIS_TIMES):
                    return _turned(work, coarse, stage, binning, options, bool(done))
            continue
        rounds = notes[put[-1] + 1 :] if put else notes
        if rounds and _is_settled(rounds, binning, options):
            return _put_across(work, coarse, stage, binning, options)
        return _one_round(work, coarse, stage, binning, options, len(rounds))
    return None


def _is_settled(rounds: list[dict[str, Any]], binning: int, options: Options) -> bool:
    """Whether there is nothing to be won by one more round."""
    misfits = [note["misfit"] for note in rounds]
    stuck = len(misfits) - 1 - int(np.argmin(misfits)) >= PATIENCE
    return len(rounds) == options.rounds or rounds[-1]["change"] < SETTLED * binning or stuck


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
    best = stage.best if number else None
    if best is None or fit.misfit < best[0]:
        best = fit.misfit, before.shifts
    return Stage(moved(before, _limited(mixed(pairs), binning)), (*stage.history, note), pairs, best)


def _put_across(work: Work, coarse: Coarse, stage: Stage, binning: int, options: Options) -> Stage:
    """After the position of the axis was found at a binning."""
    alignment, pixels, misfit = put_across(
        stage.settled(), lambda alignment: _round(work, coarse, alignment, binning, options), binning
    )
    work.say(f"binning {binning}: all views moved by {pixels:.3f} pixels across the axis")
    note = {"binning": binning, "misfit": round(misfit, 6), "across": round(pixels, 5)}
    return Stage(alignment, (*stage.history, note))


def _turned(work: Work, coarse: Coarse, stage: Stage, binning: int, options: Options, again: bool) -> Stage:
    """After the direction of the axis was refined."""
    before = float(stage.alignment.axis_angles.mean())
    alignment, misfit = turned(
        stage.alignment, lambda alignment: _round(work, coarse, alignment, binning, options), binning, again
    )
    found = float(alignment.axis_angles.mean())
    work.say(f"axis {found:.2f}° from the rows' direction towards the columns' (was {before:.2f}°)")
    note = {"binning": binning, "misfit": round(misfit, 6), "axis": round(found, 4), "turn": round(found - before, 4)}
    return Stage(alignment, (*stage.history, note))


def axis_binning(alignment: Alignment, options: Options, side: int = AXIS_SIDE) -> int:
    """The coarsest binning that leaves so many pixels of the shorter side."""
    enough = [b for b in options.binnings(alignment) if min(alignment.size) // b >= side]
    return max(enough, default=options.finest)


def _round(work: Work, coarse: Coarse, alignment: Alignment, binning: int, options: Options) -> Fit:
    """Evaluate an alignment at a binning, here where its views are held."""
    thick = None if options.thickness is None else max(1, options.thickness // binning)
    views, client, threads = AlignedSource(work.raw, alignment, binning), work.client, work.threads
    if coarse.has(binning):
        views, client, threads = coarse.source(alignment, binning), None, None
    job = Round(views, options.iterations, thick, threads, bool(options.signed))
    each = 1 / len(job.bands())
    return evaluate(job, client, lambda bands: work.ticked(binning, bands * each))


def _small(work: Work, coarse: Coarse, begin: Alignment) -> NDArray[np.float32]:
    """Raw views without their levels, binned until they take little memory."""
    b = coarse.binning
    count, *shape = work.raw.shape
    while count * np.prod([n // b for n in shape]) * 4 > START_BYTES:
        b *= 2
    return coarse.at(b) - begin.levels.astype(np.float32)[:, None, None]


def _is_signed(views: NDArray[np.float32]) -> bool:
    """Whether views lie below empty space as well as above it."""
    below = -np.minimum(views, 0).sum(dtype=np.float64)
    return bool(below > NEGATIVE * np.abs(views).sum(dtype=np.float64))


def _started(work: Work, coarse: Coarse, begin: Alignment, options: Options) -> Alignment:
    """The start that reprojects best, at the coarsest binning."""
    views = _small(work, coarse, begin)
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
    any_of = ("correlation", "none") if options.signed else ("correlation", "mass", "none")
    for name in any_of if options.start == "auto" else (options.start,):
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
