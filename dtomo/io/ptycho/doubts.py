"""What a scan looks like that was opened in the wrong way: warnings, and refusal where it cannot work."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dtomo.errors import UserError
from dtomo.io.ptycho.masks import Look
from dtomo.io.ptycho.reading import PtychoReading

GOOD, DOUBTFUL = 0.01, 0.5
"""Part of the pixels that a mask must leave, and that it mostly leaves."""
IN_THE_MIDDLE = 0.7
"""Part of the light of a far field that lies in the middle half of the rows and columns, at least."""
SMALL = 32
"""Frames of fewer rows or columns tell too little of that."""


def check_light(reading: PtychoReading, look: Look, center: str | Sequence[int]) -> None:
    """Warn where most light is not where frequency zero is said to be, or everywhere."""
    where, cornered = reading.frames.location, np.fft.fftshift(look.mean)
    if isinstance(center, str):
        middle, corner = _share(look.mean, 8), _share(cornered, 8)
        here, there, other = (middle, corner, "corner") if center == "middle" else (corner, middle, "middle")
        if there > 4 * here and there > 0.25:
            reading.warnings.append(
                f"most light of {where} is not where frequency zero is taken to be, the {center} of the frames, but in "
                f"the {other}: if so, say center='{other}'"
            )
            return
    if (
        min(look.mean.shape) >= SMALL
        and look.mean.any()
        and max(_share(look.mean, 4), _share(cornered, 4)) < IN_THE_MIDDLE
    ):
        reading.warnings.append(
            f"the light of {where} is spread over the frames, where a far field has most of it around frequency zero: "
            "if they are images of a near field, say so with near_field=True (--near-field); else check center "
            "(--center)"
        )


def _share(image: NDArray[np.float64], part: int) -> float:
    """Of the light in the middle, 2 / `part` of the rows and columns."""
    slices = tuple(slice(n // 2 - max(1, n // part), n // 2 + max(1, n // part)) for n in image.shape)
    return float(image[slices].sum() / max(image.sum(), 1e-300))


def check_mask(reading: PtychoReading, mask: NDArray[np.bool_]) -> None:
    """Refuse a mask that leaves nearly nothing, and warn of one that leaves little: it may be the other way round."""
    doubt = mask_doubt(reading.found.get("mask", "what is masked"), mask)
    reading.warnings += [] if doubt is None else [doubt]


def background_doubt(what: str, background: NDArray[np.float64] | None, look: Look) -> str | None:
    """A sentence about counts without beam that are more than those with it; None: they are not.

    Parameters
    ----------
    what
        Where they are from.
    background
        As stored ``(row, column)``.
    look
        At the frames.
    """
    if background is None or not look.mean.any():
        return None
    seen = look.mean > 0
    if not seen.any() or background[seen].sum() < look.mean[seen].sum():
        return None
    return (
        f"{what}: the background has {background[seen].mean():.3g} counts a pixel, and the frames with beam "
        f"{look.mean[seen].mean():.3g}: it cannot be theirs; correct it, or leave it out"
    )


def mask_doubt(what: str, mask: NDArray[np.bool_]) -> str | None:
    """A sentence about a mask that leaves little; None: it does not.

    Parameters
    ----------
    what
        That masks, for the sentence.
    mask
        Good pixels.

    Raises
    ------
    UserError
        It leaves nearly nothing.
    """
    good = float(mask.mean())
    if good >= DOUBTFUL or not good:  # none at all is refused elsewhere
        return None
    said = f"{what} leaves {100 * good:.3g} % of the pixels as good"
    asks = "is it inverted? True means good (in CXI 0); say otherwise with mask=... (--mask)"
    if good < GOOD:
        raise UserError(f"{said}, too few to reconstruct from; {asks}")
    return f"{said}; {asks}"
