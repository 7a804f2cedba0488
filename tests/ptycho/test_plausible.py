"""Scans that cannot be meant as they were opened: refused in one sentence, or doubted in one."""

import time
import tracemalloc

import h5py
import numpy as np
import pytest

from dtomo.errors import UserError
from dtomo.io.ptycho import open_ptycho
from dtomo.ptycho import job, reconstruct
from dtomo.ptycho import open as open_scan
from dtomo.ptycho.plausible import check_positions, neighbours_apart
from dtomo.ptycho.scans import open_data
from dtomo.settings import PtychoSettings
from dtomo.simulate.ptycho import simulate_ptycho

GRID = np.stack(np.meshgrid(np.arange(5), np.arange(6), indexing="ij"), -1).reshape(-1, 2).astype(float)
FRAME = (16, 16)
SOURCE = "entry_1/instrument_1/source_1"
DETECTOR = "entry_1/instrument_1/detector_1"


@pytest.fixture(scope="module")
def scan(tmp_path_factory):
    return simulate_ptycho(tmp_path_factory.mktemp("scan") / "scan.cxi", size=32, positions=30, modes=1, seed=1).path


@pytest.fixture
def changed(scan, tmp_path):
    """The scan with some datasets replaced."""

    def change(**values):
        path = tmp_path / "changed.cxi"
        path.write_bytes(scan.read_bytes())
        with h5py.File(path, "a") as file:
            if "wavelength" in values:
                del file[f"{SOURCE}/energy"]
            for name, value in values.items():
                place = {"wavelength": f"{SOURCE}/wavelength", "distance": f"{DETECTOR}/distance"}
                place |= {"mask": f"{DETECTOR}/mask", "translation": "entry_1/data_1/translation"}
                if place[name] in file:
                    del file[place[name]]
                file[place[name]] = value
        return path

    return change


@pytest.mark.parametrize(
    ("positions", "part"),
    [
        (GRID[:1], "several frames that overlap"),
        (np.ones((9, 2)), "all the same"),
        (np.where(GRID == 3, np.nan, GRID), "finite numbers"),
        (20 * GRID, "no frames overlap"),
    ],
)
def test_positions_that_cannot_work_are_refused(positions, part):
    with pytest.raises(UserError, match=part):
        check_positions(positions, FRAME)


@pytest.mark.parametrize(
    ("step", "part"), [(1e-6, "span no more than 4e-06 × 5e-06 pixels"), (13.0, "hardly overlap"), (4.0, None)]
)
def test_positions_that_may_not_work_are_doubted(step, part):
    found = check_positions(step * GRID, FRAME)
    assert len(found) == (part is not None)
    assert part is None or part in found[0]


def test_neighbours_that_coincide_are_one():
    assert neighbours_apart(np.concatenate([4 * GRID, 4 * GRID]), FRAME) == 0.25
    assert neighbours_apart(np.random.default_rng(0).permutation(np.repeat(GRID, 2000, 0)), (2, 1)) == 0.5


@pytest.mark.parametrize(
    ("values", "part"),
    [
        ({"wavelength": 1.409}, r"wavelength: a wavelength of 1.41 m .* cannot be: correct its unit, or give --energy"),
        ({"wavelength": 1e-16}, "cannot be"),
        ({"distance": 1e9}, "--distance in mm"),
        ({"wavelength": -1e-10}, "wavelength must be given"),
        ({"wavelength": 0.0}, "wavelength must be given"),
        ({"wavelength": np.nan}, "wavelength must be given"),
        ({"translation": np.zeros((30, 3))}, "all the same"),
    ],
)
def test_lengths_that_cannot_be_are_refused(changed, values, part):
    with pytest.raises(UserError, match=part) as raised:
        open_data(PtychoSettings(scan=changed(**values), output="out.h5"))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("value", [-1e-10, 0.0, np.nan, np.array([1.0, 2.0])])
def test_a_length_that_is_not_used_is_said(changed, value):
    notes = open_ptycho(changed(wavelength=value)).warnings
    assert sum("source_1/wavelength is not used" in note for note in notes) == 1


@pytest.mark.parametrize(("good", "part"), [(900, None), (300, "29.3 %"), (4, "0.391 %")])
def test_a_mask_that_leaves_little(changed, good, part):
    mask = np.ones(1024, np.uint32)
    mask[:good] = 0
    path = changed(mask=mask.reshape(32, 32))
    if good == 4:
        with pytest.raises(UserError, match=r"leaves 0.391 % of the pixels .* is it inverted"):
            open_ptycho(path)
        return
    notes = [note for note in open_ptycho(path).warnings if "is it inverted" in note]
    assert len(notes) == (part is not None)
    assert part is None or part in notes[0]


