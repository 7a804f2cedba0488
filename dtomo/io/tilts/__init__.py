"""Tilt series of electron microscopes: angles and transforms beside an MRC stack, and files of alignments."""

from dtomo.io.tilts.aligned import AlignedSource
from dtomo.io.tilts.alignment_file import read_alignment, write_alignment
from dtomo.io.tilts.imod import read_xf, write_tlt, write_xf
from dtomo.io.tilts.mdoc import Mdoc, read_mdoc
from dtomo.io.tilts.series import SUFFIXES, read_tilt_file, read_tilts
from dtomo.io.tilts.warp import read_warp

__all__ = [
    "SUFFIXES",
    "AlignedSource",
    "Mdoc",
    "read_alignment",
    "read_mdoc",
    "read_tilt_file",
    "read_tilts",
    "read_warp",
    "read_xf",
    "write_alignment",
    "write_tlt",
    "write_xf",
]
