"""Whether the scheduler is in reach of this node, asked in a job before its workers start.

``python -m dtomo.distributed.reach tcp://10.0.0.1:8786 ib0`` prints one line and returns 1 if it is not. It imports
nothing but Python's own modules, so that it answers at once.
"""

import socket
import sys
import time
from urllib.parse import urlsplit

TRYING = 20.0
"""Seconds to go on trying: a network may need a moment after a job starts."""
MARK = "dtomo: "
"""Begins the line that the run shows."""


def unreachable(address: str, interface: str | None, seconds: float = TRYING) -> str | None:
    """Why `address` cannot be reached from here, in one sentence; None if it can.

    Parameters
    ----------
    address
        Of the scheduler, ``tcp://host:port``.
    interface
        Network interface that workers are to use, or None for any.
    seconds
        How long to go on trying.
    """
    here = socket.gethostname()
    names = [name for _, name in socket.if_nameindex()]
    if interface and interface not in names:
        return (
            f"node {here} has no network interface {interface} to reach the scheduler at {address} by; "
            f"it has {', '.join(names)}"
        )
    parts = urlsplit(address)
    until = time.monotonic() + seconds
    reason = ""
    while time.monotonic() < until:
        try:
            with socket.create_connection((parts.hostname, parts.port), timeout=max(1.0, until - time.monotonic())):
                return None
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            time.sleep(min(1.0, max(0.0, until - time.monotonic())))
    return (
        f"node {here} cannot reach the scheduler at {address} (interface {interface or 'not given'}): {reason}; "
        "give --interface, a network that the nodes share with this machine"
    )


def main() -> int:
    """Print the reason and return 1 if the scheduler is not in reach."""
    reason = unreachable(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None)
    if reason is not None:
        print(MARK + reason, file=sys.stderr, flush=True)
    return int(reason is not None)


if __name__ == "__main__":
    sys.exit(main())
