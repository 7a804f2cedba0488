"""Simulated particles: poses, wedge, CTF, noise and lists are those that are stated."""

from pathlib import Path
from xml.etree import ElementTree

import mrcfile
import numpy as np
import pytest
from scipy.ndimage import affine_transform, gaussian_filter
from scipy.spatial.transform import Rotation

from dtomo.errors import UserError
from dtomo.io.particles import read_particles
from dtomo.io.volumes import open_volume, store_volume
from dtomo.simulate.particle_maps import built_map, ctf, read_map
from dtomo.simulate.particles import read_particles_truth, simulate_particles
from dtomo.subtomo.averaging import average, half_sums
from dtomo.subtomo.comparison import half_curve
from dtomo.subtomo.fourier import forward, radii

DATA = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "pytom_glocal_particles"


def volume_of(path):
    return np.asarray(open_volume(path).source.read())


def agreement(one, two, reach=np.inf):
    """Correlation up to a radius of Fourier space."""
    inside = (radii(len(one)) < min(reach, len(one) / 2)) & (radii(len(one)) > 0)
    a, b = (forward(volume)[inside] for volume in (one, two))
    return float((a * b.conj()).real.sum() / np.sqrt((abs(a) ** 2).sum() * (abs(b) ** 2).sum()))


def turned_by_scipy(reference, rotation, shift):
    """x_particle = R (x_reference - c) + c + s, on (x, y, z)."""
    back = rotation.T[::-1, ::-1]
    center = np.array(reference.shape) // 2
    return affine_transform(reference, back, center - back @ (center + shift[::-1]), order=3)


def test_a_particle_is_the_map_in_its_pose(tmp_path):
    truth = simulate_particles(tmp_path / "out", count=2, box=32, snr=np.inf, tilts=(-90, 90), seed=3)
    for number in range(2):
        found = volume_of(tmp_path / f"out/particles/particle_{number:05d}.mrc")
        expected = turned_by_scipy(truth.reference, truth.rotations[number], truth.shifts[number])
        assert np.corrcoef(found.ravel(), expected.ravel())[0, 1] > 0.998
    assert np.abs(truth.shifts).max() <= 2
    assert found.std() == pytest.approx(truth.reference.std(), rel=0.02)
    with mrcfile.open(tmp_path / "out/particles/particle_00000.mrc", permissive=False) as file:
        assert file.voxel_size.x == pytest.approx(5.0)
        assert file.data.dtype == np.float32


def test_noise_and_wedge_are_those_stated(tmp_path):
    truth = simulate_particles(tmp_path / "out", count=3, box=24, snr=0.1, tilts=(-50, 40), seed=1)
    assert truth.noise**2 == pytest.approx(truth.reference.var() / 0.1, rel=1e-5)
    seen = truth.wedge.weights((24,) * 3)
    spectrum = forward(volume_of(tmp_path / "out/particles/particle_00001.mrc"))
    assert np.abs(spectrum[seen == 0]).max() < 1e-3 * np.abs(spectrum).max()
    high = (seen == 1) & (radii(24) > 9)
    assert (np.abs(spectrum[high]) ** 2).mean() / 24**3 == pytest.approx(truth.noise**2, rel=0.1)
    clean = simulate_particles(tmp_path / "clean", count=3, box=24, snr=np.inf, tilts=(-50, 40), seed=1)
    assert np.array_equal(clean.rotations, truth.rotations)


def test_noise_alone_has_no_signal(tmp_path):
    truth = simulate_particles(tmp_path / "out", count=40, box=16, snr=0, seed=2)
    boxes = [volume_of(tmp_path / f"out/particles/particle_{number:05d}.mrc") for number in range(40)]
    assert truth.noise == pytest.approx(truth.reference.std(), rel=1e-5)
    sums = half_sums(boxes, truth.rotations, truth.shifts, [truth.wedge] * 40, truth.halves, size=16)
    found = half_curve(average(sums["1"]), average(sums["2"]))
    assert found.resolution.frequency * 16 < 4
    assert abs(agreement(average(sums["1"]), truth.reference)) < 0.25


