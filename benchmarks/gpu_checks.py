"""Projectors, reconstruction and gradients on a device against the CPU kernels, for `benchmarks.gpu`."""

import dataclasses
from typing import Any

import numpy as np

from benchmarks.gpu_place import Place
from dtomo.algorithms import cgls, fbp, sirt
from dtomo.distributed.sums import tree_sum
from dtomo.geometry import ParallelBeam
from dtomo.operators import ParallelProjector, backproject


class WrongResult(Exception):
    """A check found what should not be: which one, what came out and what should have."""

    def __init__(self, check: str, got: Any, expected: Any) -> None:
        super().__init__(f"{check}: got {got}, expected {expected}")
        self.check, self.got, self.expected = check, got, expected


@dataclasses.dataclass(frozen=True)
class Extent:
    """How large the arrays of the checks are.

    Attributes
    ----------
    columns, angles
        Of the detector.
    slices
        Numbers of slices that projectors are tried with; the last one, at least 2, serves for all else. 97 are 64, 32
        and 1, twice as many lanes for complex numbers 128, 64 and 2: a kernel for each.
    iterations
        Of SIRT and CGLS.
    """

    columns: int
    angles: int
    slices: tuple[int, ...]
    iterations: int


FULL = Extent(203, 160, (1, 2, 33, 97, 64), 10)
ORDER = 5e-6
"""Allowed of float32 sums of some hundred terms in another order."""
QUICK = Extent(47, 30, (1, 97, 3), 3)


class Checker:
    """Compares, and remembers what was compared; the first difference that is too large raises.

    Attributes
    ----------
    rows
        One for each comparison: check, error, the error allowed.
    """

    def __init__(self, place: Place, extent: Extent, seed: int = 4) -> None:
        self.place, self.extent, self.rng = place, extent, np.random.default_rng(seed)
        self.rows: list[dict[str, Any]] = []

    def close(self, check: str, got: Any, expected: Any, allowed: float) -> None:
        """The largest difference, relative to the largest value expected, is at most `allowed`."""
        got, expected = np.asarray(self.place.get(got)), np.asarray(self.place.get(expected))
        if got.shape != expected.shape or got.dtype != expected.dtype:
            raise WrongResult(check, f"{got.dtype}{got.shape}", f"{expected.dtype}{expected.shape}")
        scale = float(np.abs(expected).max(initial=0)) or 1.0
        difference = np.abs(got - expected)
        error = float(difference.max(initial=0)) / scale
        self.rows.append({"check": check, "error": error, "allowed": allowed})
        if not error <= allowed:  # NaN is wrong too
            at = np.unravel_index(int(np.argmax(np.nan_to_num(difference, nan=np.inf))), got.shape)
            where = f"at {[int(k) for k in at]} (error {error:.2g} of the largest value, {allowed:.2g} allowed)"
            raise WrongResult(check, f"{got[at]!s} {where}", expected[at])

    def same(self, check: str, got: Any, expected: Any) -> None:
        """All values are equal to the last bit; NaN equals NaN."""
        got, expected = np.asarray(self.place.get(got)), np.asarray(self.place.get(expected))
        if got.shape != expected.shape or got.dtype != expected.dtype:
            raise WrongResult(check, f"{got.dtype}{got.shape}", f"{expected.dtype}{expected.shape}")
        differ = (got != expected) & ~((got != got) & (expected != expected))
        self.rows.append({"check": check, "error": float(np.mean(differ)) if differ.size else 0.0, "allowed": 0.0})
        if differ.any():
            at = tuple(int(k) for k in np.argwhere(differ)[0])
            raise WrongResult(check, f"{got[at]!s} at {list(at)} ({int(differ.sum())} differ)", expected[at])

    def value(self, check: str, got: complex, expected: complex, allowed: float) -> None:
        """A number, relative to the absolute value of the one expected."""
        error = abs(got - expected) / (abs(expected) or 1.0)
        self.rows.append({"check": check, "error": error, "allowed": allowed})
        if not error <= allowed:
            raise WrongResult(check, f"{got:.9g} (error {error:.2g}, {allowed:.2g} allowed)", f"{expected:.9g}")

    def true(self, check: str, holds: bool, got: Any, expected: Any) -> None:
        """Something holds; `got` and `expected` say what."""
        self.rows.append({"check": check, "error": 0.0 if holds else 1.0, "allowed": 0.0})
        if not holds:
            raise WrongResult(check, got, expected)

    def random(self, shape: tuple[int, ...], dtype: Any = np.float32) -> np.ndarray:
        """Numbers around 1: positive ones, so that sums do not cancel."""
        values = self.rng.uniform(0.5, 1.5, shape).astype(np.float32)
        if np.dtype(dtype).kind != "c":
            return values
        return (values + 1j * self.rng.uniform(0.5, 1.5, shape)).astype(np.complex64)

    def object(self, slices: int, columns: int, dtype: Any = np.float32) -> np.ndarray:
        """A smooth blob in each slice, its middle elsewhere in each, zero at the edge: ``(z, y, x)``."""
        axis = np.linspace(-1, 1, columns)
        z = np.linspace(-0.2, 0.2, slices)[:, None, None]
        square = (axis[:, None] - z) ** 2 + (axis + z) ** 2
        blob = np.exp(-8 * square).astype(np.float32) + (square < 0.1)
        return (blob * (1 + 0.5j)).astype(np.complex64) if np.dtype(dtype).kind == "c" else blob.astype(np.float32)


