"""Reconstruction: `fbp`, `fdk`, `sirt`, `cgls`, `mlem`, `tv` of arrays; `run` from a raw scan to a volume on disk."""

from dtomo.recon.arrays import cgls, fbp, mlem, sirt, tv
from dtomo.recon.fdk import fdk
from dtomo.recon.job import Run, run
from dtomo.runs.session import Interrupted

__all__ = ["Interrupted", "Run", "cgls", "fbp", "fdk", "mlem", "run", "sirt", "tv"]
