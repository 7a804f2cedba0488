"""Workers that own devices, and whole commands on them, for `benchmarks.gpu`."""

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.gpu_checks import Checker, WrongResult
from benchmarks.gpu_place import Clock, Place
from benchmarks.recon import axis, run_dtomo
from dtomo.distributed.devices import visible_devices
from dtomo.geometry import ParallelBeam
from dtomo.runs.record import summary_file

_STATE = 32 * 2**20
"""Bytes of an array that is spilled."""


def small_fbp(is_device: bool, size: int) -> np.ndarray:
    """A small reconstruction, on the device of the process that calls it, brought to the host."""
    from dtomo.algorithms import fbp
    from dtomo.device import to_device, to_host

    geometry = ParallelBeam(np.linspace(0, 180, size, endpoint=False), size)
    projections = np.random.default_rng(7).random((size, 4, size), np.float32)
    return to_host(fbp(to_device(projections) if is_device else projections, geometry, method="backprojection"))


def own_device(is_device: bool) -> dict[str, Any]:
    """What a worker sees: the variable it was started with, the devices of its process, the place of the first."""
    import os

    seen: dict[str, Any] = {"variable": os.environ.get("CUDA_VISIBLE_DEVICES"), "count": 0, "bus": None}
    if is_device:
        from cupy.cuda import runtime

        seen |= {"count": runtime.getDeviceCount(), "bus": runtime.deviceGetPCIBusId(0)}
    return seen


def check_pinning(check: Checker) -> None:
    """Two workers that share the first device, and, with several, one worker on each; all with the same bits."""
    place, size = check.place, min(check.extent.columns, 64)
    expected = small_fbp(place.is_device, size)
    devices = _devices(place)
    count = len(devices)
    requests: dict[str, dict[str, Any]] = {"two workers, no device": {"devices": [], "workers": 2}}
    if place.is_device:
        requests = {"two workers on one device": {"devices": [devices[0]] * 2, "workers": 2}}
    if count > 1:
        requests[f"{count} workers, one on each device"] = {"devices": devices}
    for name, request in requests.items():
        with _client(place, **request) as client:
            seen = client.run(own_device, place.is_device)
            results = client.gather({
                address: client.submit(small_fbp, place.is_device, size, workers=[address], pure=False)
                for address in seen
            })  # fmt: skip
        want = request.get("workers", count)
        check.true(f"{name}: how many started", len(seen) == want, len(seen), want)
        if place.is_device:
            alone = all(one["count"] == 1 for one in seen.values())
            check.true(f"{name}: each sees one device", alone, seen, "1 device")
            cards = sorted({one["bus"] for one in seen.values()})
            named = len(set(request["devices"]))
            check.true(f"{name}: on how many cards", len(cards) == named, cards, f"{named} cards")  # fmt: skip
        for result in results.values():
            if count > 1:  # cards of another kind may run another FFT
                check.close(f"{name}: a small reconstruction", result, expected, 1e-5)
            else:
                check.same(f"{name}: a small reconstruction", result, expected)


def _devices(place: Place) -> list[str]:
    """Names of the devices that this process may use."""
    if not place.is_device:
        return []
    return list(visible_devices() or map(str, range(place.xp.cuda.runtime.getDeviceCount())))


def _client(place: Place, **request: Any) -> Any:
    from dtomo.distributed.clusters import connect, resources

    # a worker that goes beyond its memory is ended; CUDA and its libraries take one or two GB of the host's
    cluster, memory = ("cuda", "6GB") if place.is_device else ("local", "2GB")
    return connect(resources(cluster, threads=1, memory=memory, **request))


def make_state(is_device: bool, number: int) -> Any:
    """A complex array on the device, other values for each number."""
    from dtomo.device import to_device

    return to_device(_state(number)) if is_device else _state(number)


