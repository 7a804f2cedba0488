"""Kernels for alignment and regularisation on a device against the CPU, for `benchmarks.gpu`."""

import numpy as np

from benchmarks.gpu_checks import Checker
from dtomo.kernels import differences


def check_differences(check: Checker) -> None:
    """Differences, their adjoint, total variation and its gradient: both layouts, real and complex, slabs."""
    place, columns = check.place, min(check.extent.columns, 65)
    for dtype in (np.float32, np.complex64):
        for innermost in (False, True):
            shape = (max(check.extent.slices), columns, columns - 1)
            host = check.random(shape, dtype)
            if innermost:
                host = np.moveaxis(np.ascontiguousarray(np.moveaxis(host, 0, -1)), -1, 0)
            here = place.put(host)
            for spacing in ((2.0, 1.0, 0.5), (1.0, 1.0)):
                where = f"{np.dtype(dtype).name}, {'z' if innermost else 'x'} innermost, spacing {spacing}"
                got, expected = (differences.differences(u, spacing) for u in (here, host))
                check.close(f"differences, {where}", got, expected, 1e-6)
                check.close(
                    f"negative divergence, {where}", differences.negative_divergence(got, spacing),
                    differences.negative_divergence(expected, spacing), 1e-6,
                )  # fmt: skip
                check.close(
                    f"total variation, {where}", differences.total_variation(here, spacing, 0.1),
                    differences.total_variation(host, spacing, 0.1), 1e-6,
                )  # fmt: skip
                gradient = differences.total_variation_gradient(here, spacing, 0.1)
                check.close(
                    f"gradient of total variation, {where}", gradient,
                    differences.total_variation_gradient(host, spacing, 0.1), 5e-6,
                )  # fmt: skip
            if shape[0] > 1:
                part = differences.total_variation_gradient(here[1:], (1.0, 1.0, 1.0), 0.1, before=here[0])
                whole = differences.total_variation_gradient(here, (1.0, 1.0, 1.0), 0.1)
                check.same(f"gradient of a slab, {np.dtype(dtype).name}, {innermost}", part, whole[1:])
