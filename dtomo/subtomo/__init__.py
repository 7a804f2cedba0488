"""Subtomograms: aligned to a reference, averaged, and what their average resolves."""
