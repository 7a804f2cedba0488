"""The same code on a GPU, checked and measured: ``python -m benchmarks.gpu``.

card      versions, driver, cards and their clocks
checks    results on the device against the CPU, adjoints, gradients, bits, copies, full memory; every kernel is met
peaks     copies, multiply-adds and loads from shared memory, at best
speed     forward, back, FBP and SIRT of 1024³ and of a 2048² × 256 slab: time, updates per second, part of the limits
astra     ASTRA's projectors for CUDA at the same sizes, where installed
runs      workers with devices of their own, spilling, whole commands on --cluster cuda against --cluster local
full      FBP of 2048³ in eight slabs, if there is time

Needs CuPy, numba-cuda and a driver: ``pip install '.[cuda12]'``. Stops at the first wrong result and says which;
keeps within --seconds and says what was left out. With --cpu all of it runs on NumPy arrays, at small sizes.
"""

import argparse
import faulthandler
import json
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import environment
from benchmarks.measure import number, table

PARTS = ("card", "checks", "peaks", "speed", "astra", "runs", "full")
Found = dict[str, Any]


class Run:
    """One run of the script: where, how large, what was found so far.

    Attributes
    ----------
    found
        For the JSON file, part by part.
    left_out
        What was not done, and why.
    failures
        What went wrong in parts whose results others do not need.
    """

    def __init__(self, chosen: argparse.Namespace) -> None:
        from benchmarks import gpu_checks
        from benchmarks.gpu_place import Clock, device, host

        self.chosen, self.clock = chosen, Clock(chosen.seconds)
        self.place = host() if chosen.cpu else device()
        self.small = chosen.cpu or chosen.quick
        self.extent = gpu_checks.QUICK if self.small else gpu_checks.FULL
        self.found: Found = {"finished": False}
        self.left_out: list[str] = []
        self.failures: list[str] = []
        self.wrong: list[str] = []

    def parts(self) -> Iterator[str]:
        """Parts in order, as long as nothing is wrong."""
        for part in PARTS:
            if part not in self.chosen.parts:
                continue
            if self.clock.left < 5:
                self.left_out.append(f"{part}: no time left")
                continue
            say(f"\n{part} ({self.clock.spent:.0f} s)")
            yield part

    def save(self) -> None:
        """Write the JSON file, if one was asked for; also between parts, for runs that end before their end."""
        from benchmarks.gpu_place import PACKAGES

        if self.chosen.json is not None:
            content = environment.describe(PACKAGES) | {"cpu": self.chosen.cpu} | self.found
            content |= {"left_out": self.left_out, "failures": self.failures, "wrong": self.wrong}
            content["seconds"] = self.clock.spent
            self.chosen.json.write_text(json.dumps(content, indent=1, default=float) + "\n")

    def attempt(self, what: str, work: Callable[[], None]) -> None:
        """Do what others do not need: it may fail without keeping them from being measured."""
        try:
            work()
        except Exception as error:  # noqa: BLE001 - a card may be there only once: all else is still to be measured
            self.failures.append(f"{what}: {type(error).__name__}: {error}")
            self.found.setdefault("tracebacks", {})[what] = traceback.format_exc()
            say(f"  {self.failures[-1]}")

    def check(self, what: str, work: Callable[[], Any]) -> Any:
        """A check; a wrong result, or an error, ends the run unless --keep-going is given."""
        from benchmarks.gpu_checks import WrongResult

        start = self.clock.spent
        try:
            result = work()
        except (Exception, SystemExit) as error:  # whatever it is, it has to be reported
            kind = "" if isinstance(error, WrongResult) else f"{type(error).__name__}: "
            self.wrong.append(f"{what}: {kind}{error}")
            self.found.setdefault("tracebacks", {})[what] = traceback.format_exc()
            say(f"  WRONG {self.wrong[-1]}")
            if not self.chosen.keep_going:
                raise Stop from error
            return None
        say(f"  {what}: right ({self.clock.spent - start:.1f} s)")
        return result


class Stop(Exception):
    """A wrong result: nothing else is done."""


def say(line: str) -> None:
    """Print at once: a run that hangs shows where."""
    print(line, flush=True)


def card(run: Run) -> None:
    """Versions and cards."""
    from benchmarks.gpu_place import PACKAGES, describe_cards

    found = describe_cards(run.place)
    run.found["card"] = found
    say(f"  {environment.versions(PACKAGES)}")
    say(f"  driver {found['driver']}, runtime {found['runtime']}, on {found['host']}, {found['cores']} cores")
    for entry in found["cards"]:
        say("  " + ", ".join(f"{name} {value}" for name, value in entry.items()))
    if not found["cards"]:
        say("  card: none")


