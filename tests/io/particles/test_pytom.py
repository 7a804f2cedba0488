"""PyTom's particle lists: what is kept, what is changed alone, which side a wedge lies on, what is refused."""

import dataclasses

import numpy as np
import pytest
from lxml import etree

from dtomo.errors import UserError
from dtomo.geometry.wedge import Wedge
from dtomo.io.particles import Particles, read_particles, reading_notes, write_particles

LIST = """<?xml version='1.0' encoding='utf-8'?>
<!-- PyTom Version: 1.0 -->
<ParticleList Path="here" Mine="1">
  <Particle Filename="a/p0.em" GroupName="g">
    <Rotation Z1="10.0" Z2="20.0" X="30" Paradigm="ZXZ" Extra="kept"/>
    <Shift X="1.5" Y="-2" Z="0.25"/>
    <PickPosition X="100" Y="200.5" Z="50" Origin="t1.mrc" Binning="4" RefMarkIndex="7"/>
    <Wedge Type="SingleTiltWedge">
      <SingleTiltWedge Angle1="30" Angle2="40" CutoffRadius="12" Smooth="2">
        <TiltAxisRotation Z1="0.0" Z2="0.0" X="0.0"/>
      </SingleTiltWedge>
    </Wedge>
    <InfoGUI ProjectDir="x"/>
    <Unknown><Deep attribute="&amp;"/></Unknown>
    <Score Type="FLCFScore" Value="0.5" RemoveAutocorr="False"><PeakPrior Filename="" Radius="0.0" Smooth="-1"/></Score>
    <Class Name="3"/>
  </Particle>
  <!-- an older one -->
  <Particle Filename="a/p1.em" Half="2">
    <Rotation Z1="0" Z2="0" X="0"/>
    <WedgeInfo Angle="25" CutoffRadius="0"><TiltAxisRotation Z1="90" Z2="0" X="0"/></WedgeInfo>
    <Class Name="None"/>
  </Particle>
  <Particle Filename="a/p2.em"><Wedge Type="DoubleTiltWedge"><DoubleTiltWedge/></Wedge></Particle>
  <Particle Filename="a/p3.em"><Wedge Type="Wedge3dCTF"><Wedge3dCTF Filename="ctf3.em"/></Wedge></Particle>
</ParticleList>
"""


@pytest.fixture
def listed(tmp_path):
    path = tmp_path / "list.xml"
    path.write_text(LIST, "utf-8")
    return path


def test_what_is_read(listed):
    found = read_particles(listed, pixel_size=13.3)
    assert found.files == ["a/p0.em", "a/p1.em", "a/p2.em", "a/p3.em"]
    assert found.shifts[0].tolist() == [1.5, -2.0, 0.25]
    assert found.positions is not None
    assert found.positions[0].tolist() == [100.0, 200.5, 50.0]
    assert np.isnan(found.positions[1]).all()
    assert found.tomograms == ["t1.mrc", "", "", ""]
    assert found.wedges[0] == Wedge((-50.0, 60.0), 12.0, 2.0)
    turned = found.wedges[1]
    assert turned is not None
    assert turned.tilts == (-65.0, 65.0)
    np.testing.assert_allclose(turned.tilt_axis @ [0, 1, 0], [-1, 0, 0], atol=1e-12)
    assert found.wedges[2:] == [None, None]
    assert found.weights_files == ["", "", "", "ctf3.em"]
    assert found.halves.tolist() == [0, 2, 0, 0]
    assert found.classes == ["3", "", "", ""]
    assert found.scores[0] == 0.5
    assert np.isnan(found.scores[1:]).all()
    assert (found.voxel_sizes == 13.3).all()
    assert any("DoubleTiltWedge" in note for note in reading_notes(found))


def test_written_back_it_is_the_same_file(listed, tmp_path):
    write_particles(tmp_path / "again.xml", read_particles(listed))
    assert (tmp_path / "again.xml").read_text("utf-8") == LIST


