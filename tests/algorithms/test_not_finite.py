"""Values that are not finite: what they spoil is refused, or said by NaN."""

from functools import partial

import numpy as np
import pytest

from dtomo.algorithms import cgls, fista, lsqr, os_sart, sirt, tv
from dtomo.errors import UserError
from dtomo.geometry import ParallelBeam, cone_beam
from dtomo.operators import ParallelProjector, RayProjector

CONE = cone_beam(np.arange(0, 360, 30), 10, 12, source_axis=40, source_detector=60, shape=(6, 6, 6))


@pytest.mark.parametrize("solver", [sirt, cgls, lsqr, os_sart, fista, partial(tv, strength=0.1)])
@pytest.mark.parametrize("masked", [False, True])
def test_one_value_that_is_not_finite_and_spoils_a_whole_volume_is_refused(solver, masked):
    """It was an empty volume that had met its tolerance."""
    operator = RayProjector(CONE)
    data = operator.forward(np.ones(CONE.shape, np.float32))
    mask = np.ones(CONE.shape, bool) if masked else None
    spoilt, weights = data.copy(), np.ones_like(data)
    spoilt[3, 4, 5], weights[3, 4, 5] = np.nan, 0
    with pytest.raises(UserError, match=r"not finite.*weight 0"):
        solver(operator, spoilt, iterations=2, mask=mask)
    with pytest.raises(UserError, match="starting point"):
        solver(operator, data, iterations=2, mask=mask, initial=np.full(CONE.shape, np.nan, np.float32))
    assert np.isfinite(solver(operator, spoilt, iterations=2, mask=mask, weights=weights).solution).all()


@pytest.mark.parametrize("solver", [sirt, cgls, lsqr, os_sart, fista])
def test_a_slice_among_others_that_has_such_a_value_is_no_number(solver):
    operator = ParallelProjector(ParallelBeam(np.arange(12) * 15.0, 9, 4.0), 3)
    data = operator.forward(np.ones(operator.shape_in, np.float32))
    spoilt = data.copy()
    spoilt[2, 1, 3] = np.nan
    found, clean = solver(operator, spoilt, iterations=3).solution, solver(operator, data, iterations=3).solution
    assert np.isnan(found[1]).all()
    np.testing.assert_array_equal(found[[0, 2]], clean[[0, 2]])
