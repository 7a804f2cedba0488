"""Alignment of projections: shifts, the axis of rotation, and views put where they belong."""

from dtomo.align.arrays import align, aligned, refine_center
from dtomo.align.driver import Options
from dtomo.geometry import Alignment

__all__ = ["Alignment", "Options", "align", "aligned", "refine_center"]
