"""Reconstruction algorithms, written once on operators."""

from dtomo.algorithms.em import mlem
from dtomo.algorithms.fbp import fbp
from dtomo.algorithms.fdk import check_fdk, fdk
from dtomo.algorithms.iteration import Checkpointer, IterativeMethod, Result, State, iterate
from dtomo.algorithms.krylov import cgls
from dtomo.algorithms.primal_dual import tv
from dtomo.algorithms.sirt import sirt

__all__ = [
    "Checkpointer",
    "IterativeMethod",
    "Result",
    "State",
    "cgls",
    "check_fdk",
    "fbp",
    "fdk",
    "iterate",
    "mlem",
    "sirt",
    "tv",
]
