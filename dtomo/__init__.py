"""dtomo: reconstruct tomograms too large for one device.

``dtomo.open(path)`` reads a scan, ``dtomo.recon`` reconstructs it; both are loaded on first use, so that
importing dtomo is quick and touches no device.
"""

import importlib as _importlib
from typing import TYPE_CHECKING

__version__ = "0.1.0"
__all__ = [
    "ParallelBeam",
    "Scan",
    "UserError",
    "algorithms",
    "align",
    "fit",
    "fitting",
    "open",
    "operators",
    "ptycho",
    "ptychotomo",
    "recon",
    "simulate",
    "subtomo",
]

if TYPE_CHECKING:
    from dtomo import algorithms, align, fitting, operators, ptycho, ptychotomo, recon, simulate, subtomo
    from dtomo.errors import UserError
    from dtomo.fitting import fit
    from dtomo.geometry import ParallelBeam
    from dtomo.io import Scan, open

_WHERE = {
    "open": ("dtomo.io", "open"),
    "Scan": ("dtomo.io", "Scan"),
    "ParallelBeam": ("dtomo.geometry", "ParallelBeam"),
    "UserError": ("dtomo.errors", "UserError"),
    "algorithms": ("dtomo.algorithms", None),
    "align": ("dtomo.align", None),
    "fit": ("dtomo.fitting", "fit"),
    "fitting": ("dtomo.fitting", None),
    "operators": ("dtomo.operators", None),
    "ptycho": ("dtomo.ptycho", None),
    "ptychotomo": ("dtomo.ptychotomo", None),
    "recon": ("dtomo.recon", None),
    "simulate": ("dtomo.simulate", None),
    "subtomo": ("dtomo.subtomo", None),
}


def __getattr__(name: str) -> object:
    if name not in _WHERE:
        raise AttributeError(f"module 'dtomo' has no attribute {name!r}")
    module, attribute = _WHERE[name]
    found = _importlib.import_module(module)
    return found if attribute is None else getattr(found, attribute)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
