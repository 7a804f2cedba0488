"""Iterative solvers: time of an iteration, convergence, and total variation of few noisy projections.

``python -m benchmarks.solvers``. The time of an iteration is that between two calls of the callback, set beside one
application of the projector and one of its adjoint, measured in turns with it. Convergence is drawn into --picture.
"""

import argparse
import itertools
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import environment
from benchmarks.measure import Row, number, table, write_json
from dtomo import algorithms, simulate
from dtomo.algorithms import Huber, NuclearNorm, Result, State, TotalVariation, Wavelets
from dtomo.geometry import ParallelBeam
from dtomo.operators import LinearOperator, ParallelProjector

AIM = 1.15
"""Time of an iteration over that of projector and adjoint."""

SOLVERS: dict[str, tuple[str, dict[str, Any]]] = {
    "SIRT": ("sirt", {}),
    "SIRT, x ≥ 0": ("sirt", {"lower": 0.0}),
    "CGLS": ("cgls", {}),
    "LSQR": ("lsqr", {}),
    "OS-SART, 10 subsets": ("os_sart", {"subsets": 10, "lower": 0.0}),
    "MLEM": ("mlem", {}),
    "OSEM, 10 subsets": ("osem", {"subsets": 10}),
    "FISTA, x ≥ 0": ("fista", {"lower": 0.0}),
    "FISTA, Huber": ("fista", {"lower": 0.0, "data_term": Huber(1.0)}),
    "TV of slices, PDHG": ("tv", {"strength": 1.0, "spacing": (1.0, 1.0), "lower": 0.0}),
    "TV, PDHG": ("tv", {"strength": 1.0, "lower": 0.0}),
    "TV of slices, FISTA": ("fista", {"prior": TotalVariation(1.0, (1.0, 1.0)), "lower": 0.0}),
    "TV, FISTA": ("fista", {"prior": TotalVariation(1.0), "lower": 0.0}),
    "wavelets, FISTA": ("fista", {"prior": Wavelets(1.0)}),
    "nuclear norm, FISTA": ("fista", {"prior": NuclearNorm(1.0)}),
}


def problem(size: int, slices: int, angles: int, noise: float) -> tuple[LinearOperator, np.ndarray, np.ndarray]:
    """Projector, phantom, and noise on its line integrals in closed form, not negative."""
    beam = ParallelBeam(np.arange(angles) * 180 / angles, size)
    phantom = simulate.head()
    middle = (size - slices) // 2
    rows = slice(middle, middle + slices)
    volume = phantom.volume(size, rows=rows)
    operator = ParallelProjector(beam, slices)
    exact = phantom.projections(beam.angles, size, rows=rows)
    random = np.random.default_rng(0)
    data = exact + noise * exact.max() * random.standard_normal(exact.shape).astype(np.float32)
    return operator, volume, operator.arrange(np.maximum(data, 0))


def solver(name: str) -> Callable[..., Result]:
    """A line of the table, as a function of operator and data."""
    function, options = SOLVERS[name]
    return lambda *problem, **more: getattr(algorithms, function)(*problem, **(options | more))


def iteration_times(operator: LinearOperator, data: np.ndarray, rounds: int, each: int) -> list[Row]:
    """Of all solvers, in rounds; projector and adjoint are timed before each solver of each round.

    Wall time, and processor time of all threads, which other programs on the machine disturb less.
    """
    volume = operator.adjoint(data)
    apart: list[tuple[float, float]] = []
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in SOLVERS}

    def now() -> tuple[float, float]:
        return time.perf_counter(), time.process_time()

    for _ in range(rounds):
        for name in SOLVERS:
            for _ in range(2):
                start = now()
                operator.adjoint(operator.forward(volume))
                apart.append((now()[0] - start[0], now()[1] - start[1]))
            stamps: list[tuple[float, float]] = []
            solver(name)(operator, data, iterations=each + 2, callback=lambda *_, stamps=stamps: stamps.append(now()))
            times[name] += [(b[0] - a[0], b[1] - a[1]) for a, b in itertools.pairwise(stamps[1:])]
    wall, busy = (statistics.median(both) for both in zip(*apart))
    rows = []
    for name, samples in times.items():
        own_wall, own_busy = (statistics.median(both) for both in zip(*samples))
        rows.append(
            {"solver": name, "milliseconds": own_wall * 1e3, "ratio": own_wall / wall, "processor": own_busy / busy}
            | {"both": wall * 1e3}
        )
    return rows


class Looks:
    """Notes the distance from the truth at each iteration."""

    def __init__(self, truth: np.ndarray) -> None:
        self.truth, self.errors = truth, []  # type: ignore[var-annotated]

    def restore(self) -> None:
        return None

    def offer(self, state: State) -> None:
        difference = state.parts["solution"] - self.truth
        self.errors.append(float(np.linalg.norm(difference) / np.linalg.norm(self.truth)))


