"""Projectors cut into slabs: adjoint, equal to the whole, and solvers that do not notice."""

import itertools
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dtomo import algorithms
from dtomo.distributed.together import run_here
from dtomo.errors import UserError
from dtomo.geometry import VectorGeometry, cone_beam, fan_beam, laminography, tilt_series
from dtomo.operators import Differences, Peers, RayProjector, SlabLayout, SlabProjector, even_slabs
from dtomo.operators.slabs import SlabDifferences, rows_reached
from tests import laws

ANGLES = np.arange(0, 360, 20)
SHAPE = (13, 12, 11)
BEAM = {"source_axis": 60, "source_detector": 90, "pixel": 1.7, "shape": SHAPE, "voxel": (1.0, 1.1, 1.2)}
GEOMETRIES = {
    "cone": cone_beam(ANGLES, 19, 16, **BEAM),
    "fan": fan_beam(ANGLES, 15, source_axis=60, source_detector=90, pixel=1.6, slices=9),
    "helix": cone_beam(np.arange(-450, 451, 15.0), 8, 16, rise=6, **BEAM),
    "laminography": laminography(ANGLES, 16, 17, tilt=30, shape=SHAPE),
    "tilt series": tilt_series(np.arange(-60, 61, 10), 14, 15, shape=SHAPE, axis_angle=8),
}
SOLVERS: dict[str, dict[str, Any]] = {
    "sirt": {"lower": 0.0},
    "cgls": {"iterations": 5, "damping": 0.1},
    "lsqr": {"iterations": 5, "damping": 0.1},
    "os_sart": {"subsets": 3, "iterations": 3},
    "mlem": {},
    "osem": {"subsets": 3, "iterations": 3},
    "tv": {"strength": 0.1, "iterations": 10},
    "fista": {"prior": algorithms.TotalVariation(0.1, spacing=(1.0, 1.1, 1.2)), "lower": 0.0},
}


def layout_of(geometry: VectorGeometry, slabs: int) -> SlabLayout:
    return SlabLayout.of(geometry, even_slabs(geometry.shape[0], slabs))


def cut(layout: SlabLayout, peers: Peers, volume: NDArray[Any], data: NDArray[Any]) -> tuple[Any, Any]:
    """What a party has of both."""
    return volume[slice(*layout.slabs[peers.number])], data[:, slice(*layout.rows[peers.number])]


def together(layout: SlabLayout, parts: list[NDArray[Any]]) -> NDArray[Any]:
    """Projections of all parties."""
    order = np.argsort([first for first, _ in layout.rows])
    return np.concatenate([parts[place] for place in order], 1)


@pytest.mark.parametrize("slabs", [2, 3])
@pytest.mark.parametrize("name", GEOMETRIES)
def test_slabs_project_as_the_whole_does(name: str, slabs: int) -> None:
    geometry = GEOMETRIES[name]
    layout, whole = layout_of(geometry, slabs), RayProjector(geometry)
    x, y = laws.draw(whole.shape_in), laws.draw(whole.shape_out)

    def both(peers: Peers) -> tuple[Any, Any, float, float]:
        operator = SlabProjector(layout, peers)
        volume, data = cut(layout, peers, x, y)
        image, back = operator.forward(volume), operator.adjoint(data)
        return image, back, operator.dot_out(image, data).item(), operator.dot_in(volume, back).item()

    found = run_here(both, slabs)
    image, back = together(layout, [part[0] for part in found]), np.concatenate([part[1] for part in found])
    for one, two in ((image, whole.forward(x)), (back, whole.adjoint(y))):
        assert np.abs(one - two).max() <= 1e-5 * np.abs(two).max()
    assert {part[2:] for part in found} == {found[0][2:]}, "a sum over slabs is not the same for all"
    assert found[0][2] == pytest.approx(found[0][3], rel=1e-5)


@pytest.mark.parametrize("name", ["cone", "laminography"])
@pytest.mark.parametrize("solver", SOLVERS)
def test_solvers_do_not_notice_slabs(name: str, solver: str) -> None:
    geometry = GEOMETRIES[name]
    body = np.zeros(geometry.shape, np.float32)
    body[3:10, 2:9, 3:8] = 1
    body[5:7, 4:6] = 2
    data = RayProjector(geometry).forward(body)
    mask = np.ones(geometry.shape, bool)
    mask[:5, :, 9:] = False  # nothing of it in the last slabs
    options = {"iterations": 6, "mask": mask} | SOLVERS[solver]

    def solved(slabs: int) -> NDArray[Any]:
        layout = layout_of(geometry, slabs)

        def work(peers: Peers) -> NDArray[Any]:
            inside, rows = cut(layout, peers, options["mask"], data)
            operator = SlabProjector(layout, peers)
            found = getattr(algorithms, solver)(operator, rows, **options | {"mask": inside})
            return np.asarray(found.solution)

        return np.concatenate(run_here(work, slabs))

    whole = getattr(algorithms, solver)(RayProjector(geometry), data, **options).solution
    for slabs in (1, 2, 4):
        assert np.abs(solved(slabs) - whole).max() <= 1e-5 * np.abs(whole).max()


