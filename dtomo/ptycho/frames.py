"""Diffraction frames as the models take them."""

import dataclasses
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclasses.dataclass(frozen=True, eq=False)
class FrameBlock:
    """Some frames of a scan, always worked on together: what sums are made of.

    Attributes
    ----------
    indices
        Numbers of the frames in the scan, int64 ``(frame,)``, on the host.
    intensities
        Counts ``(frame, row, column)`` in model order (frequency zero at [0, 0]), as the detector gave them (any real
        dtype; what is under the mask is never looked at), where the model computes.
    """

    indices: NDArray[np.int64]
    intensities: NDArray[Any]

    def __len__(self) -> int:
        return len(self.indices)


def to_model_order(images: NDArray[Any]) -> NDArray[Any]:
    """Detector images ``(…, row, column)`` with frequency zero in the middle (row N // 2), put at [0, 0]."""
    return np.fft.ifftshift(images, (-2, -1))


def to_detector_order(images: NDArray[Any]) -> NDArray[Any]:
    """The inverse of `to_model_order`."""
    return np.fft.fftshift(images, (-2, -1))
