"""Preparation, copies and full memory on a device, and kernels that no check met, for `benchmarks.gpu`."""

import contextlib
import importlib
import pkgutil
from collections.abc import Iterator
from typing import Any

import numpy as np

from benchmarks.gpu_checks import Checker
from dtomo import device, prep

_ALLOWED = 1e-5
"""Of values that the logarithm or a sum in another order went through."""


def _counts(check: Checker, dtype: Any, least: tuple[int, int] = (8, 40)) -> dict[str, np.ndarray]:
    """A small scan with all that is wrong with cameras: dead and hot pixels, zingers, stripes, zeros.

    `least`: angles and columns that there are at least.
    """
    angles, rows, columns = (
        max(check.extent.angles, 32),
        min(5, check.extent.slices[-1]),
        max(check.extent.columns, 80),
    )
    rng = check.rng
    gain = rng.uniform(0.8, 1.2, (rows, columns))
    through = np.exp(-2 * check.object(rows, columns)[:, columns // 2])
    turn = 1 + 0.1 * np.cos(np.linspace(0, np.pi, angles))[:, None, None]
    darks = rng.poisson(100, (4, rows, columns))
    flats = rng.poisson(20000 * gain, (6, rows, columns)) + 100
    counts = rng.poisson(20000 * gain * through**turn) + 100
    counts[:, 0, columns // 3] = flats[:, 0, columns // 3] = 100  # dead
    flats[:, -1, 5], counts[:, -1, 5] = 90, 50  # below the dark
    counts[:, :, columns // 2] = counts[:, :, columns // 2] * 1.03  # a stripe
    counts[angles // 2, 0, columns // 4] = 60000  # a zinger
    counts[3, -1, 20:24] = 0
    found = {"counts": counts, "flats": flats, "darks": darks}
    return {name: np.clip(values, 0, 60000).astype(dtype) for name, values in found.items()}


def check_flats(check: Checker) -> None:
    """Flat correction with repairs, bad pixels, single outliers and the logarithm, in the dtypes of cameras."""
    place = check.place
    for dtype in (np.uint16, np.int16, np.float32):
        raw, name = _counts(check, dtype), np.dtype(dtype).name
        if dtype == np.int16:
            raw = {key: np.minimum(values, 30000).astype(dtype) for key, values in raw.items()}
        if dtype == np.float32:
            raw["counts"][1, 0, 7:9] = np.nan
            raw["counts"][2, -1, 30] = np.inf
        there = {key: place.put(values) for key, values in raw.items()}
        average = prep.average_frames(there["flats"], raw["flats"].shape[1:], average="median")
        check.close(
            f"median of flats, {name}", average,
            prep.average_frames(raw["flats"], raw["flats"].shape[1:], average="median"), 1e-6,
        )  # fmt: skip
        bad = prep.find_bad_pixels(there["flats"], there["darks"])
        expected_bad = prep.find_bad_pixels(raw["flats"], raw["darks"])
        check.same(f"bad pixels, {name}", bad, expected_bad)
        for options in ({}, {"minus_log": True, "air_columns": (6, 4)}):
            got, report = prep.normalize(there["counts"], there["flats"], there["darks"], bad_pixels=bad, **options)
            expected, known = prep.normalize(
                raw["counts"], raw["flats"], raw["darks"], bad_pixels=expected_bad, **options
            )
            check.close(f"normalize {options or ''}, {name}", got, expected, _ALLOWED)
            check.true(f"report of normalize {options or ''}, {name}", report == known, report, known)
    transmission = prep.normalize(raw["counts"], raw["flats"], raw["darks"])[0]
    for kind in ("bright", "dark", "both"):
        got, count = prep.remove_outliers(place.put(transmission), threshold=0.1, kind=kind)
        expected, known_count = prep.remove_outliers(transmission, threshold=0.1, kind=kind)
        check.same(f"remove_outliers, {kind}", got, expected)
        check.true(f"number of outliers, {kind}", count == known_count, count, known_count)
    got, report = prep.minus_log(place.put(transmission))
    expected, known = prep.minus_log(transmission)
    check.close("minus_log", got, expected, _ALLOWED)
    check.true("report of minus_log", report == known, report, known)


def check_filters(check: Checker) -> None:
    """Stripes, phase, padding and half turns joined."""
    place = check.place
    raw = _counts(check, np.uint16, (32, 80))
    attenuation, _ = prep.normalize(raw["counts"], raw["flats"], raw["darks"], minus_log=True)
    there = place.put(attenuation)
    for method in ("combined", "sorting"):
        check.close(
            f"remove_stripes, {method}", prep.remove_stripes(there, method=method),
            prep.remove_stripes(attenuation, method=method), 2e-5,
        )  # fmt: skip
    transmission = np.exp(-attenuation)
    optics = {"pixel_size": 1.5, "energy": 20.0, "distance": "15 cm", "delta_beta": 300.0}
    check.close(
        "paganin", prep.paganin(place.put(transmission), **optics), prep.paganin(transmission, **optics), _ALLOWED
    )
    for mode in ("taper", "edge", "zero"):
        check.close(
            f"extend, {mode}", prep.extend(there, 9, 5, mode), prep.extend(attenuation, 9, 5, mode), 1e-6
        )  # fmt: skip
    turn = np.linspace(0, 360, len(attenuation), endpoint=False)
    got, angles, center = prep.fold_360(there, turn, attenuation.shape[2] - 20.3)
    expected, known, known_center = prep.fold_360(attenuation, turn, attenuation.shape[2] - 20.3)
    check.close("fold_360", got, expected, _ALLOWED)
    check.same("angles of fold_360", np.asarray(angles), known)
    check.value("axis of fold_360", center, known_center, 0.0)


def check_copies(check: Checker) -> None:
    """To the device and back without a change: dtypes, cut and turned arrays, several staging buffers' worth."""
    place, columns = check.place, check.extent.columns
    large = (device.STAGE // 4 // 1000 * 5 // 2, 1000) if check.extent.columns > 100 else (40, 50)
    for name, host in {
        "float32": check.random((3, columns, 5)),
        "complex64": check.random((3, columns, 5), np.complex64),
        "uint16": check.rng.integers(0, 2**16, (7, columns), np.uint16),
        "z innermost": np.moveaxis(check.random((columns, 6, 7)), -1, 0),
        "cut and reversed": check.random((9, columns, 8))[::2, ::-1, 1:7],
        "float64": check.rng.random((columns, 3)),
        "more than the buffers": check.random(large),
    }.items():
        there = place.put(host)
        check.same(f"copies: {name}", there, np.array(host))
        out = np.empty(host.shape[::-1], host.dtype).T
        check.same(f"copies into another order: {name}", device.to_host(there, out), np.array(host))
        if place.is_device:
            check.same(f"copies in a thread: {name}", device.begin_download(there, out).result(), np.array(host))
            if host.flags.c_contiguous:
                coming = device.Upload(host.shape, host.dtype, lambda host=host: host)
                check.same(f"copies ahead: {name}", coming.result(), np.array(host))


def check_full_memory(check: Checker) -> None:
    """Out of memory: the block is halved once and the work goes on; when that fails, one sentence says so."""
    place = check.place
    if not place.is_device:
        return
    xp, pool, row = place.xp, place.xp.get_default_memory_pool(), 2**23

    def in_blocks() -> list[int]:
        """Ten rows in blocks of eight, and in smaller ones once the device is full: how many were in each."""
        size, made = device.BlockSize(8), []
        while sum(made) < 10:
            count = min(size.value, 10 - sum(made))
            block = size.tried(lambda count=count: xp.empty((count, row), np.uint8))  # type: ignore[misc]
            made += [] if block is None else [len(block)]
        return made

    before = pool.get_limit()
    try:
        place.free_memory()
        pool.set_limit(size=pool.total_bytes() + 5 * row)
        got = in_blocks()
        check.true("a block too large is halved once", got == [4, 4, 2], got, "blocks of 4")
        place.free_memory()
        pool.set_limit(size=pool.total_bytes() + 3 * row)
        try:
            got = in_blocks()
        except device.DeviceFull as error:
            said = str(error)
            check.true("what a full device says", "needs" in said and "GB" in said, said, "needed and free bytes")
        else:
            check.true("half a block too large is refused", False, got, "DeviceFull")
    finally:
        pool.set_limit(size=before)
    place.free_memory()
    check.same("the device is of use after that", xp.ones(5, np.float32), np.ones(5, np.float32))


class Launches:
    """Which kernels of the package were launched."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    @contextlib.contextmanager
    def counted(self) -> Iterator[None]:
        """Count what is launched meanwhile."""
        from dtomo.kernels.cuda.compiling import CudaKernel

        launch = CudaKernel.launch

        def counting(kernel: CudaKernel, *args: Any, **kwargs: Any) -> None:
            launch(kernel, *args, **kwargs)
            self.names.add(kernel.name)

        CudaKernel.launch = counting  # type: ignore[method-assign]
        try:
            yield
        finally:
            CudaKernel.launch = launch  # type: ignore[method-assign]


def uncovered(launches: Launches) -> list[str]:
    """Kernels of `dtomo.kernels.cuda`, all of its modules, that were not launched."""
    import dtomo.kernels.cuda as package
    from dtomo.kernels.cuda.compiling import KERNELS

    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")
    own = {name for name, kernel in KERNELS.items() if kernel.function.__module__.startswith(package.__name__)}
    return sorted(own - launches.names)
