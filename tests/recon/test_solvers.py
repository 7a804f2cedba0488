"""Iterative solvers of `dtomo recon`: what a block is solved by, what it takes, and which options go together."""

import tracemalloc

import numpy as np
import pytest

from dtomo import algorithms, recon
from dtomo.errors import UserError
from dtomo.geometry import ParallelBeam
from dtomo.io import create_volume, open_volume
from dtomo.operators import ParallelProjector
from dtomo.recon.given import circle
from dtomo.recon.slab import solve
from dtomo.recon.solvers import NEEDS, Given, solve_block, solver_bytes, state_bytes
from dtomo.settings import ReconSettings
from dtomo.simulate import simulate_scan
from tests import laws

BEAM = ParallelBeam(np.arange(48) * 3.75, 96)


def settings(algorithm, **more):
    if algorithm == "tv" or more.get("prior"):
        more = {"strength": 0.3} | more
    if algorithm in ("mlem", "osem"):
        more = {"values": "integrals"} | more
    return ReconSettings(scan="s.h5", output="o.zarr", algorithm=algorithm, **more)


def projections(slices=12):
    return ParallelProjector(BEAM, slices).arrange(1 + 0.5 * laws.draw((48, slices, 96)))


MORE = [
    ("fista", {"prior": "tv"}), ("fista", {"prior": "tv", "coupled": True}), ("fista", {"prior": "wavelets"}),
    ("fista", {"prior": "nuclear"}), ("tv", {"coupled": True, "data_term": "huber:0.1"}), ("sirt", {"mask": "m.mrc"}),
    ("os-sart", {"mask": "m.mrc", "weights": "photons"}), ("osem", {"mask": "m.mrc"}), ("cgls", {"start": "fbp"}),
    ("tv", {"mask": "circle", "start": "coarse"}), ("sirt", {"held_out": 0.2}),
    ("lsqr", {"weights": "photons", "noise": 0.1}),
    ("fista", {"prior": "tv", "start": "m.mrc", "held_out": 0.1, "weights": "photons"}),
]  # fmt: skip
"""Options that take memory."""


def given(asked, slices=12):
    """What these settings name beside numbers."""
    volume = np.ones((slices, 96, 96), np.float32)
    mask = {None: None, "circle": circle(96, 96)}.get(asked.mask, volume > 0)
    return Given(1.0, mask, volume if asked.start == "m.mrc" else None)


@pytest.mark.parametrize(("algorithm", "more"), [*((name, {}) for name in NEEDS), *MORE], ids=str)
def test_a_block_takes_what_is_planned(algorithm, more):
    data = projections()
    asked = settings(algorithm, iterations=3, nonnegative=algorithm not in ("cgls", "lsqr"), **more)
    operator = ParallelProjector(BEAM, 12)
    solve_block(operator, data, asked, {}, given(asked))  # compiles
    planned = sum(solver_bytes(asked, 12, 96 * 96 * 4, 48 * 96 * 4).values())
    tracemalloc.start()
    try:
        solve_block(operator, data, asked, {}, given(asked))
        taken = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    scratch = 3_000_000  # of kernels and of pieces, whatever the size
    assert 0.6 * planned - scratch < taken < 1.02 * planned + scratch


@pytest.mark.parametrize(("algorithm", "more"), [*((name, {}) for name in NEEDS), *MORE], ids=str)
def test_checkpoints_take_what_is_planned(algorithm, more):
    seen = []

    class Looks:
        def restore(self):
            return None

        def offer(self, state):
            seen.append(sum(part.nbytes for part in state.parts.values() if getattr(part, "ndim", 0) > 1))

    data = projections()
    asked = settings(algorithm, iterations=2, **more)
    solve_block(ParallelProjector(BEAM, 12), data, asked, {"checkpoints": Looks()}, given(asked))
    planned = state_bytes(asked, 12 * 96 * 96 * 4, data.nbytes)
    assert seen == [planned] if asked.held_out is None else 0.7 * planned < seen[0] < 1.01 * planned
    assert state_bytes(settings("fbp"), 1, 1) == 0


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
    counts = np.maximum(data, 0) if algorithm in ("mlem", "osem") else data
    expected = getattr(recon, algorithm.replace("-", "_"))(counts, BEAM, iterations=4, **options)
    assert np.array_equal(volume, expected)


def test_every_option_reaches_the_solver():
    """In the unit of the volume, which is 10 times that of the arrays."""
    data = projections(3) / 100
    disc, volume = circle(96, 96), laws.draw((3, 96, 96))
    cases = [
        ("sirt", {"lower": 0.1, "upper": 2.0, "relaxation": 0.7, "tolerance": 0.5},
         {"lower": 0.01, "upper": 0.2, "relaxation": 0.7, "tolerance": 0.5}),
        ("cgls", {"damping": 2.0, "start": "m.mrc"}, {"damping": 2.0, "initial": volume / 10}),
        ("lsqr", {"damping": 2.0, "noise": 0.01}, {"damping": 2.0, "stop": algorithms.Discrepancy(0.01)}),
        ("fista", {"prior": "wavelets", "strength": 0.02, "mask": "circle"},
         {"prior": algorithms.Wavelets(0.02), "mask": disc}),
        ("fista", {"prior": "tv", "strength": 0.02, "coupled": True, "data_term": "student-t:0.01"},
         {"prior": algorithms.TotalVariation(0.02), "data_term": algorithms.StudentT(0.01)}),
        ("fista", {"prior": "nuclear", "strength": 0.02}, {"prior": algorithms.NuclearNorm(0.02)}),
        ("tv", {"strength": 0.02, "data_term": "huber:0.01", "start": "fbp"},
         {"strength": 0.02, "spacing": (1, 1), "data_term": algorithms.Huber(0.01), "initial": recon.fbp(data, BEAM)}),
        ("os-sart", {"subsets": 4, "held_out": 0.2}, {"subsets": 4, "stop": algorithms.HeldOut(0.2)}),
        ("sirt", {"weights": "photons", "start": "coarse"}, {"weights": np.exp(-data), "coarse": (4, 2)}),
    ]  # fmt: skip
    for algorithm, asked, expected in cases:
        what = settings(algorithm, iterations=4, **asked)
        mask = disc if what.mask else None
        start = volume.copy() if what.start == "m.mrc" else None
        found, _ = solve(data.copy(), BEAM, what, None, Given(10.0, mask, start))
        wanted = getattr(recon, algorithm.replace("-", "_"))(data, BEAM, iterations=4, **expected)
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6 * abs(wanted).max(), err_msg=str(what))
        assert found.std() > 0


