"""Geometries are values: immutable, comparable, cheap to send to a task."""

from dtomo.geometry.parallel import ParallelBeam

__all__ = ["ParallelBeam"]
