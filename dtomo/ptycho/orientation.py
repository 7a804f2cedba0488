"""Which way round positions lie, told from the frames: each way is tried for a few passes on some frames.

Positions can be swapped and negated in eight ways. Turning the detector over is the same as turning the positions over,
and the object with them. Of the eight, the data tell four pairs apart: with positions −x, the object conj(O(−r)) and
the probe conj(P(−r)) give the very same frames, so that nothing but what is known of the object or the probe says
whether it is the sample or the probe that moves.

The passes are ePIE's (A. M. Maiden and J. M. Rodenburg, Ultramicroscopy 109 (2009) 1256) with one mode at the nearest
pixels; with the wrong way round the frames contradict each other where they overlap, and the residual stays high.
"""

import dataclasses
from typing import Any

import numpy as np
import scipy.fft
from numpy.typing import NDArray

from dtomo.errors import UserError
from dtomo.io.sources import Source
from dtomo.ptycho.start import defocus_phase, mean_pattern, probe_from_pattern
from dtomo.threads import run_blocks

FRAMES, FEWEST = 64, 9
"""Frames that are tried at most, and at least."""
EPOCHS = 8
"""Passes over them."""
SMALLEST, LARGEST = 64, 192
"""Rows and columns of the middle of the frames that is looked at, as far as there is light."""
LIGHT = 0.98
"""Part of all light that should lie within it."""
APART = 0.15
"""Distance of frames that are tried, in diameters of the probe, where there are enough."""
BLURS = (0.0, 0.1, 0.2, 0.35)
"""How far out of focus probes from the mean pattern are tried: where defocus puts light, in widths of the frame."""
CLEAR = 1.1
"""The best way is told from the others where their residuals are larger by this factor."""


@dataclasses.dataclass(frozen=True, order=True)
class Way:
    """A way round.

    Attributes
    ----------
    swap_axes, flip_rows, flip_columns
        What is done to the positions: rows and columns swapped first, then negated.
    """

    swap_axes: bool = False
    flip_rows: bool = False
    flip_columns: bool = False

    @property
    def twin(self) -> "Way":
        """The one that fits the same frames: both negated as well, as if the sample moved and not the probe."""
        return Way(self.swap_axes, not self.flip_rows, not self.flip_columns)

    @property
    def options(self) -> str:
        """As options of the command line; those of positions as they are are none."""
        words = {"--swap-axes": self.swap_axes, "--flip-rows": self.flip_rows, "--flip-columns": self.flip_columns}
        return " ".join(word for word, said in words.items() if said)

    def after(self, given: "Way") -> "Way":
        """This way of positions that are taken `given` already, as one."""
        rows, columns = given.flip_rows, given.flip_columns
        if self.swap_axes:
            rows, columns = columns, rows
        return Way(self.swap_axes != given.swap_axes, self.flip_rows != rows, self.flip_columns != columns)

    def of(self, positions: NDArray[np.float64]) -> NDArray[np.float64]:
        """Positions ``(frame, 2)`` taken this way."""
        turned = positions[:, ::-1] if self.swap_axes else positions
        return turned * np.array([-1.0 if self.flip_rows else 1.0, -1.0 if self.flip_columns else 1.0])


AS_THEY_ARE = Way()
WAYS = tuple(Way(swap, flip) for swap in (False, True) for flip in (False, True))
"""All that frames alone can tell apart; each has a twin."""


@dataclasses.dataclass(frozen=True, eq=False)
class Ranking:
    """How well the ways fit.

    Attributes
    ----------
    ways
        Best first; of each and its twin the one that fits better.
    residuals
        Σ(|F| − √I)² / Σ I of each, over the frames tried.
    frames
        How many were tried.
    twins
        Whether the best one was told from its twin, by the probe that was given.
    """

    ways: tuple[Way, ...]
    residuals: tuple[float, ...]
    frames: int
    twins: bool = False

    @property
    def best(self) -> Way:
        """The way that fits best."""
        return self.ways[0]

    @property
    def margin(self) -> float:
        """The second best residual over the best."""
        return self.residuals[1] / max(self.residuals[0], 1e-30)

    @property
    def clear(self) -> bool:
        """Whether the best way can be told from the others."""
        return self.margin >= CLEAR

    @property
    def right(self) -> bool | None:
        """Whether positions are best as they are; None: it cannot be told."""
        if not self.clear:
            return None
        return self.best == AS_THEY_ARE or (self.best.twin == AS_THEY_ARE and not self.twins)

    def __str__(self) -> str:
        table = ", ".join(f"{self._named(way)} {value:.4f}" for way, value in zip(self.ways, self.residuals))
        tried = f"residuals over {self.frames} frames: {table}"
        if not self.clear:
            return f"which way round the positions lie cannot be told from the frames ({tried})"
        if self.right:
            return f"the positions fit the frames as they are ({tried})"
        return f"the positions fit the frames better if they are turned by {self._named(self.best)} ({tried})"

    def advice(self, given: Way = AS_THEY_ARE) -> str:
        """Options by which positions fit best, in place of those of `given`, by which they are taken now."""
        return self._simplest(self.best.after(given)).options or "none of --swap-axes, --flip-rows, --flip-columns"

    def _simplest(self, way: Way) -> Way:
        return way if self.twins else min(way, way.twin, key=lambda one: len(one.options))

    def _named(self, way: Way) -> str:
        return self._simplest(way).options or "as they are"


