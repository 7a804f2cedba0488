"""The fused multiply-adds that the processor can do at best: vectors that never leave their registers."""

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import llvmlite.binding
import numpy as np
from llvmlite import ir
from numba import njit
from numba.core import cgutils, types
from numba.extending import intrinsic

CHAINS = 12  # independent sums: more than latency (4 or 5 cycles) times two units


def lanes() -> int:
    """float32 values in one vector register of this processor."""
    features = llvmlite.binding.get_host_cpu_features()
    if features.get("avx512f"):
        return 16
    return 8 if features.get("avx") else 4


def _make(width: int) -> Any:
    vector, i64 = ir.VectorType(ir.FloatType(), width), ir.IntType(64)

    @intrinsic
    def chains(typingctx: Any, count: Any) -> Any:
        """Run `count` rounds of CHAINS multiply-adds; returns a float that depends on all."""
        signature = types.float32(types.int64)

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            kind = ir.FunctionType(vector, [vector, vector, vector])
            fma = cgutils.get_or_insert_function(builder.module, kind, f"llvm.fma.v{width}f32")
            factor = ir.Constant(vector, [0.999] * width)
            summand = ir.Constant(vector, [1e-3] * width)
            before = builder.block
            loop = builder.append_basic_block("loop")
            after = builder.append_basic_block("after")
            builder.branch(loop)
            builder.position_at_end(loop)
            index = builder.phi(i64)
            index.add_incoming(ir.Constant(i64, 0), before)
            held = [builder.phi(vector) for _ in range(CHAINS)]
            for number, value in enumerate(held):
                value.add_incoming(ir.Constant(vector, [float(number)] * width), before)
                value.add_incoming(builder.call(fma, [value, factor, summand]), loop)
            following = builder.add(index, ir.Constant(i64, 1))
            index.add_incoming(following, loop)
            builder.cbranch(builder.icmp_signed("<", following, arguments[0]), loop, after)
            builder.position_at_end(after)
            total = held[0]
            for value in held[1:]:
                total = builder.fadd(total, value)
            return builder.extract_element(total, ir.Constant(ir.IntType(32), 0))

        return signature, generate

    @njit(nogil=True)
    def run(count):  # type: ignore[no-untyped-def]
        return chains(np.int64(count))

    return run


def fma_peak(threads: int, seconds: float = 0.3, repeats: int = 5) -> float:
    """Floating-point operations per second (two per multiply-add) of all threads together, float32."""
    width = lanes()
    run = _make(width)
    run(1)
    count, elapsed = 100_000, 0.0
    while elapsed < seconds / 2:
        count *= 2
        start = time.perf_counter()
        run(count)
        elapsed = time.perf_counter() - start
    best = float("inf")
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(repeats):
            start = time.perf_counter()
            list(pool.map(run, [count] * threads))
            best = min(best, time.perf_counter() - start)
    return 2.0 * width * CHAINS * count * threads / best