def convergence(size: int, iterations: int) -> dict[str, tuple[np.ndarray, list[float]]]:
    """Residuals and distances from the truth for 60 noisy projections, of each solver."""
    operator, volume, data = problem(size, 4, 60, 0.01)
    histories = {}
    for name in SOLVERS:
        looks = Looks(volume)
        strength = {"strength": 0.3} if "PDHG" in name else {}
        if "FISTA" in name and "prior" in SOLVERS[name][1]:
            prior = SOLVERS[name][1]["prior"]
            kind = type(prior)
            strength = {"prior": kind(0.3, prior.spacing) if kind is TotalVariation else kind(0.3)}
        found = solver(name)(operator, data, iterations=iterations, checkpoints=looks, **strength)
        looks.offer(State({"solution": found.solution}, found.residuals))
        histories[name] = (np.sqrt((found.residuals**2).sum(1)), looks.errors)
    return histories


def draw(histories: dict[str, tuple[np.ndarray, list[float]]], path: Path) -> None:
    """Residuals and distances by iteration, a panel each."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, 2, figsize=(14, 6), layout="constrained")
    colors = pyplot.get_cmap("tab20")
    for k, (name, (residuals, errors)) in enumerate(histories.items()):
        style = {"color": colors(k % 20), "lw": 1.5, "ls": "-" if k % 2 else "--", "label": name}
        panels[0].semilogy(residuals / residuals[0], **style)
        panels[1].semilogy(np.arange(1, len(errors) + 1), errors, **style)
    panels[0].set(xlabel="iterations made", ylabel="‖A x − b‖ / ‖A x₀ − b‖", title="residual")
    panels[1].set(xlabel="iterations made", ylabel="‖x − truth‖ / ‖truth‖", title="distance from the truth")
    for panel in panels:
        panel.grid(alpha=0.3, which="both")
    panels[1].legend(fontsize=8, loc="upper right")
    figure.suptitle("60 projections with 1 % noise")
    figure.savefig(path, dpi=110)
    print(f"written: {path}")


def few_projections(size: int, iterations: int) -> Row:
    """Total variation of 60 noisy projections beside filtered back projection, by distance from the truth."""
    operator, volume, data = problem(size, size, 60, 0.02)
    norm = np.linalg.norm(volume)
    plain = algorithms.fbp(data, operator.geometry)  # type: ignore[attr-defined]
    smooth = algorithms.fbp(data, operator.geometry, filter="hann")  # type: ignore[attr-defined]
    start = time.perf_counter()
    found = algorithms.tv(operator, data, strength=0.02 * size / 2, iterations=iterations, lower=0.0).solution
    seconds = time.perf_counter() - start
    errors = [float(np.linalg.norm(x - volume) / norm) for x in (plain, smooth, found)]
    return {"size": size, "fbp": errors[0], "hann": errors[1], "tv": errors[2], "seconds": seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description="Iterative solvers.")
    parser.add_argument("--size", type=int, default=512, help="width of a slice")
    parser.add_argument("--slices", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--iterations", type=int, default=4, help="timed of each solver in each round")
    parser.add_argument("--tv-size", type=int, default=256, help="of the phantom of 60 projections; 0: none")
    parser.add_argument("--only", nargs="*", choices=list(SOLVERS), help="some solvers")
    parser.add_argument("--cores", type=int, help="threads; default all")
    parser.add_argument("--picture", type=Path, help="draw convergence here")
    parser.add_argument("--json", type=Path, help="also write what was measured here")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that it works")
    chosen = parser.parse_args()
    environment.restart_clean(chosen.cores)
    if chosen.quick:
        chosen.size, chosen.slices, chosen.rounds, chosen.iterations, chosen.tv_size = 64, 8, 1, 1, 48
    for name in [name for name in SOLVERS if chosen.only is not None and name not in chosen.only]:
        del SOLVERS[name]
    angles = round(chosen.size * np.pi / 2)
    operator, _, data = problem(chosen.size, chosen.slices, angles, 0.01)
    rows = iteration_times(operator, data, chosen.rounds, chosen.iterations)
    print(f"{chosen.size}² × {chosen.slices}, {angles} angles; forward and adjoint {number(rows[0]['both'])} ms\n")
    lines = [[r["solver"], number(r["milliseconds"]), f"{r['ratio']:.2f}", f"{r['processor']:.2f}"] for r in rows]
    print(table(["solver", "ms per iteration", "over forward + adjoint", "of processor time"], lines))
    missed = [row["solver"] for row in rows if row["ratio"] > AIM]
    print(f"\nabove {AIM}: {', '.join(missed) or 'none'}\n")
    few = None
    if chosen.tv_size:
        few = few_projections(chosen.tv_size, 20 if chosen.quick else 200)
        print(
            f"60 projections with 2 % noise, {few['size']}³: distance from the truth {few['fbp']:.3f} (FBP), "
            f"{few['hann']:.3f} (FBP, hann), {few['tv']:.3f} (TV, {few['seconds']:.0f} s)"
        )
    if chosen.picture is not None:
        draw(convergence(64 if chosen.quick else 128, 10 if chosen.quick else 100), chosen.picture)
    write_json(chosen.json, ["numpy", "numba"], times=rows, few=few)


if __name__ == "__main__":
    main()
