"""What a scan is before it is reconstructed: phase retrieval beside a crop, plans and searches of absurd sizes."""

import dataclasses
import time
import tracemalloc

import h5py
import numpy as np
import pytest

from dtomo.errors import UserError
from dtomo.io import ArraySource
from dtomo.recon import cost
from dtomo.recon.prepare import PHASE_BAND, line_integrals
from dtomo.recon.scans import LEAST_VIEWS, SEARCH_BYTES, estimate_axis, geometry_of, open_scan, views_searched
from dtomo.settings import ReconSettings
from dtomo.simulate import simulate_scan

PHASE = {"delta_beta": 400, "energy": 20, "distance": 100, "pixel_size": 2.0}


@pytest.fixture(scope="module")
def tall(tmp_path_factory):
    path = tmp_path_factory.mktemp("tall") / "scan.h5"
    simulate_scan(path, size=48, rows=90, angles=12, center=28.0, photons=1e5)
    return path


@pytest.mark.parametrize(("columns", "bin"), [((5, 40), 1), ((5, 40), 3), ((16, None), 2)])
def test_phase_retrieval_of_cropped_columns_is_that_of_the_whole(tall, columns, bin):
    """The filter sees what lies beside the crop; stripes are left, because their removal looks at all columns."""
    same = {"scan": tall, "output": "o.zarr", "bin": bin, "rows": (20, 60), "stripes": "none", **PHASE}
    settings = ReconSettings(columns=(columns[0] % bin, None), **same)
    whole, _ = line_integrals(open_scan(settings), settings, slice(0, 40 // bin))
    settings = ReconSettings(columns=columns, **same)
    opened = open_scan(settings)
    part, report = line_integrals(opened, settings, slice(0, 40 // bin))
    first = columns[0] // bin
    assert np.array_equal(part, whole[:, :, first : first + opened.shape[2]])
    assert report.pixels == opened.shape[1] * opened.shape[2]


def test_the_plan_of_cropped_phase_retrieval_counts_whole_rows(tall):
    plans = {}
    for columns in (None, "10:20"):
        settings = ReconSettings(scan=tall, output="o.zarr", center=15.0, columns=columns, **PHASE)
        opened = open_scan(settings)
        plans[columns] = cost.make_plan(opened, settings, geometry_of(opened, 5.0, False), cost.Resources(1, 1, 10**10))
    assert plans["10:20"].bytes_read == plans[None].bytes_read
    assert plans["10:20"].worker_parts["projections"] > 2 * PHASE_BAND * 12 * opened.projection_source.shape[2] * 4


def _declared(path, shape):
    """A file that declares a huge scan and holds none of it."""
    with h5py.File(path, "w") as file:
        file.create_dataset("/exchange/data", shape, "u2", chunks=(1, 64, 1024), fillvalue=500)
        for name, value in (("data_white", 1000), ("data_dark", 0)):
            file.create_dataset(f"/exchange/{name}", (1, *shape[1:]), "u2", chunks=(1, 64, 1024), fillvalue=value)
        file["/exchange/theta"] = np.arange(shape[0]) * 180.0 / shape[0]
        file["/exchange/theta"].attrs["units"] = "degrees"
    return path


@pytest.mark.parametrize("phase", [{}, PHASE])
def test_the_plan_of_a_million_rows_takes_no_time_and_no_memory(tmp_path, phase):
    settings = ReconSettings(scan=_declared(tmp_path / "s.h5", (8, 10**6, 10**6)), output="o.zarr", **phase)
    opened = open_scan(settings)
    tracemalloc.start()
    started = time.process_time()
    plan = cost.make_plan(opened, settings, geometry_of(opened, 5e5, False), cost.Resources(2, 1, 10**9))
    assert time.process_time() - started < 2
    assert tracemalloc.get_traced_memory()[1] < 20e6
    tracemalloc.stop()
    assert not plan.fits
    assert len(plan.slabs) == 10**6
    assert plan.slabs[-1].stop == 10**6
    assert plan.lines()


def test_the_axis_of_wider_rows_than_any_detector_is_asked_for(tmp_path):
    settings = ReconSettings(scan=_declared(tmp_path / "s.h5", (8, 64, 10**6)), output="o.zarr")
    with pytest.raises(UserError, match=r"1000000 columns, too many to find the axis.*--center"):
        estimate_axis(open_scan(settings), settings)


@pytest.mark.parametrize(
    ("angles", "columns", "step"),
    [(60, 56, 1), (4000, 8192, 1), (16384, 8192, 4), (16383, 8192, 43), (30_000, 2**18, 240)],
)
def test_projections_searched_for_the_axis_take_bounded_memory(tall, angles, columns, step):
    """Every step-th; one that divides their number is preferred up to twice the step that is needed."""
    source = ArraySource(np.broadcast_to(np.float32(0), (angles, 2, columns)))
    huge = dataclasses.replace(
        open_scan(ReconSettings(scan=tall, output="o.zarr")),
        projection_source=source, flat_source=None, dark_source=None, window=None,
        angles=np.arange(angles) * 180 / angles,
    )  # fmt: skip
    chosen = views_searched(huge)
    count = len(range(*chosen.indices(angles)))
    assert count * columns * 4 <= max(SEARCH_BYTES, LEAST_VIEWS * columns * 4)
    if angles != 16383:
        assert chosen.step == step
        assert angles % chosen.step == 0
