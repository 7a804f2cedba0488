"""C22: tables of one row, labels without numbers, blank lines, several blocks, optics groups."""

import numpy as np
import pytest

from dtomo.io.particles import read_particles, write_particles
from dtomo.io.particles.star import parse_star, star_text

TEXT = """data_optics
loop_
_rlnOpticsGroup
_rlnOpticsGroupName
_rlnImagePixelSize

1 opticsGroup1 2.388000

data_more
_rlnVoltage 300
data_particles

loop_
_rlnCoordinateX
_rlnCoordinateY
_rlnCoordinateZ
_rlnOriginXAngst
_rlnOpticsGroup

10.0 20.0 30.0 4.776 1

"""


def test_a_loop_of_one_row_stays_one(tmp_path):
    path = tmp_path / "one.star"
    path.write_text(TEXT)
    blocks = parse_star(TEXT, "one.star")
    assert [(block.name, block.is_loop, len(block.rows)) for block in blocks] == [
        ("optics", True, 1),
        ("more", False, 1),
        ("particles", True, 1),
    ]
    again = parse_star(star_text(blocks), "again")
    assert again == blocks
    assert star_text(blocks).count("loop_") == 2
    found = read_particles(path)
    assert found.shifts.tolist() == [[-2.0, 0.0, 0.0]]
    moved = found.selected([0])
    moved.shifts[0] = [1.0, 0.0, 0.0]
    write_particles(tmp_path / "new.star", moved)
    new = parse_star((tmp_path / "new.star").read_text(), "new")
    assert [(block.name, block.is_loop) for block in new] == [("optics", True), ("more", False), ("particles", True)]
    assert new[:2] == blocks[:2]


def test_optics_groups_of_two_pixel_sizes(tmp_path):
    path = tmp_path / "two.star"
    text = TEXT.replace("2.388000\n", "2.388000\n7 other 4.776\n").replace("4.776 1\n", "4.776 1\n1 2 3 4.776 7\n")
    path.write_text(text)
    found = read_particles(path)
    assert found.voxel_sizes.tolist() == [2.388, 4.776]
    np.testing.assert_allclose(found.shifts[:, 0], [-2.0, -1.0])
    write_particles(tmp_path / "same.star", found)
    assert (tmp_path / "same.star").read_text() == text


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
@pytest.mark.parametrize("numbered", [True, False])
def test_ways_of_writing_the_same_table(ending, numbered, tmp_path):
    lines = TEXT.splitlines()
    if numbered:
        lines = [
            f"{line} #{n}" if line.startswith("_rln") and "300" not in line else line for n, line in enumerate(lines)
        ]
    (tmp_path / "t.star").write_bytes((ending.join(lines) + ending).encode())
    found = read_particles(tmp_path / "t.star")
    assert found.positions is not None
    assert found.positions.tolist() == [[10.0, 20.0, 30.0]]
    assert found.voxel_sizes.tolist() == [2.388]


def test_the_package_starfile_reads_the_same(tmp_path):
    starfile = pytest.importorskip("starfile", reason="the package starfile is not installed")
    (tmp_path / "t.star").write_text(star_text(parse_star(TEXT, "t")))
    found = starfile.read(tmp_path / "t.star", always_dict=True)
    assert found["particles"]["rlnOriginXAngst"].tolist() == [4.776]
    assert found["optics"]["rlnImagePixelSize"].tolist() == [2.388]
