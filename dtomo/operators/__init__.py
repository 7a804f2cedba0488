"""Operators wrap kernels: shapes, dtypes and layouts are checked here; they act on one block and know no Dask."""

from dtomo.kernels.nufft import spectra_can_be_summed
from dtomo.operators.base import LinearOperator
from dtomo.operators.coarser import Coarser
from dtomo.operators.differences import Differences
from dtomo.operators.filtering import FILTERS, filter_projections
from dtomo.operators.fourier import fourier_backproject
from dtomo.operators.masked import Masked
from dtomo.operators.peers import Peers
from dtomo.operators.projection import ParallelProjector, backproject
from dtomo.operators.rays import RayProjector
from dtomo.operators.slabs import SlabLayout, SlabProjector, SlicesProjector, even_slabs
from dtomo.operators.voxels import rows_seen
from dtomo.operators.wavelets import WaveletTransform

__all__ = [
    "FILTERS",
    "Coarser",
    "Differences",
    "LinearOperator",
    "Masked",
    "ParallelProjector",
    "Peers",
    "RayProjector",
    "SlabLayout",
    "SlabProjector",
    "SlicesProjector",
    "WaveletTransform",
    "backproject",
    "even_slabs",
    "filter_projections",
    "fourier_backproject",
    "rows_seen",
    "spectra_can_be_summed",
]
