"""PyTom's particle lists (XML), with every attribute and element kept, those not known too.

Conventions: rotation Rz(Z2) Rx(X) Rz(Z1), active, reference to particle; the shift is that of the particle. A wedge's
Angle1 is what is missing between the kz axis and the last plane on the side kx kz > 0, Angle2 on the other side (as
PyTom's own filters have it). A plane at tilt t is kz cos t = kx sin t, so tilts go from Angle2 - 90 to 90 - Angle1.
"""

import copy
import math
from pathlib import Path
from typing import Any

import numpy as np
from lxml import etree

from dtomo.errors import UserError, shown
from dtomo.geometry.wedge import Wedge
from dtomo.io.particles.angles import to_angles, to_matrices
from dtomo.io.particles.origin import Origin, ReadingOptions, changed, origin_of
from dtomo.io.particles.particles import Particles

_WEDGES = ("SingleTiltWedge", "WedgeInfo", "DoubleTiltWedge", "GeneralWedge", "Wedge3dCTF")
_SIDES = ("X", "Y", "Z")
_ANGLES = ("Z1", "X", "Z2")


def read_pytom(path: Path, options: ReadingOptions) -> Particles:
    """A particle list; what only PyTom knows is kept in `origin`.

    Raises
    ------
    UserError
        Damaged XML, a DOCTYPE or entities, no ``<ParticleList>``, values that are not numbers, another paradigm of
        rotations than ZXZ.
    """
    content = path.read_bytes()
    found = _elements(_parsed(content, str(path)), str(path))
    origin = Origin("pytom", str(path), content, tuple(range(len(found))), options)
    return _particles(found, origin)


def pytom_bytes(particles: Particles) -> bytes:
    """The XML of a list; one that was read from PyTom keeps all that was not changed.

    Raises
    ------
    UserError
        Orientations that are no rotations, a wedge PyTom cannot describe.
    """
    origin = origin_of(particles, "pytom")
    if origin is None:
        root = etree.Element("ParticleList")
        elements = [_empty(root, particles.positions is not None) for _ in range(len(particles))]
        _put(elements, particles, None)
        etree.indent(root)
        return bytes(etree.tostring(root, encoding="utf-8", xml_declaration=False)) + b"\n"
    tree = _parsed(origin.content, origin.where)
    everything = _elements(tree, origin.where)
    elements = [everything[place] for place in origin.index]
    if len(set(origin.index)) < len(elements):  # a particle may be taken twice
        elements = [copy.deepcopy(element) for element in elements]
    before = _particles(elements, origin)
    touched = _put(elements, particles, before)
    if not touched and origin.index == tuple(range(len(everything))):
        return origin.content
    _keep(everything, elements, origin.index)
    declared = origin.content.lstrip().startswith(b"<?xml")
    encoding = tree.docinfo.encoding or "utf-8"
    return bytes(etree.tostring(tree, encoding=encoding, xml_declaration=declared or None)) + b"\n"


def _empty(root: Any, positions: bool) -> Any:
    """A new particle with its parts in the order PyTom writes them."""
    element = etree.SubElement(root, "Particle")
    for name in ("Rotation", "Shift", *(["PickPosition"] if positions else []), "Wedge"):
        etree.SubElement(element, name)
    etree.SubElement(element, "InfoGUI", ProjectDir="")
    return element


def _parsed(content: bytes, where: str) -> Any:
    parser = etree.XMLParser(resolve_entities=False, no_network=True, load_dtd=False, huge_tree=False)
    try:
        tree = etree.ElementTree(etree.fromstring(content, parser))
    except (etree.XMLSyntaxError, ValueError) as error:
        reason = shown(" ".join(str(error).split()), 120)
        raise UserError(f"{where} is not XML that can be read ({reason})") from error
    if tree.docinfo.doctype or tree.docinfo.internalDTD is not None:
        raise UserError(f"{where} has a DOCTYPE, which particle lists have no use for; it is refused")
    return tree


def _elements(tree: Any, where: str) -> list[Any]:
    """The ``<Particle>`` elements of the first ``<ParticleList>``."""
    root = tree.getroot()
    lists = [root] if root.tag == "ParticleList" else list(root.iter("ParticleList"))[:1]
    if not lists:
        raise UserError(f"{where} is not a PyTom particle list: it has <{shown(root.tag)}> and no <ParticleList>")
    return lists[0].findall("Particle")


def _keep(everything: list[Any], elements: list[Any], index: tuple[int, ...]) -> None:
    """Leave these elements in the list, in this order, and take the others out."""
    if index == tuple(range(len(everything))):
        return
    parent = everything[0].getparent()
    if list(index) == sorted(set(index)):
        for number in set(range(len(everything))) - set(index):
            parent.remove(everything[number])
        return
    others = [child for child in parent if child.tag != "Particle"]
    parent[:] = [*others, *elements]


