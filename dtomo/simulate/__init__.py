"""Scans and objects that are known exactly: for the demo, for tests, for trying settings beforehand."""

from dtomo.simulate.complex_scans import ComplexPhantom, simulate_complex_scan
from dtomo.simulate.geometry_scans import GeometryTruth, named_geometry, simulate_geometry_scan
from dtomo.simulate.phantoms import PHANTOMS, Phantom, head, sample
from dtomo.simulate.ptycho import PtychoTruth, read_ptycho_truth, simulate_ptycho
from dtomo.simulate.rays import ray_integrals, voxel_values
from dtomo.simulate.scans import ScanTruth, read_truth, simulate_scan, truth_slice

__all__ = [
    "PHANTOMS",
    "ComplexPhantom",
    "GeometryTruth",
    "Phantom",
    "PtychoTruth",
    "ScanTruth",
    "head",
    "named_geometry",
    "ray_integrals",
    "read_ptycho_truth",
    "read_truth",
    "sample",
    "simulate_complex_scan",
    "simulate_geometry_scan",
    "simulate_ptycho",
    "simulate_scan",
    "truth_slice",
    "voxel_values",
]
