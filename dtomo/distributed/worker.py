"""What a worker process started by `clusters.connect` does first."""

import signal
from typing import Any


def dask_setup(worker: Any) -> None:
    """Leave Ctrl-C to the process that runs the job: it is sent to the whole group, and the client decides."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