def test_a_near_field_taken_for_a_far_one_is_doubted(tmp_path):
    near = simulate_ptycho(tmp_path / "near.cxi", size=32, positions=20, modes=1, near_field=True)
    assert any("(--near-field)" in note for note in open_ptycho(near.path).warnings)
    assert not any("(--near-field)" in note for note in open_ptycho(near.path, near_field=True).warnings)


def test_a_far_field_is_not_doubted(scan):
    assert open_ptycho(scan).warnings == ()


@pytest.mark.parametrize("shape", [(10, 60000, 60000), (10**9, 64, 64), (10, 1, 1)])
def test_frames_that_no_scan_has_are_refused_at_once(tmp_path, shape):
    path = tmp_path / "scan.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("data", shape, np.uint16, chunks=(1, min(shape[1], 64), min(shape[2], 64)))
        file.create_dataset("positions", (shape[0], 2), np.float32, chunks=(10, 2))
    started = time.monotonic()
    with pytest.raises(UserError, match=r"scan.h5:/data (declares|has)"):
        open_ptycho(path, position_unit="pixels")
    assert time.monotonic() - started < 1


def test_a_plan_reads_no_frames_however_large(tmp_path, capsys):
    path = tmp_path / "scan.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("data", (30, 11000, 11000), np.uint16, chunks=(1, 500, 500))
        file["positions"] = 900 * GRID
    settings = PtychoSettings(scan=path, output=tmp_path / "out.h5", position_unit="pixels", memory="1TB", workers=1)
    tracemalloc.start()
    try:
        assert job.run(settings, plan_only=True).result is None
        assert tracemalloc.get_traced_memory()[1] < 2e7
    finally:
        tracemalloc.stop()
    assert "30 of 11000 × 11000" in capsys.readouterr().out


def test_counts_of_positions_that_do_not_fit_are_said(tmp_path):
    path = tmp_path / "scan.h5"
    with h5py.File(path, "w") as file:
        file["data"] = np.ones((30, 16, 16), np.uint16)
        file["positions"] = np.zeros((29, 2))
    with pytest.raises(UserError, match=r"30 frames \(.*positions has shape \(29, 2\)\)"):
        open_ptycho(path)


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"magnification": 2.0}, "magnification is of a near field"),
        ({"near_field": True, "center": "corner"}, "no frequency zero"),
        ({"energy": 8800.0}, "is it 8800 eV"),
    ],
)
def test_options_that_do_nothing_are_refused(scan, options, part):
    with pytest.raises(UserError, match=part):
        open_ptycho(scan, **options)


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"engine": "lsqml", "options": {"momentum": ".nan"}}, "--option momentum: it must be a finite number; got"),
        ({"engine": "lsqml", "options": {"momentum": float("nan")}}, "--option momentum: it must be a finite"),
        ({"engine": "lsqml", "options": {"momentum": True}}, "--option momentum: it must be a finite number"),
        ({"engine": "lsqml", "options": {"momentum": {"object": 1}}}, "a finite number; got {'object': 1}"),
        ({"engine": "lsqml", "options": {"momentum": 2.0}}, "--engine lsqml: damping and rate are above 0, .* below 1"),
        ({"engine": "cg", "options": {"tries": 1.5}}, "--option tries: it must be a whole number; got 1.5"),
        ({"engine": "cg", "options": {"rule": "luck"}}, "must be polak-ribiere or dai-yuan; got 'luck'"),
        ({"engine": "adam", "options": {"rates": 0.1}}, "names with numbers, such as {object: 0.03}"),
        ({"engine": "adam", "options": {"rates": {"object": "much"}}}, "names with numbers"),
        ({"engine": "adam", "options": {"position_range": 2.0}}, "give --refine positions"),
        ({"engine": "adam", "options": {"search_reach": 2.0}}, "search_trials=4"),
        ({"engine": "dm", "batch": 4}, "--engine dm: projections take all frames in each step; leave the batch out,"),
        ({"engine": "lsqml", "loss": "poisson"}, "--loss poisson: lsqml .* take --engine adam or --engine cg"),
        ({"engine": "dm", "loss": "intensity"}, "for intensity take --engine adam"),
        ({"client": "tcp://here"}, "client is a dask.distributed.Client"),
    ],
)
def test_wrong_values_of_solvers_are_whole_sentences(scan, options, part):
    with pytest.raises(UserError, match=part) as raised:
        reconstruct(open_scan(scan), epochs=1, **options)
    assert "…" not in str(raised.value)


def test_a_defocus_beside_a_probe_that_is_there_is_refused(scan):
    data = open_scan(scan)
    with pytest.raises(UserError, match="--defocus is of a probe from the pattern"):
        reconstruct(data, probe=np.ones((32, 32), complex), defocus=3.0)
