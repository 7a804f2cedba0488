"""Where `benchmarks.gpu` computes: CuPy on a device or NumPy on the host, what is there, and how it is timed."""

import dataclasses
import importlib.util
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.environment import cores, processor

PACKAGES = [
    "numpy", "scipy", "numba", "numba-cuda", "cuda-bindings", "cupy-cuda12x", "cupy-cuda13x", "cupy", "cufinufft",
    "finufft", "dask", "distributed", "dask-cuda", "rmm-cu12", "rmm-cu13", "nvidia-ml-py", "astra-toolbox",
]  # fmt: skip
"""Distributions whose versions are reported."""

_PROPERTIES = {
    "multiprocessors": "multiProcessorCount",
    "cache_bytes": "l2CacheSize",
    "memory_bus_bits": "memoryBusWidth",
    "shared_bytes": "sharedMemPerBlockOptin",
}


class NoDevice(Exception):
    """There is nothing to compute on: says what is missing."""


class Clock:
    """The seconds of the whole run."""

    def __init__(self, limit: float) -> None:
        self.limit, self._start = limit, time.perf_counter()

    @property
    def spent(self) -> float:
        """Since the start."""
        return time.perf_counter() - self._start

    @property
    def left(self) -> float:
        """Until the limit; negative beyond it."""
        return self.limit - self.spent


@dataclasses.dataclass(frozen=True)
class Place:
    """A device through CuPy, or the host: what the checks and measurements need to know of it.

    Attributes
    ----------
    xp
        CuPy or NumPy.
    is_device
        Whether arrays lie on a device.
    """

    xp: Any
    is_device: bool

    def put(self, array: Any) -> Any:
        """A host array here, its order of memory kept; on the host a copy."""
        if not self.is_device:
            return array.copy(order="K")
        from dtomo.device import to_device

        return to_device(array)

    def get(self, array: Any) -> Any:
        """The array on the host."""
        from dtomo.device import to_host

        return to_host(array)

    def wait(self) -> None:
        """Until all work sent so far is done."""
        if self.is_device:
            self.xp.cuda.Device().synchronize()

    def free_memory(self) -> None:
        """Give back what no array uses."""
        if self.is_device:
            from dtomo.device import free_memory

            free_memory()

    def room(self) -> int:
        """Bytes that measurements may use: most of what is free."""
        if self.is_device:
            free, _ = self.xp.cuda.Device().mem_info
            return int(0.85 * (free + self.xp.get_default_memory_pool().free_bytes()))
        import psutil

        return int(0.4 * psutil.virtual_memory().available)

    def reserved(self) -> int | None:
        """Bytes that CuPy's pool has taken from the device since `free_memory`: the most that was in use at once."""
        return int(self.xp.get_default_memory_pool().total_bytes()) if self.is_device else None

    def seconds(self, function: Callable[[], Any], repeats: int = 3, limit: float = 10.0) -> list[float]:
        """Seconds of each run, from sending the work to its end; runs stop when `limit` seconds are spent."""
        samples: list[float] = []
        while len(samples) < repeats and (not samples or sum(samples) + min(samples) < limit):
            self.wait()
            start = time.perf_counter()
            result = function()
            self.wait()
            samples.append(time.perf_counter() - start)
            del result
        return samples


def host() -> Place:
    """NumPy arrays and the kernels for CPUs."""
    return Place(np, False)


def device() -> Place:
    """The present CUDA device.

    Raises
    ------
    NoDevice
        CuPy or a driver is missing: says which.
    """
    if importlib.util.find_spec("cupy") is None:
        raise NoDevice("CuPy is not installed: pip install '.[cuda12]' (or .[cuda13]), or try --cpu")
    import cupy

    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except RuntimeError as error:  # CUDARuntimeError
        raise NoDevice(f"CuPy finds no GPU ({error}); try --cpu") from None
    if not count:
        raise NoDevice("CuPy finds no GPU; try --cpu")
    from dtomo.device import bound_plan_cache

    bound_plan_cache()
    return Place(cupy, True)


def describe_cards(place: Place) -> dict[str, Any]:
    """Driver, runtime and every card; of the host its processor."""
    if not place.is_device:
        return {"driver": None, "runtime": None, "cards": [], "host": processor(), "cores": cores()}
    runtime = place.xp.cuda.runtime
    cards = []
    for number in range(runtime.getDeviceCount()):
        found = runtime.getDeviceProperties(number)
        name = found["name"]
        card = {
            "name": name.decode() if isinstance(name, bytes) else str(name),
            "capability": f"{found['major']}.{found['minor']}",
            "memory_bytes": int(found["totalGlobalMem"]),
        }
        card |= {name: int(found[key]) for name, key in _PROPERTIES.items() if key in found}
        cards.append(card)
    managed = _managed()
    for card, more in zip(cards, managed.get("cards", [])):
        card |= more
    return {
        "driver": managed.get("driver"),
        "driver_cuda": runtime.driverGetVersion(),
        "runtime": runtime.runtimeGetVersion(),
        "cards": cards,
        "host": processor(),
        "cores": cores(),
    }


def _managed() -> dict[str, Any]:
    """What NVML tells: driver, clocks, power, load; empty where it is not there. Cards in the order of nvidia-smi."""
    if importlib.util.find_spec("pynvml") is None:
        return {}
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return {"driver": f"unknown ({error})"}
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(k) for k in range(pynvml.nvmlDeviceGetCount())]
        return {"driver": _text(pynvml.nvmlSystemGetDriverVersion()), "cards": [_states(pynvml, h) for h in handles]}
    finally:
        pynvml.nvmlShutdown()


def _states(pynvml: Any, handle: Any) -> dict[str, Any]:
    """Clocks in MHz, power in W; what a card does not tell is left out."""
    asked = {
        "nvml_name": lambda: _text(pynvml.nvmlDeviceGetName(handle)),
        "clock": lambda: pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM),
        "clock_maximum": lambda: pynvml.nvmlDeviceGetMaxClockInfo(handle, pynvml.NVML_CLOCK_SM),
        "memory_clock": lambda: pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_MEM),
        "memory_clock_maximum": lambda: pynvml.nvmlDeviceGetMaxClockInfo(handle, pynvml.NVML_CLOCK_MEM),
        "power_limit": lambda: pynvml.nvmlDeviceGetPowerManagementLimit(handle) / 1000,
        "temperature": lambda: pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU),
        "memory_used_bytes": lambda: int(pynvml.nvmlDeviceGetMemoryInfo(handle).used),
    }
    found = {}
    for name, ask in asked.items():
        try:
            found[name] = ask()
        except pynvml.NVMLError:  # not every card tells everything
            continue
    return found


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
