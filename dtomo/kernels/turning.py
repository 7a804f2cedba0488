"""Transforms of rotated volumes, taken from the transform of the unrotated one: no volume is rotated.

The transform of a volume turned by R (active, about its center) is at ν what that of the volume is at Rᵀ ν. It is
interpolated from 4 x 4 x 4 knots of the transform of the volume in a larger box. The weights have the least error for
all that lies within 0.38 of a side from the center (1e-4 of it); what they take away far from it is given back
beforehand. All that lies beyond the largest ball around the center is left out first: it would leave the box on some
rotations and stay on others.

J. A. Fessler and B. P. Sutton, IEEE Trans. Signal Process. 51 (2), 560-574 (2003).
"""

from typing import Any

import numpy as np
import scipy.fft
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic
from numpy.typing import NDArray

from dtomo.arrays import array_module, on_device, single_precision
from dtomo.kernels.compiling import kernel
from dtomo.kernels.vectors import F32, I32, VECTOR, Emitter, array_data, vector

TAPS = 4
"""Knots along each axis that a frequency is interpolated from."""

FINER = 2.25
"""Side of the larger box, in sides of the volume."""

_RADIUS = 0.17
"""Of the ball in which weights are best, in sides of the larger box: 0.38 of the volume's."""

_DEGREE = 7
"""Of the polynomials: they are the weights to single precision."""

_BALL_EDGE = 2.0
"""Voxels over which a volume falls to 0 at the border of the largest ball."""


def _waves(places: NDArray[Any], at: NDArray[Any]) -> NDArray[np.complex128]:
    return np.exp(2j * np.pi * places[:, None] * at)


def _gain(places: NDArray[Any], nodes: NDArray[Any], weights: NDArray[Any]) -> NDArray[np.float64]:
    """What is taken away at a place (in sides of the larger box), given back: best over all fractions, `nodes`."""
    taken = _waves(places, np.arange(TAPS) - 1.0) @ weights.T
    return np.asarray((taken.conj() * _waves(places, nodes)).real.sum(1) / (abs(taken) ** 2).sum(1))


