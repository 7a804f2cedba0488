"""Kernels for CUDA devices: Numba-CUDA on CuPy arrays, the same arithmetic as on CPUs. Import only with such arrays."""
