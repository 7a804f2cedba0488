"""Lists of simulated particles for PyTom (XML) and RELION (STAR)."""

from pathlib import Path
from xml.etree import ElementTree

import numpy as np
from scipy.spatial.transform import Rotation

from dtomo.io.output import writing
from dtomo.io.particles import Particles


def write_lists(folder: Path, particles: Particles, name: str) -> None:
    """Write ``NAME.xml`` and ``NAME.star`` into a folder; files are named relative to it.

    Orientations are Rz(Z2) Rx(X) Rz(Z1) in PyTom's, and rot = 90 - Z1, tilt = X, psi = -90 - Z2 in RELION's, whose
    origins are shifts with the other sign, in ångström.
    """
    angles = Rotation.from_matrix(particles.rotations).as_euler("zxz", degrees=True)
    with writing(folder):
        (folder / f"{name}.xml").write_bytes(_xml(particles, angles))
        (folder / f"{name}.star").write_text(_star(particles, angles), "utf-8")


def _xml(particles: Particles, angles: np.ndarray) -> bytes:
    root = ElementTree.Element("ParticleList")
    for number, (z1, x, z2) in enumerate(angles):
        item = ElementTree.SubElement(root, "Particle", Filename=particles.files[number])
        ElementTree.SubElement(item, "Rotation", Z1=_text(z1), Z2=_text(z2), X=_text(x), Paradigm="ZXZ")
        shift = (_text(value) for value in particles.shifts[number])
        ElementTree.SubElement(item, "Shift", dict(zip("XYZ", shift)))
        place = np.zeros(3) if particles.positions is None else particles.positions[number]
        where = dict(zip("XYZ", (_text(value) for value in place)))
        ElementTree.SubElement(item, "PickPosition", where, Origin=particles.tomograms[number], Binning="1")
        wedge = particles.wedges[number]
        if wedge is not None:
            outer = ElementTree.SubElement(item, "Wedge", Type="SingleTiltWedge")
            missing = {"Angle1": _text(90 + wedge.tilts[0]), "Angle2": _text(90 - wedge.tilts[1])}
            single = ElementTree.SubElement(outer, "SingleTiltWedge", missing, CutoffRadius="0.0", Smooth="0.0")
            ElementTree.SubElement(single, "TiltAxisRotation", Z1="0.0", Z2="0.0", X="0.0")
        ElementTree.SubElement(item, "Class", Name="0")
    ElementTree.indent(root)
    return ElementTree.tostring(root) + b"\n"


def _star(particles: Particles, angles: np.ndarray) -> str:
    pixel = float(particles.voxel_sizes[0])
    lines = ["", "data_optics", "", "loop_", "_rlnOpticsGroup #1", "_rlnImagePixelSize #2", f"1 {pixel:g}", ""]
    labels = [f"rlnAngle{name}" for name in ("Rot", "Tilt", "Psi")] + [f"rlnOrigin{axis}Angst" for axis in "XYZ"]
    labels += ["rlnImageName", "rlnRandomSubset", "rlnOpticsGroup", "rlnMicrographName"]
    with_weights, placed = any(particles.weights_files), particles.positions is not None
    labels += ["rlnCtfImage"] * with_weights + [f"rlnCoordinate{axis}" for axis in "XYZ"] * placed
    lines += ["data_particles", "", "loop_", *(f"_{label} #{place}" for place, label in enumerate(labels, 1))]
    for number, (z1, x, z2) in enumerate(angles):
        words = [f"{value:.6f}" for value in (90 - z1, x, -90 - z2, *(-particles.shifts[number] * pixel))]
        words += [particles.files[number], str(particles.halves[number]), "1", particles.tomograms[number]]
        words += [particles.weights_files[number]] * with_weights
        words += [] if particles.positions is None else [f"{value:g}" for value in particles.positions[number]]
        lines.append(" ".join(words))
    return "\n".join(lines) + "\n"


def _text(value: float) -> str:
    return repr(float(value))
