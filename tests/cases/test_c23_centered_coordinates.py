"""C23: RELION 5 counts from the middle of the tomogram; which middle is said, and kept."""

import numpy as np
import pytest

from dtomo.cli import main
from dtomo.io.particles import Particles, read_particles, reading_notes, write_particles
from dtomo.io.particles.star import parse_star

HEAD = (
    "data_optics\nloop_\n_rlnOpticsGroup\n_rlnTomoTiltSeriesPixelSize\n1 1.35\n\n"
    "data_particles\nloop_\n_rlnTomoName\n_rlnOpticsGroup\n_rlnCenteredCoordinateXAngst\n"
    "_rlnCenteredCoordinateYAngst\n_rlnCenteredCoordinateZAngst\n"
)
SIZE = (4096.0, 4096.0, 1000.0)


@pytest.mark.parametrize(("angstrom", "offset"), [(0.0, 0.0), (1.35, -1.0)])
def test_voxel_512_of_the_binned_tomogram(angstrom, offset, tmp_path):
    path = tmp_path / "p.star"
    path.write_text(f"{HEAD}t 1 {angstrom} {angstrom} 0\n")
    found = read_particles(path, tomogram_sizes=SIZE, binning=4, center_offset=offset)
    assert found.positions is not None
    assert found.positions[0, 0] == pytest.approx(512, abs=1e-9)
    assert found.voxel_sizes[0] == pytest.approx(5.4)
    made = Particles(np.eye(3)[None], np.zeros((1, 3)), positions=np.array([[512.0, 512, 125]]), tomograms=["t"])
    write_particles(
        tmp_path / "new.star", made, pixel_size=5.4, binning=4, tomogram_sizes=SIZE, center_offset=offset, relion="5"
    )
    particles = parse_star((tmp_path / "new.star").read_text(), "new")[1]
    assert float((particles.column("rlnCenteredCoordinateXAngst") or [""])[0]) == pytest.approx(angstrom, abs=1e-6)


@pytest.mark.parametrize("binning", [1, 2, 3, 4, 6, 8])
@pytest.mark.parametrize("size", [(4096.0, 4096.0, 1000.0), (1001.0, 959.0, 333.0)])
@pytest.mark.parametrize("offset", [0.0, -1.0])
def test_there_and_back_to_a_thousandth_of_a_voxel(binning, size, offset, tmp_path):
    random = np.random.default_rng(binning)
    positions = random.uniform(0, np.array(size) / binning, (50, 3))
    made = Particles(
        np.tile(np.eye(3), (50, 1, 1)),
        np.zeros((50, 3)),
        positions=positions,
        tomograms=["t"] * 50,
        voxel_sizes=np.full(50, 1.35 * binning),
    )
    options = {"tomogram_sizes": {"t": size}, "center_offset": offset}
    write_particles(tmp_path / "p.star", made, binning=binning, relion="5", **options)
    again = read_particles(tmp_path / "p.star", **options)
    assert again.positions is not None
    assert np.abs(again.positions - positions).max() < 1e-3 / binning
    particles = parse_star((tmp_path / "p.star").read_text(), "p")[1]
    column = np.array(particles.column("rlnCenteredCoordinateZAngst"), float)
    np.testing.assert_allclose(column, (positions[:, 2] * binning - size[2] / 2 - offset) * 1.35, atol=1e-6)


def test_the_middle_that_was_read_is_named_and_the_default_written(tmp_path, capsys):
    path = tmp_path / "p.star"
    path.write_text(f"{HEAD}t 1 1.35 1.35 1.35\n")
    assert any(
        "size/2 -1" in note for note in reading_notes(read_particles(path, tomogram_sizes=SIZE, center_offset=-1))
    )
    words = ["subtomo", "convert", str(path), str(tmp_path / "new.star"), "--tomogram-size", "4096,4096,1000"]
    assert main([*words, "--center-offset", "-1"]) == 0
    said = capsys.readouterr().out
    assert "size/2 -1" in said
    assert "written: from the middle size/2" in said
    new = read_particles(tmp_path / "new.star", tomogram_sizes=SIZE)
    assert new.positions is not None
    np.testing.assert_allclose(new.positions, [[2048.0, 2048.0, 500.0]], atol=1e-6)
    table = parse_star((tmp_path / "new.star").read_text(), "new")[1]
    assert [float(value) for value in table.rows[0][2:]] == [0.0, 0.0, 0.0]


def test_without_the_size_positions_are_not_known_and_nothing_is_lost(tmp_path, capsys):
    path = tmp_path / "p.star"
    path.write_text(f"{HEAD}t 1 1.35 2 3\n")
    assert read_particles(path).positions is None
    assert main(["info", str(path)]) == 0
    assert "positions" in capsys.readouterr().out.split("missing")[1].splitlines()[0]
    assert main(["subtomo", "convert", str(path), str(tmp_path / "same.star")]) == 0
    assert (tmp_path / "same.star").read_text() == path.read_text()
