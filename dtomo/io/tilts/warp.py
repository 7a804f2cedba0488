"""Warp's XML of a tilt series: ``<Angles>``, one a line, of the opposite sign to IMOD's (warpem/warp#91, #432)."""

from pathlib import Path

import numpy as np
from lxml import etree
from numpy.typing import NDArray

from dtomo.errors import UserError, shown
from dtomo.io.tilts.text import number, small_bytes

NEGATED = "negated: Warp's XML has the opposite sign to IMOD's"


def read_warp(path: Path) -> NDArray[np.float64]:
    """Tilt angles of a Warp XML in degrees, with the sign that `.tlt` files have: those in the file, negated.

    The attribute AreAnglesInverted is about the sign of the defocus along the beam, not about these angles (so
    SBC-Utrecht/pytom-match-pick pull request 334 found); it changes nothing here.

    Raises
    ------
    UserError
        Not XML, with a DOCTYPE, not of a tilt series, or angles that are no numbers.
    """
    parser = etree.XMLParser(resolve_entities=False, no_network=True, load_dtd=False, huge_tree=False)
    try:
        tree = etree.ElementTree(etree.fromstring(small_bytes(path), parser))
    except (etree.XMLSyntaxError, ValueError) as error:
        raise UserError(f"{path} is not XML that can be read ({shown(' '.join(str(error).split()), 120)})") from error
    if tree.docinfo.doctype or tree.docinfo.internalDTD is not None:
        raise UserError(f"{path} has a DOCTYPE, which tilt series have no use for; it is refused")
    root = tree.getroot()
    angles = root.find("Angles") if root.tag == "TiltSeries" else None
    if angles is None:
        raise UserError(f"{path} is no tilt series of Warp: it has no <Angles> in a <TiltSeries>")
    cells = (angles.text or "").split()
    if not cells or len(angles):
        raise UserError(f"{path}: <Angles> holds no list of numbers")
    return -np.array([number(cell, f"{path}: <Angles>, number {place}") for place, cell in enumerate(cells, 1)])


def is_warp(path: Path) -> bool:
    """Whether a file begins as a Warp XML does (others lie beside a stack, too)."""
    try:
        with path.open("rb") as file:
            return b"<TiltSeries" in file.read(4096)
    except OSError:
        return False
