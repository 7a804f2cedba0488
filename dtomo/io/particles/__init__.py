"""Lists of particles on disk, in the formats of the programs of cryo-electron tomography."""

from dtomo.io.particles.particles import Particles

__all__ = ["Particles"]