def _particles(elements: list[Any], origin: Origin) -> Particles:
    where, count = origin.where, len(elements)
    angles, shifts = np.zeros((count, 3)), np.zeros((count, 3))
    positions = np.full((count, 3), np.nan)
    scores, halves = np.full(count, np.nan), np.zeros(count, np.int8)
    wedges: list[Wedge | None] = []
    ctf, tomograms, classes = [], [], []
    strange: set[str] = set()
    for number, element in enumerate(elements):
        place = f"{where}, particle {number + 1}"
        rotation, shift, pick = (element.find(name) for name in ("Rotation", "Shift", "PickPosition"))
        if rotation is not None and (rotation.get("Paradigm") or "ZXZ").upper() != "ZXZ":
            raise UserError(f"{place}: rotations have the paradigm ZXZ, not {shown(rotation.get('Paradigm'))}")
        if rotation is not None:
            angles[number] = [_number(rotation, name, place) for name in _ANGLES]
        if shift is not None:
            shifts[number] = [_number(shift, name, place) for name in _SIDES]
        if pick is not None:
            positions[number] = [_number(pick, name, place) for name in _SIDES]
        score, kind = element.find("Score"), element.find("Class")
        if score is not None and score.get("Value") is not None:
            scores[number] = _number(score, "Value", place)
        name = "" if kind is None else kind.get("Name", "")
        classes.append("" if name == "None" else name)
        tomograms.append("" if pick is None else pick.get("Origin", ""))
        halves[number] = _half(element, place)
        wedge, weights = _wedge(element, place, strange)
        wedges.append(wedge)
        ctf.append(weights)
    notes = ["rotations are PyTom's Z1, Z2, X, active, reference to particle; shifts are those of the particle"]
    notes += [f"<{name}> is kept in the list, but not used" for name in sorted(strange)]
    options = origin.options
    return Particles(
        to_matrices(angles, "pytom"),
        shifts,
        files=[element.get("Filename", "") for element in elements],
        positions=None if np.isnan(positions).all() else positions,
        tomograms=tomograms,
        wedges=wedges,
        weights_files=ctf,
        scores=scores,
        halves=halves,
        classes=classes,
        voxel_sizes=np.full(count, math.nan if options.pixel_size is None else options.pixel_size),
        origin=Origin("pytom", where, origin.content, origin.index, options, tuple(notes)),
    )


def _number(element: Any, name: str, place: str) -> float:
    text = element.get(name)
    try:
        value = float(text)
    except (TypeError, ValueError) as error:
        raise UserError(f"{place}: <{element.tag}> has {name}={shown(repr(text))}, expected a number") from error
    if not math.isfinite(value) and element.tag != "Score":
        raise UserError(f"{place}: <{element.tag}> has {name}={shown(text)}, expected a finite number")
    return value


def _half(element: Any, place: str) -> int:
    text = element.get("Half", "0")
    if text not in ("0", "1", "2"):
        raise UserError(f"{place}: Half={shown(repr(text))}, expected 1 or 2")
    return int(text)


def _wedge_element(element: Any) -> Any:
    outer = element.find("Wedge")
    inside = element if outer is None else outer
    return next((child for child in inside if child.tag in _WEDGES), None)


def _wedge(element: Any, place: str, strange: set[str]) -> tuple[Wedge | None, str]:
    """A particle's wedge, and the file of its CTF volume."""
    found = _wedge_element(element)
    if found is None:
        return None, ""
    if found.tag == "Wedge3dCTF":
        return None, found.get("Filename", "")
    if found.tag not in ("SingleTiltWedge", "WedgeInfo"):
        strange.add(found.tag)
        return None, ""
    names = ("Angle1", "Angle2") if found.get("Angle1") is not None else ("Angle", "Angle")
    first, second = (_number(found, name, place) for name in names)
    if first == second == 0:
        return None, ""  # PyTom leaves such particles as they are
    cutoff, smooth = (_number(found, n, place) if found.get(n) else 0.0 for n in ("CutoffRadius", "Smooth"))
    axis, tilted = found.find("TiltAxisRotation"), None
    if axis is not None:
        angles = np.array([_number(axis, name, place) for name in _ANGLES])
        tilted = to_matrices(angles, "pytom") if angles.any() else None
    try:
        return Wedge((second - 90, 90 - first), cutoff, smooth, tilted), ""
    except UserError as error:
        raise UserError(f"{place}: Angle1={first:g} and Angle2={second:g}: {error}") from error


