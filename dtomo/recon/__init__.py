"""Reconstruction: `fbp`, `sirt`, `cgls`, `mlem`, `tv` of arrays; `run` from a raw scan to a volume on disk."""

from dtomo.recon.arrays import cgls, fbp, mlem, sirt, tv
from dtomo.recon.job import Run, run
from dtomo.runs.session import Interrupted

__all__ = ["Interrupted", "Run", "cgls", "fbp", "mlem", "run", "sirt", "tv"]
