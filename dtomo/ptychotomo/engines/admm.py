"""ADMM: waves of each angle meet the frames, a volume is fitted to the waves, and each is held to the other.

Minimises L(ψ) + β TV(v) with ψ = exp(i A v), split as by S. Aslan et al., "Joint ptycho-tomography reconstruction
through alternating direction method of multipliers", Optics Express 27 (2019) 9128, and V. Nikitin et al.,
"Photon-limited ptychography of 3D objects via Bayesian inference", OSA Continuum 2 (2019) 2948. An epoch is

- `inner` passes over the frames, in which the waves ψ go to the minimum of a parabola above the loss of amplitudes,
  whose curvature is the light D on a pixel, and of the penalty ρ D |ψ - T + μ|²;
- a few conjugate gradients for the linear problem ρ D |ζ|² |A d + i ln(ζ / T)|², ζ = ψ + μ, about the present volume
  (their K = iζ, but of the change d: phases need not be within ±π, changes do);
- the step of the differences' dual (a soft threshold, with the volume's part linearised: see
  `dtomo.ptychotomo.engines.edges`);
- the dual μ of the waves, and penalties doubled or halved where one residual is ten times the other.

Penalties are in units of the light: pixels that saw none hold nothing back. What is fitted to waves of a row needs that
row alone, so slabs share nothing but borders of waves, planes for the differences, and sums.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dtomo.arrays import array_module, empty_aligned, on_device
from dtomo.elementwise import in_pieces
from dtomo.errors import UserError
from dtomo.operators.projection import ParallelProjector
from dtomo.ptychotomo.engine import Common, Local, SlabPlace
from dtomo.ptychotomo.engines.edges import Edges
from dtomo.ptychotomo.engines.volume_engine import VolumeEngine
from dtomo.ptychotomo.layout import Layout
from dtomo.threads import map_in_order

REFINED = ("volume", "probe")

ROWS = 16
"""Of the volume that are fitted to waves at a time."""

FRAMES = 64
"""Whose light is added up at a time."""

BENDS = {"amplitude": 1.0, "poisson": 2.0}
"""How strongly losses curve along a wave on the detector, by name; Poisson's where counts are nearly met."""

LEAST = 0.01
"""Of the mean light on a pixel, that is added to all: where none fell, waves are those of the volume."""

FARTHEST = 0.05
"""Least modulus of ζ / T that a logarithm is taken of."""

