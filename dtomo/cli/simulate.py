"""``dtomo simulate``: data whose answer is known."""

from pathlib import Path
from typing import Annotated, Any

import typer

from dtomo.cli import options
from dtomo.errors import UserError

app = typer.Typer(no_args_is_help=True, help="Simulate data whose answer is known.")


@app.callback()
def _group() -> None:
    pass


@app.command()
def scan(
    output: Annotated[
        Path, typer.Argument(metavar="OUT", help="Data Exchange HDF5 file, such as scan.h5; with --complex scan.zarr.")
    ],
    size: Annotated[int, typer.Option(help="Width of a slice in voxels.")] = 256,
    rows: Annotated[int | None, typer.Option(help="Detector rows; default: as size.")] = None,
    angles: Annotated[int | None, typer.Option(help="Number of projections; default: π/2 × size.")] = None,
    columns: Annotated[
        int | None, typer.Option(help="Detector columns; default: 7/6 of size, with --complex size.")
    ] = None,
    center: Annotated[float | None, typer.Option(help="Column of the rotation axis.")] = None,
    complex_: Annotated[
        bool, typer.Option("--complex", help="Complex line integrals, as of ptychography, without noise.")
    ] = False,
    geometry: Annotated[
        str | None, typer.Option(help="cone, helix, fan, laminography or tilt-series; default: a parallel beam.")
    ] = None,
    photons: Annotated[float | None, typer.Option(help="Photons per pixel of the open beam; default 20000.")] = None,
    phantom: Annotated[str | None, typer.Option(help="sample (default) or head.")] = None,
    full_turn: Annotated[bool, typer.Option("--full-turn", help="360 degrees instead of 180.")] = False,
    clean: Annotated[bool, typer.Option("--clean", help="No rings, dead pixels and zingers.")] = False,
    pixel_size: options.PixelSize = None,
    energy: options.Energy = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the noise, the camera and the beam; default 0.")] = None,
    overwrite: options.Overwrite = False,
    quiet: options.Quiet = False,
) -> None:
    """Write a scan of a phantom: raw, with flats, darks, photon noise, rings and dead pixels, or complex."""
    from dtomo.simulate import simulate_complex_scan, simulate_geometry_scan, simulate_scan

    sizes: dict[str, Any] = {
        "size": size,
        "rows": rows,
        "angles": angles,
        "columns": columns,
        "center": center,
        "full_turn": full_turn,
        "overwrite": overwrite,
    }
    raw: dict[str, Any] = {"photons": photons, "phantom": phantom, "seed": seed, "energy": energy}
    raw = {name: value for name, value in raw.items() if value is not None}
    if pixel_size is not None:
        sizes["pixel_size"] = pixel_size
    flaws: dict[str, Any] = {"rings": False, "dead_pixels": 0.0, "zingers": 0.0} if clean else {}
    if geometry is not None:
        for name, value in (("complex", complex_), ("columns", columns), ("center", center), ("full-turn", full_turn)):
            if value:
                raise UserError(f"--{name} belongs to a parallel beam, not to --geometry {geometry}; leave it out")
        kept = {name: value for name, value in sizes.items() if name not in ("columns", "center", "full_turn")}
        made = simulate_geometry_scan(output, geometry, **kept, **raw, **flaws)  # type: ignore[arg-type]
        if not quiet:
            print(f"{output}: {made.geometry}")
        return
    if complex_:
        if raw or clean:
            raise UserError(f"--{next(iter(raw), 'clean')} belongs to raw scans, not to --complex; leave it out")
        truth = simulate_complex_scan(output, **sizes)
    else:
        truth = simulate_scan(output, **sizes, **raw, **flaws)
    if not quiet:
        print(
            f"{output}: {len(truth.angles)} projections of {truth.slices} rows and {truth.columns} columns, "
            f"rotation axis at column {truth.center:g}"
        )


@app.command()
def ptycho(
    output: Annotated[Path, typer.Argument(metavar="OUT", help="CXI file, such as scan.cxi.")],
    size: Annotated[int | None, typer.Option(help="Rows and columns of frames; default 128.")] = None,
    positions: Annotated[int | None, typer.Option(help="Number of frames; default 400.")] = None,
    modes: Annotated[int | None, typer.Option(help="Incoherent modes of the probe; default 2.")] = None,
    photons: Annotated[float | None, typer.Option(help="Mean photons of a frame; default 100000.")] = None,
    position_error: Annotated[
        float | None, typer.Option(help="Error of the positions in the file, root mean square, object pixels.")
    ] = None,
    background: Annotated[float | None, typer.Option(help="Mean counts per pixel from elsewhere.")] = None,
    near_field: Annotated[
        bool, typer.Option("--near-field", help="Magnified images in place of patterns far away.")
    ] = False,
    aperture: Annotated[str | None, typer.Option(help="Of the lens: circle (default), rectangle, zone plate.")] = None,
    scan_path: Annotated[str | None, typer.Option(help="spiral (default) or grid.")] = None,
    overlap: Annotated[
        float | None, typer.Option(help="Part of the probe's diameter that neighbours share; default 0.8.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Of object, positions and noise; default 0.")] = None,
    overwrite: options.Overwrite = False,
    quiet: options.Quiet = False,
) -> None:
    """Write a ptychographic scan of a known object with photon noise; the truth lies in it, too."""
    given: dict[str, Any] = {name: value for name, value in locals().items() if value is not None}
    for name in ("output", "quiet"):
        del given[name]
    from dtomo.simulate.ptycho import simulate_ptycho

    truth = simulate_ptycho(output, **given)
    if not quiet:
        rows, columns = truth.object.shape
        frame = truth.probe.shape[-1]
        print(
            f"{output}: {len(truth.positions)} frames of {frame} × {frame}, {len(truth.probe)} probe modes, object of "
            f"{rows} × {columns} pixels"
        )