def _state(number: int) -> np.ndarray:
    return np.random.default_rng(number).standard_normal(_STATE // 4, np.float32).view(np.complex64)


def unchanged(state: Any, number: int) -> bool:
    """Whether the array, on the device, has the values it was made with."""
    from dtomo.device import to_host

    found = to_host(state)
    return found.dtype == np.complex64 and bool((found == _state(number)).all())


def spilled(dask_worker: Any) -> tuple[int, int]:
    """Arrays that a worker holds on its device, and arrays that it has moved to the host."""
    data = dask_worker.data
    return (len(data.device), len(data.host)) if hasattr(data, "device") else (len(data), 0)


def check_spilling(check: Checker) -> None:
    """Twice as many complex arrays as a worker may hold on its device go to the host and return unchanged."""
    import importlib.util

    place = check.place
    if place.is_device and importlib.util.find_spec("dask_cuda") is None:
        raise WrongResult("spilling", "dask-cuda is not installed", "dask-cuda of the extra cuda12 or cuda13")
    request: dict[str, Any] = {"devices": _devices(place)[:1], "workers": 1}
    if place.is_device:
        request["device_memory"] = 12 * _STATE
    count = 24 if place.is_device else 3
    with _client(place, **request) as client:
        states = [client.submit(make_state, place.is_device, number, pure=False) for number in range(count)]
        client.gather([client.submit(unchanged, state, n, pure=False) for n, state in enumerate(states)])
        held = next(iter(client.run(spilled).values()))
        again = client.gather([client.submit(unchanged, state, n, pure=False) for n, state in enumerate(states)])
        last = states[0].result()
    check.true("arrays that return from the host", all(again), again, "all unchanged")
    check.same("an array brought to this process", last, _state(0))
    if place.is_device:
        check.true("arrays that were spilled", held[1] > 0, f"{held[0]} on the device, {held[1]} on the host", "some")


_FEW = ("--iterations", "5")
COMMANDS: tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...] = (
    ("FBP of counts", (), ("--algorithm", "fbp")),
    (
        "SIRT of counts, phase retrieved",
        (),
        ("--algorithm", "sirt", "--iterations", "5", "--delta-beta", "100", "--distance", "50"),
    ),
    ("CGLS of complex line integrals", ("--complex",), ("--algorithm", "cgls", *_FEW)),
)
"""Name, options of the simulation, options of the reconstruction."""


def check_commands(check: Checker, clock: Clock, reserve: float = 60.0) -> list[str]:
    """``dtomo recon --cluster cuda`` against ``--cluster local``; returns what there was no time for."""
    left_out = []
    clusters = ("cuda", "local") if check.place.is_device else ("local", "local")
    size = min(check.extent.columns, 128)
    with tempfile.TemporaryDirectory() as temporary:
        for number, (name, simulated, options) in enumerate(COMMANDS):
            if clock.left < reserve:
                left_out.append(f"dtomo recon: {name}")
                continue
            scan = Path(temporary) / f"scan{number}{'.zarr' if simulated else '.h5'}"
            run_dtomo("simulate", "scan", scan, "--size", size, "--rows", 12, *simulated)
            volumes = []
            for workers, cluster in enumerate(clusters, 1):
                output = Path(temporary) / f"volume{number}-{workers}.zarr"
                how = ["--cluster", cluster, *(["--workers", workers] if cluster == "local" else [])]
                run_dtomo("recon", scan, output, *how, "--center", axis(scan), "--slab", 6, "--quiet", *options)
                volumes.append(_read(output))
                used = "planned_device_memory" in json.loads(summary_file(output).read_text())
                where = f"dtomo recon --cluster {cluster}, {name}: computed on a device"
                check.true(where, used == (cluster == "cuda"), used, cluster == "cuda")
            check.close(f"dtomo recon: {name}", *volumes, 1e-4)
    return left_out


def _read(path: Path) -> np.ndarray:
    from dtomo.io import open_volume

    return np.asarray(open_volume(path).array)
