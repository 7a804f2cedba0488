"""``dtomo simulate``: data whose answer is known."""

from pathlib import Path
from typing import Annotated, Any

import typer

from dtomo.cli import options

app = typer.Typer(no_args_is_help=True, help="Simulate data whose answer is known.")


@app.callback()
def _group() -> None:
    pass


@app.command()
def scan(
    output: Annotated[Path, typer.Argument(metavar="OUT", help="Data Exchange HDF5 file, such as scan.h5.")],
    size: Annotated[int, typer.Option(help="Width of a slice in voxels.")] = 256,
    rows: Annotated[int | None, typer.Option(help="Detector rows; default: as size.")] = None,
    angles: Annotated[int | None, typer.Option(help="Number of projections; default: π/2 × size.")] = None,
    columns: Annotated[int | None, typer.Option(help="Detector columns; default: 7/6 of size.")] = None,
    center: Annotated[float | None, typer.Option(help="Column of the rotation axis.")] = None,
    photons: Annotated[float, typer.Option(help="Photons per pixel of the open beam.")] = 20000,
    phantom: Annotated[str, typer.Option(help="sample or head.")] = "sample",
    full_turn: Annotated[bool, typer.Option("--full-turn", help="360 degrees instead of 180.")] = False,
    clean: Annotated[bool, typer.Option("--clean", help="No rings, dead pixels and zingers.")] = False,
    pixel_size: options.PixelSize = None,
    energy: options.Energy = None,
    seed: Annotated[int, typer.Option(help="Seed of the noise, the camera and the beam.")] = 0,
    overwrite: options.Overwrite = False,
    quiet: options.Quiet = False,
) -> None:
    """Write a raw scan of a phantom, with flats, darks, photon noise, rings and dead pixels."""
    from dtomo.simulate import simulate_scan

    given: dict[str, Any] = {"pixel_size": pixel_size, "energy": energy}
    flaws: dict[str, Any] = {"rings": False, "dead_pixels": 0.0, "zingers": 0.0} if clean else {}
    truth = simulate_scan(
        output,
        size=size,
        rows=rows,
        angles=angles,
        columns=columns,
        center=center,
        photons=photons,
        phantom=phantom,
        full_turn=full_turn,
        seed=seed,
        overwrite=overwrite,
        **{name: value for name, value in given.items() if value is not None},
        **flaws,
    )
    if not quiet:
        print(
            f"{output}: {len(truth.angles)} projections of {truth.slices} rows and {truth.columns} columns, "
            f"rotation axis at column {truth.center:g}"
        )
