"""RELION's particle lists: versions, frames, units, what is kept, what is refused."""

import dataclasses

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from dtomo.errors import UserError
from dtomo.geometry.wedge import Wedge
from dtomo.io.particles import (
    Particles,
    read_particles,
    read_tomogram_sizes,
    reading_notes,
    what_is_lost,
    write_particles,
)
from dtomo.io.particles.angles import to_matrices
from dtomo.io.particles.star import parse_star

FIVE = """
# version 50001

data_general

_rlnTomoSubTomosAre2DStacks                       1


# version 50001

data_optics

loop_
_rlnOpticsGroup #1
_rlnOpticsGroupName #2
_rlnTomoTiltSeriesPixelSize #3
_rlnTomoSubtomogramBinning #4
_rlnImagePixelSize #5
 1 optics1 1.350000 2.000000 2.700000
 2 optics2 1.500000 4.000000 6.000000


# version 50001

data_particles

loop_
_rlnTomoName #1
_rlnTomoSubtomogramRot #2
_rlnTomoSubtomogramTilt #3
_rlnTomoSubtomogramPsi #4
_rlnAngleRot #5
_rlnAngleTilt #6
_rlnAnglePsi #7
_rlnOpticsGroup #8
_rlnTomoVisibleFrames #9
_rlnOriginXAngst #10
_rlnOriginYAngst #11
_rlnOriginZAngst #12
_rlnCenteredCoordinateXAngst #13
_rlnCenteredCoordinateYAngst #14
_rlnCenteredCoordinateZAngst #15
_rlnRandomSubset #16
_rlnImageName #17
 TS_01 174.93 90.26 -129.54 27.13 92.57 6.65 1 [0,1] 2.7 -5.4 0.0 1350.0 -135.0 0.0 1 Subtomograms/TS_01/2_stack2d.mrcs
 TS_02 0 0 0 90 0 0 2 [1,1] 0 0 12 0 0 15 2 Subtomograms/TS_02/3_stack2d.mrcs
"""
SIZES = {"TS_01": (4096.0, 4096.0, 1000.0), "TS_02": (1001.0, 1001.0, 501.0)}


@pytest.fixture
def five(tmp_path):
    path = tmp_path / "particles.star"
    path.write_text(FIVE)
    return path


def test_orientations_and_shifts_are_those_in_the_tomogram(five):
    found = read_particles(five, tomogram_sizes=SIZES)
    box = to_matrices([174.93, 90.26, -129.54], "relion")
    own = to_matrices([27.13, 92.57, 6.65], "relion")
    np.testing.assert_allclose(found.rotations[0], box @ own, atol=1e-12)
    np.testing.assert_allclose(found.shifts[0], -box @ np.array([2.7, -5.4, 0]) / 2.7, atol=1e-12)
    np.testing.assert_allclose(found.shifts[1], [0, 0, -2], atol=1e-12)
    assert found.voxel_sizes.tolist() == [2.7, 6.0]
    assert found.halves.tolist() == [1, 2]
    in_box = read_particles(five, frame="box")
    np.testing.assert_allclose(in_box.rotations[0], own, atol=1e-12)
    np.testing.assert_allclose(in_box.shifts[0], [-1, 2, 0], atol=1e-12)


def test_positions_of_optics_groups_of_different_pixel_sizes(five):
    found = read_particles(five, tomogram_sizes=SIZES)
    np.testing.assert_allclose(
        found.positions, [[(2048 + 1000) / 2, (2048 - 100) / 2, 500 / 2], [500.5 / 4, 500.5 / 4, (250.5 + 10) / 4]]
    )
    one = read_particles(five, tomogram_sizes={"TS_01": SIZES["TS_01"]})
    assert one.positions is not None
    assert np.isnan(one.positions[1]).all()
    assert not np.isnan(one.positions[0]).any()
    unknown = read_particles(five)
    assert unknown.positions is None
    notes = " ".join(reading_notes(unknown))
    assert "unknown size" in notes
    assert "stacks of projections" in notes


