"""Joint ptycho-tomography: one complex volume straight from the diffraction frames of all angles."""
