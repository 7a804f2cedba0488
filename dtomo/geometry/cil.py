"""Geometries from those of the Core Imaging Library (CIL), which itself is not needed.

As its own converter to ASTRA's three-dimensional vectors does it (``cil.plugins.astra``,
``convert_geometry_to_astra_vec_3D``): with the axis of rotation along z through the origin, source and detector are
turned by minus the angle. A detector's pixel (0, 0) lies at the panel's origin (bottom-left unless said otherwise);
rows run up. Axes of CIL's volumes are (vertical, horizontal_y, horizontal_x), dtomo's (z, y, x), and of its projections
(angle, vertical, horizontal), as here, unless the labels were chosen otherwise.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtomo.errors import UserError
from dtomo.geometry.vectors import Beam, VectorGeometry


def from_cil(acquisition: Any, image: Any) -> VectorGeometry:
    """The geometry that CIL's AcquisitionGeometry and ImageGeometry describe.

    Parameters
    ----------
    acquisition
        ``cil.framework.AcquisitionGeometry`` of a cone or parallel beam, in two or three dimensions.
    image
        ``cil.framework.ImageGeometry``.

    Raises
    ------
    UserError
        Another system, or something that lacks the attributes of such geometries.
    """
    try:
        return _from_cil(acquisition, image)
    except AttributeError as missing:
        raise UserError(f"this is no geometry of CIL as from_cil reads it: {missing}") from None


def _from_cil(acquisition: Any, image: Any) -> VectorGeometry:
    given = acquisition.copy()
    config = given.config
    if given.geom_type not in ("cone", "parallel"):
        raise UserError(f"geometries of CIL are read for cone and parallel beams, not for {given.geom_type}")
    if hasattr(config.system, "align_reference_frame"):
        config.system.align_reference_frame("cil")
    system, panel = config.system, config.panel
    flat = str(given.dimension).strip().upper().endswith(("2D", "DIM2", "2"))
    pixel = [float(n) for n in panel.pixel_size]
    across = pixel[0] * _vector(system.detector.direction_x)
    across = -across if "right" in panel.origin else across
    if flat:
        down = np.array([0, 0, float(image.voxel_size_x)])
    else:
        down = pixel[1] * _vector(system.detector.direction_y)
        down = -down if "top" in panel.origin else down
    angles = config.angles
    turns = np.array(angles.angle_data, np.float64) + float(angles.initial_angle)
    turns = -(np.deg2rad(turns) if "deg" in str(angles.angle_unit).lower() else turns)
    cosine, sine, zero = np.cos(turns), np.sin(turns), np.zeros_like(turns)
    turn = np.moveaxis(np.array([[cosine, -sine, zero], [sine, cosine, zero], [zero, zero, zero + 1]]), 2, 0)
    parallel = given.geom_type == "parallel"
    beam: Beam = "parallel" if parallel else "fan" if flat else "cone"
    source, detector = (
        turn @ _vector(values)
        for values in (system.ray.direction if parallel else system.source.position, system.detector.position)
    )
    depth = 1 if flat else int(image.voxel_num_z)
    width = float(image.voxel_size_x)
    height = width if flat else float(image.voxel_size_z)
    ends = [(image.get_min_x(), image.get_max_x()), (image.get_min_y(), image.get_max_y())]
    ends.append((0.0, 0.0) if flat else (image.get_min_z(), image.get_max_z()))
    x, y, z = ((float(low) + float(high)) / 2 for low, high in ends)
    columns, rows = (int(n) for n in panel.num_pixels)
    return VectorGeometry(
        beam, source, detector, turn @ across, turn @ down, 1 if flat else rows, columns,
        (depth, int(image.voxel_num_y), int(image.voxel_num_x)), (height, float(image.voxel_size_y), width), (x, y, z),
    )  # fmt: skip


def _vector(values: Any) -> NDArray[np.float64]:
    """Three numbers; of two the third is 0."""
    found = np.ravel(np.array(values, np.float64))
    return np.pad(found, (0, 3 - found.size))
