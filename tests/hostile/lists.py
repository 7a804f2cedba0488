"""Hostile particle lists: XML, STAR, tables; and settings."""

from pathlib import Path

from tests.hostile.inputs import LISTS, SECRET, into

LAUGHS = '<!ENTITY a0 "ha">' + "".join(f'<!ENTITY a{n} "{f"&a{n - 1};" * 10}">' for n in range(1, 12))


@into(LISTS)
def laughs(folder: Path) -> Path:
    """XML with entities of 10¹¹ letters."""
    text = f"<!DOCTYPE ParticleList [{LAUGHS}]><ParticleList>&a11;</ParticleList>"
    (folder / "list.xml").write_text(text)
    return folder / "list.xml"


@into(LISTS)
def external_entity(folder: Path) -> Path:
    """XML with an entity that is a file elsewhere."""
    (folder.parent / "secret").write_bytes(SECRET)
    entity = f'<!DOCTYPE ParticleList [<!ENTITY e SYSTEM "file://{folder.parent}/secret">]>'
    (folder / "list.xml").write_text(f'{entity}<ParticleList><Particle Filename="&e;">&e;</Particle></ParticleList>')
    return folder / "list.xml"


@into(LISTS)
def remote_dtd(folder: Path) -> Path:
    """XML whose DTD lies on a server."""
    text = '<!DOCTYPE ParticleList SYSTEM "http://127.0.0.1:9/x.dtd"><ParticleList/>'
    (folder / "list.xml").write_text(text)
    return folder / "list.xml"


@into(LISTS)
def deep_xml(folder: Path) -> Path:
    """XML nested 10⁵ deep."""
    (folder / "list.xml").write_text("<ParticleList>" + "<a>" * 100_000)
    return folder / "list.xml"


@into(LISTS)
def empty_list(folder: Path) -> Path:
    """XML without particles."""
    (folder / "list.xml").write_text("<ParticleList></ParticleList>")
    return folder / "list.xml"


@into(LISTS)
def short_row(folder: Path) -> Path:
    """STAR with a row that is too short."""
    (folder / "list.star").write_text("data_particles\n\nloop_\n_rlnCoordinateX #1\n_rlnCoordinateY #2\n1.0\n")
    return folder / "list.star"


@into(LISTS)
def star_words(folder: Path) -> Path:
    """STAR with words where numbers belong."""
    columns = "".join(f"_rlnCoordinate{axis} #{n}\n" for n, axis in enumerate("XYZ", 1))
    (folder / "list.star").write_text(f"data_particles\n\nloop_\n{columns}here there nan\n")
    return folder / "list.star"


@into(LISTS)
def star_open(folder: Path) -> Path:
    """STAR with a text that never ends."""
    (folder / "list.star").write_text("data_particles\nloop_\n_rlnCoordinateX\n;\n" + "x" * 10**5)
    return folder / "list.star"


@into(LISTS)
def table(folder: Path) -> Path:
    """Dynamo table of words."""
    (folder / "list.tbl").write_text("one two three\n" * 40)
    return folder / "list.tbl"


@into(LISTS)
def table_nan(folder: Path) -> Path:
    """Dynamo table of NaN."""
    (folder / "list.tbl").write_text(("nan " * 35 + "\n") * 3)
    return folder / "list.tbl"


@into(LISTS)
def motl_bomb(folder: Path) -> Path:
    """MOTL that promises 2·10⁹ particles."""
    sizes = b"".join(n.to_bytes(4, "little") for n in (20, 2_000_000_000, 1))
    (folder / "motl.em").write_bytes(bytes([6, 0, 0, 5]) + sizes + bytes(496))
    return folder / "motl.em"
