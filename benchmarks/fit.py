"""Fits of users' own models: ``python -m benchmarks.fit [SECTION …]``, all by default.

same: curves and parameters on 1, 2 and 3 workers, of data that does not divide: the bits of a NumPy model, 1e-6 of a
Torch one. imaginary: a loss of Im(parameter) alone falls as fast as one of a real parameter, on any number of workers.
killed: a fit that is killed and goes on ends where an undisturbed one does. travels: a class of a program's own
``__main__`` with a closure and a lambda on a cluster of processes; an open file in it is refused by name. refused: what
is said of models that go wrong. scaling: seconds of example (a)'s training with two workers and with one. denoise:
example (a) on a phantom, and on the scan under ../shared/data where it is. aberrations: example (b) against the truth.

Sections that need Torch are left out, with a line, where it is not installed.
"""

import argparse
import importlib.util
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import environment
from benchmarks.measure import number, table, write_json

ROOT = Path(__file__).resolve().parents[1]
WORKERS = (1, 2, 3)
Found = dict[str, Any]


def curves(history: Any) -> np.ndarray:
    """Loss and validation of each epoch, ``(2, epoch)``."""
    return np.stack([history.losses, history.validations])


def apart(one: np.ndarray, other: np.ndarray) -> float:
    """Largest difference, relative to the largest value."""
    return float(np.max(np.abs(one - other)) / max(float(np.max(np.abs(one))), 1e-30))


def same(chosen: argparse.Namespace) -> Found:
    """Three numbers of workers."""
    runs = {"NumPy": _numpy_run} | ({"Torch": _torch_run} if _torch() else {})
    rows, good = [], True
    for kind, run in runs.items():
        results = [run(chosen, workers) for workers in WORKERS]
        for workers, (curve, parameters) in zip(WORKERS[1:], results[1:]):
            bits = curve.tobytes() == results[0][0].tobytes() and all(
                value.tobytes() == results[0][1][name].tobytes() for name, value in parameters.items()
            )
            off = max(
                apart(results[0][0], curve),
                *(apart(results[0][1][name], value) for name, value in parameters.items()),
            )
            good = good and (bits if kind == "NumPy" else off <= 1e-6)
            rows.append([kind, f"{workers} and 1", "yes" if bits else "no", f"{off:.1e}"])
    print("loss, validation, parameters; samples that make no whole number of batches, nor batches of blocks")
    print(table(["model", "workers", "same bits", "relative difference"], rows), flush=True)
    return {"found": rows, "good": good}


def _numpy_run(chosen: argparse.Namespace, workers: int) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    from dtomo.fitting import Adam
    from examples import fit_aberrations as example

    size, frames = (16, 47) if chosen.quick else (64, 203)
    model = example.Aberrations(size, example.beginning())
    history = example.fitted(
        model, *example.measured(frames, size), optimizer=Adam(rate=0.05), batch=16, block=3,
        epochs=2 if chosen.quick else 6, workers=workers,
    )  # fmt: skip
    return curves(history), model.parameters


def _torch_run(chosen: argparse.Namespace, workers: int) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    import torch

    from examples import denoise_tomogram as example

    torch.manual_seed(0)
    network = example.UNet(4 if chosen.quick else 16)
    halves = _phantom(chosen, 16 if chosen.quick else 48)[0]
    history = example.train(*halves, network, epochs=2 if chosen.quick else 4, workers=workers, side=16)
    return curves(history), {name: value.detach().numpy() for name, value in network.named_parameters()}


class ImaginaryPart:
    """Σ (Im z − goal)², or with `real` of a real parameter."""

    def __init__(self, real: bool) -> None:
        self.real = real
        self.parameters = {"z": np.zeros(3, np.float64 if real else np.complex128)}

    def loss_and_gradient(self, parameters: Any, batch: Any) -> tuple[float, float, Any]:
        """Of some goals ``(sample, 3)``."""
        z = parameters["z"]
        off = (z if self.real else z.imag) - batch
        return float(np.sum(off**2)), len(batch), {"z": 2 * off.sum(0) if self.real else 1j * off.sum(0)}


