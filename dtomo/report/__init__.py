"""Pictures for people. matplotlib is imported here and nowhere below."""

from dtomo.report.pictures import trial_slices, write_pictures

__all__ = ["trial_slices", "write_pictures"]
