"""How well a particle fits a reference at many rotations: the fast local correlation function (FLCF).

With mask M, p = ΣM, a reference t turned by R, then filtered, and a filtered particle v::

    FLCF(s) = 1/p  Σ_r  M(r) (t(r) - t̄) / σ_t  ·  v(r + s) / σ_v(s),

t̄ and σ_t being the weighted mean and deviation of t under M, σ_v(s) that of v under M at s: from -1 to 1. The mask
turns with the reference. Weights (missing wedge, CTF) and band limits filter both sides, and all sums are taken from
what is filtered, so that σ is that of the very data that are correlated. The highest place is the shift of
``x_particle = R (x_reference - c) + c + s`` with c = n // 2.

What does not depend on the rotation is done once: for the reference, its transform on a finer grid
(`dtomo.kernels.turning`); for a particle, its filtered transform and, under a mask that is the same after any
rotation, the local deviations. A rotation then costs one inverse and one forward transform, real and only as far as the
mask reaches, and the sums over the lags within `max_shift`.

Boxes are best chosen with sides whose prime factors are small (48, 64, 96, 100, 128); others work, at the price of
their slower transforms.

A. M. Roseman, Ultramicroscopy 94, 225-236 (2003); F. Förster et al., PNAS 102, 4729-4734 (2005).
"""

import dataclasses
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dtomo.arrays import array_module, on_device, single_precision, writeable_view
from dtomo.errors import UserError
from dtomo.kernels import matching_parts as parts
from dtomo.kernels.lags import Waves, correlate_at, waves_of
from dtomo.kernels.peaks import allowed_lags, highest, shortened
from dtomo.kernels.rotation import rotate
from dtomo.kernels.turning import TurningTransform
from dtomo.threads import run_jobs

_FINE, _REACH = 0.1, 7
"""Upsampled neighbourhood of a peak: step in voxels, and steps to both sides."""

_MANY_LAGS = 0.35
"""Of the side of the box: where more lags than that are wanted, a whole inverse transform is cheaper."""

_CACHED = 1 << 19
"""Voxels of the boxes that a thread works on at once: small ones are taken together, so that calls cost little."""

_DEVICE_BYTES = 1 << 29
"""What the transforms of the rotations that a device does at once hold."""


@dataclasses.dataclass(frozen=True, eq=False)
class Prepared:
    """A particle, ready to be compared at any number of rotations; for the reference that prepared it.

    Attributes
    ----------
    spectrum
        Filtered half transform, complex64 ``(z, y, x)`` with as many x as count, its origin where the mask begins.
    filters
        What the turned reference is multiplied by, complex64, of the same shape.
    ranges
        Of each row ``(z, y, 2)``, where the filters are not 0.
    squares
        Half transform of the squared filtered particle; None under a spherical mask.
    means, gains
        At the lags: sums of the particle under the mask, and 1 / (p σ_v), 0 where there is nothing; None where the
        mask turns.
    """

    spectrum: NDArray[np.complex64]
    filters: NDArray[np.complex64]
    ranges: NDArray[np.int32]
    squares: NDArray[np.complex64]
    means: NDArray[np.float32] | None
    gains: NDArray[np.float32] | None


@dataclasses.dataclass(frozen=True, eq=False)
class Prior:
    """How likely poses are before a particle is looked at: its scores are multiplied by that to choose the best one.

    Attributes
    ----------
    center
        Of the likely shifts, (x, y, z) in voxels.
    spread
        Standard deviation of a Gaussian about the center, voxels; None: all shifts are alike.
    rotations
        From 0 to 1, for each rotation; None: all are alike.
    """

    center: ArrayLike = (0.0, 0.0, 0.0)
    spread: float | None = None
    rotations: NDArray[np.float64] | None = None

    def of_lags(self, lags: tuple[NDArray[Any], ...]) -> NDArray[np.float32] | None:
        """At the lags along z, y and x: ``(z, y, x)``."""
        if self.spread is None:
            return None
        off = np.meshgrid(*(axis - at for axis, at in zip(lags, np.asarray(self.center)[::-1])), indexing="ij")
        return np.exp(-sum(one * one for one in off) / (2 * self.spread**2)).clip(1e-30).astype(np.float32)


@dataclasses.dataclass(frozen=True, eq=False)
class Scores:
    """Of each rotation: `values` float32 ``(rotation,)`` and `shifts` float64 ``(rotation, 3)`` in (x, y, z).

    `ranks` is what the best is chosen by: the values times the prior.
    """

    values: NDArray[np.float32]
    shifts: NDArray[np.float64]
    ranks: NDArray[np.float32]