def imaginary(chosen: argparse.Namespace) -> Found:
    """The rate at which a loss of Im z falls."""
    import dtomo
    from dtomo.fitting import SGD, Adam

    goals = np.random.default_rng(0).normal(2, 0.1, (23, 3))
    rows, good = [], True
    for optimizer in (SGD(rate=0.02), Adam(rate=0.1)):
        losses = {
            (real, workers): dtomo.fit(
                ImaginaryPart(real), goals, optimizer=optimizer, batch=8, epochs=8, workers=workers
            ).losses
            for real, workers in ((True, 1), (False, 1), (False, 2), (False, 3))
        }
        off = max(apart(losses[True, 1], losses[False, workers]) for workers in WORKERS)
        equal = all(losses[False, 1].tobytes() == losses[False, workers].tobytes() for workers in WORKERS)
        falls = losses[False, 1][-1] / losses[False, 1][0]
        good = good and off <= 1e-6 and equal and falls < 0.9
        rows.append(["NumPy", type(optimizer).__name__, f"{off:.1e}", "yes" if equal else "no", number(falls)])
    if _torch():
        falls, off = _imaginary_torch()
        good = good and off <= 1e-6 and falls < 0.9
        rows.append(["Torch", "SGD", f"{off:.1e}", "–", number(falls)])
    print("a loss of Im(parameter) alone, beside the same of a real parameter, on 1, 2 and 3 workers")
    print(table(["model", "optimizer", "curves apart", "same bits on 1, 2, 3", "last / first loss"], rows), flush=True)
    return {"found": rows, "good": good}


def _imaginary_torch() -> tuple[float, float]:
    import torch

    import dtomo

    class Module(torch.nn.Module):
        def __init__(self, real: bool) -> None:
            super().__init__()
            self.real = real
            self.z = torch.nn.Parameter(torch.zeros(3, dtype=torch.float64 if real else torch.complex128))

        def loss(self, goals: Any) -> Any:
            return (((self.z if self.real else self.z.imag) - goals) ** 2).sum(1)

    goals = np.random.default_rng(0).normal(2, 0.1, (23, 3))
    losses = [
        dtomo.fit(
            Module(real), goals, optimizer=lambda values: torch.optim.SGD(values, lr=0.02), batch=8, epochs=8,
            workers=workers,
        ).losses
        for real, workers in ((True, 1), (False, 1), (False, 2), (False, 3))
    ]  # fmt: skip
    return float(losses[1][-1] / losses[1][0]), max(apart(losses[0], other) for other in losses[1:])


def killed(chosen: argparse.Namespace) -> Found:
    """A process that is killed after some epochs, and another that goes on."""
    rows, good = [], True
    for kind in ("numpy", *(["torch"] if _torch() else [])):
        with tempfile.TemporaryDirectory() as folder:
            codes = [
                _program("benchmarks.fit", "--child", kind, "--child-folder", folder, "--child-ends", ends).returncode
                for ends in ("never", "killed", "resumed")
            ]
            with np.load(Path(folder) / "never.npz") as one, np.load(Path(folder) / "resumed.npz") as other:
                equal = all(one[name].tobytes() == other[name].tobytes() for name in one.files)
        good = good and equal and codes == [0, -signal.SIGKILL, 0]
        rows.append([kind, str(codes[1]), "yes" if equal else "no"])
    print("a fit that is killed in its third epoch and goes on, beside an undisturbed one")
    print(table(["model", "exit code of the killed", "same bits of curves and parameters"], rows), flush=True)
    return {"found": rows, "good": good}