def checks(run: Run) -> None:
    """Everything that one process can check; the arrays come from one seed."""
    from benchmarks import gpu_checks, gpu_checks_data, gpu_checks_kernels, gpu_checks_ptycho, gpu_joint
    from benchmarks.gpu_checks_data import Launches

    steps: dict[str, Callable[[gpu_checks.Checker], list[str] | None]] = {
        "copies": gpu_checks_data.check_copies,
        "sums": gpu_checks.check_sums,
        "projectors": gpu_checks.check_projectors,
        "filtered back projection": gpu_checks.check_fbp,
        "SIRT and CGLS": gpu_checks.check_iterations,
        "gradients": gpu_checks.check_gradients,
        "flats": gpu_checks_data.check_flats,
        "stripes, phase, padding, half turns": gpu_checks_data.check_filters,
        "differences": gpu_checks_kernels.check_differences,
        "projections in slices": gpu_checks_kernels.check_sections,
        "patches": gpu_checks_kernels.check_patches,
        "voxels": gpu_checks_kernels.check_voxels,
        "rays": gpu_checks_kernels.check_rays,
        "rotation": gpu_checks_kernels.check_rotation,
        "correlation": gpu_checks_kernels.check_correlation,
        "ptychography": gpu_checks_ptycho.check_ptychography,
        "joint ptycho-tomography": gpu_joint.check_joint,
        "same bits": gpu_checks.check_bits,
        "places in large slabs": gpu_checks.check_places,
        "full memory": gpu_checks_data.check_full_memory,
    }
    launches = Launches()
    rows = run.found.setdefault("checks", [])
    for name, step in steps.items():
        checker = gpu_checks.Checker(run.place, run.extent)
        with launches.counted():
            run.left_out += run.check(name, partial(step, checker)) or []
        rows += checker.rows
    say(f"  {len(rows)} comparisons, largest error {max((r['error'] for r in rows), default=0):.1e}")
    if not run.place.is_device:
        run.left_out.append("coverage of kernels and full memory: the CPU has no device kernels")
        return
    run.found["kernels"] = sorted(launches.names)
    run.check("every kernel is met by a check", lambda: _covered(launches))


def _covered(launches: Any) -> None:
    from benchmarks.gpu_checks import WrongResult
    from benchmarks.gpu_checks_data import uncovered

    missing = uncovered(launches)
    if missing:
        raise WrongResult("kernels that no check launches", ", ".join(missing), "none")


def measure_peaks(run: Run) -> None:
    """Rates that nothing can beat."""
    from benchmarks.gpu_peaks import peaks

    def work() -> None:
        run.found["peaks"] = peaks(run.place, 2**22 if run.small else 2**29, 0.01 if run.small else 0.05)

    run.attempt("peaks", work)
    for name, rate in run.found.get("peaks", {}).items():
        say(f"  {name}: {'not measured' if rate is None else f'{rate / 1e9:,.0f} G/s'}")


def extents(run: Run) -> list[Any]:
    """What is reconstructed for speed."""
    from benchmarks.gpu_speed import Extent

    if run.small:
        return [Extent(48, 16)]
    return [Extent(1024, 1024), Extent(2048, 256)]


def measure_speed(run: Run) -> None:
    """Rows of all sizes."""
    from benchmarks.gpu_joint import joint_speed
    from benchmarks.gpu_speed import speed

    for extent in extents(run):
        coming = speed(run.place, extent, run.found.get("peaks", {}), run.clock, 1.0 if run.small else 12.0)
        run.attempt(f"speed of {extent}", partial(_collect, run, coming))
    coming = joint_speed(run.place, run.small, run.clock, 1.0 if run.small else 12.0)
    run.attempt("speed of joint runs", partial(_collect, run, coming))


def measure_astra(run: Run) -> None:
    """ASTRA beside it."""
    from benchmarks.gpu_peers import astra_missing, astra_speed

    missing = astra_missing()
    if missing:
        run.left_out.append(f"ASTRA: {missing}")
        say(f"  {missing}")
        return
    for extent in extents(run):
        coming = astra_speed(run.place, extent, run.clock, 1.0 if run.small else 8.0)
        run.attempt(f"ASTRA at {extent}", partial(_collect, run, coming))


def _collect(run: Run, coming: Iterable[Found]) -> None:
    rows = run.found.setdefault("speed", [])
    for row in coming:
        if "left_out" in row:
            run.left_out.append(f"{row['task']}{' of ' + row['extent'] if 'extent' in row else ''}: {row['left_out']}")
            say(f"  left out: {run.left_out[-1]}")
        else:
            say(f"  {row['task']}, {row['extent']}: {row['seconds'] * 1e3:,.1f} ms, {row['gups']:,.1f} GUPS")
        rows.append(row)