def check(
    source: Source,
    positions: NDArray[Any],
    *,
    mask: NDArray[np.bool_] | None = None,
    probe: NDArray[Any] | None = None,
    pixel_size: tuple[float, float] | None = None,
    frames: int = FRAMES,
    epochs: int = EPOCHS,
) -> Ranking:
    """Try all ways round of the positions of a far-field scan.

    Parameters
    ----------
    source
        Frames ``(frame, row, column)`` in detector order (`dtomo.io.ptycho.PtychoScan.frames`).
    positions
        Of the probe, row and column in object pixels ``(frame, 2)``.
    mask
        Good pixels ``(row, column)``; None: all.
    probe
        First guess ``(row, column)`` or ``(mode, row, column)``, of which the first is taken; None: from the mean
        pattern, with the defocus that fits best.
        With a probe that is given, twins can be told apart, too.
    pixel_size
        Height and width of an object pixel, in any unit; None: it is square.
    frames, epochs
        How many, and how many passes.

    Raises
    ------
    UserError
        Too few frames, or positions that are all the same.
    """
    positions = np.asarray(positions, np.float64)
    if positions.shape != (source.shape[0], 2) or len(positions) < FEWEST:
        raise UserError(
            f"{source.location}: which way round positions lie is told from {FEWEST} or more frames, each with a row "
            f"and a column; there are {source.shape[0]} frames, and positions of shape {positions.shape}"
        )
    pattern = mean_pattern(source, mask).mean
    size = _size(pattern)
    first = _first_probes(pattern, probe, size)
    diameter = _diameter(first[len(first) // 2]) * np.array(source.shape[1:]) / size
    chosen = _choose(positions, float(diameter.mean()), frames)
    trial = _Trial.of(source, mask, chosen, size)
    pitch = np.ones(2) if pixel_size is None else np.asarray(pixel_size, np.float64)
    smaller = np.array(size) / np.array(source.shape[1:]) / pitch  # lengths become pixels of the cropped frames' object
    lengths = positions[chosen] * pitch
    every = WAYS + tuple(way.twin for way in WAYS)
    trials = [(way, wave) for way in every for wave in first]

    def tried(chosen: list[tuple[Way, NDArray[np.complex64]]], passes: int) -> list[float]:
        def work(start: int, stop: int) -> list[float]:
            return [_passes(trial, way.of(lengths) * smaller, wave, passes) for way, wave in chosen[start:stop]]

        return [residual for (residual,) in run_blocks(work, len(chosen), 1)]

    promising = [trials[number] for number in _most_promising(trials, tried(trials, -(-epochs // 2)))]
    found = dict(zip((way for way, _ in promising), tried(promising, epochs)))
    return _ranked(found, len(chosen), known=probe is not None)


def _most_promising(trials: list[tuple[Way, NDArray[np.complex64]]], residuals: list[float]) -> list[int]:
    """Of each way the trial that did best."""
    best: dict[Way, int] = {}
    for number, (way, _) in enumerate(trials):
        if way not in best or residuals[number] < residuals[best[way]]:
            best[way] = number
    return list(best.values())


def _ranked(found: dict[Way, float], frames: int, *, known: bool) -> Ranking:
    better = [min(way, way.twin, key=lambda one: found[one]) for way in WAYS]
    ways = sorted(better, key=lambda way: found[way])
    twins = known and found[ways[0].twin] >= CLEAR * found[ways[0]]
    return Ranking(tuple(ways), tuple(found[way] for way in ways), frames, twins)


def _size(pattern: NDArray[np.float64]) -> tuple[int, int]:
    """Rows and columns of the middle that hold most of the light; even numbers."""
    total = pattern.sum()
    for side in range(SMALLEST, LARGEST + 1, 32):
        rows, columns = (min(side, count) for count in pattern.shape)
        if _middle(pattern, (rows, columns)).sum() >= LIGHT * total:
            break
    return rows, columns


def _middle(images: NDArray[Any], size: tuple[int, int]) -> NDArray[Any]:
    """The middle of frames in detector order, with frequency zero in its middle again."""
    top, left = (count // 2 - length // 2 for count, length in zip(images.shape[-2:], size))
    return images[..., top : top + size[0], left : left + size[1]]


def _first_probes(
    pattern: NDArray[np.float64], probe: NDArray[Any] | None, size: tuple[int, int]
) -> list[NDArray[np.complex64]]:
    """Where the passes may start: the probe given, or that of the mean pattern, in focus and out of it."""
    if probe is not None:
        wave = np.asarray(probe, np.complex128).reshape(-1, *probe.shape[-2:])[0]
        far = np.fft.fftshift(np.fft.fft2(wave, norm="ortho"))
        near = np.fft.ifft2(np.fft.ifftshift(_middle(far, size)), norm="ortho")
        power = float((np.abs(near) ** 2).sum())
        return [(near * np.sqrt(_middle(pattern, size).sum() / max(power, 1e-30))).astype(np.complex64)]
    light = _middle(pattern, size)
    spread = np.sqrt((light * _distance(size) ** 2).sum() / light.sum()) / np.sqrt(size[0] * size[1])
    waves = []
    for blur in BLURS:
        defocus = blur * min(size) / max(spread, 1e-3)
        phase = defocus_phase(size, (1.0, 1.0), 1.0, defocus)
        waves.append(probe_from_pattern(light, phase).astype(np.complex64))
    return waves


def _distance(size: tuple[int, int]) -> NDArray[np.float64]:
    """From the middle, pixels."""
    rows, columns = (np.arange(count) - count // 2 for count in size)
    return np.asarray(np.hypot(rows[:, None], columns), np.float64)


def _diameter(probe: NDArray[Any]) -> float:
    """Four standard deviations of the light, pixels."""
    light = np.abs(probe) ** 2
    total = float(light.sum())
    spread = 0.0
    for axis in (0, 1):
        line = light.sum(1 - axis) / total
        place = np.arange(len(line))
        spread += float(line @ (place - line @ place) ** 2)
    return float(4 * np.sqrt(spread / 2))


def _choose(positions: NDArray[np.float64], diameter: float, most: int) -> NDArray[np.int64]:
    """Frames around the middle of the scan, not too near to one another; their numbers, ascending."""
    middle = np.median(positions, axis=0)
    outward = np.argsort(np.hypot(*(positions - middle).T), kind="stable")
    apart = APART * diameter
    taken: list[int] = []
    for number in outward:
        if len(taken) == most:
            break
        if not taken or np.hypot(*(positions[taken] - positions[number]).T).min() >= apart:
            taken.append(int(number))
    near = [int(number) for number in outward if number not in set(taken)]
    chosen = np.array(taken + near[: most - len(taken)])
    if np.ptp(positions[chosen], axis=0).max() < 1:
        raise UserError("positions that are all within a pixel do not say which way round they lie; check their unit")
    return np.sort(chosen).astype(np.int64)


@dataclasses.dataclass(frozen=True, eq=False)
class _Trial:
    """Amplitudes and mask in model order, and the total light."""

    amplitudes: NDArray[np.float32]
    good: NDArray[np.bool_]
    light: float

    @staticmethod
    def of(
        source: Source, mask: NDArray[np.bool_] | None, chosen: NDArray[np.int64], size: tuple[int, int]
    ) -> "_Trial":
        good = np.ones(source.shape[1:], bool) if mask is None else mask
        inner = _middle(good, size)
        images = np.where(inner, _middle(source.read(chosen), size), 0).astype(np.float32)
        amplitudes = np.fft.ifftshift(np.sqrt(np.maximum(images, 0)), (-2, -1))
        return _Trial(amplitudes, np.fft.ifftshift(inner), float(images.sum(dtype=np.float64)))


def _passes(trial: _Trial, positions: NDArray[np.float64], probe: NDArray[np.complex64], epochs: int) -> float:
    """The residual of the last pass."""
    height, width = probe.shape
    places = np.rint(positions - positions.min(0)).astype(int)
    image = np.ones((places[:, 0].max() + height, places[:, 1].max() + width), np.complex64)
    probe = probe.copy()
    random = np.random.default_rng(0)
    wrong = 0.0
    for epoch in range(epochs):
        wrong = 0.0
        for number in random.permutation(len(places)):
            row, column = places[number]
            view = image[row : row + height, column : column + width]
            far = scipy.fft.fft2(probe * view, norm="ortho")
            modulus = np.abs(far)
            miss = np.where(trial.good, modulus - trial.amplitudes[number], 0)
            wrong += float(np.vdot(miss, miss))
            change = scipy.fft.ifft2(far * (miss / np.maximum(modulus, 1e-6)), norm="ortho")
            light, passed = np.abs(probe) ** 2, np.abs(view) ** 2
            old = view.copy()
            view -= np.conj(probe) * change / light.max()
            if epoch:
                probe -= np.conj(old) * change / passed.max()
    return wrong / max(trial.light, 1e-30)
