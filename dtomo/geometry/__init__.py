"""Geometries are values: immutable, comparable, cheap to send to a task."""

from dtomo.geometry.alignment import Alignment
from dtomo.geometry.constructors import cone_beam, fan_beam, laminography, tilt_series
from dtomo.geometry.parallel import ParallelBeam
from dtomo.geometry.vectors import VectorGeometry

__all__ = ["Alignment", "ParallelBeam", "VectorGeometry", "cone_beam", "fan_beam", "laminography", "tilt_series"]
