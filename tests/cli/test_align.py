"""`dtomo align`, and `dtomo recon --alignment`, on a tilt series and on an X-ray scan."""

import mrcfile
import numpy as np
import pytest

from dtomo.io import open_volume, write_dxchange
from dtomo.io.tilts import read_alignment
from tests.align.scenes import HALF_TURN, TILTS, moved_views, rms

SIZE = 32


def test_a_tilt_series_from_disk_to_disk(here, cluster, tmp_path):
    angles = TILTS[::2]
    data, truth = moved_views(angles, size=SIZE, most=3.0)
    with mrcfile.new(tmp_path / "views.mrc", data) as file:
        file.set_image_stack()
    (tmp_path / "views.tlt").write_text("".join(f"{angle:.2f}\n" for angle in angles))
    done = here("align", "views.mrc", "out", "--axis", "keep", "--level", 0, report=True)
    assert done.returncode == 0, done.stderr
    for said in ("start: ", "of 100 percent done", "axis at 0.00°", "--alignment", "pictures in"):
        assert said in done.stderr
    assert all((tmp_path / "out" / name).stat().st_size > 10_000 for name in ("shifts.png", "views.png", "slices.png"))
    page = (tmp_path / "out.report.html").read_text("utf-8")
    assert all(
        words in page for words in ("shifts of the views", "Convergence", "data:image/jpeg", "column of the axis")
    )
    assert rms(read_alignment(tmp_path / "out" / "alignment.yaml").shifts, truth, angles).max() < 0.1
    words = ("--cluster", cluster, "--algorithm", "sirt", "--iterations", 2)
    one = here("recon", "views.mrc", "one.mrc", "--alignment", "out/alignment.yaml", *words)
    assert one.returncode == 0, one.stderr
    assert "column 15.50, as the alignment says" in one.stderr
    two = here("recon", "out/aligned.mrc", "two.mrc", "--center", 15.5, *words)
    assert two.returncode == 0, two.stderr
    volumes = [np.asarray(open_volume(tmp_path / name).array) for name in ("one.mrc", "two.mrc")]
    np.testing.assert_array_equal(*volumes)  # interpolated once, either way
    lost = here("recon", "views.mrc", "three.mrc", "--alignment", "out/alignment.yaml", "--exclude-frames", "1")
    assert lost.returncode == 2
    assert "alignment" in lost.stderr
    assert not (tmp_path / "three.mrc").exists()


def test_an_xray_scan_from_disk_to_disk(here, cluster, tmp_path):
    angles = HALF_TURN[::2]
    data, truth = moved_views(angles, size=SIZE, most=3.0)
    counts = np.round(5e4 * np.exp(-data / data.max() * 2) + 100).astype(np.uint16)
    flat, dark = np.full((2, SIZE, SIZE), 50100, np.uint16), np.full((1, SIZE, SIZE), 100, np.uint16)
    write_dxchange(
        tmp_path / "scan.h5", frames=counts, shape=counts.shape, dtype=np.uint16, flats=flat, darks=dark, angles=angles
    )
    done = here("align", "scan.h5", "out", "--views", "zarr", "--no-pictures", "--zingers", 0)
    assert done.returncode == 0, done.stderr
    assert not list((tmp_path / "out").glob("*.png"))
    found = read_alignment(tmp_path / "out" / "alignment.yaml")
    assert (found.axis_angles == 0).all()
    assert rms(found.shifts, truth, angles).max() < 0.15
    words = ("--cluster", cluster, "--zingers", 0)
    one = here("recon", "scan.h5", "one.zarr", "--alignment", "out/alignment.yaml", *words)
    assert one.returncode == 0, one.stderr
    two = here("recon", "out/aligned.zarr", "two.zarr", "--center", 15.5, "--stripes", "none", *words[:2])
    assert two.returncode == 0, two.stderr
    volumes = [np.asarray(open_volume(tmp_path / name).array) for name in ("one.zarr", "two.zarr")]
    np.testing.assert_array_equal(*volumes)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("align",), "takes SERIES and OUT"),
        (("align", "no.mrc", "out"), "no.mrc"),
        (("align", "views.mrc", "out", "--start", "luck"), "--start"),
        (("recon", "views.mrc", "out.zarr", "--alignment", "no.yaml"), "no.yaml"),
        (("recon", "views.mrc", "out.zarr", "--alignment", "no.yaml", "--delta-beta", "100"), "--delta-beta"),
    ],
)
def test_refused_in_one_sentence(here, tmp_path, words, message):
    with mrcfile.new(tmp_path / "views.mrc", np.ones((5, 16, 16), np.float32)) as file:
        file.set_image_stack()
    (tmp_path / "views.tlt").write_text("-20\n-10\n0\n10\n20\n")
    done = here(*words)
    assert done.returncode == 2
    assert message in done.stderr
    assert sorted(item.name for item in tmp_path.iterdir()) == ["views.mrc", "views.tlt"]
