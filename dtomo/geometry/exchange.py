"""Geometries from and to other packages, none of which is needed: `from_astra`, `to_astra`, `from_tigre`, …"""

from dtomo.geometry.astra import from_astra, to_astra
from dtomo.geometry.cil import from_cil
from dtomo.geometry.tigre import from_tigre, to_tigre

__all__ = ["from_astra", "from_cil", "from_tigre", "to_astra", "to_tigre"]
