"""Moved to `dtomo.threads`."""

from dtomo.threads import get_threads, run_jobs, set_threads

__all__ = ["get_threads", "run_jobs", "set_threads"]