def test_only_what_changed_is_written_anew(listed, tmp_path):
    found = read_particles(listed)
    rotations, shifts = found.rotations.copy(), found.shifts.copy()
    rotations[1] = [[0, -1, 0], [1, 0, 0], [0, 0, 1]]
    shifts[0, 0] = 9.0
    scores = np.array([0.5, 0.75, np.nan, np.nan])
    changed = dataclasses.replace(
        found, rotations=rotations, shifts=shifts, scores=scores, halves=np.array([1, 2, 1, 2], np.int8)
    )
    write_particles(tmp_path / "new.xml", changed)
    before, after = (etree.fromstring(text.encode()) for text in (LIST, (tmp_path / "new.xml").read_text("utf-8")))
    assert after.get("Mine") == "1"
    first, second = after.findall("Particle")[:2]
    assert etree.tostring(first.find("Rotation")) == etree.tostring(before.find("Particle/Rotation"))
    assert etree.tostring(first.find("Unknown")) == etree.tostring(before.find("Particle/Unknown"))
    assert dict(first.find("Shift").attrib) == {"X": "9.0", "Y": "-2.0", "Z": "0.25"}
    assert first.find("PickPosition").get("RefMarkIndex") == "7"
    assert second.find("WedgeInfo").get("Angle") == "25"
    assert "an older one" in (tmp_path / "new.xml").read_text("utf-8")
    again = read_particles(tmp_path / "new.xml")
    np.testing.assert_allclose(again.rotations, rotations, atol=1e-12)
    np.testing.assert_array_equal(again.scores, scores)
    assert again.halves.tolist() == [1, 2, 1, 2]


def test_some_of_the_particles_keep_what_is_theirs(listed, tmp_path):
    some = read_particles(listed).selected([3, 0])
    write_particles(tmp_path / "some.xml", some)
    again = read_particles(tmp_path / "some.xml")
    assert again.files == ["a/p3.em", "a/p0.em"]
    assert 'GroupName="g"' in (tmp_path / "some.xml").read_text("utf-8")
    assert read_particles(listed).selected([False, True, False, True]).files == ["a/p1.em", "a/p3.em"]
    twice = read_particles(listed).selected([0, 0, 1])
    twice.shifts[1] = [4.0, 5.0, 6.0]
    write_particles(tmp_path / "twice.xml", twice)
    again = read_particles(tmp_path / "twice.xml")
    assert again.files == ["a/p0.em", "a/p0.em", "a/p1.em"]
    assert again.shifts.tolist() == [[1.5, -2.0, 0.25], [4.0, 5.0, 6.0], [0.0, 0.0, 0.0]]
    whole = read_particles(listed)
    with pytest.raises(UserError, match=r"Particles\.selected"):
        write_particles(tmp_path / "bad.xml", dataclasses.replace(some, origin=whole.origin))


@pytest.mark.parametrize(("first", "second"), [(30.0, 40.0), (10.0, 60.0), (45.0, 45.0)])
def test_wedges_lie_on_pytoms_sides(first, second, tmp_path):
    """PyTom keeps kx/kz > tan(Angle1) and kx/kz < -tan(Angle2) (its create_asymmetric_wedge, kz >= 0)."""
    text = LIST.replace('Angle1="30" Angle2="40"', f'Angle1="{first}" Angle2="{second}"')
    (tmp_path / "list.xml").write_text(text, "utf-8")
    wedge = read_particles(tmp_path / "list.xml").wedges[0]
    assert wedge is not None
    kx, kz = (axis.astype(float) for axis in np.meshgrid(np.arange(-15, 16), np.arange(1, 16), indexing="ij"))
    pytom = (kx / kz > np.tan(np.deg2rad(first))) | (kx / kz < -np.tan(np.deg2rad(second)))
    tilt = np.rad2deg(np.arctan2(kz, kx))  # kz cos t = kx sin t
    tilt = np.where(tilt > 90, tilt - 180, tilt)
    edge = (np.abs(tilt - wedge.tilts[0]) < 1e-6) | (np.abs(tilt - wedge.tilts[1]) < 1e-6)
    ours = (tilt > wedge.tilts[0]) & (tilt < wedge.tilts[1])
    np.testing.assert_array_equal(ours[~edge], pytom[~edge])
    weights = dataclasses.replace(wedge, cutoff=0.0, smooth=0.0).weights((32, 32, 32))
    whole = np.stack([weights[10, 0, 6], weights[-10, 0, 6]])  # kx = 6 and kz = 10, -10
    assert (whole > 0.5).tolist() == [np.tan(np.deg2rad(angle)) < 6 / 10 for angle in (first, second)]


