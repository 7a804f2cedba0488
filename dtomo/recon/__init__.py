"""Reconstruction: `fbp`, `sirt`, `cgls` of arrays, and `run` from a raw scan on disk to a volume on disk."""

from dtomo.recon.arrays import cgls, fbp, sirt
from dtomo.recon.job import Interrupted, Run, run

__all__ = ["Interrupted", "Run", "cgls", "fbp", "run", "sirt"]
