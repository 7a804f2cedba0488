"""Solvers of joint ptycho-tomography, one module each."""