@app.command()
def ptychotomo(
    output: Annotated[Path, typer.Argument(metavar="OUT", help="HDF5 file, such as joint.h5; a folder if --separate.")],
    size: Annotated[int | None, typer.Option(help="Voxels along a side of the volume; default 64.")] = None,
    angles: Annotated[int | None, typer.Option(help="Over a half-turn; default 60.")] = None,
    frame: Annotated[
        int | None, typer.Option(help="Rows and columns of a frame; default 32, of small volumes half the side.")
    ] = None,
    step: Annotated[float | None, typer.Option(help="Pixels from one position to the next; default 5.")] = None,
    overlap: Annotated[
        float | None,
        typer.Option(help="In place of --step: part of the light's diameter that neighbours share; negative: gaps."),
    ] = None,
    scan_path: Annotated[str | None, typer.Option(help="grid (default) or spiral.")] = None,
    photons: Annotated[
        float | None, typer.Option(help="In a frame without sample; 0: no noise; default 1000000.")
    ] = None,
    probe: Annotated[
        str | None, typer.Option(help="File of a probe, NumPy or FILE.h5:/dataset, cut to the frame's size.")
    ] = None,
    phase: Annotated[float | None, typer.Option(help="Of the middle of the sample, radians; default 1.5.")] = None,
    shifts: Annotated[
        float | None, typer.Option(help="Errors of each angle's images, up to so many pixels; default 0.")
    ] = None,
    slices: Annotated[int | None, typer.Option(help="That the wave goes through; default 1: a thin sample.")] = None,
    separate: Annotated[bool, typer.Option("--separate", help="A CXI file for each angle, in a folder.")] = False,
    seed: Annotated[int | None, typer.Option(help="Of sample, positions and noise; default 0.")] = None,
    overwrite: options.Overwrite = False,
    quiet: options.Quiet = False,
) -> None:
    """Write diffraction frames at many angles of a known volume with photon noise; the truth lies in it, too."""
    given: dict[str, Any] = {name: value for name, value in locals().items() if value is not None}
    for name in ("output", "quiet"):
        del given[name]
    from dtomo.simulate.ptychotomo import frame_of, resampled_probe, simulate_ptychotomo

    if probe is not None:
        from dtomo.io.ptycho.given import given_array

        light = given_array(probe, "probe", kinds="fc")[0]
        if light.ndim < 2:
            raise UserError(f"--probe {probe} has shape {light.shape}; rows and columns were expected")
        given["probe"] = resampled_probe(light.reshape(-1, *light.shape[-2:])[0], frame or frame_of(size or 64))
    truth = simulate_ptychotomo(output, **given)
    if not quiet:
        frame = truth.probe.shape[-1]
        print(
            f"{output}: {len(truth.positions)} frames of {frame} × {frame} at {len(truth.angles)} angles, of a volume "
            f"of {len(truth.volume)}³ voxels of {truth.pixel_size * 1e9:g} nm"
        )


@app.command()
def particles(
    output: Annotated[Path, typer.Argument(metavar="OUT", help="Folder, such as particles; made here.")],
    reference: Annotated[
        str | None, typer.Option(help="File of a map (MRC, EM …); default: an asymmetric one is built.")
    ] = None,
    count: Annotated[int, typer.Option(help="Number of particles.")] = 200,
    box: Annotated[
        int | None, typer.Option(help="Voxels along a side; default: those of the map, 48 of the built one.")
    ] = None,
    pixel_size: Annotated[
        float | None, typer.Option(help="Å; a map that has another is resampled. Default: that of the map, else 5.")
    ] = None,
    snr: Annotated[float, typer.Option(help="Variance of the particle by that of the noise; 0: noise alone.")] = 0.05,
    tilts: Annotated[tuple[float, float], typer.Option(help="First and last tilt, degrees.")] = (-60.0, 60.0),
    defocus: Annotated[
        tuple[float, float] | None, typer.Option(help="Least and most, µm: each particle has a CTF of its own.")
    ] = None,
    shifts: Annotated[float, typer.Option(help="Particles lie up to so many voxels off the middle.")] = 2.0,
    angle_error: Annotated[float, typer.Option(help="Of the orientations in the list, degrees.")] = 0.0,
    shift_error: Annotated[float, typer.Option(help="Of the shifts in the list, voxels.")] = 0.0,
    tomogram: Annotated[
        tuple[int, int, int] | None,
        typer.Option(metavar="Z Y X", help="Size of a tomogram that all particles lie in, and are cut from."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of map, orientations and noise.")] = 0,
    overwrite: options.Overwrite = False,
    quiet: options.Quiet = False,
) -> None:
    """Write subtomograms of a map with known orientations, missing wedge and noise, their lists, and the truth."""
    given: dict[str, Any] = dict(locals())
    for name in ("output", "quiet"):
        del given[name]
    from dtomo.simulate.particles import simulate_particles

    truth = simulate_particles(output, **given)
    if not quiet:
        size = len(truth.reference)
        print(
            f"{output}: {len(truth.rotations)} particles in boxes of {size}³ voxels of {truth.pixel_size:g} Å, "
            f"lists particles.xml and particles.star, true ones truth.xml and truth.star"
        )
