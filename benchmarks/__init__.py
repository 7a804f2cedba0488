"""dtomo beside other packages: ``python -m benchmarks.projectors``, ``.fbp``, ``.recon``."""
