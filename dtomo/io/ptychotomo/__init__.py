"""Scans for joint ptycho-tomography: diffraction frames at many angles."""

from dtomo.io.ptychotomo.opening import open_ptychotomo
from dtomo.io.ptychotomo.scan import PtychotomoScan
from dtomo.io.ptychotomo.writer import write_ptychotomo, write_scan

__all__ = ["PtychotomoScan", "open_ptychotomo", "write_ptychotomo", "write_scan"]
