"""Scans and objects that are known exactly: for the demo, for tests, for trying settings beforehand."""

from dtomo.simulate.phantoms import PHANTOMS, Phantom, head, sample
from dtomo.simulate.scans import ScanTruth, read_truth, simulate_scan, truth_slice

__all__ = ["PHANTOMS", "Phantom", "ScanTruth", "head", "read_truth", "sample", "simulate_scan", "truth_slice"]