def test_averages_at_the_true_poses_are_the_map(tmp_path):
    truth = simulate_particles(tmp_path / "out", count=40, box=24, snr=0.3, seed=4)
    boxes = [volume_of(tmp_path / f"out/particles/particle_{number:05d}.mrc") for number in range(40)]
    sums = half_sums(boxes, truth.rotations, truth.shifts, [truth.wedge] * 40, truth.halves, size=24)
    assert sums["1"]["count"] == sums["2"]["count"] == 20
    even, odd = average(sums["1"]), average(sums["2"])
    found = half_curve(even, odd, volume_of(tmp_path / "out/mask.mrc"), truth.pixel_size)
    assert found.resolution.frequency * 24 * 5 > 4
    reach = found.resolution.frequency * 24 * 5
    assert agreement(even + odd, truth.reference, reach) > 0.97


def test_ctf_comes_twice_and_its_square_is_the_weight(tmp_path):
    options = {"count": 2, "box": 24, "snr": np.inf, "seed": 5, "pixel_size": 6.0}
    truth = simulate_particles(tmp_path / "out", defocus=(2.0, 4.0), **options)
    assert ((truth.defocus >= 2) & (truth.defocus <= 4)).all()
    transfer = ctf(24, 6.0, truth.defocus[1])
    weights = volume_of(tmp_path / "out/weights/weights_00001.mrc")
    assert weights.shape == (24, 24, 13)
    assert np.allclose(weights, transfer**2 * truth.wedge.weights((24,) * 3), atol=1e-6)
    plain = simulate_particles(tmp_path / "plain", **options)
    assert not (tmp_path / "plain/weights").exists()
    assert np.array_equal(plain.rotations, truth.rotations)
    twice = forward(volume_of(tmp_path / "out/particles/particle_00001.mrc"))
    never = forward(volume_of(tmp_path / "plain/particles/particle_00001.mrc"))
    assert np.abs(twice - never * transfer**2).max() < 1e-3 * np.abs(never).max()
    names = [item.get("rlnCtfImage") for item in star_rows(tmp_path / "out/particles.star")]
    assert names == ["weights/weights_00000.mrc", "weights/weights_00001.mrc"]


def test_ctf_zeros_are_where_the_formula_has_them():
    """Without aberration sin(π λ s² Δ + arcsin w) is 0 at s² = (1 - arcsin(w) / π) / (λ Δ)."""
    size, pixel, defocus, wavelength = 128, 3.0, 3.0, 0.0196875
    line = ctf(size, pixel, defocus)[0, 0]
    zero = np.flatnonzero(np.diff(np.sign(line)))[0]
    expected = np.sqrt((1 - np.arcsin(0.07) / np.pi) / (wavelength * defocus * 1e4)) * size * pixel
    assert zero <= expected <= zero + 1.05
    assert line[0] == pytest.approx(0.07, abs=1e-6)


def star_rows(path):
    """The particle table, read by hand."""
    lines = path.read_text().split("data_particles")[1].split("\n")
    labels = [line.split()[0][1:] for line in lines if line.startswith("_")]
    return [dict(zip(labels, line.split())) for line in lines if line and line[0] not in "_l"]


