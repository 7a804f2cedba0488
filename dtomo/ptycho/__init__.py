"""Ptychography: object and probe from diffraction frames, on many devices."""