def _best_weights() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Fractions between two knots, and the weights ``(fraction, knot)`` that interpolate best there.

    Waves of all places within the radius are interpolated with the least squared error; their gains and the weights
    take turns to be found.
    """
    nodes = 0.5 - 0.5 * np.cos(np.pi * (np.arange(_DEGREE + 1) + 0.5) / (_DEGREE + 1))
    places = np.linspace(0, _RADIUS, 60)
    knots, wanted = _waves(places, np.arange(TAPS) - 1.0), _waves(places, nodes)
    gain = np.sinc(places) ** -4  # as for cubic splines, to begin with
    for _ in range(200):
        given = gain[:, None] * knots
        both = [np.concatenate([part.real, part.imag]) for part in (given, wanted)]
        weights = np.linalg.lstsq(both[0], both[1], rcond=None)[0].T
        gain = _gain(places, nodes, weights)
    return nodes, weights


_NODES, _WEIGHTS = _best_weights()

POLYNOMIALS = np.linalg.solve(np.vander(_NODES, increasing=True), _WEIGHTS).astype(np.float32)
"""Weights of the knots around a fraction, as polynomials of it: ``(power, knot)``; knot 1 is the one before it."""


class TurningTransform:
    """What rotated transforms are taken from.

    Parameters
    ----------
    volume
        ``(z, y, x)``, real, with its center at n // 2 in each axis; on the host or on a device.
    highest
        Cycles per voxel: no frequency beyond this one will be asked for; at most 0.5.

    Attributes
    ----------
    grid
        Complex64 ``(kz, ky, kx)``: kz and ky from -reach - 2 to reach + 2, kx from -1 to reach + 2.
    sides
        ``(z, y, x)`` of the larger box: knots per cycle per voxel.
    reach
        Of the knots, for each axis.
    """

    def __init__(self, volume: NDArray[Any], highest: float = 0.5) -> None:
        xp = array_module(volume)
        shape = volume.shape
        self.sides = tuple(scipy.fft.next_fast_len(int(np.ceil(FINER * n)), True) for n in shape)
        self.reach = tuple(int(np.ceil(side * highest)) for side in self.sides)
        whole = xp.zeros(self.sides, np.float32)
        whole[tuple(slice(n) for n in shape)] = single_precision(volume) * xp.asarray(_compensation(shape, self.sides))
        whole = xp.roll(whole, [-(n // 2) for n in shape], (0, 1, 2))
        self.grid = xp.ascontiguousarray(_knots(_rfftn(whole), self.sides, self.reach))

    def fill(
        self,
        rotations: NDArray[np.float64],
        filters: NDArray[np.complex64],
        ranges: NDArray[np.int32],
        frequencies: tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]],
        out: NDArray[np.complex64],
    ) -> None:
        """Write the filtered transforms of the rotated volume.

        Parameters
        ----------
        rotations
            ``(rotation, 3, 3)``, on the host.
        filters
            ``(z, y, x)``, what each frequency is multiplied by: 0 beyond `highest`.
        ranges
            ``(z, y, 2)``: in each row the first frequency with a filter that is not 0, and the one after the last.
        frequencies
            Of the axes z, y and x, cycles per voxel, in any order.
        out
            ``(rotation, z, y, x)``.
        """
        back = np.asarray(rotations, np.float64).swapaxes(1, 2)[:, ::-1, ::-1] * np.array(self.sides)[:, None]
        table = np.ascontiguousarray(back, np.float32)
        offsets = np.array([self.reach[0] + 2, self.reach[1] + 2, 1], np.float32)
        if on_device(out):
            from dtomo.kernels.cuda import turning as device

            device.fill(self.grid, table, offsets, filters, frequencies, out)
            return
        flat = self.grid.view(np.float32).reshape(-1)
        steps = self.grid.shape[1] * self.grid.shape[2] * 2, self.grid.shape[2] * 2
        for matrix, target in zip(table, out):
            _fill(flat, steps, matrix, offsets, filters, ranges, *frequencies, target)


def _compensation(shape: tuple[int, ...], sides: tuple[int, ...]) -> NDArray[np.float32]:
    """What the weights take away in space, given back; 0 outside the largest ball."""
    places = [np.arange(n) - n // 2 for n in shape]
    gain: Any = 1.0
    for axis, (place, side) in enumerate(zip(places, sides)):
        gain = gain * _gain(place / side, _NODES, _WEIGHTS).reshape([-1 if k == axis else 1 for k in range(3)])
    z, y, x = np.meshgrid(*places, indexing="ij", sparse=True)
    largest = min((n - 1) // 2 for n in shape)
    beyond = np.clip((np.sqrt(z * z + y * y + x * x) - largest) / min(_BALL_EDGE, max(largest, 1)) + 1, 0, 1)
    return np.asarray(gain * (0.5 + 0.5 * np.cos(np.pi * beyond)), np.float32)


def _rfftn(volume: NDArray[Any]) -> NDArray[Any]:
    if on_device(volume):
        from cupyx.scipy import fft

        return fft.rfftn(volume, axes=(0, 1, 2))
    return scipy.fft.rfftn(volume, axes=(0, 1, 2))


def _knots(transform: NDArray[Any], sides: tuple[int, ...], reach: tuple[int, ...]) -> NDArray[Any]:
    """The knots of the grid from half a transform: those at negative kx and beyond its half are conjugates."""
    xp = array_module(transform)
    rows = [xp.asarray(np.arange(-k - 2, k + 3) % side) for k, side in zip(reach[:2], sides)]
    opposite = [xp.asarray(-np.arange(-k - 2, k + 3) % side) for k, side in zip(reach[:2], sides)]
    columns = np.arange(-1, reach[2] + 3)
    near = (columns >= 0) & (columns < transform.shape[2])
    grid = xp.empty((len(rows[0]), len(rows[1]), len(columns)), np.complex64)
    middle = slice(int(np.argmax(near)), int(np.argmax(near)) + int(near.sum()))
    grid[:, :, middle] = transform[rows[0][:, None], rows[1][None, :], : int(near.sum())]
    for column in np.flatnonzero(~near):
        mirrored = transform[:, :, int(-columns[column] % sides[2])]
        grid[:, :, int(column)] = xp.conj(mirrored[opposite[0][:, None], opposite[1][None, :]])
    return grid


@intrinsic
def _sum_of_knots(typingctx: Any, flat: Any, at: Any, plane: Any, row: Any, tz: Any, ty: Any, tx: Any) -> Any:
    """Real and imaginary part of 4 x 4 x 4 weighted knots from place `at` on, at fractions tz, ty, tx between them.

    All twelve weights are polynomials in one vector; a row of four complex knots is a short one.
    """
    sig = types.containers.UniTuple(types.float32, 2)(flat, types.intp, types.intp, types.intp, tz, ty, tx)
    width = 2 * TAPS

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        e = Emitter(builder)
        kind = ir.VectorType(F32, width)

        def picked(values: Any, lanes: list[int]) -> Any:
            return builder.shuffle_vector(values, values, ir.Constant(ir.VectorType(I32, len(lanes)), lanes))

        def add(one: Any, other: Any, total: Any) -> Any:
            if total is None:
                return builder.fmul(one, other)
            return e.call(f"llvm.fma.v{width}f32", kind, one, other, total)

        fractions = ir.Constant(vector(F32), ir.Undefined)
        for lane in range(VECTOR):
            fractions = builder.insert_element(fractions, args[4 + min(lane // TAPS, 2)], ir.Constant(I32, lane))
        weights = None
        for power in range(len(POLYNOMIALS) - 1, -1, -1):
            constant = ir.Constant(vector(F32), [float(POLYNOMIALS[power, lane % TAPS]) for lane in range(VECTOR)])
            weights = constant if weights is None else e.fma(weights, fractions, constant)
        across = [picked(weights, [TAPS + j] * width) for j in range(TAPS)]
        place, total = e.at(array_data(context, builder, sig, args, 0), args[1]), None
        for i in range(TAPS):
            here, rows = place, None
            for j in range(TAPS):
                loaded = builder.load(builder.bitcast(here, kind.as_pointer()), align=4)
                rows = add(loaded, across[j], rows)
                here = e.at(here, args[3])
            total = add(rows, picked(weights, [i] * width), total)
            place = e.at(place, args[2])
        product = builder.fmul(total, picked(weights, [2 * TAPS + k // 2 for k in range(width)]))
        four = builder.fadd(picked(product, [0, 1, 2, 3]), picked(product, [4, 5, 6, 7]))
        two = builder.fadd(picked(four, [0, 1]), picked(four, [2, 3]))
        parts = [builder.extract_element(two, ir.Constant(I32, k)) for k in range(2)]
        return context.make_tuple(builder, sig.return_type, parts)

    return sig, codegen


@kernel
def _fill(flat, steps, m, offsets, filters, ranges, zs, ys, xs, out):  # type: ignore[no-untyped-def]
    """One rotation; rows of frequencies along x. Those on the side of negative kx are taken from their opposites."""
    one = np.float32(1)
    for z in range(out.shape[0]):
        for y in range(out.shape[1]):
            pz0 = m[0, 0] * zs[z] + m[0, 1] * ys[y]
            py0 = m[1, 0] * zs[z] + m[1, 1] * ys[y]
            px0 = m[2, 0] * zs[z] + m[2, 1] * ys[y]
            first, last = ranges[z, y, 0], ranges[z, y, 1]
            out[z, y, :first] = 0
            out[z, y, last:] = 0
            for x in range(first, last):
                factor = filters[z, y, x]
                if factor.real == 0 and factor.imag == 0:
                    out[z, y, x] = 0
                    continue
                px = px0 + m[2, 2] * xs[x]
                sign = -one if px < 0 else one
                pz = (pz0 + m[0, 2] * xs[x]) * sign + offsets[0]
                py = (py0 + m[1, 2] * xs[x]) * sign + offsets[1]
                px = px * sign + offsets[2]
                iz, iy, ix = np.int32(pz), np.int32(py), np.int32(px)
                tz, ty, tx = pz - np.float32(iz), py - np.float32(iy), px - np.float32(ix)
                at = (np.int64(iz) - 1) * steps[0] + (np.int64(iy) - 1) * steps[1] + 2 * (np.int64(ix) - 1)
                real, imaginary = _sum_of_knots(flat, at, steps[0], steps[1], tz, ty, tx)
                out[z, y, x] = np.complex64(complex(real, imaginary * sign)) * factor
