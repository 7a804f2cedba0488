"""Particle lists and volumes of other programs: read, written back without loss, converted between the programs."""

from pathlib import Path

import numpy as np
import pytest

from dtomo.cli import main
from dtomo.io import convert, open_volume
from dtomo.io.em import read_em, write_em
from dtomo.io.particles import read_particles, write_particles

FOLDER = Path(__file__).resolve().parents[2] / ".." / "shared" / "data"
DATA = FOLDER / "cryoet_formats"
GLOCAL = FOLDER / "pytom_glocal_particles"
pytestmark = pytest.mark.skipif(not DATA.exists(), reason="the measured data lie beside the project, not in it")

LISTS = {
    "pickpos_format.xml": (DATA, 10),
    "particleList_truth.xml": (GLOCAL, 5),
    "example_starfile.star": (DATA, 74),
    "relion_with_optics_group.star": (DATA, 60),
    "subtomo_format.star": (DATA, 1037),
}
VOLUMES = {
    "EMD-3197.map": (DATA, (20, 20, 20), (-4.1337, 5.5767)),
    "emd_1480.map.em_bin_4.em": (DATA, (42, 42, 42), (-4.4765, 9.5110)),
    "emd_5592_21A.mrc": (DATA, (20, 20, 20), None),
    "human_ribo_21A.em": (DATA, (32, 32, 32), None),
    "human_ribo_mask_32_8_5.mrc": (DATA, (32, 32, 32), (0.0, 1.0)),
    "ribo.em": (GLOCAL, (50, 50, 50), None),
    "mask_45.em": (GLOCAL, (50, 50, 50), None),
    **{f"particle_{number}.em": (GLOCAL, (50, 50, 50), None) for number in range(5)},
}


@pytest.mark.parametrize("name", LISTS)
def test_lists_are_written_back_letter_by_letter(name, tmp_path):
    folder, count = LISTS[name]
    found = read_particles(folder / name)
    assert len(found) == count
    write_particles(tmp_path / name, found)
    assert (tmp_path / name).read_bytes() == (folder / name).read_bytes()


@pytest.mark.parametrize("name", LISTS)
@pytest.mark.parametrize("suffix", [".xml", ".star", ".tbl", ".em"])
def test_lists_go_to_every_program_and_back(name, suffix, tmp_path):
    folder, count = LISTS[name]
    found = read_particles(folder / name)
    there, back = tmp_path / f"there{suffix}", tmp_path / f"back{Path(name).suffix}"
    write_particles(there, found, pixel_size=13.0)
    first = read_particles(there)
    write_particles(back, first, pixel_size=13.0)
    again = read_particles(back)
    assert found.positions is not None
    for one in (first, again):
        assert len(one) == count
        assert np.abs(one.rotations - found.rotations).max() < 1e-6
        assert np.abs(one.shifts - found.shifts).max() < 1e-5
        assert one.positions is not None
        assert np.abs(one.positions - found.positions).max() < 1e-3
    if suffix in (".xml", ".star"):
        assert first.files == found.files
        assert first.tomograms == found.tomograms


def test_what_the_readme_says_of_the_lists():
    from lxml import etree

    first = etree.parse(DATA / "pickpos_format.xml").getroot().find("Particle/Rotation")
    angles = [float(first.get(name)) for name in ("Z1", "Z2", "X")]
    assert angles == pytest.approx([303.99187, 272.86359, 75.70288], abs=1e-5)
    xml = read_particles(DATA / "pickpos_format.xml")
    assert {wedge.tilts for wedge in xml.wedges if wedge is not None} == {(-60.0, 60.0)}
    assert {wedge.cutoff for wedge in xml.wedges if wedge is not None} == {50.0}
    optics = read_particles(DATA / "relion_with_optics_group.star")
    assert set(optics.voxel_sizes.tolist()) == {2.388}
    subtomo = read_particles(DATA / "subtomo_format.star")
    assert set(subtomo.voxel_sizes.tolist()) == {6.896}
    example = read_particles(DATA / "example_starfile.star")
    assert set(example.halves.tolist()) == {1, 2}
    np.testing.assert_allclose(example.shifts[-1], np.array([1.87608, 1.87608, 4.31468]) / 10.96, atol=1e-12)


@pytest.mark.parametrize("name", VOLUMES)
def test_volumes_are_written_back_bit_by_bit(name, tmp_path):
    folder, shape, extremes = VOLUMES[name]
    volume = open_volume(folder / name)
    assert volume.shape == shape
    values = volume.array.compute(scheduler="sync")
    if extremes is not None:
        assert [values.min(), values.max()] == pytest.approx(extremes, abs=1e-4)
    for suffix in (".mrc", ".em", ".zarr"):
        written = tmp_path / f"there{suffix}"
        convert(folder / name, written)
        convert(written, tmp_path / f"back-{suffix[1:]}{Path(name).suffix}")
        again = open_volume(tmp_path / f"back-{suffix[1:]}{Path(name).suffix}")
        assert again.dtype == volume.dtype
        np.testing.assert_array_equal(again.array.compute(scheduler="sync"), values)


@pytest.mark.parametrize("name", [name for name in VOLUMES if name.endswith(".em")])
def test_em_files_come_back_byte_by_byte(name, tmp_path):
    folder = VOLUMES[name][0]
    write_em(tmp_path / "whole.em", *read_em(folder / name))
    convert(folder / name, tmp_path / "slabs.em")
    for written in ("whole.em", "slabs.em"):
        assert (tmp_path / written).read_bytes() == (folder / name).read_bytes()


def test_the_commands_say_what_was_read(tmp_path, capsys):
    assert main(["info", str(DATA / "example_starfile.star"), str(DATA / "human_ribo_21A.em")]) == 0
    said = capsys.readouterr().out
    assert "particle list (RELION STAR)" in said
    assert "halves" in said
    assert "volume (em)" in said
    assert main(["subtomo", "convert", str(DATA / "subtomo_format.star"), str(tmp_path / "new.xml")]) == 0
    said = capsys.readouterr().out
    assert "1037 particles, PyTom XML" in said
    assert "rot, tilt, psi" in said
    assert "not kept" in said
    assert main(["subtomo", "convert", str(DATA / "subtomo_format.star"), str(tmp_path / "new.xml")]) == 2
    assert "exists" in capsys.readouterr().err
