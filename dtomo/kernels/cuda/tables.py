"""Ray tables on devices: made from `kernels.weights.Rays` once, uploaded once per device."""

import threading
from collections import OrderedDict
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dtomo.kernels.weights import Rays

POINT = 40
"""Bits behind the point of a column position, see `adjoint_table`."""

KEPT = 16
"""Tables kept at most, of all devices together."""


class Tables(NamedTuple):
    """One row for each angle, sorted as in `Rays`; device arrays.

    `forward` has int64 ``number, axis, a, b, c`` in units of 2^-24 samples; `adjoint` has int64 ``number`` and what
    `adjoint_table` says; `scale` is that of `Rays`.
    """

    forward: Any  # int64 (angles, 5)
    adjoint: Any  # int64 (angles, 8)
    scale: Any  # float32 (angles,)


def forward_table(rays: Rays) -> NDArray[np.int64]:
    """``number, axis, a, b, c`` of every angle, without padding."""
    columns = (rays.number, rays.axis, rays.a, rays.b, rays.c)
    return np.ascontiguousarray(np.stack([column[: rays.blocks[-1]] for column in columns], 1))


def adjoint_table(rays: Rays, columns: int) -> NDArray[np.int64]:
    """``number, u, u_y, u_x, gap, gap_y, gap_x, a`` of every angle.

    ``u + u_y y + u_x x`` is where a voxel (counted from the middle of the slice) meets the detector, in units of 2^-40
    columns, and ``gap + gap_y y + gap_x x + a column`` how far the ray of a column is from it, in units of 2^-24
    samples (exact; a > 0). Positions are off by less than 2^-26 columns, so that the column before a voxel is either
    right or one from which the gap is a whole sample: no ray with a weight is missed.
    """
    n = int(rays.blocks[-1])
    number, axis, a, b, c, t = (column[:n] for column in (rays.number, rays.axis, rays.a, rays.b, rays.c, rays.t))
    sign = np.where(a < 0, -1, 1)
    a, b, c, t = a * sign, b * sign, c * sign, t * sign
    of_y, of_x = np.where(axis == 0, b, t), np.where(axis == 0, t, b)
    gap = c - a * (columns // 2)
    u, u_y, u_x = (np.rint(-value / a * 2.0**POINT).astype(np.int64) for value in (gap, of_y, of_x))
    return np.ascontiguousarray(np.stack([number, u, u_y, u_x, gap, of_y, of_x, a], 1))


_kept: OrderedDict[tuple[int, int, int], tuple[Rays, Tables]] = OrderedDict()
_lock = threading.Lock()


def device_tables(rays: Rays, columns: int) -> Tables:
    """The tables of these rays on the present device, uploaded when first asked for."""
    import cupy

    key = (id(rays), int(columns), int(cupy.cuda.Device().id))
    with _lock:
        found = _kept.get(key)
        if found is None or found[0] is not rays or not isinstance(found[1].scale, cupy.ndarray):
            scale = rays.scale[: rays.blocks[-1]]
            hosts = (forward_table(rays), adjoint_table(rays, columns), np.ascontiguousarray(scale))
            found = rays, Tables(*(cupy.asarray(host) for host in hosts))
            cupy.cuda.get_current_stream().synchronize()  # other streams may be next to read them
            _kept[key] = found
        _kept.move_to_end(key)
        while len(_kept) > KEPT:
            _kept.popitem(last=False)
    return found[1]
