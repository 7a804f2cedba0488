"""What `dtomo.open` makes of a stack and of what lies beside it."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dtomo
from dtomo.errors import UserError
from dtomo.io.tilts import read_mdoc, read_tilt_file, read_warp
from dtomo.io.tilts.headers import NOTHING, read_extended
from tests.io.tilts import files
from tests.io.tilts.files import TILTS

SHARED = Path(__file__).resolve().parents[3].parent / "shared" / "data"
WRITERS = {".tlt": files.tlt, ".rawtlt": files.tlt, ".mdoc": files.mdoc, ".xml": files.warp}


@pytest.mark.parametrize("name", ["s.mrc", "s.st"])
@pytest.mark.parametrize("suffix", list(WRITERS))
@pytest.mark.parametrize("named", [False, True])
def test_angles_beside_the_stack_or_named(tmp_path, name, suffix, named):
    path = files.stack(tmp_path / name)
    other = WRITERS[suffix]((tmp_path / ("other" if named else "s")).with_suffix(suffix))
    scan = dtomo.open(path, angles=other if named else None)
    np.testing.assert_allclose(scan.angles, TILTS)
    assert scan.tilt_series
    assert scan.values == "integrals"
    assert str(other) in scan.found["angles"]
    assert ("negated" if suffix == ".xml" else "IMOD") in scan.found["angles"]
    assert other in scan.inputs


def test_fei_extended_header(tmp_path):
    scan = dtomo.open(files.fei(tmp_path / "a.mrc"))
    np.testing.assert_allclose(scan.angles, TILTS)
    assert scan.pixel_size == 3.36e-3
    assert "FEI extended header" in scan.found["angles"]


def test_a_record_for_each_view(tmp_path):
    scan = dtomo.open(files.fei1(tmp_path / "a.mrc"))
    np.testing.assert_allclose(scan.angles, TILTS)
    assert "FEI1 extended header" in scan.found["angles"]
    assert read_extended(tmp_path / "a.mrc").pixel_size == 33.6
    assert read_extended(files.fei1(tmp_path / "few.mrc", records=3)) is NOTHING  # for five views
    assert read_extended(files.fei1(tmp_path / "far.mrc", 10 * TILTS)).tilts is None
    assert read_extended(files.fei1(tmp_path / "flat.mrc", 0 * TILTS, metres=0.0)).tilts is None  # never filled in


@pytest.mark.parametrize(("values", "flags"), [(1, 1), (4, 1 | 2)])
def test_tilts_in_the_header_of_serialem(tmp_path, values, flags):
    scan = dtomo.open(files.serial_em(tmp_path / "a.mrc", values=values, flags=flags))
    np.testing.assert_allclose(scan.angles, TILTS)
    assert "SerialEM extended header" in scan.found["angles"]
    assert read_extended(files.serial_em(tmp_path / "b.mrc", values=values, flags=2)) is NOTHING  # without tilts


def test_what_serialem_says_of_pixel_and_axis(tmp_path):
    path = files.stack(tmp_path / "a.st")
    files.mdoc(tmp_path / "a.st.mdoc", order=[3, 0, 4, 2, 1])  # sections in any order
    scan = dtomo.open(path)
    np.testing.assert_allclose(scan.angles, TILTS)
    assert scan.tilt_axis == -85.3  # from rows towards columns, the other way round than SerialEM's
    assert scan.pixel_size == pytest.approx(2.5e-4)
    files.mdoc(tmp_path / "a.st.mdoc", size=5.0)
    binned = dtomo.open(path)
    assert binned.pixel_size == pytest.approx(2.5e-4)  # the stack's own header
    assert any("says 5 Å" in note for note in binned.warnings)


def test_refined_angles_come_first_and_must_be_of_the_same_series(tmp_path):
    path = files.stack(tmp_path / "a.mrc")
    files.tlt(tmp_path / "a.rawtlt")
    files.tlt(tmp_path / "a.tlt", TILTS + 1.5)
    np.testing.assert_allclose(dtomo.open(path).angles, TILTS + 1.5)
    files.tlt(tmp_path / "a.tlt", -TILTS)
    with pytest.raises(UserError, match=r"a\.tlt.*and.*a\.rawtlt.* contradict each other: view 0 is at 60 and at -60"):
        dtomo.open(path)
    np.testing.assert_allclose(dtomo.open(path, angles=tmp_path / "a.rawtlt").angles, TILTS)


def test_one_contradicting_view_is_found(tmp_path):
    path = files.stack(tmp_path / "a.mrc")
    files.tlt(tmp_path / "a.rawtlt")
    wrong = TILTS.copy()
    wrong[2] += 1
    files.mdoc(tmp_path / "a.mdoc", wrong)
    with pytest.raises(UserError, match=r"contradict each other: view 2 is at -20 and at -19"):
        dtomo.open(path)


@pytest.mark.parametrize("suffix", list(WRITERS))
def test_another_number_of_views(tmp_path, suffix):
    path = files.stack(tmp_path / "a.mrc")
    WRITERS[suffix](tmp_path / f"a{suffix}", TILTS[:-1])
    with pytest.raises(UserError, match=rf"a\{suffix}.* has 4 angles but .*a\.mrc has 5 views"):
        dtomo.open(path)
    WRITERS[suffix](tmp_path / f"a{suffix}", TILTS)
    other = WRITERS[suffix](tmp_path / f"other{suffix}", TILTS[:-1])
    with pytest.raises(UserError, match=r"has 4 angles but .*a\.mrc has 5 frames"):
        dtomo.open(path, angles=other)


def test_a_transform_that_is_not_used_is_told_of(tmp_path):
    path = files.tlt(tmp_path / "a.tlt") and files.stack(tmp_path / "a.mrc")
    (tmp_path / "a.xf").write_text("1 0 0 1 0 0\n" * 5)
    assert any("a.xf lies beside" in note and "--alignment" in note for note in dtomo.open(path).warnings)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.tlt", "1\nx\n", r"a\.tlt line 2: 'x' is not a finite number"),
        ("a.tlt", "1\nnan\n", r"a\.tlt line 2: 'nan' is not a finite number"),
        ("a.tlt", "1 2\n", r"line 1: a tilt file has one angle a line"),
        ("a.tlt", "\n", "holds no angles"),
        ("a.mdoc", "PixelSpacing = 2\n", "has no sections"),
        ("a.mdoc", "[ZValue = 0]\nTiltAngle = 1\n[ZValue = 2]\nTiltAngle = 2\n", "none for view 1"),
        ("a.mdoc", "[ZValue = 0]\nTiltAngle = 1\n[ZValue = 0]\nTiltAngle = 2\n", "line 3: view 0 is there twice.* 1$"),
        ("a.mdoc", "[ZValue = 0]\nDefocus = 1\n", "line 1: the section of view 0 has no TiltAngle"),
        ("a.mdoc", "[ZValue = 0]\nTiltAngle = one\n", "line 2: TiltAngle: 'one' is not a finite number"),
        ("a.mdoc", "[ZValue = -1]\nTiltAngle = 1\n", "line 1: -1 is not the number of a view"),
        ("a.mdoc", "[ZValue = 0]\nTiltAngle 1\n", "line 2: TiltAngle 1 is not Name = value"),
        ("a.mdoc", "[ZValue = 0\nTiltAngle = 1\n", r"line 1: \[ZValue = 0 is not \[Name = value\]"),
        ("a.mdoc", "PixelSpacing = 2\n[ZValue = 0]\nTiltAngle = 1\nPixelSpacing = 3\n", "goes from 2 to 3 Å"),
        ("a.xml", "<TiltSeries/>", "has no <Angles>"),
        ("a.xml", "<Movie><Angles>1</Angles></Movie>", "is no tilt series of Warp"),
        ("a.xml", "<TiltSeries><Angles>1 inf</Angles></TiltSeries>", "number 2: 'inf' is not a finite number"),
        ("a.xml", "<TiltSeries><Angles>1", "is not XML that can be read"),
        ("a.xml", '<!DOCTYPE t [<!ENTITY e "1">]><TiltSeries><Angles>&e;</Angles></TiltSeries>', "DOCTYPE"),
    ],
)  # fmt: skip
def test_broken_files_are_refused_by_a_sentence(tmp_path, name, text, message):
    (tmp_path / name).write_text(text)
    with pytest.raises(UserError, match=message):
        read_tilt_file(tmp_path / name)


@pytest.mark.parametrize("suffix", list(WRITERS))
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_no_content_gets_past_the_readers(suffix, data, tmp_path_factory):
    path = WRITERS[suffix](tmp_path_factory.mktemp("any") / f"a{suffix}")
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(content) - 1))
        content[at : at + data.draw(st.integers(0, 9))] = data.draw(st.binary(max_size=6))
    path.write_bytes(bytes(content))
    try:
        table = read_tilt_file(path)
    except UserError:
        return
    assert table.values.ndim == 1
    assert np.isfinite(table.values).all()


@settings(max_examples=40, deadline=None)
@given(at=st.integers(0, 1023), value=st.binary(min_size=1, max_size=4))
def test_no_header_gets_past_the_reader(at, value, tmp_path_factory):
    path = files.fei(tmp_path_factory.mktemp("any") / "a.mrc")
    content = bytearray(path.read_bytes())
    content[at : at + len(value)] = value
    path.write_bytes(bytes(content[: 1024 + 131072 + 5 * 6 * 8 * 2]))
    try:
        scan = dtomo.open(path, values="integrals")
    except UserError:
        return
    assert np.isfinite(scan.angles).all()


@pytest.mark.skipif(not SHARED.is_dir(), reason="needs ../shared/data")
def test_real_series_and_real_mdoc():
    scan = dtomo.open(SHARED / "haadf_needle" / "HAADF_crop.mrc")
    np.testing.assert_allclose(scan.angles, np.arange(-76, 77, 2))
    assert (scan.pixel_size, scan.values) == (3.36e-3, "integrals")
    assert "HAADF_crop.mrc: FEI extended header" in scan.found["angles"]
    beside = read_tilt_file(SHARED / "haadf_needle" / "HAADF.rawtlt")
    np.testing.assert_allclose(beside.values, scan.angles)
    found = read_mdoc(SHARED / "cryoet_formats" / "serialem_test_000.mdoc")
    assert (len(found.tilts), found.pixel_size, found.tilt_axis) == (2, 7.88, -90.0)
    assert read_tilt_file(SHARED / "cryoet_formats" / "angles.tlt").values[0] != 0


def test_warp_is_negated(tmp_path):
    np.testing.assert_allclose(read_warp(files.warp(tmp_path / "a.xml")), TILTS)
