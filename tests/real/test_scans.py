"""Real scans, from raw data to the volume by the real command, with the known answers of their READMEs."""

import json
import os
import subprocess
import sys
from pathlib import Path

import astra
import numpy as np
import pytest
import scipy.ndimage

import dtomo
from dtomo.io import open_volume
from dtomo.recon.prepare import line_integrals
from dtomo.settings import ReconSettings

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / ".." / "shared" / "data"
pytestmark = pytest.mark.skipif(not DATA.exists(), reason="the measured data lie beside the project, not in it")

SCANS = {
    "tooth": (DATA / "tooth_dxchange" / "tooth.h5", {}, 295.6),
    "i13": (
        DATA / "i13_tiff_stack" / "tiffs",
        {
            "angles": f"{DATA / 'i13_tiff_stack' / 'angles.txt'}[10:101]",
            "flats": DATA / "i13_tiff_stack" / "flat_00001.tiff",
            "darks": DATA / "i13_tiff_stack" / "dark_00001.tiff",
        },
        85.8,
    ),
}


def run(*words: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "dtomo", *map(str, words)]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=250)


def astra_fbp(sinogram: np.ndarray, angles: np.ndarray, center: float) -> np.ndarray:
    """ASTRA's filtered back projection of one sinogram (angle, column), shifted so that its axis is in the middle."""
    columns = sinogram.shape[1]
    width = 2 * columns + columns % 2  # the same parity: the slice lies on the same pixels
    left = (width - columns) // 2
    wide = np.pad(sinogram, ((0, 0), (left, width - columns - left)), "edge")
    wide = scipy.ndimage.shift(wide, (0, (width - 1) / 2 - left - center), order=3, mode="nearest")
    geometry = astra.create_proj_geom("parallel", 1.0, width, -np.deg2rad(angles))  # its y axis points up
    volume = astra.create_vol_geom(columns, columns)
    projector = astra.create_projector("linear", geometry, volume)
    data = astra.data2d.create("-sino", geometry, np.ascontiguousarray(wide, np.float32))
    image = astra.data2d.create("-vol", volume)
    config = astra.astra_dict("FBP") | {
        "ProjectorId": projector,
        "ProjectionDataId": data,
        "ReconstructionDataId": image,
    }
    algorithm = astra.algorithm.create(config)
    astra.algorithm.run(algorithm)
    found = astra.data2d.get(image)
    astra.algorithm.delete(algorithm)
    astra.data2d.delete([data, image])
    astra.projector.delete(projector)
    return found


@pytest.mark.parametrize("name", [pytest.param("tooth", marks=pytest.mark.slow), *sorted(set(SCANS) - {"tooth"})])
def test_axis_and_slices(name: str, tmp_path: Path) -> None:
    path, options, known = SCANS[name]
    words = [word for key, value in options.items() for word in (f"--{key}", value)]
    done = run("recon", path, "volume.zarr", "--center", "auto", *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    summary = json.loads((tmp_path / "volume.zarr.summary.json").read_text())
    assert abs(summary["center"] - known) <= 0.5

    scan = dtomo.open(path, **options)
    row = scan.shape[1] // 2
    settings = ReconSettings(scan=path, output=tmp_path / "volume.zarr")
    sinogram = line_integrals(scan, settings, slice(row, row + 1))[0][:, 0]
    expected = astra_fbp(sinogram, scan.angles, summary["center"])
    found = np.asarray(open_volume(tmp_path / "volume.zarr").array[row])
    y, x = np.mgrid[: len(found), : len(found)] - (len(found) - 1) / 2
    # the circle that every view sees
    inside = np.hypot(x, y) < min(summary["center"], scan.shape[2] - 1 - summary["center"])
    correlation = np.corrcoef(found[inside], expected[inside])[0, 1]
    print(f"{name}: center {summary['center']:.2f} (known {known}), correlation with ASTRA {correlation:.4f}")
    assert correlation >= 0.98


def test_axis_outside_the_detector_is_said(tmp_path: Path) -> None:
    done = run("recon", DATA / "k11_nxtomo_links" / "k11-18014.nxs", "volume.zarr", cwd=tmp_path)
    assert done.returncode == 2
    assert "outside the detector" in done.stderr
    assert not list(tmp_path.iterdir())