def test_few_rows_reach_a_slab() -> None:
    geometry = cone_beam(ANGLES, 48, 16, **BEAM | {"shape": (24, 12, 11)})
    rows = rows_reached(geometry, (0, 6))
    assert (rows[:, 1] - rows[:, 0]).max() < 24
    rows = rows_reached(GEOMETRIES["helix"], (0, 3))
    assert (rows[-1] == 0).all()
    assert (rows[:, 1] > 0).any()
    behind = cone_beam(ANGLES, 9, 9, source_axis=8.5, source_detector=20, pixel=1.0, shape=SHAPE, voxel=1.0)
    assert (rows_reached(behind, (6, 7)) == (0, 9)).all()


@pytest.mark.parametrize("isotropic", [True, False])
@pytest.mark.parametrize("ends", [(0, 13), (0, 4, 5, 13)])
def test_differences_go_on_in_the_next_slab(ends: tuple[int, ...], isotropic: bool) -> None:
    spacing, slabs = (0.5, 1.0, 2.0), list(itertools.pairwise(ends))
    whole = Differences(SHAPE, spacing)
    x, field, ahead = laws.draw(SHAPE), laws.draw((3, *SHAPE)), laws.draw((3, *SHAPE))
    step: dict[str, Any] = {"step": 0.3, "limit": 0.4, "momentum": 0.2, "isotropic": isotropic}

    def work(peers: Peers) -> tuple[Any, ...]:
        here = slice(*slabs[peers.number])
        part = SlabDifferences(x[here].shape, spacing, np.float32, peers)
        fields = [values[:, here].copy() for values in (field, ahead)]
        return part.forward(x[here]), part.adjoint(fields[0]), *part.ascend(*fields, x[here], **step)

    found = list(zip(*run_here(work, len(slabs))))
    expected = whole.forward(x), whole.adjoint(field), *whole.ascend(field.copy(), ahead.copy(), x, **step)
    for number, (parts, one) in enumerate(zip(found, expected)):
        assert np.abs(np.concatenate(parts, 0 if number == 1 else 1) - one).max() <= 1e-6


def test_slabs_that_are_not_the_volume_are_refused() -> None:
    geometry = GEOMETRIES["cone"]
    for wrong in ([(0, 5), (6, 13)], [(0, 12)], [], [(0, 5), (5, 5), (5, 13)]):
        with pytest.raises(UserError, match="follow one another"):
            SlabLayout.of(geometry, wrong)
    with pytest.raises(UserError, match="thicker slabs"):
        SlabLayout.of(GEOMETRIES["helix"], even_slabs(13, 9))
    with pytest.raises(UserError, match="as many peers"):
        run_here(lambda peers: SlabProjector(layout_of(geometry, 3), peers), 2)
    with pytest.raises(UserError, match="coarser"):
        run_here(lambda peers: SlabProjector(layout_of(geometry, 2), peers).coarser(2), 2)


def test_peers_know_what_all_have() -> None:
    """In the order of their numbers, so that sums have the same bits everywhere."""
    assert run_here(lambda peers: peers.gathered(peers.number), 4) == [[0, 1, 2, 3]] * 4
    layout = layout_of(GEOMETRIES["cone"], 3)
    found = run_here(lambda peers: SlabProjector(layout, peers).largest(1.0 + peers.number % 2), 3)
    assert found == [2.0] * 3


def test_rows_lie_with_the_slabs_that_they_see() -> None:
    """Whichever way the rows run."""
    g = GEOMETRIES["laminography"]
    other = g.replace(row_step=-g.row_step)
    for geometry in (g, other):
        layout = layout_of(geometry, 2)
        seen = [rows_reached(geometry, slab).mean() for slab in layout.slabs]
        own = [sum(rows) / 2 for rows in layout.rows]
        assert (seen[0] < seen[1]) == (own[0] < own[1])