@dataclasses.dataclass(frozen=True, eq=False)
class Match:
    """The best rotation: its number, its score, and the shift (x, y, z), float64."""

    index: int
    score: float
    shift: NDArray[np.float64]


class Reference:
    """A reference with its mask: what is done once for all particles.

    Parameters
    ----------
    volume
        ``(z, y, x)``, on the host or on a device; computed in single precision. Its mean outside the mask is taken for
        its background, which is what lies outside its box, and outside the largest ball in it.
    mask
        Not negative, of the same shape, about the center n // 2: what is compared, and with which weight.
    band
        Lowest and highest frequency in cycles per voxel; None: no limit. Soft edges, two voxels of the transform wide,
        lie outside. Frequencies beyond 0.5 (corners) never count.
    max_shift
        Longest shift, in voxels; None: any.
    spherical
        Whether the mask is the same after any rotation; None: find out.
    local
        Divide by the deviation of the particle under the mask at each shift (FLCF); else by that of the whole particle
        (NXCF), which is not bounded by 1.

    Raises
    ------
    UserError
        Shapes that do not fit, a mask that is negative or empty, values that are no finite numbers, limits out of
        order, a volume without content.
    TypeError
        One array on the host, one on a device.
    """

    def __init__(
        self,
        volume: NDArray[Any],
        mask: NDArray[Any],
        *,
        band: tuple[float | None, float | None] = (None, None),
        max_shift: float | None = None,
        spherical: bool | None = None,
        local: bool = True,
    ) -> None:
        xp = array_module(volume, mask)
        parts.check_reference(volume, mask, band, max_shift)
        self.shape: tuple[int, int, int] = volume.shape
        self.mask = writeable_view(xp.ascontiguousarray(single_precision(mask)))
        self.mask_sum = float(self.mask.sum(dtype=np.float64))
        self.max_shift = None if max_shift is None else float(max_shift)
        self.spherical = parts.is_spherical(self.mask) if spherical is None else bool(spherical)
        self.local = local
        self.band = parts.band_filter(self.shape, band)
        self.columns = int(np.flatnonzero(self.band.any((0, 1)))[-1]) + 1
        self.slab = parts.reach_of(self.mask, self.spherical)
        self.origin = (*(cut.start for cut in self.slab), 0)
        self.turning = TurningTransform(parts.without_background(volume, self.mask), parts.highest_frequency(self.band))
        self.lags = self._lags()
        self.waves: Waves | None = None
        if max(map(len, self.lags)) < min(self.shape):
            self.waves = waves_of(self.shape, self.columns, self.lags)
        self.all_waves = waves_of(self.shape, self.shape[2] // 2 + 1, self.lags) if self.waves is not None else None
        self.allowed = xp.asarray(allowed_lags(self.lags, self.max_shift))
        self.frequencies = parts.axes_of(self.shape, self.columns)
        self.all_ranges = parts.whole_rows(self.shape)
        self.slab_masks = xp.ascontiguousarray(self.mask[None, self.slab[0], self.slab[1]])
        self.mask_spectrum = self._transform_of_masks(self.slab_masks)[0]

    def _lags(self) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
        """Those along z, y and x that are looked at: one more than are allowed, or all, 0 first."""
        if self.max_shift is not None:
            reach = int(self.max_shift) + 1
            if 2 * reach + 1 <= _MANY_LAGS * min(self.shape):
                one = np.arange(-reach, reach + 1)
                return one, one, one
        z, y, x = ((np.arange(n) + n // 2) % n - n // 2 for n in self.shape)
        return z, y, x

    def prepare(
        self, particle: NDArray[Any], weights: NDArray[Any], reference_weights: NDArray[Any] | None = None
    ) -> Prepared:
        """What is done once for a particle.

        Parameters
        ----------
        particle
            ``(z, y, x)``, where the reference lies; computed in single precision.
        weights
            Of its frequencies, ``(z, y, x // 2 + 1)`` in the order of ``rfftn`` (such as `Wedge.weights`); both sides
            are multiplied by them.
        reference_weights
            Other weights for the reference: a particle that has a CTF fits a reference times that CTF.

        Raises
        ------
        UserError
            Shapes that do not fit, values that are no finite numbers, nothing left after filtering.
        TypeError
            Some arrays on the host, some on a device.
        """
        xp = array_module(particle, weights, self.mask)
        parts.check_particle(particle, weights, reference_weights, self.shape)
        band = xp.asarray(self.band)
        values = single_precision(particle)
        spectrum = parts.forward(values - values.mean(dtype=np.float64).astype(np.float32)) * (weights * band)
        filtered = parts.backward(spectrum, self.shape[2])
        power = float((filtered.astype(np.float64) ** 2).mean())
        if not np.isfinite(power) or power <= 0:
            raise UserError("a particle is empty after filtering, or holds values that are no finite numbers")
        scale = np.float32(power**-0.5)
        filtered = filtered * scale
        phases = xp.asarray(parts.phases(self.shape, self.origin))
        other = weights if reference_weights is None else reference_weights
        centers = xp.asarray(parts.phases(self.shape, tuple(n // 2 - o for n, o in zip(self.shape, self.origin))))
        cut = (slice(None), slice(None), slice(self.columns))
        spectrum = xp.ascontiguousarray((spectrum * (scale * xp.conj(phases)))[cut], np.complex64)
        filters = xp.ascontiguousarray((other * band * centers)[cut], np.complex64)
        squares = (parts.forward(filtered * filtered) * xp.conj(phases)).astype(np.complex64)
        ranges = parts.ranges_of(spectrum, filters)
        prepared = Prepared(spectrum, filters, ranges, squares, None, None)
        if not self.spherical:
            return prepared
        means, gains = self._local(prepared, self.mask_spectrum[None], self.mask_sum, self.waves, self.all_waves)
        return dataclasses.replace(prepared, means=means[0], gains=gains[0])

    def scores(self, prepared: Prepared, rotations: ArrayLike, prior: Prior | None = None) -> Scores:
        """The score of each rotation at its best shift, sub-voxel by parabolas.

        Parameters
        ----------
        prepared
            From `prepare`.
        rotations
            ``(rotation, 3, 3)``, active, reference to particle, on (x, y, z); on the host.
        prior
            What poses are likely; None: all are alike.

        Returns
        -------
        Scores
            On the host. Values are those at the best whole shift.

        Raises
        ------
        UserError
            Matrices that are no rotations.
        """
        matrices = parts.checked_rotations(rotations)
        values, shifts = np.empty(len(matrices), np.float32), np.empty((len(matrices), 3))
        ranks, likely = np.empty(len(matrices), np.float32), None if prior is None else prior.of_lags(self.lags)
        step = self._at_once()

        def work(blocks: tuple[int, int]) -> None:
            for start in range(blocks[0] * step, min(blocks[1] * step, len(matrices)), step):
                stop = min(start + step, len(matrices))
                maps = self._maps(prepared, matrices[start:stop])
                values[start:stop], ranks[start:stop], places = _likeliest(maps, self.allowed, likely)
                shifts[start:stop] = self._shifts(places)

        count = -(-len(matrices) // step)
        if on_device(self.mask):
            work((0, count))
        else:
            run_jobs(work, count)
        if prior is not None and prior.rotations is not None:
            ranks *= prior.rotations.astype(np.float32)
        return Scores(values, shifts, ranks)

    def match(
        self, prepared: Prepared, rotations: ArrayLike, upsample: bool = True, prior: Prior | None = None
    ) -> Match:
        """The best of some rotations, with its shift.

        Parameters
        ----------
        prepared, rotations, prior
            As for `scores`; of equal scores the first one counts.
        upsample
            Evaluate the transforms around the peak on a grid of 0.1 voxel, and take the vertex of the parabolas there.

        Raises
        ------
        UserError
            As `scores`; no rotation.
        """
        matrices = parts.checked_rotations(rotations)
        if not len(matrices):
            raise UserError("a particle is matched at one rotation or more; got none")
        found = self.scores(prepared, matrices, prior)
        index = int(np.argmax(found.ranks))
        if not upsample:
            return Match(index, float(found.values[index]), found.shifts[index])
        score, shift = self._upsampled(prepared, matrices[index : index + 1], found.shifts[index], prior)
        return Match(index, score, shift)

    def _upsampled(
        self, prepared: Prepared, matrix: NDArray[np.float64], shift: NDArray[np.float64], prior: Prior | None
    ) -> tuple[float, NDArray[np.float64]]:
        """The score and the shift of one rotation, from the finer grid around a shift."""
        start = np.round(shift[::-1])
        lags = tuple(place + _FINE * np.arange(-_REACH, _REACH + 1) for place in start)
        waves = waves_of(self.shape, self.columns, (lags[0], lags[1], lags[2]))
        all_waves = waves_of(self.shape, self.shape[2] // 2 + 1, (lags[0], lags[1], lags[2]))
        maps = self._maps(prepared, matrix, waves, all_waves)
        xp = array_module(maps)
        border = np.zeros(maps.shape[1:], np.bool_)
        border[1:-1, 1:-1, 1:-1] = True
        near = allowed_lags((lags[0], lags[1], lags[2]), self.max_shift) & border
        if not near.any():
            near = border
        likely = None if prior is None else prior.of_lags(lags)
        found, _, places = _likeliest(maps, xp.asarray(near), likely)
        best = np.array([axis[0] for axis in lags]) + _FINE * places[0]
        return float(found[0]), shortened(best[::-1], self.max_shift)

    def _shifts(self, places: NDArray[np.float64]) -> NDArray[np.float64]:
        """Places in the maps (z, y, x) as shifts (x, y, z)."""
        whole = np.rint(places).astype(np.int64)
        lags = np.stack([axis[whole[:, k] % len(axis)] for k, axis in enumerate(self.lags)], 1)
        return shortened((lags + places - whole)[:, ::-1], self.max_shift)

    def _maps(
        self,
        prepared: Prepared,
        matrices: NDArray[np.float64],
        waves: Waves | None = None,
        all_waves: Waves | None = None,
    ) -> NDArray[np.float32]:
        """FLCF of each rotation over the lags of `waves` (None: of this reference), ``(rotation, z, y, x)``."""
        xp = array_module(self.mask)
        other = waves is not None
        waves, all_waves = (waves, all_waves) if other else (self.waves, self.all_waves)
        turned = parts.scratch((len(matrices), *prepared.filters.shape), self.mask)
        self.turning.fill(matrices, prepared.filters, prepared.ranges, self.frequencies, turned)
        deep, high = (cut.stop - cut.start for cut in self.slab)
        volumes = parts.backward_part(turned, deep, high, self.shape[2])
        if self.spherical:
            masks, totals = self.slab_masks, np.full(len(matrices), self.mask_sum)
        else:
            whole = rotate(self.mask, matrices, order=1, center=[n // 2 for n in self.shape[::-1]])
            masks = xp.ascontiguousarray(whole[:, self.slab[0], self.slab[1]])
            totals = parts.host(masks.sum((1, 2, 3), dtype=np.float64))
        sums, squares = parts.mask_in_place(volumes, masks)
        means, deviations = parts.moments(sums, squares, totals)
        spectra = parts.forward_part(volumes, self.shape, self.columns, turned)
        products = self._correlation(prepared.spectrum, spectra, prepared.ranges, waves)
        if self.spherical and not other:
            local_means, gains = prepared.means, prepared.gains
        else:
            transforms = self.mask_spectrum[None] if self.spherical else self._transform_of_masks(masks)
            local_means, gains = self._local(prepared, transforms, totals, waves, all_waves)
        return parts.normalise(products, means, deviations, local_means, gains)

    def _local(
        self,
        prepared: Prepared,
        transforms: NDArray[np.complex64],
        totals: Any,
        waves: Waves | None,
        all_waves: Waves | None,
    ) -> tuple[Any, Any]:
        """Sums of the particle under the masks at the lags, and 1 / (p σ)."""
        narrow = transforms[..., : self.columns]
        sums = self._correlation(prepared.spectrum, narrow, prepared.ranges, waves)
        if not self.local:
            total = array_module(sums).asarray(np.reshape(totals, (-1, 1, 1, 1)))
            return sums, (0 * sums + 1 / total).astype(np.float32)
        squares = self._correlation(prepared.squares, transforms, self.all_ranges, all_waves)
        return sums, parts.gains(sums, squares, totals)

    def _correlation(self, first: Any, second: Any, ranges: Any, waves: Waves | None) -> NDArray[np.float32]:
        """At the lags of the waves, or at all lags for None."""
        if waves is not None:
            return correlate_at(first, second, ranges, waves)
        return parts.backward(first * array_module(second).conj(second), self.shape[2])

    def _transform_of_masks(self, masks: NDArray[np.float32]) -> NDArray[np.complex64]:
        """Half transforms of masks ``(mask, z, y, x)`` cut to the slab."""
        return parts.forward_part(masks, self.shape, self.shape[2] // 2 + 1)

    def _at_once(self) -> int:
        """How many rotations are taken at once: as fit the cache of a core, or as many as fit on a device."""
        if not on_device(self.mask):
            return min(8, max(1, _CACHED // int(np.prod(self.shape))))
        return max(1, _DEVICE_BYTES // (16 * int(np.prod(self.shape))))


def _likeliest(
    maps: NDArray[np.float32], allowed: NDArray[np.bool_], likely: NDArray[np.float32] | None
) -> tuple[NDArray[Any], NDArray[Any], NDArray[np.float64]]:
    """Of each map: the score at the allowed place where score times prior is highest, that product, and the place."""
    if likely is None:
        found, places = highest(maps, allowed)
        return found, found, places
    found, places = highest(maps * array_module(maps).asarray(likely), allowed)
    at = np.rint(places).astype(np.int64) % np.array(likely.shape)
    return found / likely[tuple(at.T)], found, places