@pytest.mark.parametrize("frame", ["tomogram", "box"])
def test_what_changed_goes_back_into_the_box_and_nothing_else(frame, five, tmp_path):
    found = read_particles(five, tomogram_sizes=SIZES, frame=frame)
    write_particles(tmp_path / "same.star", found)
    assert (tmp_path / "same.star").read_text() == FIVE
    rotations = Rotation.random(2, random_state=1).as_matrix()
    shifts = np.array([[1.25, -2.5, 3.0], [0.0, 0.5, -2.0]])
    changed = dataclasses.replace(found, rotations=rotations, shifts=shifts, halves=np.array([1, 1], np.int8))
    write_particles(tmp_path / "new.star", changed)
    again = read_particles(tmp_path / "new.star", tomogram_sizes=SIZES, frame=frame)
    assert np.abs(again.rotations - rotations).max() < 1e-7
    assert np.abs(again.shifts - shifts).max() < 1e-6
    assert again.halves.tolist() == [1, 1]
    before, after = (parse_star(text, "t") for text in (FIVE, (tmp_path / "new.star").read_text()))
    assert [block.name for block in after] == ["general", "optics", "particles"]
    assert after[:2] == before[:2]
    kept = [1, 2, 3, 8, 12, 13, 14, 16]
    for old, new in zip(before[2].rows, after[2].rows):
        assert [old[column] for column in kept] == [new[column] for column in kept]


def test_a_score_gets_a_column_of_its_own(five, tmp_path):
    found = dataclasses.replace(read_particles(five), scores=np.array([0.5, np.nan]))
    write_particles(tmp_path / "new.star", found)
    np.testing.assert_array_equal(read_particles(tmp_path / "new.star").scores, [0.5, np.nan])


def test_signs_of_pytoms_converter(five, tmp_path):
    found = read_particles(five, frame="box", pytom_origin_sign=True)
    np.testing.assert_allclose(found.shifts, [[1, -2, 0], [0, 0, 2]], atol=1e-12)
    write_particles(tmp_path / "right.star", found)
    right = read_particles(tmp_path / "right.star", frame="box")
    np.testing.assert_allclose(right.shifts, found.shifts, atol=1e-6)


def test_older_files_have_offsets_in_pixels(tmp_path):
    path = tmp_path / "old.star"
    path.write_text(
        "data_\nloop_\n_rlnCoordinateX\n_rlnCoordinateY\n_rlnCoordinateZ\n_rlnOriginX\n_rlnOriginY\n_rlnOriginZ\n"
        "_rlnDetectorPixelSize\n_rlnMagnification\n_rlnAngleRot\n_rlnAngleTilt\n_rlnAnglePsi\n"
        "10 20 30 1 0 -2 6.896 10000 30 40 50\n"
    )
    found = read_particles(path)
    assert found.shifts.tolist() == [[-1.0, 0.0, 2.0]]
    assert found.positions is not None
    assert found.positions.tolist() == [[10.0, 20.0, 30.0]]
    assert found.voxel_sizes[0] == pytest.approx(6.896)
    moved = dataclasses.replace(found, shifts=np.array([[3.0, 0.5, 0.0]]))
    write_particles(tmp_path / "new.star", moved)
    (block,) = parse_star((tmp_path / "new.star").read_text(), "t")
    assert [block.column(f"rlnOrigin{axis}") for axis in "XYZ"] == [["-3.000000"], ["-0.500000"], ["0.000000"]]


@pytest.mark.parametrize("relion", ["3.1", "4", "5"])
def test_made_anew_for_each_version(relion, tmp_path):
    random = np.random.default_rng(2)
    made = Particles(
        Rotation.random(5, random_state=2).as_matrix(),
        random.normal(0, 3, (5, 3)),
        files=[f"p{n}.mrc" for n in range(5)],
        positions=random.uniform(0, 400, (5, 3)),
        tomograms=["TS_01", "TS_02"] * 2 + ["TS_01"],
        halves=np.array([1, 2, 1, 2, 1], np.int8),
        classes=["b", "a", "a", "b", "a"],
        voxel_sizes=np.array([5.4, 5.4, 2.7, 5.4, 2.7]),
        wedges=[Wedge()] * 5,
        weights_files=["c.mrc"] * 5,
        scores=np.linspace(0, 1, 5),
    )
    write_particles(
        tmp_path / "new.star", made, relion=relion, binning=4, tomogram_sizes=SIZES, box_size=48, voltage=300,
        spherical_aberration=2.7, amplitude_contrast=0.1,
    )  # fmt: skip
    again = read_particles(tmp_path / "new.star", tomogram_sizes=SIZES, binning=4 if relion == "3.1" else None)
    voxel = 1.0 if relion == "3.1" else made.voxel_sizes
    assert np.abs(again.rotations - made.rotations).max() < 1e-7
    np.testing.assert_allclose(again.positions, made.positions, atol=1e-6)
    if relion != "3.1":
        np.testing.assert_allclose(again.shifts, made.shifts, atol=1e-6)
        np.testing.assert_allclose(again.voxel_sizes, voxel)
    assert again.halves.tolist() == [1, 2, 1, 2, 1]
    assert again.classes == ["2", "1", "1", "2", "1"]
    assert again.files == made.files
    assert again.weights_files == made.weights_files
    np.testing.assert_allclose(again.scores, made.scores)
    optics, particles = parse_star((tmp_path / "new.star").read_text(), "t")
    assert optics.column("rlnImagePixelSize") == ["5.4", "2.7"]
    assert optics.column("rlnVoltage") == ["300", "300"]
    assert particles.column("rlnOpticsGroup") == ["1", "1", "2", "1", "2"]
    assert ("rlnCenteredCoordinateXAngst" in particles.labels) == (relion == "5")
    assert what_is_lost(made, "relion") == ("missing wedges",)


