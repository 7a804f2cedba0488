"""Kernels compiled to PTX and assembled without a GPU: registers, spills, memory and how many threads fit.

Needs numba-cuda and ``ptxas``, both wheels of the extras ``cuda12`` and ``cuda13``. What the assembler says of a kernel
is exact; occupancy is computed from it, and says nothing about speed.
"""

import importlib
import importlib.util
import math
import os
import pkgutil
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CAPABILITIES = ((7, 5), (8, 0), (9, 0), (10, 0))
"""Compute capabilities: Turing, Ampere, Hopper, Blackwell."""

_MULTIPROCESSORS = {(7, 5): (1024, 16, 65536, 0), (8, 0): (2048, 32, 167936, 1024), (9, 0): (2048, 32, 233472, 1024)}
_MULTIPROCESSORS[10, 0] = _MULTIPROCESSORS[9, 0]
"""Threads, blocks, bytes of shared memory of a multiprocessor and bytes that it keeps of each block (CUDA C++
Programming Guide, technical specifications per compute capability)."""

_REGISTERS, _REGISTER_UNIT, _SHARED_UNIT = 65536, 256, 128
_DOUBLE = re.compile(r"^\s*(?:@!?%p\d+ )?(?!ld|st|mov)[a-z]+[\w.]*\.f64", re.MULTILINE)


@dataclass(frozen=True)
class Usage:
    """What a kernel needs on a device.

    Attributes
    ----------
    registers
        Per thread.
    spill_stores, spill_loads, stack
        Bytes of local memory per thread: of registers that did not fit, and all of it.
    shared
        Bytes per block.
    doubles
        Instructions in float64, conversions to it and from it included.
    """

    registers: int
    spill_stores: int
    spill_loads: int
    stack: int
    shared: int
    doubles: int

    @property
    def spills(self) -> int:
        """Bytes stored and loaded."""
        return self.spill_stores + self.spill_loads


def ptxas() -> str | None:
    """Path of the assembler: the one of the wheels, of CUDA_HOME, or on PATH; None where there is none."""
    if importlib.util.find_spec("cuda") is not None:
        from cuda.pathfinder import find_nvidia_binary_utility

        found = find_nvidia_binary_utility("ptxas")
        if found is not None:
            return str(found)
    return shutil.which("ptxas")


def missing() -> str:
    """Why nothing can be compiled here; empty where all is there."""
    if os.environ.get("NUMBA_ENABLE_CUDASIM") == "1":
        return "Numba's simulator is chosen, which compiles nothing"
    if importlib.util.find_spec("numba_cuda") is None:
        return "numba-cuda is not installed; it comes with dtomo[cuda12]"
    return "" if ptxas() else "ptxas was not found; it comes with dtomo[cuda12]"


def every_kernel() -> dict[str, Any]:
    """All kernels of the package, by ``module.name``."""
    package = importlib.import_module("dtomo.kernels.cuda")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"dtomo.kernels.cuda.{module.name}")
    kernels = importlib.import_module("dtomo.kernels.cuda.compiling").KERNELS
    return {name: k for name, k in sorted(kernels.items()) if k.function.__module__.startswith("dtomo.kernels.cuda.")}


def to_ptx(kernel: Any, signature: str, capability: tuple[int, int]) -> str:
    """PTX of one signature of a kernel, as its first launch would make it."""
    from numba import cuda
    from numba.core import sigutils

    arguments, returned = sigutils.normalize_signature(signature)
    typed = returned(*arguments) if returned else arguments
    ptx, _ = cuda.compile(
        kernel.function, typed, device=False, abi="numba", cc=capability, output="ptx", fastmath=False
    )
    return str(ptx)


def assemble(ptx: str, capability: tuple[int, int], registers: int | None = None) -> Usage:
    """What the assembler says of a kernel.

    Raises
    ------
    RuntimeError
        The assembler refuses it, with its message.
    """
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "kernel.ptx")
        source.write_text(ptx)
        limit = [] if registers is None else [f"-maxrregcount={registers}"]
        command = [str(ptxas()), "-v", f"-arch=sm_{capability[0]}{capability[1]}", *limit, str(source)]
        done = subprocess.run([*command, "-o", str(Path(folder, "cubin"))], capture_output=True, text=True, check=False)
    said = done.stdout + done.stderr
    if done.returncode:
        raise RuntimeError(f"ptxas: {said.strip()}")
    return Usage(
        registers=_number(r"Used (\d+) registers", said),
        spill_stores=_number(r"(\d+) bytes spill stores", said),
        spill_loads=_number(r"(\d+) bytes spill loads", said),
        stack=_number(r"(\d+) bytes stack frame", said),
        shared=_number(r"(\d+) bytes smem", said, 0),
        doubles=len(_DOUBLE.findall(ptx)),
    )


def _number(pattern: str, text: str, otherwise: int | None = None) -> int:
    found = [int(number) for number in re.findall(pattern, text)]
    if not found and otherwise is None:
        raise RuntimeError(f"ptxas said nothing like {pattern!r}: {text}")
    return max(found, default=otherwise or 0)


def occupancy(usage: Usage, threads: int, capability: tuple[int, int]) -> float:
    """Fraction of a multiprocessor's threads that can be there at once, with blocks of this many threads."""
    most_threads, most_blocks, shared, kept = _MULTIPROCESSORS[capability]
    warps = math.ceil(threads / 32)
    per_warp = math.ceil(usage.registers * 32 / _REGISTER_UNIT) * _REGISTER_UNIT
    blocks = min(most_blocks, most_threads // (warps * 32), _REGISTERS // per_warp // warps)
    needed = math.ceil((usage.shared + kept) / _SHARED_UNIT) * _SHARED_UNIT if usage.shared else 0
    if needed:
        blocks = min(blocks, shared // needed)
    return blocks * warps * 32 / most_threads


def complaints(name: str, signature: str, usage: Usage, threads: int) -> list[str]:
    """What is wrong with a kernel, in sentences."""
    found = []
    if usage.spills:
        found.append(f"{name} {signature}: {usage.spill_stores} + {usage.spill_loads} bytes of registers are spilled")
    if usage.doubles and not re.search("float64|complex128", signature):
        found.append(f"{name} {signature}: {usage.doubles} instructions in float64, and no argument has that type")
    if usage.registers * threads > _REGISTERS:
        found.append(f"{name} {signature}: {threads} threads with {usage.registers} registers each do not fit a block")
    return found
