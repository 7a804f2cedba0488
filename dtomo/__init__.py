"""dtomo: reconstruct tomograms too large for one device.

``dtomo.open(path)`` reads a scan, ``dtomo.recon`` reconstructs it; both are loaded on first use, so that
importing dtomo is quick and touches no device.
"""

import importlib
from typing import Any

__version__ = "0.1.0"
__all__ = ["ParallelBeam", "Scan", "UserError", "open", "recon", "simulate"]

_WHERE = {
    "open": ("dtomo.io", "open"),
    "Scan": ("dtomo.io", "Scan"),
    "ParallelBeam": ("dtomo.geometry", "ParallelBeam"),
    "UserError": ("dtomo.errors", "UserError"),
    "recon": ("dtomo.recon", None),
    "simulate": ("dtomo.simulate", None),
}


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'dtomo' has no attribute {name!r}")
    module, attribute = _WHERE[name]
    found = importlib.import_module(module)
    return found if attribute is None else getattr(found, attribute)


def __dir__() -> list[str]:
    return sorted([*globals(), *_WHERE])