RATIO, FACTOR = 10.0, 2.0
"""Of residuals from which on penalties change, and by how much."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class JointADMM(VolumeEngine):
    """Alternating direction method of multipliers; an epoch is one step with all angles.

    A slab holds 8 bytes for a voxel (32 with a total variation) and 20 for a pixel of the images of each angle.

    Attributes
    ----------
    layout
        Of the frames: where their light falls.
    inner
        Passes over the frames in a step.
    iterations
        Conjugate gradients of the volume in a step.
    penalty
        First ρ, in units of the light on a pixel.
    edge_penalty
        The first one of differences of the volume, in units of the curvature of the loss along a voxel.
    probe_rate
        Part of the step to the least loss that the probe takes in each pass.

    Raises
    ------
    UserError
        Other things to be refined than volume and probe, subsets, several slices, the loss of intensities, or numbers
        out of range.
    """

    layout: Layout
    inner: int = 2
    iterations: int = 2
    penalty: float = 0.5
    edge_penalty: float = 0.02
    probe_rate: float = 1.0

    arrays: ClassVar[tuple[tuple[str, type], ...]] = ()
    image_arrays: ClassVar[tuple[tuple[str, type], ...]] = (
        ("waves", np.complex64),
        ("other", np.complex64),
        ("light", np.float32),
    )
    prepared: ClassVar[tuple[str, ...]] = ("light",)
    gathered: ClassVar[tuple[str, ...]] = ("waves",)

    def __post_init__(self) -> None:
        super().__post_init__()
        other = [name for name in (*self.refine, *self.start) if name not in REFINED]
        if other or self.start or "volume" not in self.refine:
            raise UserError(
                "ADMM refines the volume, and the probe if asked to, from the beginning on; take adam for more"
            )
        if self.subsets != 1:
            raise UserError("ADMM takes all angles in each step; leave subsets out, or take adam")
        if self.model.projector.slices != 1:
            raise UserError("ADMM fits the volume to one wave for each angle; take adam for several slices")
        if self.model.frames.loss not in BENDS:
            raise UserError(f"ADMM takes the loss of {' or '.join(BENDS)}; got {self.model.frames.loss}")
        if self.inner < 1 or self.iterations < 1:
            raise UserError(f"inner passes and iterations are 1 at least; got {self.inner} and {self.iterations}")
        if not (self.penalty > 0 and self.edge_penalty > 0 and 0 <= self.probe_rate <= 1):
            raise UserError(
                "penalties are above 0, the rate of the probe from 0 to 1; got "
                f"{self.penalty}, {self.edge_penalty} and {self.probe_rate}"
            )

    @classmethod
    def bytes_per_voxel(cls, total_variation: bool = False) -> int:
        """Of the volume, and of the dual of its differences."""
        return super().bytes_per_voxel() + 24 * total_variation

    def begin_slab(self, place: SlabPlace, volume: NDArray[Any]) -> Local:
        """Waves are those of the volume, duals nothing."""
        local = super().begin_slab(place, volume)
        angles, columns = self.model.angles, self.model.geometry.columns
        for name, dtype in self.image_arrays:
            array = empty_aligned((angles, columns, place.height), dtype, array_module(local["volume"]))
            local[name] = np.swapaxes(array, 1, 2)
        local["light"][...] = 0
        every = np.arange(angles)
        for rows in _chunks(place):
            local["waves"][:, rows] = self.model.transmissions(local["volume"][rows], every)[:, 0]
        local["other"][...] = local["waves"]
        if self.constraints.total_variation:
            local |= Edges.begin(place, local["volume"])
        return local

    def begin_common(self, parameters: Mapping[str, Any]) -> Common:
        """The first pass of a step; penalties in their units."""
        common = super().begin_common(parameters)
        common |= {"pass": 0, "steps": 0, "level": self._level(parameters)}
        common |= {"penalty": self.penalty, "next_penalty": self.penalty}
        common |= {"edge_penalty": self.edge_penalty, "last_edge_penalty": self.edge_penalty}
        return common

    def more(self, common: Common) -> bool:
        """Until the waves have met the frames often enough."""
        return int(common["pass"]) > 0

    def prepare(self, place: SlabPlace, local: Local, common: Common) -> None:
        """The light, at the beginning; that of a probe that is refined also later, ever less often."""
        steps = int(common["steps"])
        if common["pass"] or steps & (steps - 1) or (steps and "probe" not in self.refine):
            return

        def light(angle: int) -> NDArray[Any]:
            return self._light(place, angle, common["parameters"])

        at_once = map if on_device(common["parameters"]["probe"]) else map_in_order
        for angle, found in enumerate(at_once(light, range(self.model.angles))):
            local["light"][angle] = found + np.float32(LEAST * common["level"])

    def images(
        self, place: SlabPlace, local: Local, common: Common, angles: NDArray[np.int64], rows: slice
    ) -> NDArray[Any]:
        """The waves, which need not be those of a volume yet."""
        found: NDArray[Any] = local["waves"][angles[0] : angles[-1] + 1, None, rows]
        return found

    def gather(
        self,
        place: SlabPlace,
        local: Local,
        common: Common,
        angles: NDArray[np.int64],
        rows: slice,
        images: NDArray[Any],
        derivatives: NDArray[Any],
    ) -> None:
        """Waves go down to the minimum of the parabola above the loss."""
        some = slice(angles[0], angles[-1] + 1)
        bend = np.float32(BENDS[self.model.frames.loss])

        def work(wave: Any, slope: Any, light: Any) -> None:
            wave -= slope / (bend * light)

        in_pieces(work, local["waves"][some, rows], derivatives[:, 0], local["light"][some, rows])

    def absorb(
        self, place: SlabPlace, local: Local, common: Common, above: NDArray[Any] | None, below: NDArray[Any] | None
    ) -> dict[str, Any]:
        """Waves are drawn to those of the volume; after the last pass of a step, the volume to the waves."""
        held = np.float32(common["penalty"] / BENDS[self.model.frames.loss])

        def work(wave: Any, goal: Any) -> None:
            wave += held * goal
            wave /= 1 + held

        in_pieces(work, local["waves"], local["other"])
        sums = dict.fromkeys(("apart", "moved", "edges_apart", "edges_moved"), 0.0)
        if common["pass"] + 1 < self.inner:
            return sums
        edges = self._edges(common)
        walk = edges.walk(local, above) if edges is not None else None
        for rows in _chunks(place):
            after = local["volume"][rows.stop : rows.stop + 1] if rows.stop < place.height else below
            pull = None
            if edges is not None and walk is not None:
                pull, apart = edges.step(walk, rows, after)
                sums["edges_apart"] += apart
            for name, value in self._fit(place, local, common, rows, pull, edges.weight if edges else 0.0).items():
                sums[name] += value
        return sums

    def advance(self, common: Common, sums: Mapping[str, Any]) -> Common:
        """A step of the probe; after the last pass, penalties."""
        if "probe" in sums["gradients"]:
            probe, gradient = common["parameters"]["probe"], sums["gradients"]["probe"]
            own = self.model.angles if probe.ndim == 4 else 1
            frames = sums["count"] / self.model.frames.pixels / own * BENDS[self.model.frames.loss]
            common["parameters"] = {
                **common["parameters"],
                "probe": probe - np.float32(self.probe_rate / frames) * gradient,
            }
        common["pass"] = (int(common["pass"]) + 1) % self.inner
        if common["pass"]:
            return common
        of_slabs = sums["slabs"]
        common["penalty"] = common["next_penalty"]
        common["last_edge_penalty"] = common["edge_penalty"]
        common["next_penalty"] = _balanced(common["penalty"], of_slabs["apart"], of_slabs["moved"])
        common["edge_penalty"] = _balanced(common["edge_penalty"], of_slabs["edges_apart"], 6 * of_slabs["edges_moved"])
        common["steps"] = int(common["steps"]) + 1
        self.seen(common, sums)
        return common

    def _fit(
        self, place: SlabPlace, local: Local, common: Common, rows: slice, pull: NDArray[Any] | None, weight: float
    ) -> dict[str, float]:
        """Some rows of the volume go to where their waves are, their duals follow; squares of residuals."""
        volume, waves, other = local["volume"][rows], local["waves"][:, rows], local["other"][:, rows]
        light, every = local["light"][:, rows], np.arange(self.model.angles)
        seen = self.model.transmissions(volume, every)[:, 0]
        kept = np.float32(common["penalty"] / common["next_penalty"])

        def target(goal: Any, wave: Any, now: Any) -> None:  # ζ: the wave and the dual, in units of the next penalty
            goal *= -kept
            goal += wave + kept * now

        in_pieces(target, other, waves, seen)
        weights = empty_aligned((len(every), volume.shape[2], len(volume)), np.float32, array_module(volume))
        weights = np.swapaxes(weights, 1, 2)
        asked = np.empty_like(seen)
        in_pieces(_asked(np.float32(common["next_penalty"])), asked, weights, other, seen, light)
        change = self._change(place, asked, weights, pull, weight)
        before = volume.copy(order="K")
        volume += change
        self.constraints.project(place, volume)
        now = self.model.transmissions(volume, every)[:, 0]
        found = {"apart": _square(waves - now, light), "moved": _square(now - seen, light)}
        found["edges_moved"] = _square(volume - before)
        in_pieces(lambda goal, new: np.subtract(2 * new, goal, out=goal), other, now)
        return found

    def _change(
        self,
        place: SlabPlace,
        asked: NDArray[Any],
        weights: NDArray[Any],
        pull: NDArray[Any] | None,
        weight: float,
    ) -> NDArray[Any]:
        """d of least Σ weights |A d - asked|² + 2 weight Re⟨pull, d⟩ + 12 weight |d|², slice by slice."""
        project = ParallelProjector(self.model.geometry, asked.shape[1], np.complex64, like=asked)
        inside = dataclasses.replace(self.constraints, signs=False)

        def normal(d: NDArray[Any]) -> NDArray[Any]:
            images = project.forward(d)
            in_pieces(lambda image, w: np.multiply(image, w, out=image), images, weights)
            found = project.adjoint(images)
            if weight:
                in_pieces(lambda f, part: np.add(f, np.float32(12 * weight) * part, out=f), found, d)
            inside.project(place, found)
            return found

        in_pieces(lambda image, w: np.multiply(image, w, out=image), asked, weights)
        rest = project.adjoint(asked)
        if pull is not None:
            rest -= np.float32(weight) * pull
        inside.project(place, rest)
        found, along = project.zeros(), np.copy(rest)
        square = project.dot_in(rest, rest)
        for _ in range(self.iterations):
            bent = normal(along)
            length = project.factor_in(_ratio(square, project.dot_in(along, bent)))
            found += length * along
            rest -= length * bent
            last, square = square, project.dot_in(rest, rest)
            along *= project.factor_in(_ratio(square, last))
            along += rest
        return found

    def _edges(self, common: Common) -> Edges | None:
        """The split of differences, if there is a total variation; its penalty in units of the loss."""
        if not self.constraints.total_variation:
            return None
        bend = float(common["level"]) * self.model.angles * max(self.model.volume_shape[1:]) / 2
        weight = float(common["edge_penalty"]) * bend
        kept = float(common["last_edge_penalty"]) / float(common["edge_penalty"])
        return Edges(weight, self.constraints.total_variation / (2 * weight), kept)

    def _level(self, parameters: Mapping[str, Any]) -> float:
        """Light on a pixel of the images, on average."""
        probe = parameters["probe"]
        own = self.model.angles if probe.ndim == 4 else 1
        light = float((probe.real**2 + probe.imag**2).sum(dtype=np.float64)) / own
        return light * len(self.layout.positions) / self.model.angles / float(np.prod(self.model.image_shape))

    def _light(self, place: SlabPlace, angle: int, parameters: Mapping[str, Any]) -> NDArray[Any]:
        """Σ |P|² of the frames of an angle on the rows of a slab, probes as far between pixels as they are."""
        probe, (high, wide) = parameters["probe"], self.model.frames.probe_shape
        positions = self.layout.positions[self.layout.angle_of_frame == angle]
        if "shifts" in parameters:
            positions = positions + np.asarray(parameters["shifts"][angle])
        rows, columns = self.model.image_shape
        positions = positions.clip(0, (rows - high, columns - wide)) - (place.start - high, 0)
        positions = positions[(positions[:, 0] >= 0) & (positions[:, 0] <= place.height + high)]
        shape = place.height + 2 * high, columns
        given = {"probe": probe[angle] if probe.ndim == 4 else probe, "positions": positions}
        xp = array_module(probe)
        given["object"] = xp.ones((1, 1, *shape), probe.dtype)
        if "scale" in parameters:
            given["scale"] = xp.full(len(positions), parameters["scale"][angle], parameters["scale"].dtype)
        found = xp.zeros(shape, np.float32)
        for first in range(0, len(positions), FRAMES):
            views = self.model.frames.views(given, np.arange(first, min(first + FRAMES, len(positions))))
            found += self.model.frames.illumination(given, views).put_into(shape)
        return found[high:-high]


def _chunks(place: SlabPlace) -> list[slice]:
    """Rows of a slab that are worked on together."""
    return [slice(first, min(first + ROWS, place.height)) for first in range(0, place.height, ROWS)]


def _asked(penalty: np.float32) -> Callable[..., None]:
    """What projections shall change by, -i ln(ζ / T), and ρ D |ζ|²."""

    def work(asked: Any, weights: Any, target: Any, seen: Any, light: Any) -> None:
        ratio = target / seen
        asked.real = np.angle(ratio)
        asked.imag = -np.log(np.maximum(np.abs(ratio), FARTHEST))
        weights[...] = penalty * light * (target.real**2 + target.imag**2)

    return work


def _square(values: NDArray[Any], weights: NDArray[Any] | float = 1.0) -> float:
    """Σ weights |values|², row by row."""
    total = 0.0
    for row in range(values.shape[-2] if values.ndim == 2 else values.shape[1]):
        part = values[:, row]
        of_row = weights if isinstance(weights, float) else weights[:, row]
        total += float((of_row * (part.real**2 + part.imag**2)).sum(dtype=np.float64))
    return total


def _ratio(above: NDArray[np.float64], below: NDArray[np.float64]) -> NDArray[np.float32]:
    """Of each slice, on the host; 0 where nothing is left."""
    return np.divide(above, below, out=np.zeros_like(above), where=below > 0).astype(np.float32)


def _balanced(penalty: float, apart: float, moved: float) -> float:
    """A penalty after squares of its residuals (S. Boyd et al., Found. Trends Mach. Learn. 3 (2011) 1, eq. 3.13)."""
    first, second = apart**0.5, penalty * moved**0.5
    if first > RATIO * second:
        return penalty * FACTOR
    return penalty / FACTOR if second > RATIO * first else penalty
