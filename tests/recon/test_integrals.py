"""Line integrals, real and complex, from disk to disk: the same slices as from arrays, in every format."""

import subprocess

import h5py
import mrcfile
import numpy as np
import pytest
import zarr

import dtomo
from dtomo import algorithms
from dtomo.cli import main
from dtomo.errors import UserError
from dtomo.io import convert, convert_scan, open_volume, write_zarr_scan
from dtomo.operators import ParallelProjector
from dtomo.recon import cost, run
from dtomo.recon.prepare import line_integrals
from dtomo.recon.scans import estimate_axis, geometry_of, open_scan
from dtomo.settings import ReconSettings
from dtomo.simulate import read_truth, simulate_complex_scan, truth_slice

SIZE, ANGLES, CENTER = 48, 90, 25.0
NPY = b"\x93NUMPY\x01\x00v\x00"


@pytest.fixture(scope="module")
def scan(tmp_path_factory):
    path = tmp_path_factory.mktemp("complex") / "scan.zarr"
    simulate_complex_scan(path, size=SIZE, rows=SIZE, angles=ANGLES, center=CENTER, pixel_size=2.0)
    return path


@pytest.fixture(scope="module")
def data(scan):
    return zarr.open_array(scan / "projections", mode="r")[:]


@pytest.fixture(scope="module")
def cluster():
    from dtomo.distributed.clusters import Resources, connect

    with connect(Resources(2, 1, 1_000_000_000, dashboard=":0")) as client:
        yield client.scheduler.address


@pytest.fixture
def reconstruct(cluster, tmp_path):
    def command(source, output="out.zarr", **options):
        options = {"center": CENTER, "cluster": cluster, **options}
        done = run(ReconSettings(scan=source, output=tmp_path / output, **options), quiet=True)
        return open_volume(done.output), done

    return command


def _beam(data):
    return dtomo.ParallelBeam(np.arange(ANGLES) * 180 / ANGLES, data.shape[2], CENTER)


def _voxels(volume):
    return volume.source.read()


def _of(data, tmp_path, values="integrals", name="scan.zarr", **more):
    """A Zarr scan of given projections."""
    return write_zarr_scan(
        tmp_path / name, frames=data, shape=data.shape, dtype=data.dtype, flats=None, darks=None,
        angles=np.arange(len(data)) * 180 / len(data), extra={"values": values}, **more,
    )  # fmt: skip


def test_the_simulated_scan_is_that_of_its_truth(scan, data):
    truth = read_truth(scan)
    assert np.array_equal(data[7], truth.projection(7))
    assert data.dtype == np.complex64
    assert 1.5 < data.real.max() < 2.5
    assert 0.4 < data.imag.max() < 0.8
    assert abs(np.corrcoef(data.real[:, 20].ravel(), data.imag[:, 20].ravel())[0, 1]) < 0.98
    opened = dtomo.open(scan)
    assert (opened.values, opened.normalized, opened.is_complex) == ("integrals", True, True)


def test_a_complex_run_gives_the_slices_of_the_arrays(reconstruct, scan, data):
    volume, done = reconstruct(scan, slab=16)
    expected = algorithms.fbp(data, _beam(data)) * np.float32(1e4 / 2)
    assert volume.dtype == np.complex64
    assert np.array_equal(_voxels(volume), expected)
    assert volume.attributes["unit"] == "per cm"
    truth = np.stack([truth_slice(scan, row) for row in (10, 24)]) * np.float32(1e4 / 2)
    for part in ("real", "imag"):
        made, true = (getattr(array, part)[:, 8:-8, 8:-8] for array in (_voxels(volume)[[10, 24]], truth))
        assert np.corrcoef(made.ravel(), true.ravel())[0, 1] > 0.93
    assert done.summary["repaired_values"] == 0


@pytest.mark.parametrize("algorithm", ["sirt", "cgls"])
def test_iterative_algorithms_solve_both_parts(reconstruct, scan, data, algorithm):
    volume, _ = reconstruct(scan, rows="8:16", algorithm=algorithm, iterations=5)
    operator = ParallelProjector(_beam(data), 8, np.complex64)
    solve = getattr(algorithms, algorithm)
    expected = solve(operator, data[:, 8:16], iterations=5).solution * np.float32(1e4 / 2)
    assert np.array_equal(_voxels(volume), expected)


