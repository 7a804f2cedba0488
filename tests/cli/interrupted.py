"""Ctrl-C in the midst of iterations."""

import contextlib
import os
import signal
from collections.abc import Iterator

import pytest

from dtomo.recon import coupled_job


@contextlib.contextmanager
def ctrl_c_at(iteration: int) -> Iterator[None]:
    """This process is interrupted as that iteration of slabs solved at once is reported."""

    class Impatient(coupled_job.Counter):
        def advance(self, note: str = "", to: int | None = None) -> None:
            if to == iteration:
                os.kill(os.getpid(), signal.SIGINT)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(coupled_job, "Counter", Impatient)
        yield
