"""Small parsers and whatever may stand in their files: values, or one sentence. More examples with ``--slow``."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dtomo.errors import UserError
from dtomo.io import open_volume
from dtomo.io.angles import given_angles
from dtomo.io.em import write_em
from dtomo.io.nikon import read_xtekct
from dtomo.io.particles import read_particles
from dtomo.io.ptycho.given import given_array
from dtomo.io.tilts import read_alignment
from dtomo.io.tilts.mdoc import read_mdoc
from dtomo.io.tilts.series import read_tilt_file

STAR = (
    "data_optics\n\nloop_\n_rlnOpticsGroup #1\n_rlnImagePixelSize #2\n1 2.5\n\ndata_particles\n\nloop_\n"
    "_rlnCoordinateX #1\n_rlnCoordinateY #2\n_rlnCoordinateZ #3\n_rlnOpticsGroup #4\n1.0 2.0 3.0 1\n4 5 6 1\n"
)
XML = (
    '<ParticleList><Particle Filename="a.em"><Rotation X="1" Z1="2" Z2="3"/><Shift X="1" Y="2" Z="3"/>'
    '<PickPosition X="1" Y="2" Z="3"/><Score Type="FLCFScore"/><Class Name="1"/></Particle></ParticleList>'
)
MDOC = "PixelSpacing = 2.5\n[T = Tilt axis angle = 85.3, binning = 1]\n[ZValue = 0]\nTiltAngle = -3.0\n"
XTEKCT = "[XTekCT]\nSrcToObject=100\nSrcToDetector=1000\nProjections=4\nAngularStep=90\n" + "".join(
    f"DetectorPixels{axis}=6\nDetectorPixelSize{axis}=0.1\nVoxels{axis}=4\nVoxelSize{axis}=0.1\n" for axis in "XYZ"
)
TEXTS: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "a.star": (STAR, read_particles),
    "a.xml": (XML, read_particles),
    "a.tbl": (" ".join(["1"] * 35) + "\n" + " ".join(["2"] * 35) + "\n", read_particles),
    "a.tlt": ("-60.0\n-57.0\n0\n", read_tilt_file),
    "a.mdoc": (MDOC, read_mdoc),
    "a.xf": ("1 0 0 1 2.5 3.5\n" * 3, lambda path: read_alignment(path, np.zeros(3), (8, 8))),
    "a.xtekct": (XTEKCT, read_xtekct),
    "a.txt": ("0\n30\n60 # degrees\n", lambda path: given_angles(path, None)),
    "a.csv": ("1.0, 2.0\n3.0, 4.0\n", lambda path: given_array(path, "positions")),
}
PIECES = [
    "nan",
    "-inf",
    "1e999",
    "9" * 30,
    "\0",
    "é",
    "\ufeff",
    "loop_",
    "data_",
    ";",
    '"',
    "<",
    "&a;",
    "]]>",
    "=",
    " ",
    "\n",
]


def _changed(content: bytes, changes: list[tuple[int, bytes, int]]) -> bytes:
    for place, piece, removed in changes:
        at = place % (len(content) + 1)
        content = content[:at] + piece + content[at + removed :]
    return content


def _pieces(binary: bool) -> st.SearchStrategy[Any]:
    piece = (
        st.binary(max_size=6) if binary else st.sampled_from([word.encode() for word in PIECES]) | st.binary(max_size=3)
    )
    return st.lists(st.tuples(st.integers(0, 2000), piece, st.integers(0, 40)), min_size=1, max_size=4)


def _read_or_refused(read: Callable[[Path], Any], path: Path) -> None:
    said = ""
    try:
        read(path)
    except UserError as error:
        said = str(error)
    assert not said or path.name in said
    assert "\n" not in said
    assert len(said) < 1000


@pytest.fixture(scope="module")
def examples(request: pytest.FixtureRequest) -> int:
    return 1000 if request.config.getoption("--slow") else 100


@pytest.mark.parametrize("name", TEXTS)
def test_texts(name, tmp_path, examples):
    content, read = TEXTS[name]
    path = tmp_path / name
    path.write_text(content)
    read(path)

    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=examples < 1000,
        suppress_health_check=list(HealthCheck),
    )
    @given(changes=_pieces(binary=False))
    def feed(changes):
        path.write_bytes(_changed(content.encode(), changes))
        _read_or_refused(read, path)

    feed()


def _em(path: Path) -> None:
    write_em(path, np.arange(24, dtype=np.float32).reshape(2, 3, 4))


@pytest.mark.parametrize("read", [read_particles, lambda path: open_volume(path).source.read()], ids=["list", "volume"])
def test_em(read, tmp_path, examples):
    path = tmp_path / "a.em"
    _em(path)
    content = path.read_bytes()

    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=examples < 1000,
        suppress_health_check=list(HealthCheck),
    )
    @given(changes=_pieces(binary=True))
    def feed(changes):
        path.write_bytes(_changed(content, [(place % 600, piece, len(piece)) for place, piece, _ in changes]))
        _read_or_refused(read, path)

    feed()