def test_other_slabs_and_coarser_levels(reconstruct, tmp_path):
    """Means of complex voxels; the same bits in slabs of 8 and of 32."""
    source = tmp_path / "wide.zarr"
    truth = simulate_complex_scan(source, size=272, rows=24, angles=12)
    wide, _ = reconstruct(source, "a.zarr", center=truth.center, slab=8)
    again, _ = reconstruct(source, "b.zarr", center=truth.center, slab=24, levels=1)
    fine = _voxels(wide)
    assert np.array_equal(fine, _voxels(again))
    coarse = open_volume(wide.path, level=1).source.read()
    assert coarse.dtype == np.complex64
    np.testing.assert_allclose(coarse[3, 40, 50], fine[6:8, 80:82, 100:102].mean(), rtol=1e-4, atol=1e-7)
    assert sorted(name for name, _ in zarr.open_group(wide.path, mode="r").arrays()) == ["0", "1"]
    assert [name for name, _ in zarr.open_group(again.path, mode="r").arrays()] == ["0"]


def test_mrc_mode_4_and_back(reconstruct, scan, tmp_path):
    expected, _ = reconstruct(scan, "a.zarr", rows="0:6")
    volume, _ = reconstruct(scan, "a.mrc", rows="0:6")
    assert np.array_equal(_voxels(volume), _voxels(expected))
    with mrcfile.open(volume.path) as file:
        assert file.header.mode == 4
    back = open_volume(convert(volume.path, tmp_path / "b.zarr"))
    assert np.array_equal(_voxels(back), _voxels(expected))
    with pytest.raises(UserError, match="TIFF volumes cannot hold complex64"):
        convert(volume.path, tmp_path / "b.tif")


def test_real_integrals_are_not_logarithmized(reconstruct, data, tmp_path):
    real = np.ascontiguousarray(data.real)
    volume, _ = reconstruct(_of(real, tmp_path), stripes="none")
    assert volume.dtype == np.float32
    assert volume.attributes["unit"] == "per pixel"
    assert np.array_equal(_voxels(volume), algorithms.fbp(real, _beam(real)))


def test_the_user_says_what_a_plain_file_holds(reconstruct, data, tmp_path):
    """Real integrals without a word are refused for want of flats; with it, they are what they are."""
    np.save(tmp_path / "p.npy", np.asarray(data.real, np.float64) * 20)
    np.savetxt(tmp_path / "angles.txt", np.arange(ANGLES) * 180 / ANGLES)
    source = {"source": tmp_path / "p.npy", "angles": tmp_path / "angles.txt"}
    with pytest.raises(UserError, match="--values integrals"):
        reconstruct(**source)
    volume, _ = reconstruct(**source, values="integrals", stripes="none")
    real = (np.asarray(data.real, np.float64) * 20).astype(np.float32)
    assert np.array_equal(_voxels(volume), algorithms.fbp(real, _beam(data)))


@pytest.mark.parametrize("kind", ["hdf5", "dxchange", "npy", "npy-fortran", "npy-big", "mrc"])
def test_every_source_of_complex_numbers(data, tmp_path, kind):
    part = data[:, :3].astype(np.complex128 if kind == "hdf5" else np.complex64)
    path, options = tmp_path / "scan", {"angles": np.arange(ANGLES) * 180 / ANGLES}
    if kind in ("hdf5", "dxchange"):
        with h5py.File(path, "w") as file:
            file["/exchange/data" if kind == "dxchange" else "/ptycho/object"] = part
        options |= {} if kind == "dxchange" else {"dataset": "/ptycho/object"}
    elif kind == "mrc":
        with mrcfile.new(path, data=part):
            pass
    else:
        order = {"npy-fortran": np.asfortranarray(part), "npy-big": part.astype(">c8")}
        with path.open("wb") as file:
            np.save(file, order.get(kind, part))
    opened = dtomo.open(path, **options)
    assert (opened.values, opened.dtype) == ("integrals", part.dtype)
    values, _ = line_integrals(opened, ReconSettings(scan=path, output="o.zarr"), slice(1, 3))
    assert values.dtype == np.complex64
    assert np.array_equal(values, part[:, 1:3].astype(np.complex64))


@pytest.mark.parametrize("complex_too", [True, False])
def test_values_that_are_not_finite_take_the_line_between_their_neighbours(data, tmp_path, complex_too):
    spoilt = np.array(data[:, :4] if complex_too else data.real[:, :4])
    expected = spoilt.copy()
    spoilt[3, 1, 10] = np.nan
    spoilt[5, 1, 0] = np.inf
    spoilt[7, 2] = np.nan  # a whole line
    expected[3, 1, 10] = (spoilt[3, 1, 9] + spoilt[3, 1, 11]) / 2
    expected[5, 1, 0] = spoilt[5, 1, 1]
    expected[7, 2] = 0
    if complex_too:
        spoilt[9, 3, 7] = complex(0.5, np.nan)
        expected[9, 3, 7] = (spoilt[9, 3, 6] + spoilt[9, 3, 8]) / 2
    source = _of(spoilt, tmp_path)
    settings = ReconSettings(scan=source, output="o.zarr", stripes="none")
    values, report = line_integrals(open_scan(settings), settings, slice(0, 4))
    np.testing.assert_allclose(values, expected, rtol=1e-6, atol=1e-7)
    assert report.not_finite == 2 + spoilt.shape[2] + complex_too
    assert report.empty_lines == 1


