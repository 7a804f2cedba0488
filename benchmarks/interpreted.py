"""Plugin of pytest for tests of kernels with ``NUMBA_DISABLE_JIT=1``: what cannot be interpreted is skipped.

``NUMBA_DISABLE_JIT=1 python -m pytest -p benchmarks.interpreted --timeout 25 tests/kernels``
"""

from collections.abc import Callable, Generator
from typing import Any

import numba
import pytest

REASONS = {
    "uses vector instructions": lambda error: isinstance(error, NotImplementedError),
    "takes too long interpreted": lambda error: isinstance(error, pytest.fail.Exception) and "Timeout" in str(error),
}
"""Why a test is skipped -> whether that is what an error means."""


def pytest_configure() -> None:
    """Refuse to run where kernels are compiled: nothing may be skipped there."""
    if not numba.config.DISABLE_JIT:
        raise pytest.UsageError("the plugin benchmarks.interpreted is for runs with NUMBA_DISABLE_JIT=1")
    numba.njit = _with_its_python(numba.njit)


def _with_its_python(njit: Callable[..., Any]) -> Callable[..., Any]:
    """Functions are what they are, and have `py_func` all the same, as compiled ones do."""

    def named(function: Callable[..., Any]) -> Any:
        function.py_func = function  # type: ignore[attr-defined]
        return function

    def decorator(*functions: Callable[..., Any], **options: Any) -> Any:
        made = njit(*functions, **options)
        return named(made) if functions else lambda function: named(made(function))

    return decorator


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Run a test; what it did until it is skipped counts as covered."""
    try:
        return (yield)
    except BaseException as error:
        for reason, means in REASONS.items():
            if means(error):
                pytest.skip(f"{item.name}: {reason}")
        raise
