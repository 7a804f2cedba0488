"""Joint ptycho-tomography: one complex volume straight from the diffraction frames of all angles.

`reconstruct` takes arrays, or a scan from `open`; `run` goes from a file to a folder. They are loaded on first use.
"""

import importlib as _importlib
from typing import TYPE_CHECKING

__all__ = ["JointRun", "JointVolume", "open", "reconstruct", "run"]

if TYPE_CHECKING:
    from dtomo.ptychotomo.arrays import JointVolume, open, reconstruct
    from dtomo.ptychotomo.job import JointRun, run

_WHERE = {
    "reconstruct": "dtomo.ptychotomo.arrays",
    "JointVolume": "dtomo.ptychotomo.arrays",
    "open": "dtomo.ptychotomo.arrays",
    "run": "dtomo.ptychotomo.job",
    "JointRun": "dtomo.ptychotomo.job",
}


def __getattr__(name: str) -> object:
    if name not in _WHERE:
        raise AttributeError(f"module 'dtomo.ptychotomo' has no attribute {name!r}")
    return getattr(_importlib.import_module(_WHERE[name]), name)


def __dir__() -> list[str]:
    return list(__all__)
