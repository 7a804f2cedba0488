"""A list of particles as such."""

import numpy as np
import pytest

from dtomo.errors import UserError
from dtomo.geometry.wedge import Wedge
from dtomo.io.particles import Particles


def test_what_is_not_given_is_not_known() -> None:
    found = Particles(np.tile(np.eye(3), (4, 1, 1)), np.zeros((4, 3)))
    assert len(found) == 4
    assert found.files == [""] * 4
    assert found.wedges == [None] * 4
    assert np.isnan(found.scores).all()
    assert found.halves.tolist() == [0] * 4


@pytest.mark.parametrize(
    ("more", "words"),
    [({"files": ["a.mrc"]}, "2 particles, but 1 files"), ({"positions": np.zeros((3, 3))}, "but 3 positions")],
)
def test_lists_of_other_lengths_are_refused(more: dict[str, object], words: str) -> None:
    with pytest.raises(UserError, match=words):
        Particles(np.tile(np.eye(3), (2, 1, 1)), np.zeros((2, 3)), **more)  # type: ignore[arg-type]


def test_wedges() -> None:
    assert Wedge() == Wedge(tilt_axis=np.eye(3))
    assert Wedge() != Wedge((-60, 50))
    for wrong in ({"tilts": (-100.0, 60.0)}, {"cutoff": -1.0}, {"tilt_axis": np.ones((3, 3))}):
        with pytest.raises(UserError):
            Wedge(**wrong)  # type: ignore[arg-type]