def test_a_scan_without_one_finite_value_is_refused(reconstruct, data, tmp_path):
    with pytest.raises(UserError, match="no usable value"):
        reconstruct(_of(np.full_like(data[:, :4], np.nan), tmp_path))


def test_stripes_are_removed_from_both_parts_on_request(data, tmp_path):
    spoilt = np.array(data[:, 20:22])
    spoilt[:, 0, 17] += 0.3 + 0.2j
    settings = {"scan": _of(spoilt, tmp_path), "output": "o.zarr"}
    opened = open_scan(ReconSettings(**settings))
    as_it_is, _ = line_integrals(opened, ReconSettings(**settings), slice(0, 2))
    assert np.array_equal(as_it_is, spoilt)
    cleaned, _ = line_integrals(opened, ReconSettings(**settings, stripes="combined"), slice(0, 2))
    before, after = (np.abs((array - data[:, 20:22]).mean(axis=0)[0, 17]) for array in (spoilt, cleaned))
    assert after < 0.4 * before


@pytest.mark.parametrize("turned", [1, -1, 1j, np.exp(2.2j)])
@pytest.mark.parametrize("scale", [1.0, 1e-9])
def test_the_axis_is_found_whatever_the_convention(data, tmp_path, turned, scale):
    """Phases may be positive or negative, in the real or in the imaginary part, and in any unit."""
    source = _of((data * (turned * scale)).astype(np.complex64), tmp_path)
    settings = ReconSettings(scan=source, output="o.zarr")
    estimate = estimate_axis(open_scan(settings), settings)
    assert estimate.reliable
    assert estimate.center == pytest.approx(CENTER, abs=0.3)


def test_the_axis_of_negative_real_integrals(data, tmp_path):
    settings = ReconSettings(scan=_of(-np.ascontiguousarray(data.real), tmp_path), output="o.zarr")
    assert estimate_axis(open_scan(settings), settings).center == pytest.approx(CENTER, abs=0.3)


def test_offset_full_turns_are_folded(reconstruct, tmp_path):
    """Half-acquisition of complex data gives what the wide detector gives."""
    narrow = simulate_complex_scan(
        tmp_path / "n.zarr", size=48, rows=4, angles=160, center=6, columns=32, full_turn=True
    )
    folded, done = reconstruct(narrow.path, "n-out.zarr", center=6.0)
    size = folded.shape[1]
    assert size > 40
    truth = truth_slice(narrow.path, 2, size)
    made = _voxels(folded)[2]
    inside = (slice(8, -8), slice(8, -8))
    for part in ("real", "imag"):
        assert np.corrcoef(getattr(made, part)[inside].ravel(), getattr(truth, part)[inside].ravel())[0, 1] > 0.9
    assert done.summary["unit"] == "per pixel"


def test_binning_averages_complex_numbers(scan, data):
    settings = ReconSettings(scan=scan, output="o.zarr", bin=2, rows="2:10")
    opened = open_scan(settings)
    values, _ = line_integrals(opened, settings, slice(0, 4))
    expected = data[:, 2:10].reshape(ANGLES, 4, 2, SIZE // 2, 2).mean(axis=(2, 4))
    np.testing.assert_allclose(values, expected, rtol=1e-5, atol=1e-6)
    assert opened.pixel_size == 4.0


def test_flats_beside_integrals_are_left_aside_with_a_note(scan, data, tmp_path):
    group = zarr.open_group(_of(data[:, :4], tmp_path), mode="r+")
    group.create_array("flats", data=np.ones((2, 4, SIZE), np.float32))
    opened = dtomo.open(tmp_path / "scan.zarr")
    assert opened.flat_source is None
    assert any("flats" in note and "left aside" in note for note in opened.warnings)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"values": "counts"}, "complex numbers"),
        ({"values": "transmission"}, "unwrapped"),
        ({"normalized": True}, "unwrapped"),
        ({"values": "integrals", "normalized": True}, "contradict"),
        ({"values": "phases"}, "--values: must be"),
        ({"flats": "flats.tif", "values": "integrals"}, "--flats"),
        ({"darks": "darks.tif", "values": "integrals"}, "--darks"),
        ({"delta_beta": 100.0}, "--delta-beta"),
        ({"zingers": 0.2}, "--zingers"),
        ({"nonnegative": True}, "--nonnegative"),
        ({"output": "out.tif"}, "TIFF volumes cannot hold complex64"),
        ({"output": "out.mrc", "levels": 2}, "--levels"),
        ({"levels": 0}, "--levels"),
    ],
)
def test_what_complex_scans_cannot_be_put_through(reconstruct, scan, tmp_path, options, words):
    with pytest.raises(UserError, match=words):
        reconstruct(scan, **options)
    assert not [item for item in tmp_path.iterdir() if item.name.startswith("out")]


