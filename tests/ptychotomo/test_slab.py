"""A pass over one slab: what it shows, what it gives back to whom, and bits that depend on sizes alone."""

from typing import Any

import numpy as np
import pytest

from dtomo.ptycho.frame_store import FrameStore
from dtomo.ptychotomo import slab as slabs
from dtomo.threads import using_threads
from tests.ptychotomo.exact import Gradients, exact_scene
from tests.ptychotomo.scenes import Scene

ANGLES = np.arange(4)


@pytest.fixture(scope="module")
def given() -> Scene:
    return exact_scene(modes=2)


class Slabs:
    """Three slabs of a scene, each ready for a pass."""

    def __init__(self, given: Scene, names: tuple[str, ...] = ("images",), planes: int = 0) -> None:
        self.layout = given.layout(10, 2)
        self.engine = Gradients(model=given.model, names=names)
        object.__setattr__(self.engine, "planes", planes)
        self.common = self.engine.begin_common(given.parameters)
        self.places = self.layout.places
        self.locals = [self.engine.begin_slab(p, given.volume[p.start : p.stop]) for p in self.places]
        self.store = FrameStore(given.source, self.layout.blocks, 10**9)

    def borders(self, index: int, angles: Any = ANGLES) -> slabs.Borders:
        return slabs.borders(self.engine, self.layout, self.places[index], self.locals[index], self.common, angles)

    def meet(self, index: int, angles: Any = ANGLES, store: FrameStore | None = None) -> slabs.Met:
        above = self.borders(index - 1, angles).last if index else None
        below = self.borders(index + 1, angles).first if index < 2 else None
        return slabs.meet(
            self.engine, self.layout, self.places[index], self.locals[index], self.common, angles,
            store or self.store, above, below,
        )  # fmt: skip


def test_borders_are_rows_of_the_images(given: Scene) -> None:
    scene = Slabs(given, planes=1)
    images = given.model.transmissions(given.volume, ANGLES)
    above, below = scene.layout.above, scene.layout.below
    assert (above, below) == (2, 10)
    top, middle, bottom = (scene.borders(index) for index in range(3))
    assert top.first is None
    assert bottom.last is None
    np.testing.assert_allclose(middle.first, images[:, :, 10 : 10 + below], rtol=1e-12)
    np.testing.assert_allclose(middle.last, images[:, :, 20 - above : 20], rtol=1e-12)
    assert top.first_planes is None
    assert bottom.last_planes is None
    np.testing.assert_array_equal(middle.first_planes, given.volume[10:11])
    np.testing.assert_array_equal(middle.last_planes, given.volume[19:20])


def test_planes_are_not_the_slab_itself(given: Scene) -> None:
    scene = Slabs(given, planes=1)
    shown = scene.borders(1)
    scene.locals[1]["volume"][...] = 0
    np.testing.assert_array_equal(shown.first_planes, given.volume[10:11])


def test_what_frames_say_of_a_neighbours_rows_is_what_is_missing_there(given: Scene) -> None:
    """Own rows of slab 1 hold nothing of the frames of slab 0 until they are taken in."""
    scene = Slabs(given)
    met = [scene.meet(index) for index in range(3)]
    assert met[0].above is None
    assert met[2].below is None
    assert np.abs(met[0].below).max() > 0
    alone = scene.locals[1]["gradient"].copy()
    images = given.model.transmissions(given.volume[10:20], ANGLES)
    added = [np.zeros_like(images) for _ in range(2)]
    added[0][:, :, : scene.layout.below] = met[0].below
    added[1][:, :, 10 - scene.layout.above :] = met[2].above
    expected = alone + sum(given.model.derivative(images, part, ANGLES) for part in added)
    slabs.take_in(
        scene.engine, scene.places[1], scene.locals[1], scene.common, ANGLES, met[0].below, met[2].above
    )  # fmt: skip
    np.testing.assert_allclose(scene.locals[1]["gradient"], expected, atol=1e-12 * np.abs(expected).max())
    assert np.abs(expected - alone).max() > 1e-3 * np.abs(expected).max()