def child(kind: str, folder: Path, ends: str) -> None:
    """A fit that writes what came of it, or is killed."""

    def stop(epoch: Any) -> None:
        if ends == "killed" and epoch.number == 2:
            os.kill(os.getpid(), signal.SIGKILL)

    settings: dict[str, Any] = {"epochs": 5, "callbacks": [stop], "best": True}
    if ends != "never":
        settings["checkpoints"] = folder / "checkpoints"
    if kind == "torch":
        import torch

        from examples import denoise_tomogram as example

        torch.manual_seed(0)
        network = example.UNet(4)
        halves = [np.random.default_rng(k).normal(size=(8, 16, 16)).astype(np.float32) for k in range(2)]
        history = example.train(*halves, network, side=16, **settings)
        parameters = {name: value.detach().numpy() for name, value in network.named_parameters()}
    else:
        from dtomo.fitting import Adam
        from examples import fit_aberrations as own

        model = own.Aberrations(16, own.beginning())
        settings |= {"optimizer": Adam(rate=0.05), "batch": 16, "scheduler": lambda epochs: 0.9**epochs}
        history, parameters = own.fitted(model, *own.measured(47, 16), **settings), model.parameters
    np.savez(folder / f"{ends}.npz", curves=curves(history), **parameters)


NOTEBOOK = '''
import sys
import numpy as np
import dtomo

def made(power):
    class Mine:
        """As in a notebook: names of its own, a closure, a lambda."""
        def __init__(self):
            self.parameters = {"slope": np.zeros(4)}
            self.optimizer, self.scheduler, self.grad_clip = "mine", ["also mine"], 3.0
            self.lift = lambda values: values ** power
        def loss_and_gradient(self, parameters, batch):
            rows, wanted = batch
            off = self.lift(rows) @ parameters["slope"] - wanted
            return float(off @ off), len(off), {"slope": 2 * self.lift(rows).T @ off}
    return Mine()

if __name__ == "__main__":
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(101, 4))
    data = rows, (rows ** 3) @ np.array([1.0, -2.0, 0.5, 3.0])
    model = made(3)
    dtomo.fit(model, data, optimizer="lbfgs", batch=None, epochs=3, workers=2)
    print("off by", np.abs(model.parameters["slope"] - [1, -2, 0.5, 3]).max())
    print("names", model.optimizer, model.scheduler, model.grad_clip, type(model).__name__)
    model.log = open(sys.argv[1], "w")
    try:
        dtomo.fit(model, data, workers=2)
    except dtomo.UserError as error:
        print("refused:", error)
'''


def travels(chosen: argparse.Namespace) -> Found:
    """A program with everything in its own file."""
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "notebook.py"
        program.write_text(NOTEBOOK, "utf-8")
        run = [sys.executable, str(program), str(Path(folder) / "log.txt")]
        path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        done = subprocess.run(
            run, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=300, check=False
        )
    print(done.stdout.strip() or done.stderr.strip(), flush=True)
    lines = dict(line.split(" ", 1) for line in done.stdout.splitlines() if " " in line)
    good = (
        done.returncode == 0
        and float(lines.get("off", "by nan").split()[1]) < 1e-3
        and lines.get("names") == "mine ['also mine'] 3.0 Mine"
        and "model.log" in lines.get("refused:", "")
    )
    return {"printed": done.stdout, "good": good}


def refused(chosen: argparse.Namespace) -> Found:
    """Models that return what they must not."""
    import dtomo

    def model(answer: Callable[[Any], Any]) -> Any:
        class Wrong:
            parameters: dict[str, Any] = {"object": np.zeros((2, 2), np.complex64), "scale": np.ones(3)}  # noqa: RUF012

            def loss_and_gradient(self, parameters: Any, batch: Any) -> Any:
                return answer({"object": np.zeros((2, 2), np.complex64), "scale": np.zeros(3)})

        return Wrong()

    wrong: dict[str, tuple[Callable[[Any], Any], str]] = {
        "NaN loss": (lambda right: (np.nan, 1, right), "loss"),
        "NaN gradient": (lambda right: (1.0, 1, {**right, "scale": np.full(3, np.nan)}), "'scale'"),
        "wrong shape": (lambda right: (1.0, 1, {**right, "scale": np.zeros(4)}), "'scale'"),
        "real for complex": (lambda right: (1.0, 1, {**right, "object": np.zeros((2, 2))}), "'object'"),
        "nothing for one": (lambda right: (1.0, 1, {"object": right["object"]}), "'scale'"),
    }
    rows, good = [], True
    for name, (answer, names) in wrong.items():
        try:
            dtomo.fit(model(answer), np.zeros((10, 1)))
            said = "nothing"
        except dtomo.UserError as error:
            said = str(error)
        good = good and names in said and "\n" not in said
        rows.append([name, said])
    print(table(["model", "what is said"], rows), flush=True)
    return {"found": rows, "good": good}