def check_runs(run: Run) -> None:
    """Workers and whole commands."""
    from benchmarks import gpu_checks, gpu_runs

    run.place.free_memory()
    checker = gpu_checks.Checker(run.place, run.extent)
    steps: dict[str, Callable[[], Any]] = {
        "pinning": lambda: gpu_runs.check_pinning(checker),
        "spilling": lambda: gpu_runs.check_spilling(checker),
        "whole commands": lambda: gpu_runs.check_commands(checker, run.clock),
    }
    for name, step in steps.items():
        if run.clock.left < 45:
            run.left_out.append(f"{name}: no time left")
            continue
        run.left_out += run.check(name, step) or []
    run.found.setdefault("checks", []).extend(checker.rows)


def measure_full(run: Run) -> None:
    """2048³, by the faster way of the slab."""
    from benchmarks.gpu_speed import full_volume

    extent, rows = extents(run)[-1], run.found.get("speed", [])
    ways = {row["task"]: row["seconds"] / row["angles"] for row in rows
            if row["task"].startswith("FBP by") and row.get("size") == extent.size and "seconds" in row}  # fmt: skip
    method = "nufft" if ways and min(ways, key=ways.__getitem__) == "FBP by NUFFT" else "backprojection"

    def work() -> None:
        _collect(run, [full_volume(run.place, extent, 8, run.clock, method)])

    run.attempt("full", work)


STEPS: dict[str, Callable[[Run], None]] = {
    "card": card, "checks": checks, "peaks": measure_peaks, "speed": measure_speed, "astra": measure_astra,
    "runs": check_runs, "full": measure_full,
}  # fmt: skip


def speed_table(rows: list[Found]) -> str:
    """What was measured, one line each; `× 8` is the time of 2048³ if the row is a slab of it."""
    lines = []
    for row in rows:
        if "left_out" in row:
            continue
        angles = round(3.14159265 / 2 * row["size"]) if "size" in row else None
        slab = row.get("size") == 2048 and row.get("slices") == 256 and row.get("angles") == angles
        parts = [f"{row[key]:.0%}" if key in row else "–" for key in ("of_fma", "of_shared", "of_within")]
        pool = row.get("pool_bytes")
        lines.append([
            row["task"], row["extent"], number(row["seconds"] * 1e3), number(row["gups"]), *parts,
            "–" if pool is None else number(pool / 1e9), number(row["seconds"] * 8) if slab else "–",
        ])  # fmt: skip
    head = ["task", "extent", "ms", "GUPS", "of multiply-adds", "of L1", "of memory", "pool, GB", "× 8, s"]
    return table(head, lines)


def finish(run: Run) -> int:
    """Print the table and what was left out, write the JSON file; the exit status."""
    if run.found.get("speed"):
        say("\n" + speed_table(run.found["speed"]))
    for title, lines in (("left out", run.left_out), ("failed", run.failures), ("WRONG", run.wrong)):
        for line in lines:
            say(f"\n{title}: {line}")
    where = "on the CPU" if run.chosen.cpu else "on the device"
    count = len(run.found.get("checks", []))
    result = "WRONG RESULTS" if run.wrong else f"all {count} results right" if count else "no results checked"
    say(f"\n{result} {where}, {run.clock.spent:.0f} s")
    run.save()
    return 1 if run.wrong or run.failures else 0


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--seconds", type=float, default=465.0, help="in which all has to be done")
    parser.add_argument("--json", type=Path, help="also write what was found here")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that it works")
    parser.add_argument("--cpu", action="store_true", help="NumPy and the kernels for CPUs, at small sizes")
    parser.add_argument("--keep-going", action="store_true", help="go on after a wrong result")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Check, measure and print; 1: something is wrong or failed, 2: there is no device."""
    from benchmarks.gpu_place import NoDevice

    try:
        run = Run(parse(arguments))
    except NoDevice as error:
        print(error, file=sys.stderr)
        return 2
    try:
        for part in run.parts():
            STEPS[part](run)
            run.save()
        run.found["finished"] = True
    except Stop:
        say("\nstopped at the first wrong result; --keep-going goes on")
    return finish(run)


if __name__ == "__main__":
    limit = parse().seconds
    environment.restart_clean()
    faulthandler.dump_traceback_later(limit + 10, exit=True)  # a kernel that hangs: where, and an end
    sys.exit(main())
