"""Averages of device arrays against those on the CPU, which `tests/subtomo` holds against the truth."""

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from dtomo.distributed.sums import tree_sum
from dtomo.geometry.wedge import Wedge
from dtomo.subtomo.averaging import average, half_sums
from dtomo.subtomo.filters import low_pass
from tests import laws

SIZE = 6
TURNS = Rotation.random(2, random_state=3).as_matrix()


@pytest.mark.parametrize("weights", [None, Wedge((-50, 40)), "squares"], ids=["all", "wedge", "ctf"])
def test_the_same_as_on_the_cpu(cupy, weights):
    boxes = [laws.draw((SIZE,) * 3, np.float32, seed) for seed in (1, 2)]
    if isinstance(weights, str):
        weights = np.abs(laws.draw((SIZE, SIZE, SIZE // 2 + 1), np.float32, 3))
    shifts = np.random.default_rng(5).uniform(-1, 1, (2, 3))
    options = {"rotations": TURNS, "shifts": shifts, "weights": [weights] * 2, "halves": [1, 2], "size": SIZE}
    here = half_sums(boxes, **options)
    there = half_sums([cupy.asarray(box) for box in boxes], xp=cupy, **options)
    for half in ("1", "2"):
        for name in ("data", "weights"):
            assert isinstance(there[half][name], cupy.ndarray)
            np.testing.assert_allclose(there[half][name].get(), here[half][name], atol=1e-4)
    found = average(tree_sum(list(there.values())))
    assert isinstance(found, cupy.ndarray)
    np.testing.assert_allclose(found.get(), average(tree_sum(list(here.values()))), atol=1e-4)
    np.testing.assert_allclose(low_pass(found, 4.0, 1.0).get(), low_pass(found.get(), 4.0, 1.0), atol=1e-5)
    if weights is None:
        turned_round = Rotation.from_rotvec([[0, 0, 0], [0, 0, np.pi]]).as_matrix()
        both = average(there["1"], turned_round)
        np.testing.assert_allclose(both.get(), average(here["1"], turned_round), atol=1e-4)