def test_lists_state_the_poses(tmp_path):
    truth = simulate_particles(tmp_path / "out", count=5, box=16, seed=6, pixel_size=3.0, angle_error=10, shift_error=2)
    for name, angle, shift in (("truth", 0.0, 0.0), ("particles", 10.0, 2.0)):
        items = ElementTree.parse(tmp_path / f"out/{name}.xml").getroot().findall("Particle")
        rows = star_rows(tmp_path / f"out/{name}.star")
        assert len(items) == len(rows) == 5
        for number, (item, row) in enumerate(zip(items, rows)):
            turn = item.find("Rotation")
            z1, z2, x = (float(turn.get(key)) for key in ("Z1", "Z2", "X"))
            pytom = Rotation.from_euler("zxz", [z1, x, z2], degrees=True)
            angles = [float(row[f"rlnAngle{key}"]) for key in ("Rot", "Tilt", "Psi")]
            relion = Rotation.from_euler("ZYZ", angles, degrees=True).inv()
            assert (pytom * relion.inv()).magnitude() < 1e-6
            error = (Rotation.from_matrix(truth.rotations[number]).inv() * pytom).magnitude()
            assert np.rad2deg(error) == pytest.approx(angle, abs=1e-4)
            moved = np.array([float(item.find("Shift").get(key)) for key in "XYZ"])
            assert np.linalg.norm(moved - truth.shifts[number]) == pytest.approx(shift, abs=1e-5)
            origin = [float(row[f"rlnOrigin{axis}Angst"]) for axis in "XYZ"]
            assert np.allclose(origin, -3 * moved, atol=1e-5)
            assert row["rlnRandomSubset"] == str(truth.halves[number])
            assert item.get("Filename") == row["rlnImageName"] == f"particles/particle_{number:05d}.mrc"
            assert (tmp_path / "out" / item.get("Filename")).is_file()
    for end in ("xml", "star"):
        listed = read_particles(tmp_path / f"out/truth.{end}")
        assert np.allclose(listed.rotations, truth.rotations, atol=1e-6)
        assert np.allclose(listed.shifts, truth.shifts, atol=1e-5)
        assert np.array_equal(listed.halves, truth.halves)
    single = item.find("Wedge/SingleTiltWedge")
    assert (float(single.get("Angle1")), float(single.get("Angle2"))) == (30, 30)


def test_the_truth_is_read_back(tmp_path):
    truth = simulate_particles(tmp_path / "out", count=3, box=16, seed=7, tilts=(-55, 45))
    found = read_particles_truth(tmp_path / "out")
    for name in ("rotations", "shifts", "halves", "reference", "positions"):
        assert np.array_equal(getattr(found, name), getattr(truth, name))
    assert (found.tilts, found.pixel_size, found.noise) == ((-55, 45), truth.pixel_size, pytest.approx(truth.noise))
    assert np.array_equal(volume_of(tmp_path / "out/reference.mrc"), truth.reference)
    with pytest.raises(UserError, match="holds no truth"):
        read_particles_truth(tmp_path)


def test_the_same_seed_gives_the_same_particles(tmp_path):
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        simulate_particles(tmp_path / name, count=2, box=16, seed=seed)
    boxes = [volume_of(tmp_path / name / "particles/particle_00001.mrc") for name in "abc"]
    assert np.array_equal(boxes[0], boxes[1])
    assert not np.array_equal(boxes[0], boxes[2])


def test_subtomograms_are_cut_from_the_tomogram(tmp_path):
    truth = simulate_particles(tmp_path / "out", count=4, box=16, snr=np.inf, tomogram=(40, 60, 56), seed=8)
    whole = volume_of(tmp_path / "out/tomogram.mrc")
    assert whole.shape == (40, 60, 56)
    apart = np.abs(truth.positions[:, None] - truth.positions[None]).max(-1)
    assert (apart + 16 * np.eye(4) >= 16).all()
    for number, (x, y, z) in enumerate(truth.positions.astype(int) - 8):
        box = volume_of(tmp_path / f"out/particles/particle_{number:05d}.mrc")
        assert np.array_equal(box, whole[z : z + 16, y : y + 16, x : x + 16])
        expected = turned_by_scipy(truth.reference, truth.rotations[number], truth.shifts[number])
        assert np.corrcoef(box.ravel(), expected.ravel())[0, 1] > 0.8  # the wedge is missing
    place = ElementTree.parse(tmp_path / "out/particles.xml").getroot().find("Particle/PickPosition")
    assert [float(place.get(axis)) for axis in "XYZ"] == truth.positions[0].tolist()
    assert place.get("Origin") == "tomogram.mrc"
    with pytest.raises(UserError, match="does not hold 99 boxes"):
        simulate_particles(tmp_path / "full", count=99, box=16, tomogram=(40, 40, 40))


