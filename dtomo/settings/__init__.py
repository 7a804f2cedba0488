"""Settings of a run: checked once, written beside the output as YAML, and read again to repeat it."""

from dtomo.settings.alignment import AlignmentSettings
from dtomo.settings.base import (
    BATCH,
    CHECKPOINT_EVERY,
    DEVICES,
    RunSettings,
    checkpoint_interval,
    parse_frames,
    parse_span,
    read_settings,
)
from dtomo.settings.fit import FitSettings
from dtomo.settings.ptycho import ENGINES, EPOCHS, PtychoSettings
from dtomo.settings.ptychotomo import JointSettings
from dtomo.settings.recon import ZINGERS, ReconSettings
from dtomo.settings.solving import COUNTED, ITERATIONS, STARTS, SUBSETS, SolverSettings, data_term_parts
from dtomo.settings.subtomo import AlignSettings

__all__ = [
    "BATCH",
    "CHECKPOINT_EVERY",
    "COUNTED",
    "DEVICES",
    "ENGINES",
    "EPOCHS",
    "ITERATIONS",
    "STARTS",
    "SUBSETS",
    "ZINGERS",
    "AlignSettings",
    "AlignmentSettings",
    "FitSettings",
    "JointSettings",
    "PtychoSettings",
    "ReconSettings",
    "RunSettings",
    "SolverSettings",
    "checkpoint_interval",
    "data_term_parts",
    "parse_frames",
    "parse_span",
    "read_settings",
]