def scaling(chosen: argparse.Namespace) -> Found:
    """Two workers with one thread each, and one: the example as it is, and with a quarter of the work in a step."""
    import torch

    from dtomo.distributed.clusters import Resources, connect
    from examples import denoise_tomogram as example

    seconds: dict[tuple[int, int], float] = {}
    cases = ((16, 16),) if chosen.quick else ((96, 64), (64, 32))
    for size, side in cases:
        halves = _phantom(chosen, size)[0]
        for workers in (1, 2):
            with connect(Resources(workers, 1, 3 * 2**30, dashboard=None)) as client:
                torch.manual_seed(0)
                history = example.train(*halves, example.UNet(16), epochs=4, client=client, side=side)
            seconds[side, workers] = min(epoch.seconds for epoch in history.epochs[1:])
    ratios = {side: seconds[side, 1] / seconds[side, 2] for _, side in cases}
    rows = [
        [str(size), str(side), *map(number, (seconds[side, 1], seconds[side, 2], ratios[side]))] for size, side in cases
    ]
    print("example (a): seconds of an epoch, of steps of 16 patches; the first row is the example as it is")
    print(table(["object", "side of patches", "1 worker", "2 workers", "ratio"], rows), flush=True)
    return {"found": rows, "good": ratios[cases[0][1]] >= 1.7 or chosen.quick}


def denoise(chosen: argparse.Namespace) -> Found:
    """The phantom, and a measured scan."""
    scenes = {f"phantom {size}": _phantom(chosen, size) for size in ((32,) if chosen.quick else (64, 96))}
    scan = ROOT.parent / "shared" / "data" / "i13_tiff_stack"
    if scan.exists() and not chosen.quick:
        scenes["measured"] = _measured(scan)
    rows, good = [], True
    for name, (halves, reference) in scenes.items():
        rows.append([name, *_denoised(name, halves, reference, chosen)])
        good = good and (rows[-1][2] > rows[-1][1] or chosen.quick)
    print("against what took no part: the truth of the phantom, a tomogram of every third projection of the scan")
    heads = ["", "mean of halves, dB", "denoised, dB", "best Gaussian, dB", "FSC of the mean", "FSC denoised"]
    print(table(heads, [[row[0], *(number(value) for value in row[1:])] for row in rows]), flush=True)
    return {"found": rows, "good": good}


def _denoised(name: str, halves: list[np.ndarray], reference: np.ndarray, chosen: argparse.Namespace) -> list[float]:
    import scipy.ndimage
    import torch

    from dtomo.algorithms.resolution import fourier_correlation
    from dtomo.fitting.apply import apply
    from dtomo.report.fit_pictures import draw_slices
    from examples import denoise_tomogram as example

    torch.manual_seed(0)
    network = example.UNet(4 if chosen.quick else 16)
    example.train(*halves, network, epochs=2 if chosen.quick else 10, workers=2, best=True)
    made = [
        apply(example.Denoiser(network.eval()), half, halo=example.HALO, chunk=(16, 128, 128), multiple=example.CELL)
        for half in halves
    ]
    mean, denoised = sum(halves) / 2, sum(made) / 2
    if chosen.pictures:
        shown = {"mean of the halves": mean, "denoised": denoised, "took no part": reference}
        draw_slices(chosen.pictures / f"{name}.png", shown)
    blurred = max(
        example.likeness(scipy.ndimage.gaussian_filter(mean, width), reference) for width in (0.5, 0.75, 1, 1.5, 2)
    )
    shells = [float(np.mean(fourier_correlation(one, reference).correlation)) for one in (mean, denoised)]
    return [example.likeness(mean, reference), example.likeness(denoised, reference), blurred, *shells]