def _put(elements: list[Any], now: Particles, before: Particles | None) -> bool:
    """Write into the elements what differs from before (None: everything); whether anything did."""
    count = len(elements)

    def differing(names: str) -> list[int]:
        if before is None:
            return list(range(count))
        each = [changed(getattr(now, name), getattr(before, name), count) for name in names.split()]
        return np.flatnonzero(np.any(each, axis=0)).tolist()

    angles = to_angles(now.rotations, "pytom")
    touched = False
    for name, put in _WRITERS.items():
        if name == "positions" and now.positions is None and before is None:
            continue
        for number in differing(name):
            touched = True
            try:
                put(elements[number], now, angles, number)
            except UserError:
                raise
            except ValueError as error:  # lxml refuses what XML has no letters for
                raise UserError(f"particle {number + 1} has a name with control characters, not for XML") from error
    return touched


def _child(element: Any, name: str) -> Any:
    found = element.find(name)
    return etree.SubElement(element, name) if found is None else found


def _put_file(element: Any, now: Particles, angles: Any, number: int) -> None:
    element.set("Filename", now.files[number])


def _put_rotation(element: Any, now: Particles, angles: Any, number: int) -> None:
    rotation, (z1, x, z2) = _child(element, "Rotation"), angles[number].tolist()
    for name, value in (("Z1", z1), ("Z2", z2), ("X", x)):
        rotation.set(name, repr(value))
    rotation.set("Paradigm", "ZXZ")


def _put_shift(element: Any, now: Particles, angles: Any, number: int) -> None:
    shift = _child(element, "Shift")
    for name, value in zip(_SIDES, now.shifts[number].tolist()):
        shift.set(name, repr(value))


def _put_position(element: Any, now: Particles, angles: Any, number: int) -> None:
    if now.positions is None or np.isnan(now.positions[number]).any():
        for found in element.findall("PickPosition"):
            element.remove(found)
        return
    pick = _child(element, "PickPosition")
    for name, value in zip(_SIDES, now.positions[number].tolist()):
        pick.set(name, repr(value))
    pick.set("Origin", now.tomograms[number])
    if pick.get("Binning") is None:
        pick.set("Binning", "1")


def _put_tomogram(element: Any, now: Particles, angles: Any, number: int) -> None:
    pick = element.find("PickPosition")
    if pick is not None:
        pick.set("Origin", now.tomograms[number])


def _put_wedge(element: Any, now: Particles, angles: Any, number: int) -> None:
    wedge, weights = now.wedges[number], now.weights_files[number]
    outer, old = _child(element, "Wedge"), _wedge_element(element)
    if old is not None:
        old.getparent().remove(old)
    if weights:
        outer.set("Type", "Wedge3dCTF")
        etree.SubElement(outer, "Wedge3dCTF", Filename=weights)
        return
    wedge = wedge or Wedge((-90.0, 90.0))
    outer.set("Type", "SingleTiltWedge")
    first, last = wedge.tilts
    single = etree.SubElement(outer, "SingleTiltWedge")
    values = (("Angle1", 90 - last), ("Angle2", first + 90), ("CutoffRadius", wedge.cutoff), ("Smooth", wedge.smooth))
    for name, value in values:
        single.set(name, repr(float(value)))
    z1, x, z2 = (0.0,) * 3 if wedge.tilt_axis is None else to_angles(wedge.tilt_axis, "pytom").tolist()
    etree.SubElement(single, "TiltAxisRotation", Z1=repr(z1), Z2=repr(z2), X=repr(x))


def _put_score(element: Any, now: Particles, angles: Any, number: int) -> None:
    score = now.scores[number]
    found = _child(element, "Score")
    if found.get("Type") is None:
        found.set("Type", "FLCFScore")
        found.set("RemoveAutocorr", "False")
        etree.SubElement(found, "PeakPrior", Filename="", Radius="0.0", Smooth="-1.0")
    found.set("Value", "-1000.0" if math.isnan(score) else repr(float(score)))


def _put_class(element: Any, now: Particles, angles: Any, number: int) -> None:
    _child(element, "Class").set("Name", now.classes[number] or "0")


def _put_half(element: Any, now: Particles, angles: Any, number: int) -> None:
    if now.halves[number]:
        element.set("Half", str(int(now.halves[number])))
    else:
        element.attrib.pop("Half", None)


_WRITERS = {
    "files": _put_file,
    "rotations": _put_rotation,
    "shifts": _put_shift,
    "positions": _put_position,
    "tomograms": _put_tomogram,
    "wedges weights_files": _put_wedge,
    "scores": _put_score,
    "classes": _put_class,
    "halves": _put_half,
}
"""Attributes of a list (with blanks between them), and what puts them into an element."""
