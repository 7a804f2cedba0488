"""Iterative solvers of `dtomo recon`: what a block is solved by, what it takes, and which options go together."""

import tracemalloc

import numpy as np
import pytest

from dtomo import algorithms, recon
from dtomo.errors import UserError
from dtomo.geometry import ParallelBeam
from dtomo.io import open_volume
from dtomo.operators import ParallelProjector
from dtomo.recon.slab import solve
from dtomo.recon.solvers import NEEDS, solve_block, solver_bytes, state_bytes
from dtomo.settings import ReconSettings
from dtomo.simulate import simulate_scan
from tests import laws

BEAM = ParallelBeam(np.arange(48) * 3.75, 96)


def settings(algorithm, **more):
    if algorithm == "tv":
        more = {"strength": 0.3} | more
    if algorithm in ("mlem", "osem"):
        more = {"values": "integrals"} | more
    return ReconSettings(scan="s.h5", output="o.zarr", algorithm=algorithm, **more)


def projections(slices=12):
    return ParallelProjector(BEAM, slices).arrange(1 + 0.5 * laws.draw((48, slices, 96)))


@pytest.mark.parametrize("algorithm", NEEDS)
def test_a_block_takes_what_is_planned(algorithm):
    data, asked = projections(), settings(algorithm, iterations=3, nonnegative=algorithm not in ("cgls", "lsqr"))
    operator = ParallelProjector(BEAM, 12)
    solve_block(operator, data, asked, {})  # compiles
    planned = sum(solver_bytes(asked, 12, 96 * 96 * 4, 48 * 96 * 4).values())
    tracemalloc.start()
    try:
        solve_block(operator, data, asked, {})
        taken = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    scratch = 3_000_000  # of kernels and of pieces, whatever the size
    assert 0.6 * planned - scratch < taken < 1.02 * planned + scratch


@pytest.mark.parametrize("algorithm", NEEDS)
def test_checkpoints_take_what_is_planned(algorithm):
    seen = []

    class Looks:
        def restore(self):
            return None

        def offer(self, state):
            seen.append(sum(part.nbytes for part in state.parts.values() if getattr(part, "ndim", 0) > 1))

    data = projections()
    solve_block(ParallelProjector(BEAM, 12), data, settings(algorithm, iterations=2), {"checkpoints": Looks()})
    assert seen == [state_bytes(algorithm, 12 * 96 * 96 * 4, data.nbytes)]
    assert state_bytes("fbp", 1, 1) == 0


@pytest.mark.parametrize("algorithm", NEEDS)
def test_a_block_is_solved_as_arrays_are(algorithm):
    data = projections(3)
    data[4, :, 7] = -1
    more = {"nonnegative": True} if algorithm not in ("cgls", "lsqr", "mlem", "osem") else {}
    volume, residuals = solve(data.copy(), BEAM, settings(algorithm, iterations=4, **more))
    assert len(residuals) == 3
    options = {"lower": 0.0} if more else {}
    if algorithm == "tv":
        options |= {"strength": 0.3, "spacing": (1.0, 1.0)}
    given = np.maximum(data, 0) if algorithm in ("mlem", "osem") else data
    expected = getattr(recon, algorithm.replace("-", "_"))(given, BEAM, iterations=4, **options)
    assert np.array_equal(volume, expected)


def test_iterations_by_default():
    assert [settings(name).iterations for name in ("sirt", "tv", "mlem", "os-sart")] == [20, 200, 50, 10]
    assert settings("tv", iterations=7).iterations == 7


def test_a_file_keeps_its_iterations(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("scan: scan.h5\noutput: out.zarr\niterations: 33\n")
    assert ReconSettings.read(path, algorithm="os-sart").iterations == 33


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"algorithm": "tv"}, "--strength"), ({"algorithm": "sirt", "strength": 1.0}, "--algorithm tv"),
        ({"algorithm": "tv", "strength": -1.0}, "--strength"), ({"algorithm": "sirt", "subsets": 5}, "--subsets"),
        ({"algorithm": "lsqr", "nonnegative": True}, "--nonnegative"),
        ({"algorithm": "mlem", "values": "counts"}, "for emission"), ({"algorithm": "osem", "subsets": 0}, "--subsets"),
    ],
    ids=str,
)  # fmt: skip
def test_options_that_do_not_go_together(options, said):
    with pytest.raises(UserError, match=said):
        ReconSettings(scan="s.h5", output="o.zarr", **options)


def test_from_disk_to_disk(tmp_path):
    """Total variation of each slice by itself; likelihood of what is no emission is refused before anything is done."""
    path = tmp_path / "scan.h5"
    simulate_scan(path, size=40, rows=20, angles=30, photons=1e4)
    made = {}
    for slab in (20, 8):
        out = tmp_path / f"{slab}.mrc"
        recon.run(
            ReconSettings(
                scan=path, output=out, algorithm="tv", strength=0.05, nonnegative=True, iterations=15, center=23.9,
                workers=1, slab=slab,
            ),
            quiet=True,
        )  # fmt: skip
        made[slab] = np.asarray(open_volume(out).array)
    assert made[20].min() == 0
    assert made[20].std() > 0
    assert np.array_equal(made[20], made[8])
    with pytest.raises(UserError, match="for emission"):
        recon.run(ReconSettings(scan=path, output=tmp_path / "m.mrc", algorithm="mlem", center=23.9), quiet=True)
    assert not (tmp_path / "m.mrc").exists()


def test_more_subsets_than_views():
    few = ParallelBeam([0.0, 60.0, 120.0], 96)
    found, _ = solve(projections(2)[:3], few, settings("os-sart", iterations=2))
    assert np.array_equal(
        found, algorithms.os_sart(ParallelProjector(few, 2), projections(2)[:3], subsets=3, iterations=2).solution
    )
