"""Reconstruction algorithms, written once on operators."""

from dtomo.algorithms.fbp import fbp
from dtomo.algorithms.iteration import Result
from dtomo.algorithms.krylov import cgls
from dtomo.algorithms.sirt import sirt

__all__ = ["Result", "cgls", "fbp", "sirt"]
