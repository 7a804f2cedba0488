"""Reconstruction algorithms, written once on operators."""

from dtomo.algorithms.em import mlem, osem
from dtomo.algorithms.fbp import fbp
from dtomo.algorithms.fdk import check_fdk, fdk
from dtomo.algorithms.iteration import Checkpointer, IterativeMethod, Result, State, iterate
from dtomo.algorithms.krylov import cgls, lsqr
from dtomo.algorithms.primal_dual import tv
from dtomo.algorithms.sirt import sirt
from dtomo.algorithms.stopping import Discrepancy, HeldOut, Stop
from dtomo.algorithms.subsets import os_sart, subset_order

__all__ = [
    "Checkpointer",
    "Discrepancy",
    "HeldOut",
    "IterativeMethod",
    "Result",
    "State",
    "Stop",
    "cgls",
    "check_fdk",
    "fbp",
    "fdk",
    "iterate",
    "lsqr",
    "mlem",
    "os_sart",
    "osem",
    "sirt",
    "subset_order",
    "tv",
]
