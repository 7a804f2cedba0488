"""``dtomo demo``: from nothing to a volume and pictures in under a minute."""

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dtomo.cli import options
from dtomo.cli.recon import FORKED_WITH
from dtomo.cli.report import after_run
from dtomo.errors import UserError

if TYPE_CHECKING:
    from dtomo.simulate import ScanTruth


def demo(
    folder: Annotated[Path, typer.Argument(help="Where to write.")] = Path("dtomo-demo"),
    size: Annotated[int, typer.Option(help="Width of a slice in voxels.")] = 256,
    rows: Annotated[int | None, typer.Option(help="Detector rows, hence slices; default: half of size.")] = None,
    workers: options.Workers = None,
    memory: options.Memory = None,
    overwrite: options.Overwrite = False,
    quiet: options.Quiet = False,
) -> None:
    """Simulate a raw scan, reconstruct it, and write pictures and a comparison with the truth."""
    started = time.monotonic()
    files = [folder / name for name in ("scan.h5", "volume.zarr", "pictures", "demo.json")]
    present = [path.name for path in files if path.exists()]
    if present and not overwrite:
        raise UserError(f"{folder} holds {present[0]} already; give another folder, or --overwrite")
    say = (lambda line: None) if quiet else (lambda line: print(line, flush=True))
    from dtomo.distributed.forkserver import start_forkserver

    start_forkserver(FORKED_WITH)
    from dtomo import report
    from dtomo.recon import run
    from dtomo.settings import ReconSettings
    from dtomo.simulate import simulate_scan

    scan, volume, pictures, summary = files
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"the folder {folder} cannot be made: {error.strerror}") from error
    say(f"1  simulating a raw scan: {scan}")
    truth = simulate_scan(scan, size=size, rows=rows or size // 2, overwrite=overwrite)
    say(
        f"   {len(truth.angles)} projections of {truth.slices} × {truth.columns} pixels, with flats, darks,\n"
        f"   photon noise, rings and dead pixels; the axis is at column {truth.center:g}"
    )
    say(f"2  reconstructing it: dtomo recon {scan} {volume}")
    settings = ReconSettings(scan=scan, output=volume, workers=workers, memory=memory)
    done = run(settings, overwrite=overwrite, quiet=quiet)
    comparison = compare(volume, truth)
    assert done.axis is not None
    comparison["center_error"] = round(done.axis.detector_column - truth.center, 3)
    say(f"3  pictures: {pictures}")
    report.write_pictures(
        volume, pictures, truth=comparison.pop("middle"), pixel_size=truth.pixel_size, title="dtomo demo"
    )
    comparison["seconds"] = round(time.monotonic() - started, 1)
    summary.write_text(json.dumps({**comparison, "run": done.summary}, indent=1) + "\n")
    after_run(volume, wanted=True, quiet=quiet)
    say(
        f"   axis found to {abs(comparison['center_error']):.2f} columns; correlation with the truth "
        f"{comparison['correlation']:.3f}, error {100 * comparison['relative_error']:.0f} % of its RMS"
    )
    say(f"done in {comparison['seconds']:.0f} s; look at {pictures}/slices.png and comparison.png there")


def compare(volume: Path, truth: "ScanTruth", slices: int = 8) -> dict[str, Any]:
    """Correlation and relative error of some slices inside the field, and the true middle slice."""
    import numpy as np

    from dtomo.io import open_volume

    opened = open_volume(volume)
    count, height, width = opened.shape
    y, x = np.ogrid[:height, :width]
    inside = (y - (height - 1) / 2) ** 2 + (x - (width - 1) / 2) ** 2 < (min(height, width) / 2 - 1) ** 2
    scale = np.float32(1 if truth.pixel_size is None else 1e4 / truth.pixel_size)
    rows = sorted({int(row) for row in np.linspace(0, count - 1, slices + 2)[1:-1]} | {count // 2})
    true = truth.volume(rows, width) * scale
    found = np.concatenate([opened.source.read(slice(row, row + 1)) for row in rows])
    pairs = found[:, inside].astype(np.float64), true[:, inside].astype(np.float64)
    error = np.sqrt(np.mean((pairs[0] - pairs[1]) ** 2) / np.mean(pairs[1] ** 2))
    return {
        "correlation": round(float(np.corrcoef(pairs[0].ravel(), pairs[1].ravel())[0, 1]), 5),
        "relative_error": round(float(error), 5),
        "middle": true[rows.index(count // 2)],
    }