def test_a_map_from_a_file_is_brought_to_the_box_and_pixel_size(tmp_path):
    fine = built_map(48, 3)
    store_volume(fine, tmp_path / "map.mrc", voxel_size_um=3e-4)
    same, pixel = read_map(tmp_path / "map.mrc", None, None)
    assert pixel == pytest.approx(3.0)
    assert np.corrcoef(same.ravel(), fine.ravel())[0, 1] > 0.99999
    coarse, pixel = read_map(tmp_path / "map.mrc", 32, 6.0)
    assert coarse.shape == (32, 32, 32)
    assert pixel == 6.0
    steps = (np.arange(24) - 12) * 2 + 24
    smooth = gaussian_filter(fine, 0.6)[np.ix_(steps, steps, steps)]
    assert np.corrcoef(coarse[4:28, 4:28, 4:28].ravel(), smooth.ravel())[0, 1] > 0.98
    odd, _ = read_map(tmp_path / "map.mrc", 21, 4.1)
    assert odd.shape == (21, 21, 21)
    truth = simulate_particles(tmp_path / "out", tmp_path / "map.mrc", 1, box=20, pixel_size=6.0)
    assert truth.reference.shape == (20, 20, 20)


def test_a_real_map(tmp_path):
    if not DATA.is_dir():
        pytest.skip(f"{DATA} is not there")
    truth = simulate_particles(tmp_path / "out", DATA / "ribo.em", 2, pixel_size=10.0, snr=np.inf, tilts=(-90, 90))
    assert truth.reference.shape == (50, 50, 50)
    expected = turned_by_scipy(truth.reference, truth.rotations[1], truth.shifts[1])
    found = volume_of(tmp_path / "out/particles/particle_00001.mrc")
    assert np.corrcoef(found.ravel(), expected.ravel())[0, 1] > 0.97


def test_a_simulation_is_replaced_only_if_it_is_one(tmp_path):
    out = tmp_path / "out"
    simulate_particles(out, count=3, box=16, defocus=(1, 2))
    with pytest.raises(UserError, match="exists"):
        simulate_particles(out, count=1, box=16)
    simulate_particles(out, count=1, box=16, overwrite=True)
    assert sorted(path.name for path in out.glob("*/*.mrc")) == ["particle_00000.mrc"]
    strange = tmp_path / "strange"
    strange.mkdir()
    (strange / "thesis.txt").write_text("mine")
    with pytest.raises(UserError, match="no folder of a simulation"):
        simulate_particles(strange, count=1, box=16, overwrite=True)
    assert (strange / "thesis.txt").read_text() == "mine"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"count": 0}, "at least 1 particle"),
        ({"snr": -1}, "not negative"),
        ({"snr": np.nan}, "not negative"),
        ({"box": 4}, "at least 8"),
        ({"pixel_size": 0}, "positive"),
        ({"defocus": (3, 1)}, "defocus"),
        ({"angle_error": 200}, "180"),
        ({"tilts": (60, -60)}, "tilts"),
        ({"tomogram": (8, 8, 8)}, "smaller than the box"),
        ({"tomogram": (90, 90, 90), "defocus": (1, 2)}, "no CTF"),
        ({"reference": np.zeros((8, 9, 8))}, "cubic box"),
        ({"reference": "nothing.mrc"}, "nothing.mrc"),
    ],
)
def test_refused(tmp_path, options, message):
    with pytest.raises(UserError, match=message):
        simulate_particles(tmp_path / "out", **{"count": 1, **options})
    assert not (tmp_path / "out").exists()


def test_the_command(tmp_path):
    from typer.testing import CliRunner

    from dtomo.cli.simulate import app

    words = ["particles", str(tmp_path / "out"), "--count", "2", "--box", "16", "--tilts", "-50", "50", "--snr", "1"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert "2 particles in boxes of 16³ voxels of 5 Å" in done.output
    assert read_particles_truth(tmp_path / "out").tilts == (-50, 50)
