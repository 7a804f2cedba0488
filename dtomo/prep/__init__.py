"""Preparation: from counts to attenuation on a known geometry. Arrays in projection order, float32 (complex64)
out, of NumPy or, for all that one slab needs, CuPy."""

from dtomo.prep.center import CenterEstimate, find_center, main_part, rows_for_center
from dtomo.prep.flats import (
    NormalizeReport,
    average_frames,
    check_frames,
    find_bad_pixels,
    minus_log,
    normalize,
)
from dtomo.prep.halfturn import fold_360, is_full_turn
from dtomo.prep.outliers import remove_outliers
from dtomo.prep.padding import extend, extension_weights, extension_width
from dtomo.prep.phase import millimeters, paganin, paganin_halo_rows
from dtomo.prep.stripes import remove_stripes

__all__ = [
    "CenterEstimate",
    "NormalizeReport",
    "average_frames",
    "check_frames",
    "extend",
    "extension_weights",
    "extension_width",
    "find_bad_pixels",
    "find_center",
    "fold_360",
    "is_full_turn",
    "main_part",
    "millimeters",
    "minus_log",
    "normalize",
    "paganin",
    "paganin_halo_rows",
    "remove_outliers",
    "remove_stripes",
    "rows_for_center",
]