def _phantom(chosen: argparse.Namespace, size: int) -> tuple[list[np.ndarray], np.ndarray]:
    from examples import denoise_tomogram as example

    *measured, truth = example.phantom(size, 500.0)
    halves = example.parts_of(*measured)
    scale = halves[0].std()
    return [half / scale for half in halves], truth / scale


def _measured(scan: Path) -> tuple[list[np.ndarray], np.ndarray]:
    from examples import denoise_tomogram as example

    integrals, angles, _ = example.integrals_of(
        str(scan / "tiffs"), angles=np.loadtxt(scan / "angles.txt")[10:101], flats=scan / "flat_00001.tiff",
        darks=scan / "dark_00001.tiff",
    )  # fmt: skip
    integrals = np.ascontiguousarray(integrals[:, 40:88])
    *halves, reference = example.parts_of(integrals, angles, 85.8, parts=3)
    scale = halves[0].std()
    return [half / scale for half in halves], reference / scale


def aberrations(chosen: argparse.Namespace) -> Found:
    """Example (b)."""
    from examples import fit_aberrations as example

    size, frames = (32, 60) if chosen.quick else (64, 200)
    model = example.Aberrations(size, example.beginning())
    history = example.fitted(model, *example.measured(frames, size), workers=2)
    off = example.errors(model.parameters)
    print("example (b): distance from the truth, radians at the edge of the aperture; R of held-out frames")
    r = history[-1].validation_metrics["R"]
    print(table([*off, "R"], [[*(number(value) for value in off.values()), number(r)]]), flush=True)
    return {"off": off, "R": r, "good": max(off.values()) < 0.05}


def _torch() -> bool:
    return importlib.util.find_spec("torch") is not None


def _program(module: str, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", module, *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode > 0:
        print(done.stderr[-2000:], file=sys.stderr)
    return done


SECTIONS: dict[str, Callable[[argparse.Namespace], Found]] = {
    "same": same,
    "imaginary": imaginary,
    "killed": killed,
    "travels": travels,
    "refused": refused,
    "aberrations": aberrations,
    "scaling": scaling,
    "denoise": denoise,
}
TORCH_ONLY = ("scaling", "denoise")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="*", help=", ".join(SECTIONS) + "; default all")
    parser.add_argument("--json", type=Path, help="also write what was measured here")
    parser.add_argument("--pictures", type=Path, help="folder for slices of what is denoised")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that it works")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--child-folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--child-ends", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.child:
        child(chosen.child, chosen.child_folder, chosen.child_ends)
        return
    environment.restart_clean()
    names = chosen.sections or list(SECTIONS)
    for name in names:
        if name not in SECTIONS:
            parser.error(f"sections are {', '.join(SECTIONS)}, not {name}")
    print(f"{environment.processor()}, {environment.cores()} threads", flush=True)
    found: dict[str, Found] = {}
    for name in names:
        if name in TORCH_ONLY and not _torch():
            print(f"{name}: left out, as Torch is not installed")
            continue
        started = time.perf_counter()
        found[name] = SECTIONS[name](chosen)
        print(f"{name}: {'good' if found[name]['good'] else 'NOT GOOD'}, {time.perf_counter() - started:.1f} s\n")
    write_json(chosen.json, ["numpy", "scipy", "dask", "distributed", "torch"], **found)
    sys.exit(0 if all(section["good"] for section in found.values()) else 1)


if __name__ == "__main__":
    main()
