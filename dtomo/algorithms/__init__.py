"""Reconstruction algorithms, written once on operators."""

from dtomo.algorithms.data_terms import DataTerm, Huber, LeastSquares, StudentT, photon_weights
from dtomo.algorithms.em import mlem, osem
from dtomo.algorithms.fbp import fbp
from dtomo.algorithms.fdk import FDK_BLOCK, check_fdk, fdk
from dtomo.algorithms.fista import fista, largest_eigenvalues
from dtomo.algorithms.iteration import Checkpointer, IterativeMethod, Result, State, iterate
from dtomo.algorithms.krylov import cgls, lsqr
from dtomo.algorithms.multiresolution import coarse_to_fine
from dtomo.algorithms.primal_dual import tv
from dtomo.algorithms.proximal import Bounds, Denoiser, Proximal, Support, TotalVariation
from dtomo.algorithms.sirt import sirt
from dtomo.algorithms.stopping import Discrepancy, HeldOut, Stop
from dtomo.algorithms.subsets import os_sart, subset_order
from dtomo.algorithms.transforms import NuclearNorm, Wavelets

__all__ = [
    "FDK_BLOCK",
    "Bounds",
    "Checkpointer",
    "DataTerm",
    "Denoiser",
    "Discrepancy",
    "HeldOut",
    "Huber",
    "IterativeMethod",
    "LeastSquares",
    "NuclearNorm",
    "Proximal",
    "Result",
    "State",
    "Stop",
    "StudentT",
    "Support",
    "TotalVariation",
    "Wavelets",
    "cgls",
    "check_fdk",
    "coarse_to_fine",
    "fbp",
    "fdk",
    "fista",
    "iterate",
    "largest_eigenvalues",
    "lsqr",
    "mlem",
    "os_sart",
    "osem",
    "photon_weights",
    "sirt",
    "subset_order",
    "tv",
]
