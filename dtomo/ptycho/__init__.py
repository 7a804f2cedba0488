"""Ptychography: object and probe from diffraction frames, on many devices.

`reconstruct` takes arrays, or a scan from `open`; `run` goes from a file to a file. They are loaded on first use.
"""

import importlib as _importlib
from typing import TYPE_CHECKING

__all__ = ["PtychoResult", "Run", "open", "reconstruct", "run"]

if TYPE_CHECKING:
    from dtomo.ptycho.arrays import reconstruct
    from dtomo.ptycho.job import Run, run
    from dtomo.ptycho.result import PtychoResult
    from dtomo.ptycho.scans import open

_WHERE = {
    "reconstruct": "dtomo.ptycho.arrays",
    "run": "dtomo.ptycho.job",
    "Run": "dtomo.ptycho.job",
    "PtychoResult": "dtomo.ptycho.result",
    "open": "dtomo.ptycho.scans",
}


def __getattr__(name: str) -> object:
    if name not in _WHERE:
        raise AttributeError(f"module 'dtomo.ptycho' has no attribute {name!r}")
    return getattr(_importlib.import_module(_WHERE[name]), name)


def __dir__() -> list[str]:
    return list(__all__)