@pytest.mark.parametrize("stated", ["phases", 3, ["integrals"]])
def test_a_store_that_states_nonsense(scan, data, tmp_path, stated):
    path = _of(data[:, :2], tmp_path)
    zarr.open_group(path, mode="r+").attrs["values"] = stated
    with pytest.raises(UserError, match="attribute values"):
        dtomo.open(path)


def test_copies_of_a_scan_keep_what_it_holds(scan, tmp_path):
    copy = dtomo.open(convert_scan(dtomo.open(scan).crop(rows=slice(0, 3)), tmp_path / "copy.zarr"))
    assert (copy.values, copy.dtype, copy.shape) == ("integrals", np.complex64, (ANGLES, 3, SIZE))
    binned = dtomo.open(convert_scan(dtomo.open(scan).bin(2), tmp_path / "copy.h5"))
    assert (binned.values, binned.dtype) == ("integrals", np.complex64)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (NPY, "cannot be read"),
        (NPY + b"{'descr': '<c8', 'fortran_order': False, 'shape': (9, 9, 9), }".ljust(117) + b"\n", "cannot be read"),
        (NPY + b"(" * 118, "cannot be read"),
        (NPY + b"1 +" * 39 + b"\n", "cannot be read"),
    ],
)
def test_damaged_npy_files(tmp_path, content, words):
    (tmp_path / "p.npy").write_bytes(content)
    with pytest.raises(UserError, match=words):
        dtomo.open(tmp_path / "p.npy", angles=np.arange(9.0) * 20)


@pytest.mark.parametrize(
    "array", [np.array(["a", "b"]), np.zeros((0, 3, 3), np.float32), np.zeros(5), np.zeros((2, 2, 2, 2))]
)
def test_npy_files_that_hold_no_frames(tmp_path, array):
    np.save(tmp_path / "p.npy", array)
    with pytest.raises(UserError, match=r"p\.npy"):
        dtomo.open(tmp_path / "p.npy", angles=np.arange(2.0) * 90)


def test_objects_in_npy_files_are_not_unpickled(tmp_path):
    np.save(tmp_path / "p.npy", np.array([subprocess, None], object)[1:], allow_pickle=True)
    with pytest.raises(UserError, match=r"p\.npy"):
        dtomo.open(tmp_path / "p.npy", angles=[0.0])


def test_the_plan_counts_complex_numbers_twice(scan, data, tmp_path):
    from dtomo.distributed.clusters import Resources

    plans = {}
    for name, array in (("complex", data), ("real", np.ascontiguousarray(data.real))):
        source = scan if name == "complex" else _of(array, tmp_path)
        settings = ReconSettings(scan=source, output="o.zarr", center=CENTER, slab=48, stripes="none", levels=1)
        opened = open_scan(settings)
        plans[name] = cost.make_plan(opened, settings, geometry_of(opened, CENTER, False), Resources(1, 1, 10**10))
    for what in ("bytes_read", "bytes_written"):
        assert getattr(plans["complex"], what) == 2 * getattr(plans["real"], what)
    assert plans["complex"].bytes_written == data.shape[1] * SIZE * SIZE * 8
    parts = plans["complex"].worker_parts, plans["real"].worker_parts
    assert {name: 2 * count for name, count in parts[1].items() if name != "programs"} == {
        name: count for name, count in parts[0].items() if name != "programs"
    }


def test_the_command_line_knows_them(scan, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["simulate", "scan", "s.zarr", "--complex", "--size", "32", "--rows", "2", "--angles", "40"]) == 0
    assert main(["info", "s.zarr"]) == 0
    said = capsys.readouterr().out
    assert "complex64" in said
    assert "line integrals" in said
    assert "flats" not in said
    assert main(["center", "s.zarr"]) == 0
    assert float(capsys.readouterr().out) == pytest.approx(read_truth("s.zarr").center, abs=0.3)
    assert main(["center", "s.zarr", "--try", "--around", "16"]) == 0
    for words, part in ((["--photons", "9"], "--photons"), (["--clean"], "--clean"), (["--size", "3"], "size")):
        assert main(["simulate", "scan", "t.zarr", "--complex", *words]) == 2
        assert part in capsys.readouterr().err
    assert main(["simulate", "scan", "t.h5", "--complex"]) == 2
    assert ".zarr" in capsys.readouterr().err
    assert main(["simulate", "scan", "s.zarr", "--complex"]) == 2
    assert not (tmp_path / "t.zarr").exists()
