"""Reconstruction: `fbp`, `fdk` and iterative solvers of arrays; `run` from a raw scan to a volume on disk."""

from dtomo.recon.arrays import cgls, fbp, fista, lsqr, mlem, os_sart, osem, sirt, tv
from dtomo.recon.fdk import fdk
from dtomo.recon.job import Run, run
from dtomo.runs.session import Interrupted

__all__ = [
    "Interrupted",
    "Run",
    "cgls",
    "fbp",
    "fdk",
    "fista",
    "lsqr",
    "mlem",
    "os_sart",
    "osem",
    "run",
    "sirt",
    "tv",
]
