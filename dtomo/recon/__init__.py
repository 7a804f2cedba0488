"""Reconstruction: `fbp`, `sirt`, `cgls` of arrays, and `run` from a raw scan on disk to a volume on disk."""

from dtomo.recon.arrays import cgls, fbp, sirt
from dtomo.recon.job import Run, run
from dtomo.runs.session import Interrupted

__all__ = ["Interrupted", "Run", "cgls", "fbp", "run", "sirt"]