def test_every_row_takes_in_each_angle_once_and_borders_once_more(given: Scene, monkeypatch: Any) -> None:
    monkeypatch.setattr(slabs, "MOST_ANGLES", 3)
    scene = Slabs(given)
    met = [scene.meet(index) for index in range(3)]
    slabs.take_in(scene.engine, scene.places[1], scene.locals[1], scene.common, ANGLES, met[0].below, met[2].above)
    expected = np.full(10, 2 * len(ANGLES))
    expected[-scene.layout.above :] += len(ANGLES)
    np.testing.assert_array_equal(scene.locals[1]["taken"], expected)


def test_some_angles_leave_the_others_out(given: Scene) -> None:
    scene = Slabs(given, ("images", "shifts", "probe"))
    some = np.array([1, 3])
    met = scene.meet(1, some)
    assert np.flatnonzero(met.sums["losses"]).tolist() == [1, 3]
    assert np.flatnonzero(np.abs(met.sums["gradients"]["shifts"]).sum(1)).tolist() == [1, 3]
    assert met.sums["losses"].sum() == pytest.approx(met.sums["loss"])
    frames = sum(len(scene.layout.blocks[scene.layout.block(1, angle)]) for angle in some)
    assert met.sums["count"] == frames * 64
    assert met.below.shape[0] == 2


def test_only_losses_where_nothing_is_to_be_derived(given: Scene) -> None:
    every = Slabs(given, ("images", *given.parameters)).meet(1).sums
    scene = Slabs(given, ())
    met = scene.meet(1)
    assert (met.above, met.below, met.sums["gradients"]) == (None, None, {})
    assert met.sums["loss"] == every["loss"]
    assert not scene.locals[1]["taken"].any()


def test_a_slab_without_frames_gives_zeros_of_everything(given: Scene) -> None:
    scene = Slabs(given, ("images", *given.parameters))
    assert not any(len(scene.layout.blocks[scene.layout.block(2, angle)]) for angle in ANGLES)
    met = scene.meet(2)
    assert (met.sums["loss"], met.sums["count"]) == (0, 0)
    assert not met.sums["losses"].any()
    for name, value in met.sums["gradients"].items():
        assert value.shape == given.parameters[name].shape
        assert not value.any()
    assert not met.above.any()


def bits(met: slabs.Met, local: Any) -> list[bytes]:
    gradients = [value.tobytes() for value in met.sums["gradients"].values()]
    return [
        np.float64(met.sums["loss"]).tobytes(), met.sums["losses"].tobytes(), met.below.tobytes(),
        local["gradient"].tobytes(), *gradients,
    ]  # fmt: skip


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("memory", [0, 10**9])
def test_bits_depend_neither_on_threads_nor_on_what_is_kept(given: Scene, threads: int, memory: int) -> None:
    found = []
    for count, kept in ((2, 10**9), (threads, memory)):
        scene = Slabs(given, ("images", *given.parameters))
        store = FrameStore(given.source, scene.layout.blocks, kept)
        with using_threads(count):
            for _ in range(2):  # again from what is kept
                scene.engine.prepare(scene.places[1], scene.locals[1], scene.common)
                met = scene.meet(1, store=store)
        found.append(bits(met, scene.locals[1]))
        assert store.reads == len(ANGLES) * (2 if kept == 0 else 1)
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("angles", "rows", "expected"), [(90, 128, [32, 32, 26]), (7, 128, [7]), (4, 2000, [1] * 4), (5, 800, [2, 2, 1])]
)
def test_blocks_of_angles_follow_from_sizes(angles: int, rows: int, expected: list[int]) -> None:
    """As many as keep below a fixed number of bytes, one at least, and no more than MOST_ANGLES."""
    columns = 128 if rows == 128 else 2000
    found = slabs.blocks_of_angles(np.arange(angles), 1, rows, columns)
    assert [part.stop - part.start for part in found] == expected
    assert [part.start for part in found] == [0, *np.cumsum(expected)[:-1]]
    for part in found:
        size = slabs.COPIES * 8 * rows * columns
        assert part.stop - part.start == 1 or (part.stop - part.start) * size <= slabs.BLOCK_BYTES