def test_sizes_of_tomograms_from_relions_own_file(tmp_path):
    (tmp_path / "tomograms.star").write_text(
        "data_global\nloop_\n_rlnTomoName\n_rlnTomoSizeX\n_rlnTomoSizeY\n_rlnTomoSizeZ\nTS_01 4096 4000 1001\n"
    )
    assert read_tomogram_sizes(tmp_path / "tomograms.star") == {"TS_01": (4096.0, 4000.0, 1001.0)}
    (tmp_path / "other.star").write_text("data_\n_a 1\n")
    with pytest.raises(UserError, match="rlnTomoSizeX"):
        read_tomogram_sizes(tmp_path / "other.star")


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("27.13", "many", "expected numbers"),
        ("27.13", "nan", "finite"),
        ("27.13", "1e999", "finite"),
        (" 2.7 -5.4", " inf -5.4", "finite"),
        ("6.65 1 [", "6.65 3 [", "optics group 3"),
        ("0.0 1 Sub", "0.0 7 Sub", "rlnRandomSubset"),
        ("data_particles", "data_other\n\n_rlnVoltage 3", "no table of particles"),
        (" 1.350000 2.000000 2.700000", " 1.350000 2.000000 0", "positive number"),
        ("_stack2d.mrcs\n TS_02", "_stack2d.mrcs more\n TS_02", "18 values where"),
    ],
)
def test_what_is_refused(old, new, words, five):
    text = FIVE.replace(old, new, 1)
    assert text != FIVE
    if words == "no table of particles":
        text = text.split("loop_\n_rlnTomoName")[0]
    five.write_text(text)
    with pytest.raises(UserError, match=words) as caught:
        read_particles(five)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"pixel_size": 0}, "pixel size"),
        ({"binning": float("nan")}, "binning"),
        ({"center_offset": float("inf")}, "center offset"),
        ({"tomogram_sizes": (0, 1, 1)}, "size of a tomogram"),
        ({"frame": "lab"}, "frame"),
        ({"particle_names": "p.em"}, "#"),
        ({"format": "imod"}, "formats of particle lists"),
    ],
)
def test_options_that_make_no_sense(options, words, five):
    with pytest.raises(UserError, match=words):
        read_particles(five, **options)


def test_what_a_list_cannot_be_written_without(tmp_path):
    made = Particles(np.eye(3)[None], np.array([[1.0, 0, 0]]), positions=np.zeros((1, 3)), tomograms=["t"])
    with pytest.raises(UserError, match="--pixel-size"):
        write_particles(tmp_path / "a.star", made)
    write_particles(tmp_path / "a.star", made, pixel_size=2.0)
    assert read_particles(tmp_path / "a.star").shifts.tolist() == [[1.0, 0.0, 0.0]]
    with pytest.raises(UserError, match="--tomogram-size"):
        write_particles(tmp_path / "b.star", made, pixel_size=2.0, relion="5")
    with pytest.raises(UserError, match=r"3\.1, 4 or 5"):
        write_particles(tmp_path / "b.star", made, relion="2")
    for path, words in (("b.csv", "particle lists are"), ("none/b.xml", "does not exist")):
        with pytest.raises(UserError, match=words):
            write_particles(tmp_path / path, made)
    with pytest.raises(UserError, match="there is no file"):
        read_particles(tmp_path / "none.star")
    assert not (tmp_path / "b.star").exists()


def test_damaged_lists_are_read_or_refused_in_one_sentence(five, tmp_path):
    random, whole, messages = np.random.default_rng(4), FIVE.encode(), []
    for _ in range(200):
        raw = bytearray(whole)
        for place in random.integers(0, len(raw), random.integers(0, 4)):
            raw[place] = random.integers(0, 256)
        five.write_bytes(raw[: len(raw) if random.random() < 0.6 else random.integers(0, len(raw))])
        try:
            found = read_particles(five)
        except UserError as error:
            messages.append(str(error))
        else:
            write_particles(tmp_path / "again.star", found, overwrite=True)
            assert (tmp_path / "again.star").read_bytes() == five.read_bytes()
    assert len(messages) > 20
    assert not any("\n" in message for message in messages)
