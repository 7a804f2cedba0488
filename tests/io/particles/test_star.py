"""STAR files as tables of text."""

import numpy as np
import pytest

from dtomo.errors import UserError
from dtomo.io.particles.star import StarBlock, parse_star, quoted, star_text, unquoted

TEXT = """
# version 50001

data_general

_rlnTomoSubTomosAre2DStacks   1
_rlnName 'two words'   # a remark


# version 50001

data_optics

loop_
_rlnOpticsGroup #1
_rlnName #2
 1 "a b"

data_
loop_
_x
_y

0.1230000 [1,0,1]

4 ''
data_empty
loop_
_z #1
"""


def test_blocks_labels_and_text():
    general, optics, nameless, empty = parse_star(TEXT, "t.star")
    assert not general.is_loop
    assert general.column("rlnName") == ["two words"]
    assert general.column("rlnTomoSubTomosAre2DStacks") == ["1"]
    assert optics.is_loop
    assert optics.rows == [["1", '"a b"']]
    assert optics.comments == ["# version 50001"]
    assert (nameless.name, nameless.column("x"), nameless.column("y")) == ("", ["0.1230000", "4"], ["[1,0,1]", ""])
    assert (empty.labels, empty.rows) == (["z"], [])
    assert optics.column("nothing") is None


def test_text_comes_back_token_by_token():
    blocks = parse_star(TEXT, "t.star")
    again = parse_star(star_text(blocks), "again")
    assert again == blocks
    assert star_text(again) == star_text(blocks)


@pytest.mark.parametrize(
    "value", ["", "a b", "_a", "#1", "'", '"', "it's", "data_x", "loop_", "1e-5", "[1,2]", 'a"b c']
)
def test_values_that_need_quotes(value):
    block = StarBlock("t", ["first", "second"], [["x", quoted(value)]])
    (again,) = parse_star(star_text([block]), "t")
    assert again.column("second") == [value]
    assert unquoted(quoted(value)) == value


def test_columns_are_put_in_place():
    (block,) = parse_star("data_\nloop_\n_a\n1\n2\n", "t")
    block.put("a", ["5"], [1])
    block.put("b", ["x", "y z"])
    assert block.rows == [["1", "x"], ["5", '"y z"']]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no data_ block"),
        ("hello\n", "line 1: expected data_"),
        ("data_\nloop_\n_a\n_b\n1 2\n3\n", "line 6: 1 values where data_ has 2 labels"),
        ("data_\nloop_\n_a\n_b\n1 2 3\n", "3 values"),
        ("data_\nloop_\n_a\n_a\n1 2\n", "stands twice"),
        ("data_\nloop_\n_a\n1\n_b\n", "after the first row"),
        ("data_\nloop_\n_a\n1\nloop_\n_b\n1\n", "second table"),
        ("data_\n_a\n", "no value"),
        ("data_\n1 2\n", "0 labels"),
    ],
)
def test_what_is_refused(text, words):
    with pytest.raises(UserError, match=words):
        parse_star(text, "t.star")


def test_other_programs_read_what_is_written(tmp_path):
    starfile = pytest.importorskip("starfile", reason="the package starfile is not installed")
    blocks = parse_star(TEXT, "t.star")
    blocks[1].name, blocks[2].name = "optics", "particles"
    (tmp_path / "t.star").write_text(star_text(blocks[1:3]))
    found = starfile.read(tmp_path / "t.star", always_dict=True)
    assert set(found) == {"optics", "particles"}
    np.testing.assert_allclose(found["particles"]["x"], [0.123, 4.0])