def geometries(extent: Extent) -> dict[str, ParallelBeam]:
    """Beams with what may go wrong: odd sizes, an axis far off, wide pixels, slices that are not square."""
    columns, angles = extent.columns, extent.angles
    uneven = np.sort(np.random.default_rng(0).uniform(0, 360, angles))
    return {
        "half turn": ParallelBeam(np.linspace(0, 180, angles, endpoint=False), columns),
        "axis off, full turn": ParallelBeam(np.linspace(0, 360, angles), columns, center=0.31 * columns),
        "uneven, wide pixels": ParallelBeam(uneven, columns - 1, pitch=1.37, width=columns, height=columns // 2),
    }


def operator(place: Place, geometry: ParallelBeam, slices: int, dtype: Any = np.float32) -> ParallelProjector:
    """The projector for arrays that lie at the place."""
    return ParallelProjector(geometry, slices, dtype, like=place.xp.zeros(1, np.float32))


def check_projectors(check: Checker) -> None:
    """Forward and back against the CPU kernels, and against each other (the adjoint)."""
    place = check.place
    for name, geometry in geometries(check.extent).items():
        for slices in check.extent.slices:
            for dtype in (np.float32, np.complex64):
                where = f"{name}, {slices} slices, {np.dtype(dtype).name}"
                here, cpu = operator(place, geometry, slices, dtype), ParallelProjector(geometry, slices, dtype)
                x, y = check.random(cpu.shape_in, dtype), check.random(cpu.shape_out, dtype)
                forward, back = here.forward(place.put(x)), here.adjoint(place.put(y))
                check.close(f"forward against the CPU: {where}", forward, cpu.forward(x), ORDER)
                check.close(f"back against the CPU: {where}", back, cpu.adjoint(y), ORDER)
                left = np.vdot(y.astype(np.complex128), place.get(forward).astype(np.complex128))
                right = np.vdot(place.get(back).astype(np.complex128), x.astype(np.complex128))
                check.value(f"adjoint: {where}", left, right, 2e-6)
                check.close(
                    f"interpolating back projection against the CPU: {where}",
                    backproject(place.put(y), geometry), backproject(y, geometry), ORDER,
                )  # fmt: skip


def check_bits(check: Checker) -> None:
    """The same bits for a slice alone and in a slab, and twice in a row."""
    place, slices = check.place, check.extent.slices[-1]
    geometry = geometries(check.extent)["axis off, full turn"]
    here, one = operator(place, geometry, slices), operator(place, geometry, 1)
    x, y = place.put(check.random(here.shape_in)), place.put(check.random(here.shape_out))
    forward, back = here.forward(x), here.adjoint(y)
    check.same("forward twice", here.forward(x), forward)
    check.same("back twice", here.adjoint(y), back)
    for k in sorted({0, slices // 2, slices - 1}):
        check.same(f"forward of slice {k} alone", one.forward(x[k : k + 1]), forward[:, k : k + 1])
        check.same(f"back of slice {k} alone", one.adjoint(y[:, k : k + 1]), back[k : k + 1])
    whole = fbp(y, geometry, method="backprojection")
    check.same("FBP twice", fbp(y, geometry, method="backprojection"), whole)
    check.same("FBP of slice 1 alone", fbp(y[:, 1:2], geometry, method="backprojection"), whole[1:2])


def check_places(check: Checker, values: int | None = None) -> list[str]:
    """Places past 2^31: the last slices of a volume and projections of so many values have their bits alone.

    Parameters
    ----------
    values
        At least so many; default: 2^31 on a device, fewer on the host.

    Returns
    -------
    list
        What was left out for want of memory.
    """
    place, few, size = check.place, check.extent.slices[-1], 10
    values = values or (2**31 if place.is_device else 2**16)
    slices = -(-values // size**2) + few
    if place.room() < 2.1 * 4 * slices * size**2:  # what is projected and its projections
        return [f"places past {values} values: not enough memory"]
    geometry = ParallelBeam(np.arange(size) * (180 / size), size, center=4.3)
    here, alone = operator(place, geometry, slices), operator(place, geometry, few)
    for name, axis in (("forward", 0), ("adjoint", 1)):
        given = place.put(np.moveaxis(check.random((size, size, few)), -1, axis))
        whole = np.moveaxis(place.xp.zeros((size, size, slices), np.float32), -1, axis)
        np.moveaxis(whole, axis, 0)[-few:] = np.moveaxis(given, axis, 0)
        found = np.moveaxis(getattr(here, name)(whole), 1 - axis, 0)[-few:].copy()
        del whole
        place.free_memory()
        expected = np.moveaxis(getattr(alone, name)(given), 1 - axis, 0)
        check.same(f"{name} of the last of {slices} slices", found, expected)
    return []


def check_sums(check: Checker) -> None:
    """Inner products slice by slice, row and column sums, and sums of slabs in a tree."""
    place, slices = check.place, check.extent.slices[-1]
    geometry = geometries(check.extent)["half turn"]
    for dtype in (np.float32, np.complex64):
        here, cpu = operator(place, geometry, slices, dtype), ParallelProjector(geometry, slices, dtype)
        x, y = check.random(cpu.shape_in, dtype), check.random(cpu.shape_out, dtype)
        name = np.dtype(dtype).name
        check.close(f"dot_in, {name}", here.dot_in(place.put(x), place.put(x)), cpu.dot_in(x, x), 1e-12)
        check.close(f"dot_out, {name}", here.dot_out(place.put(y), place.put(y)), cpu.dot_out(y, y), 1e-12)
        check.close(f"row sums, {name}", here.row_sums(), cpu.row_sums(), ORDER)
        check.close(f"column sums, {name}", here.column_sums(), cpu.column_sums(), ORDER)
        blocks = [check.random((2, 5, 7), dtype) for _ in range(7)]
        check.same(f"sum of slabs, {name}", tree_sum(place.put(b) for b in blocks), tree_sum(blocks))


def check_fbp(check: Checker) -> None:
    """Filtered back projection, both ways, against the CPU."""
    place, slices = check.place, check.extent.slices[-1]
    methods = {"backprojection": 2e-5}
    if _sums_spectra(place):
        methods["nufft"] = 5e-4  # each is right to 1e-4
    for name, geometry in geometries(check.extent).items():
        for dtype in (np.float32, np.complex64):
            y = check.random((len(geometry.angles), slices, geometry.columns), dtype)
            for method, allowed in methods.items():
                for options in ({}, {"filter": "hann", "padding": "zero"}):
                    where = f"{method} {options or ''}: {name}, {np.dtype(dtype).name}"
                    got, expected = (fbp(a, geometry, method=method, **options) for a in (place.put(y), y))
                    check.close(f"FBP against the CPU by {where}", got, expected, allowed)


def _sums_spectra(place: Place) -> bool:
    """Whether the non-uniform transform is there (on devices cufinufft, which not every extra has)."""
    from dtomo.operators import spectra_can_be_summed

    return spectra_can_be_summed(place.xp.zeros(1, np.float32))


def check_iterations(check: Checker) -> None:
    """SIRT and CGLS against the CPU: real with weights, bounds and a start, and complex."""
    place, slices, count = check.place, check.extent.slices[-1], check.extent.iterations
    geometry = geometries(check.extent)["half turn"]
    for dtype in (np.float32, np.complex64):
        name = np.dtype(dtype).name
        here, cpu = operator(place, geometry, slices, dtype), ParallelProjector(geometry, slices, dtype)
        truth = check.object(slices, geometry.columns, dtype)
        data = np.ascontiguousarray(cpu.forward(truth))
        weights = (check.random(cpu.shape_out) * (check.rng.random(cpu.shape_out) > 0.05)).astype(np.float32)
        bounds = {"lower": 0.0, "upper": 1.5} if dtype == np.float32 else {}
        for method, options, allowed in (
            (sirt, {}, 2e-5),
            (sirt, {"weights": weights, "initial": 0.3 * truth, "relaxation": 1.5, **bounds}, 2e-5),
            (cgls, {}, 1e-4),
            (cgls, {"weights": weights, "damping": 0.5, "initial": 0.3 * truth}, 1e-4),
        ):
            where = f"{method.__name__} {'with weights' if options else 'plain'}, {name}"
            there = {key: place.put(v) if isinstance(v, np.ndarray) else v for key, v in options.items()}
            got = method(here, place.put(data), iterations=count, **there)
            expected = method(cpu, data, iterations=count, **options)
            check.close(f"{where}: solution against the CPU", got.solution, expected.solution, allowed)
            check.close(f"{where}: residuals against the CPU", got.residuals, expected.residuals, allowed)


def check_gradients(check: Checker) -> None:
    """Differences of 1/2 ||A x - b||² along real and imaginary parts against its gradient Aᴴ (A x - b)."""
    place = check.place
    geometry = geometries(check.extent)["axis off, full turn"]
    here = operator(place, geometry, 2, np.complex64)
    x, direction = (check.random(here.shape_in, np.complex64) for _ in range(2))
    data = place.put(check.random(here.shape_out, np.complex64))
    start = place.put(x)

    def misfit(at: Any) -> float:
        residual = here.forward(at) - data
        return float(np.sum(here.dot_out(residual, residual))) / 2

    gradient = here.adjoint(here.forward(start) - data)
    spike = np.zeros_like(direction)
    spike[1, spike.shape[1] // 2, spike.shape[2] // 3] = 20
    for name, along in (("all voxels", direction), ("one voxel", spike)):
        for part, factor in (("real", 1), ("imaginary", 1j)):
            step = place.put((factor * along).astype(np.complex64))
            difference = (misfit(start + step) - misfit(start - step)) / 2  # exact but for rounding: it is quadratic
            expected = float(np.sum(here.dot_in(gradient, step)))
            check.value(f"gradient along the {part} part of {name}", difference, expected, 1e-3)
