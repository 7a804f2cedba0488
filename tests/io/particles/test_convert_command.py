"""``dtomo subtomo convert`` and ``dtomo info``: options reach the readers and writers, refusals are one sentence."""

import numpy as np
import pytest

from dtomo.cli import main
from dtomo.io.particles import Particles, read_particles, write_particles


@pytest.fixture
def listed(tmp_path):
    made = Particles(
        np.tile(np.eye(3), (2, 1, 1)),
        np.array([[1.0, 2, 3], [0, 0, 0]]),
        positions=np.array([[10.0, 20, 30], [40, 50, 60]]),
        tomograms=["t", "t"],
        files=["a.em", "b.em"],
    )
    write_particles(tmp_path / "list.tbl", made)
    return tmp_path / "list.tbl"


def test_options_of_both_sides(listed, tmp_path, capsys):
    words = ["subtomo", "convert", str(listed), str(tmp_path / "new.star")]
    assert (
        main([*words, "--pixel-size", "2.5", "--binning", "2", "--relion", "4", "--particle-names", "box_##.mrc"]) == 0
    )
    said = capsys.readouterr().out
    assert "tdrot, tilt, narot" in said
    text = (tmp_path / "new.star").read_text()
    assert " ".join(text.split()).count("20.000000 40.000000 60.000000") == 1
    assert "box_01.mrc" in text
    found = read_particles(tmp_path / "new.star")
    assert found.shifts[0].tolist() == [1.0, 2.0, 3.0]
    assert found.positions is not None
    assert found.positions.tolist() == [[10.0, 20.0, 30.0], [40.0, 50.0, 60.0]]
    assert (
        main(["subtomo", "convert", str(tmp_path / "new.star"), str(tmp_path / "pytom.xml"), "--pytom-origin-sign"])
        == 0
    )
    assert "+origin" in capsys.readouterr().out
    assert read_particles(tmp_path / "pytom.xml").shifts[0].tolist() == [-1.0, -2.0, -3.0]


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--tomogram-size", "many"], "X,Y,Z"),
        (["--tomogram-size", "1,2,-3"], "positive"),
        (["--pixel-size", "-1"], "pixel size"),
        (["--relion", "7"], "3.1, 4 or 5"),
        (["--frame", "lab"], "frame"),
    ],
)
def test_what_is_refused(more, words, listed, tmp_path, capsys):
    assert main(["subtomo", "convert", str(listed), str(tmp_path / "new.star"), *more]) == 2
    said = capsys.readouterr().err
    assert words in said
    assert said.count("\n") == 1
    assert not (tmp_path / "new.star").exists()


def test_outputs_are_not_replaced_unasked(listed, tmp_path, capsys):
    assert main(["subtomo", "convert", str(listed), str(listed), "--overwrite"]) == 2
    assert "the list that is read" in capsys.readouterr().err
    words = ["subtomo", "convert", str(listed), str(tmp_path / "new.xml")]
    assert main([*words, "--quiet"]) == 0
    assert capsys.readouterr().out == ""
    assert main(words) == 2
    assert main([*words, "--overwrite"]) == 0
    assert main(["subtomo", "convert", str(listed), str(tmp_path / "new.csv")]) == 2


def test_info(listed, capsys):
    assert main(["info", str(listed)]) == 0
    said = capsys.readouterr().out
    assert "particle list (Dynamo table)" in said
    assert "10, 20, 30 to 40, 50, 60 voxels (x, y, z)" in said
    assert "voxel size" in said.split("missing")[1]
    listed.write_text("1 2 3\n")
    assert main(["info", str(listed)]) == 2
    assert "26" in capsys.readouterr().err