def test_a_list_made_anew_is_as_pytom_writes_them(tmp_path):
    wedge = Wedge((-60.0, 50.0), 20.0, 1.0, np.array([[0.0, -1, 0], [1, 0, 0], [0, 0, 1]]))
    made = Particles(
        np.tile(np.eye(3), (2, 1, 1)),
        np.array([[1.0, 2, 3], [0, 0, 0]]),
        files=["p0.em", "p1.em"],
        positions=np.array([[5.0, 6, 7], [np.nan] * 3]),
        tomograms=["t", ""],
        wedges=[wedge, None],
        scores=np.array([0.25, np.nan]),
    )
    write_particles(tmp_path / "new.xml", made)
    root = etree.parse(tmp_path / "new.xml").getroot()
    names = [child.tag for child in root[0]]
    assert names == ["Rotation", "Shift", "PickPosition", "Wedge", "InfoGUI", "Score", "Class"]
    assert [child.tag for child in root[1]] == [name for name in names if name != "PickPosition"]
    again = read_particles(tmp_path / "new.xml")
    assert again.wedges[0] is not None
    assert again.wedges[0].tilts == wedge.tilts
    np.testing.assert_allclose(again.wedges[0].tilt_axis, wedge.tilt_axis, atol=1e-12)
    assert again.wedges[1] is None
    np.testing.assert_array_equal(again.shifts, made.shifts)
    np.testing.assert_array_equal(again.positions, made.positions)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "not XML"),
        (LIST[:900], "not XML"),
        ("<html/>", "no <ParticleList>"),
        (
            '<!DOCTYPE ParticleList [<!ENTITY a SYSTEM "file:///etc/passwd">]><ParticleList>&a;</ParticleList>',
            "DOCTYPE",
        ),
        ("<!DOCTYPE ParticleList><ParticleList/>", "DOCTYPE"),
        (LIST.replace('X="30"', 'X="many"'), "expected a number"),
        (LIST.replace('X="30"', 'X="1e999"'), "finite"),
        (LIST.replace('X="1.5"', 'X="nan"'), "finite"),
        (LIST.replace('X="30" ', ""), "particle 1: <Rotation> has X=None"),
        (LIST.replace('"ZXZ"', '"YZY"'), "paradigm ZXZ"),
        (LIST.replace('Angle1="30"', 'Angle1="170"'), "Angle1=170"),
        (LIST.replace('Half="2"', 'Half="5"'), "expected 1 or 2"),
    ],
)
def test_what_is_refused(text, words, tmp_path):
    path = tmp_path / "bad.xml"
    path.write_text(text, "utf-8")
    with pytest.raises(UserError, match=words) as caught:
        read_particles(path)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)


def test_expanding_entities_are_refused_at_once(tmp_path):
    lines = "".join(f'<!ENTITY e{n} "{f"&e{n - 1};" * 10}">' for n in range(1, 12))
    text = f'<!DOCTYPE x [<!ENTITY e0 "ha">{lines}]><ParticleList Name="&e11;"/>'
    (tmp_path / "bomb.xml").write_text(text)
    with pytest.raises(UserError):
        read_particles(tmp_path / "bomb.xml")
    (tmp_path / "deep.xml").write_text("<ParticleList>" + "<Particle>" * 100_000)
    with pytest.raises(UserError, match="not XML"):
        read_particles(tmp_path / "deep.xml")


def test_damaged_lists_are_read_or_refused_in_one_sentence(tmp_path):
    random, whole = np.random.default_rng(3), LIST.encode()
    path, messages = tmp_path / "fuzz.xml", []
    for _ in range(200):
        raw = bytearray(whole)
        for place in random.integers(0, len(raw), random.integers(0, 4)):
            raw[place] = random.integers(0, 256)
        path.write_bytes(raw[: len(raw) if random.random() < 0.6 else random.integers(0, len(raw))])
        try:
            found = read_particles(path)
        except UserError as error:
            messages.append(str(error))
        else:
            write_particles(tmp_path / "again.xml", found, overwrite=True)
            assert (tmp_path / "again.xml").read_bytes() == path.read_bytes()
    assert len(messages) > 20
    assert not any("\n" in message for message in messages)


def test_names_that_xml_has_no_letters_for(tmp_path):
    with pytest.raises(UserError, match="particle 2 has a name with control characters"):
        write_particles(
            tmp_path / "a.xml", Particles(np.tile(np.eye(3), (2, 1, 1)), np.zeros((2, 3)), files=["a", "\0"])
        )
    assert not list(tmp_path.iterdir())


def test_a_list_of_no_particles(tmp_path):
    (tmp_path / "none.xml").write_text("<ParticleList/>")
    none = read_particles(tmp_path / "none.xml")
    assert len(none) == 0
    for suffix in (".xml", ".star", ".tbl"):
        write_particles(tmp_path / f"again{suffix}", none)
        assert len(read_particles(tmp_path / f"again{suffix}")) == 0
