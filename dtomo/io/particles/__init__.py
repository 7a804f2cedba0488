"""Lists of particles on disk, in the formats of the programs of cryo-electron tomography."""

from dtomo.io.particles.opening import (
    PROGRAMS,
    particle_format,
    read_particles,
    reading_notes,
    recognise_particles,
    what_is_lost,
    write_particles,
)
from dtomo.io.particles.particles import Particles
from dtomo.io.particles.relion import read_tomogram_sizes

__all__ = [
    "PROGRAMS",
    "Particles",
    "particle_format",
    "read_particles",
    "read_tomogram_sizes",
    "reading_notes",
    "recognise_particles",
    "what_is_lost",
    "write_particles",
]
