"""Solvers of ptychography; see `dtomo.ptycho.engine` for what a solver is."""
