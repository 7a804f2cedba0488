"""``dtomo info`` of particle lists."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dtomo.io.particles import Particles


def particle_lines(path: Path) -> list[str] | None:
    """What is in a particle list; None: the file is none.

    Raises
    ------
    UserError
        A list that is damaged.
    """
    from dtomo.io.particles import PROGRAMS, read_particles, reading_notes, recognise_particles

    kind = recognise_particles(path)
    if kind is None:
        return None
    particles = read_particles(path)
    lines = [f"{path}: particle list ({PROGRAMS[kind]})", _row("particles", str(len(particles)))]
    lines += [_row(name, text) for name, text in _texts(particles)]
    missing = _missing(particles)
    if missing:
        lines.append(_row("missing", ", ".join(missing)))
    return lines + [_row("read", note) for note in reading_notes(particles)]


def _row(name: str, value: str) -> str:
    return f"  {name:<18}{value}"


def _texts(particles: "Particles") -> list[tuple[str, str]]:
    import numpy as np

    found: list[tuple[str, str]] = []
    tomograms = sorted({name for name in particles.tomograms if name})
    if tomograms:
        found.append(("tomograms", f"{len(tomograms)}: {', '.join(tomograms[:3])}{' …' if len(tomograms) > 3 else ''}"))
    sizes = np.unique(particles.voxel_sizes[~np.isnan(particles.voxel_sizes)])
    if len(sizes):
        found.append(("voxel size", " and ".join(f"{size:g}" for size in sizes[:5]) + " Å"))
    for name, values, unit in (
        ("positions", particles.positions, "voxels (x, y, z)"),
        ("shifts", particles.shifts, "voxels (x, y, z)"),
        ("scores", particles.scores[:, None], ""),
    ):
        if values is not None and len(values) and not np.isnan(values).all():
            low, high = (", ".join(f"{v:g}" for v in edge(values, axis=0)) for edge in (np.nanmin, np.nanmax))
            found.append((name, f"{low} to {high} {unit}".strip()))
    if particles.halves.any():
        counts = [int((particles.halves == half).sum()) for half in (1, 2)]
        found.append(("halves", f"{counts[0]} and {counts[1]}"))
    classes = sorted({name for name in particles.classes if name})
    if len(classes) > 1:
        found.append(("classes", ", ".join(f"{name} ({particles.classes.count(name)})" for name in classes[:8])))
    wedges = {wedge.tilts for wedge in particles.wedges if wedge is not None}
    if wedges:
        some = sorted(wedges)[:3]
        found.append(("tilts", " and ".join(f"{first:g} to {last:g}" for first, last in some) + " degrees"))
    return found


def _missing(particles: "Particles") -> list[str]:
    import numpy as np

    missing = []
    if np.isnan(particles.voxel_sizes).any():
        missing.append("voxel size")
    if particles.positions is None or np.isnan(particles.positions).any():
        missing.append("positions")
    if not all(particles.files):
        missing.append("names of subtomograms")
    return missing
