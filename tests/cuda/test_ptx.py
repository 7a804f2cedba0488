"""Every kernel compiles for four generations of devices, spills nothing, and computes in float32. No GPU is needed."""

import math

import numpy as np
import pytest
from numba import cuda as numba_cuda
from numba.core.errors import NumbaError

from benchmarks import kernels, ptx
from dtomo.kernels.cuda import compiling
from dtomo.kernels.cuda.compiling import CudaKernel

pytestmark = [
    pytest.mark.without_simulator,
    pytest.mark.skipif(bool(ptx.missing()), reason=ptx.missing() or "all is there"),
]


def accumulate(x, y):
    """48 sums at once: more than 24 registers hold."""
    for k in range(numba_cuda.grid(1), y.size, numba_cuda.gridsize(1)):
        sums = numba_cuda.local.array(48, np.float32)
        for j in range(48):
            sums[j] = np.float32(0)
        for i in range(x.shape[0]):
            for j in range(48):
                sums[j] += x[i, j] * x[i, k]
        for j in range(48):
            y[k] += sums[j] * sums[47 - j]


def tenth(x):
    for k in range(numba_cuda.grid(1), x.size, numba_cuda.gridsize(1)):
        x[k] = x[k] * 0.1  # a number of Python is float64


def tenth_in_single(x):
    for k in range(numba_cuda.grid(1), x.size, numba_cuda.gridsize(1)):
        x[k] = x[k] * np.float32(0.1)


def usage_of(function, signature, capability, registers=None):
    kernel = CudaKernel(function, [signature], (64,), registers)
    return ptx.assemble(ptx.to_ptx(kernel, signature, capability), capability, registers)


@pytest.mark.parametrize("capability", ptx.CAPABILITIES, ids=lambda c: f"sm_{c[0]}{c[1]}")
def test_every_kernel(capability):
    kernels = ptx.every_kernel()
    assert kernels
    found = []
    for name, kernel in kernels.items():
        for signature in kernel.signatures:
            try:
                usage = ptx.assemble(ptx.to_ptx(kernel, signature, capability), capability, kernel.registers)
            except (NumbaError, RuntimeError) as error:
                found.append(f"{name} {signature}: {error}")
            else:
                found += ptx.complaints(name, signature, usage, math.prod(kernel.threads))
    assert not found, "\n".join(found)


def test_spills_are_found():
    signature = "void(float32[:,::1], float32[::1])"
    free = usage_of(accumulate, signature, (8, 0))
    assert free.registers > 48
    assert ptx.complaints("accumulate", signature, free, 64) == []
    tight = usage_of(accumulate, signature, (8, 0), registers=24)
    assert tight.registers <= 24
    assert tight.spill_stores > 0
    assert tight.spill_loads > 0
    assert "spilled" in ptx.complaints("accumulate", signature, tight, 64)[0]


def test_float64_is_found():
    wrong, right = (
        usage_of(tenth, "void(float32[::1])", (9, 0)),
        usage_of(tenth_in_single, "void(float32[::1])", (9, 0)),
    )
    assert wrong.doubles >= 3  # two conversions and the product
    assert right.doubles == 0
    assert "float64" in ptx.complaints("tenth", "void(float32[::1])", wrong, 64)[0]
    assert ptx.complaints("tenth", "void(float64[::1])", wrong, 64) == []


def test_what_the_assembler_refuses_is_an_error():
    text = ptx.to_ptx(CudaKernel(tenth, ["void(float32[::1])"], (64,), None), "void(float32[::1])", (9, 0))
    with pytest.raises(RuntimeError, match="ptxas"):
        ptx.assemble(text, (8, 0))  # made for a newer device


def test_occupancy():
    usage = ptx.Usage(registers=64, spill_stores=0, spill_loads=0, stack=0, shared=0, doubles=0)
    assert ptx.occupancy(usage, 256, (8, 0)) == 0.5  # 65536 registers hold 1024 of 2048 threads
    assert ptx.occupancy(usage, 256, (7, 5)) == 1.0
    assert ptx.occupancy(usage, 2048, (8, 0)) == 0.0
    shared = ptx.Usage(registers=32, spill_stores=0, spill_loads=0, stack=0, shared=49152, doubles=0)
    assert ptx.occupancy(shared, 256, (8, 0)) == 3 * 256 / 2048
    assert "do not fit" in ptx.complaints("kernel", "void(float32)", usage, 2048)[0]


def test_kernels_that_the_simulator_did_not_prove_are_named():
    rows = [{"kernel": name} for name in ("sums.proven", "sums.proven", "sums.forgotten", "sums.compared_with_nothing")]
    errors = {
        "sums.proven": {"launches": 3, "error": 1e-7},
        "sums.compared_with_nothing": {"launches": 1, "error": None},
    }
    assert kernels.unproven(rows, errors) == [
        "sums.forgotten: never launched in the simulator",
        "sums.compared_with_nothing: its result was compared with nothing in the simulator",
    ]
    assert rows[0] == {"kernel": "sums.proven", "launches": 3, "error": 1e-7}


def test_a_row_of_the_table():
    signature = "void(float32[:, :, ::1], float32[:, :, ::1], int64, complex64[::1])"
    row, wrong = kernels.examine("tenth", CudaKernel(tenth, ["void(float32[::1])"], (64,), None), "void(float32[::1])")
    assert len(wrong) == len(ptx.CAPABILITIES)
    text = kernels.table([{**row, "arguments": signature, "launches": 7, "error": 3.2e-7}]).splitlines()[-1]
    assert text.startswith("| tenth | `2 f4[3], i8, c8[1]` | 64 | ")
    assert text.endswith(" | 7 | 3e-07 |")


def test_few_blocks_are_no_reason_to_warn(monkeypatch):
    """numba-cuda warns of every launch of less than 128 blocks, as sums over slabs and small scans need them."""
    config = compiling.numba.config
    monkeypatch.setattr(compiling, "simulated", lambda: False)
    monkeypatch.setattr(compiling.cuda, "jit", lambda *_, **__: lambda function: function)
    for name in ("CUDA_LOW_OCCUPANCY_WARNINGS", "CUDA_ARRAY_INTERFACE_SYNC"):
        monkeypatch.setattr(config, name, 1, raising=False)
    assert CudaKernel(tenth, ["void(float32[::1])"], (64,), None)._ready() is tenth
    assert not config.CUDA_LOW_OCCUPANCY_WARNINGS