def test_a_mask_with_nothing_in_a_block():
    empty = Given(1.0, np.zeros((3, 96, 96), bool))
    found, residuals = solve(projections(3), BEAM, settings("sirt", mask="m.mrc"), None, empty)
    assert not found.any()
    assert found.shape == (3, 96, 96)
    assert residuals == []


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
        ({"algorithm": "sirt", "prior": "tv", "strength": 1.0}, "--prior works with fista, not with sirt"),
        ({"algorithm": "fista", "prior": "tv"}, "--strength"), ({"algorithm": "fista", "strength": 1.0}, "--strength"),
        ({"algorithm": "fista", "prior": "none", "coupled": True}, "--coupled"),
        ({"algorithm": "fista", "prior": "nuclear", "strength": 1.0, "slab": 8}, "--slab"),
        ({"algorithm": "fista", "data_term": "huber"}, "--data-term: must be least-squares, huber:WIDTH"),
        ({"algorithm": "fista", "data_term": "huber:-1"}, "--data-term"),
        ({"algorithm": "tv", "data_term": "student-t:1", "strength": 1.0}, "student-t works with fista"),
        ({"algorithm": "cgls", "data_term": "huber:1"}, "--data-term works with tv and fista"),
        ({"algorithm": "mlem", "values": "integrals", "weights": "photons"}, "--weights works with"),
        ({"algorithm": "sirt", "values": "integrals", "weights": "photons"}, "--weights photons"),
        ({"algorithm": "fbp", "mask": "circle"}, "--mask works with sirt"), ({"algorithm": "cgls", "upper": 1}, "--up"),
        ({"algorithm": "sirt", "nonnegative": True, "lower": -1.0}, "give one of them"),
        ({"algorithm": "sirt", "lower": 2.0, "upper": 1.0}, "--upper 1 lies no higher"),
        ({"algorithm": "sirt", "nonnegative": True, "upper": -1.0}, "--upper"),
        ({"algorithm": "sirt", "relaxation": 2.0}, "--relaxation"), ({"algorithm": "tv", "damping": 1.0}, "--damping"),
        ({"algorithm": "fbp", "start": "coarse"}, "--start"), ({"algorithm": "osem", "start": "fbp"}, "negative"),
        ({"algorithm": "sirt", "tolerance": 1.5}, "--tolerance"), ({"algorithm": "mlem", "noise": 1.0}, "--noise"),
        ({"algorithm": "sirt", "noise": 0.1, "held_out": 0.1}, "two rules"),
        ({"algorithm": "sirt", "held_out": 0.7}, "--held-out"), ({"algorithm": "sirt", "mask": ""}, "--mask"),
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


@pytest.mark.slow
def test_priors_of_the_whole_volume_and_given_volumes(tmp_path):
    """What joins slices is one task; files of another size are refused before anything is touched."""
    path, out = tmp_path / "scan.h5", tmp_path / "a.mrc"
    simulate_scan(path, size=24, rows=8, angles=20, photons=1e4)
    more = {"scan": path, "iterations": 4, "center": 13.9, "workers": 1}
    mask = np.zeros((8, 28, 28), np.float32)
    mask[:, 5:20, 6:22] = 1
    mask[7] = 0
    writer = create_volume(tmp_path / "m.mrc", (8, 28, 28))
    writer.write_slab(0, mask)
    writer.finish()
    recon.run(
        ReconSettings(
            output=out, algorithm="fista", prior="tv", strength=0.01, coupled=True, upper=3.0, mask=tmp_path / "m.mrc",
            memory="2GB", **more,
        ), quiet=True,
    )  # fmt: skip
    made = np.asarray(open_volume(out).array)
    assert made.max() == pytest.approx(3.0)
    assert not made[mask == 0].any()
    for option in ("mask", "start"):
        for file, said in (
            (tmp_path / "none.mrc", "there is no file"),
            (out, "voxels, but the volume has 4 × 14 × 14"),
        ):
            with pytest.raises(UserError, match=said):
                recon.run(
                    ReconSettings(output=tmp_path / "b.mrc", algorithm="sirt", bin=1 + (file == out), rows="0:8",
                                  **{option: file}, **more), quiet=True,
                )  # fmt: skip
    assert not (tmp_path / "b.mrc").exists()


def test_more_subsets_than_views():
    few = ParallelBeam([0.0, 60.0, 120.0], 96)
    found, _ = solve(projections(2)[:3], few, settings("os-sart", iterations=2))
    assert np.array_equal(
        found, algorithms.os_sart(ParallelProjector(few, 2), projections(2)[:3], subsets=3, iterations=2).solution
    )
