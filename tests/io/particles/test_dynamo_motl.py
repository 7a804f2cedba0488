"""Dynamo's tables and AV3's motive lists."""

import dataclasses

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from dtomo.errors import UserError
from dtomo.geometry.wedge import Wedge
from dtomo.io.em import EmHeader, read_em, write_em
from dtomo.io.particles import Particles, read_particles, recognise_particles, what_is_lost, write_particles
from dtomo.io.particles.angles import to_matrices

LINE = "7 1 1 0.5 -1 2.25 10 20 30 0.125 0.1 0 1 -60 52 0 0 0 0 3 1 2 0 100 200 300.5 0 0 0 0 7 1 0 0 0 2.74 0"
OTHER = "12 0 1 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 4 1 0 0 1 2 3 0 0 0 0 7 1 0 0 0 2.74 9.50000"


def test_a_table(tmp_path):
    path = tmp_path / "crop.tbl"
    path.write_text(f"{LINE}\n{OTHER}\n")
    found = read_particles(path)
    np.testing.assert_allclose(found.rotations[0], to_matrices([10, 20, 30], "dynamo"), atol=1e-14)
    assert found.shifts[0].tolist() == [0.5, -1.0, 2.25]
    assert found.positions is not None
    assert found.positions[0].tolist() == [100.0, 200.0, 300.5]
    assert found.files == ["particle_00007.em", "particle_00012.em"]
    assert found.wedges == [Wedge((-60.0, 52.0)), None]
    assert (found.tomograms, found.classes) == (["3", "4"], ["2", ""])
    assert found.scores[0] == 0.125
    assert found.voxel_sizes.tolist() == [2.74, 2.74]
    assert read_particles(path, particle_names="box_###.mrc").files[1] == "box_012.mrc"
    write_particles(tmp_path / "same.tbl", found)
    assert (tmp_path / "same.tbl").read_bytes() == path.read_bytes()
    turned = dataclasses.replace(found, rotations=np.stack([found.rotations[0], np.eye(3)[[1, 2, 0]]]))
    write_particles(tmp_path / "new.tbl", turned)
    first, second = (tmp_path / "new.tbl").read_text().splitlines()
    assert first == LINE
    assert second.split()[-1] == "9.50000"
    np.testing.assert_allclose(read_particles(tmp_path / "new.tbl").rotations, turned.rotations, atol=1e-7)
    assert read_particles(path).selected([1]).files == ["particle_00012.em"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("1 2 3\n", "26"),
        (LINE + "\n" + OTHER[:-9] + "\n", "36, 37"),
        (LINE.replace("20", "x"), "not a Dynamo table"),
        (LINE.replace(" 20 ", " nan "), "finite"),
        (LINE.replace(" 20 ", " 1e999 "), "finite"),
        (LINE.replace("-60", "-200"), "tilts"),
        ("\xff\xfe", "plain text"),
    ],
)
def test_tables_that_are_refused(text, words, tmp_path):
    (tmp_path / "bad.tbl").write_text(text, "latin-1")
    with pytest.raises(UserError, match=words) as caught:
        read_particles(tmp_path / "bad.tbl")
    assert "\n" not in str(caught.value)


def _motl(order: str, dtype: str = "float32") -> tuple[np.ndarray, EmHeader, str]:
    values = np.zeros((3, 20))
    values[:, 0] = [0.5, 0.25, 0]
    values[:, 3:5] = [[1, 2], [2, 2], [3, 9]]
    values[:, 5:7] = 77
    values[:, 7:13] = np.arange(18).reshape(3, 6) + 0.5
    values[:, 13:16] = 3
    values[:, 16:19] = [[10, -20, 30], [0, 0, 0], [50, 60, 170]]
    values[:, 19] = [1, 2, 0]
    return values[None].astype(dtype), EmHeader(comment=b"motl".ljust(80)), order


@pytest.mark.parametrize(("order", "dtype"), [("<", "float32"), (">", "float32"), ("<", "float64")])
def test_a_motive_list(order, dtype, tmp_path):
    values, header, _ = _motl(order, dtype)
    write_em(tmp_path / "motl.em", values, header, order=order)
    assert recognise_particles(tmp_path / "motl.em") == "motl"
    found = read_particles(tmp_path / "motl.em", pixel_size=4.0)
    turn = Rotation.from_euler("zxz", [10, 30, -20], degrees=True).as_matrix()
    np.testing.assert_allclose(found.rotations[0], turn, atol=1e-12)
    assert found.positions is not None
    assert found.positions[0].tolist() == [-0.5, 0.5, 1.5]
    assert found.shifts[0].tolist() == [3.5, 4.5, 5.5]
    assert (found.tomograms, found.classes, found.files) == (["2", "2", "9"], ["1", "2", ""], ["", "", ""])
    assert read_particles(tmp_path / "motl.em", particle_names="p_#.em").files == ["p_1.em", "p_2.em", "p_3.em"]
    write_particles(tmp_path / "same.em", found)
    assert (tmp_path / "same.em").read_bytes() == (tmp_path / "motl.em").read_bytes()
    step = np.array([[0, 0, 0], [1, 0, 0], [0, 0, 0]])
    moved = dataclasses.replace(found, shifts=found.shifts + step).selected([2, 1])
    write_particles(tmp_path / "new.em", moved)
    new, kept = read_em(tmp_path / "new.em")
    assert (new.dtype, kept) == (dtype, header)
    np.testing.assert_array_equal(new[0, 0], values[0, 2])
    np.testing.assert_array_equal(new[0, 1] - values[0, 1], np.eye(20)[10])


def test_other_em_files_are_no_motive_lists(tmp_path):
    write_em(tmp_path / "v.em", np.zeros((4, 20, 20), np.float32))
    assert recognise_particles(tmp_path / "v.em") is None
    with pytest.raises(UserError, match="20 × particles"):
        read_particles(tmp_path / "v.em")
    values, _, _ = _motl("<")
    values[0, 1, 16] = np.nan
    write_em(tmp_path / "nan.em", values)
    with pytest.raises(UserError, match="finite"):
        read_particles(tmp_path / "nan.em")
    (tmp_path / "short.em").write_bytes(b"\6\0\0\5")
    assert recognise_particles(tmp_path / "short.em") is None
    with pytest.raises(UserError, match="truncated"):
        read_particles(tmp_path / "short.em")


def test_what_the_formats_have_no_place_for(tmp_path):
    made = Particles(
        np.eye(3)[None],
        np.zeros((1, 3)),
        files=["a.mrc"],
        tomograms=["first"],
        wedges=[Wedge()],
        halves=np.array([1], np.int8),
        voxel_sizes=np.array([2.0]),
    )
    assert what_is_lost(made, "dynamo") == ("names of files", "halves")
    assert what_is_lost(made, "motl") == ("names of files", "halves", "missing wedges", "pixel sizes")
    assert what_is_lost(made, "pytom") == ("pixel sizes",)
    for suffix in (".tbl", ".em"):
        write_particles(tmp_path / f"a{suffix}", made)
        assert read_particles(tmp_path / f"a{suffix}").tomograms == ["1"]
    with pytest.raises(UserError, match="at least one particle"):
        write_particles(tmp_path / "none.em", Particles(np.zeros((0, 3, 3)), np.zeros((0, 3))))
