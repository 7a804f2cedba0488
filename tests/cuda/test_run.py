"""Slabs and arrays on a device, from raw counts to slices, as on the CPU."""

import dataclasses
import threading

import numpy as np
import pytest
import zarr

from dtomo import ParallelBeam, io, recon
from dtomo.dashboard import feed
from dtomo.dashboard.thumbnails import Grid, unpack
from dtomo.device import PLANS, DeviceFull, to_device
from dtomo.distributed import cuda
from dtomo.distributed.clusters import Resources
from dtomo.distributed.plan import refuse_if_too_big
from dtomo.distributed.queue import TaskFailed
from dtomo.distributed.slabs import Slab
from dtomo.errors import StoppedError, UserError
from dtomo.io.checkpoints import Checkpoints
from dtomo.io.sources import ArraySource
from dtomo.recon import ahead, cost
from dtomo.recon import slab as slab_module
from dtomo.recon.ahead import UploadAhead
from dtomo.recon.faults import stopped
from dtomo.recon.scans import geometry_of, is_folded, open_scan, scale_of, volume_dtype
from dtomo.recon.slab import Job, reconstruct_slab
from dtomo.settings import ReconSettings
from dtomo.simulate import simulate_complex_scan, simulate_scan
from tests import stand_in

ROWS, COLUMNS, ANGLES = 3, 8, 6
BEAM = ParallelBeam(np.arange(ANGLES) * 30.0, COLUMNS)

pytestmark = pytest.mark.usefixtures("few_threads")


@pytest.fixture
def projections():
    rng = np.random.default_rng(3)
    return rng.random((ANGLES, ROWS, COLUMNS), np.float32)


@pytest.mark.parametrize("dtype", [np.float32, np.complex64])
@pytest.mark.parametrize("name", ["fbp", "sirt", "cgls"])
def test_arrays_of_a_device_give_arrays_of_a_device(cupy, projections, name, dtype):
    data = (projections + (1j * projections[::-1] if dtype == np.complex64 else 0)).astype(dtype)
    options = {} if name == "fbp" else {"iterations": 2}
    expected = getattr(recon, name)(data, BEAM, **options)
    found = getattr(recon, name)(to_device(data), BEAM, **options)
    assert isinstance(found, cupy.ndarray)
    assert found.dtype == dtype
    np.testing.assert_allclose(found.get(), expected, atol=1e-5 * np.abs(expected).max())


@pytest.fixture(scope="module")
def scan_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("scan") / "scan.h5"
    simulate_scan(path, size=16, rows=5, angles=8, center=7.5, photons=1e4, dead_pixels=0.02, flats=3, darks=3)
    return path


@pytest.fixture
def job(scan_file, tmp_path):
    """A job on the CPU, with these settings, into a volume of its own."""

    def make(name="v", block=2, path=scan_file, **options):
        settings = ReconSettings(scan=path, output=tmp_path / f"{name}.zarr", center=7.5, **options)
        scan = open_scan(settings)
        folded = is_folded(scan, 7.5, settings)
        geometry = geometry_of(scan, 7.5, folded)
        shape = (5, geometry.height, geometry.width)
        writer = io.create_volume(settings.output, shape, volume_dtype(scan), slab=5)
        fold_about = 7.5 if folded else None
        return Job(scan, settings, fold_about, geometry, scale_of(scan)[0], block, 1, writer.path, ahead=True)

    return make


def on_device(job):
    return dataclasses.replace(job, device_memory=10**9)


def slices(job):
    return io.open_volume(job.output, unfinished=True).array.compute()


@pytest.fixture
def places(monkeypatch):
    """The types of the arrays that were solved, in the order of the blocks."""
    solve, found = slab_module.solve, []

    def noted(data, *arguments):
        volume, residuals = solve(data, *arguments)
        found.append((type(data), type(volume)))
        return volume, residuals

    monkeypatch.setattr(slab_module, "solve", noted)
    return found


@pytest.fixture
def both(cupy, job, record_error, places):
    """Called with options: the summaries of the CPU and of the device, whose volumes are alike."""

    def compared(**options):
        here, there = job("cpu", **options), on_device(job("device", **options))
        slab = Slab(0, 0, 5)
        summaries = []
        for one, kind in ((here, np.ndarray), (there, cupy.ndarray)):
            places.clear()
            summaries.append(reconstruct_slab(one, slab))
            assert set(places) == {(kind, kind)}
        expected, found = slices(here), slices(there)
        record_error(found, expected)
        assert np.abs(found - expected).max() <= 1e-5 * np.abs(expected).max()
        return summaries

    return compared


@pytest.mark.parametrize("options", [{}, {"stripes": "none", "nonnegative": True, "block": 5}], ids=str)
def test_a_slab_on_a_device_is_that_of_the_cpu(both, options):
    here, there = both(**options)
    for name in ("pixels", "dead_pixels", "values", "repaired_values", "warnings", "notes", "residual"):
        assert getattr(there, name) == getattr(here, name)
        assert type(getattr(there, name)) is type(getattr(here, name))


def test_a_full_turn_is_folded_on_a_device(both, tmp_path):
    path = tmp_path / "turn.h5"
    simulate_scan(path, size=16, rows=5, angles=12, center=7.5, photons=1e4, full_turn=True, flats=2, darks=2)
    both(path=path, fold="yes", stripes="none")


def test_phase_is_retrieved_on_a_device(both):
    both(delta_beta=20.0, distance=10.0, stripes="none", block=5)


def test_a_complex_scan_stays_complex_on_a_device(both, tmp_path):
    path = tmp_path / "complex.zarr"
    simulate_complex_scan(path, size=16, rows=5, angles=8, center=7.5, pixel_size=2.0)
    projections = zarr.open_group(path, mode="r+")["projections"]
    projections[2, 1, 3] = np.nan
    both(path=path)


ITERATIVE = {"algorithm": "sirt", "iterations": 2, "checkpoint_every": "1it", "stripes": "none", "block": 3}


def test_a_slab_is_solved_on_a_device_and_goes_on_from_a_checkpoint(cupy, job, both, monkeypatch):
    _, whole = both(**ITERATIVE)
    assert whole.residual > 0
    there, slab = on_device(job("again", **ITERATIVE)), Slab(0, 0, 5)
    saved = []

    def save_and_stop(checkpoints, state):
        assert isinstance(state.parts["solution"], cupy.ndarray)
        keep(checkpoints, state)
        saved.append(state.iteration)
        if len(saved) == 2:  # the second block, after one iteration
            raise KeyboardInterrupt

    keep = Checkpoints.keep
    with monkeypatch.context() as patch:
        patch.setattr(Checkpoints, "keep", save_and_stop)
        with pytest.raises(KeyboardInterrupt):
            reconstruct_slab(there, slab)
    assert saved == [1, 1]
    summary = reconstruct_slab(there, slab)
    assert summary.resumed == 2 + 1
    whole_again = io.open_volume(there.output.with_name("device.zarr"), unfinished=True).array.compute()
    assert slices(there).tobytes() == whole_again.tobytes()


def full_for(monkeypatch, most):
    """Let the device have no memory for more than so many slices at a time; the blocks that were tried."""
    solve, tried = slab_module.solve, []

    def solve_if_it_fits(data, *arguments):
        tried.append(data.shape[1])
        if data.shape[1] > most:
            raise stand_in.OutOfMemoryError(12 * 10**8, 0)
        return solve(data, *arguments)

    monkeypatch.setattr(slab_module, "solve", solve_if_it_fits)
    return tried


def test_a_full_device_gets_smaller_blocks_once(cupy, job, monkeypatch):
    here, there = job("cpu", stripes="none"), on_device(job("device", stripes="none", block=4))
    slab = Slab(0, 0, 5)
    reconstruct_slab(here, slab)
    tried = full_for(monkeypatch, 2)
    left = []
    release = slab_module._UPLOAD_AHEAD.forget
    monkeypatch.setattr(slab_module._UPLOAD_AHEAD, "forget", lambda: left.append(len(tried)) or release())
    summary = reconstruct_slab(there, slab, Slab(1, 0, 5))
    assert left == [1]  # what was copied ahead is given up before the second try
    assert tried == [4, 2, 2, 1]
    assert summary.notes == ("the device had no memory for 4 slices at a time, so 2 were taken",)
    np.testing.assert_allclose(slices(there), slices(here), atol=1e-5 * np.abs(slices(here)).max())
    reconstruct_slab(there, slab)
    assert tried[4:] == [2, 2, 1]  # the next slab begins so


def test_plans_of_transforms_and_memory_are_bounded(cupy, job):
    reconstruct_slab(on_device(job("device", stripes="none")), Slab(0, 0, 5))
    assert cupy.fft.config.get_plan_cache().size == PLANS
    assert cupy.get_default_memory_pool().get_limit() == 10**9


def test_a_device_that_is_too_small_ends_the_run_in_one_sentence(cupy, job, monkeypatch):
    there = on_device(job("device", stripes="none", block=4))
    assert full_for(monkeypatch, 1) == []
    with pytest.raises(DeviceFull, match=r"no memory for a block of 2: it needs 1.2 GB more and has .* GB free") as end:
        reconstruct_slab(there, Slab(0, 0, 5))
    plan = cost.make_plan(there.scan, there.settings, there.geometry, Resources(1, 1, 10**10))
    told = stopped(TaskFailed(Slab(0, 0, 5), end.value, killed=False), "rows 0:5", plan, there.output)
    assert isinstance(told, StoppedError)
    assert "rows 0:5: the device has no memory" in str(told)
    assert "--resume and less --device-memory" in str(told)


FRAMES = np.random.default_rng(0).integers(100, 900, (8, 12, 6)).astype(">u2")


class Noted(ArraySource):
    """Notes which thread reads which rows."""

    def read(self, frames=slice(None), rows=slice(None), columns=slice(None)):
        self.reads.append((rows.start, threading.current_thread() is threading.main_thread()))
        if self.fails:
            raise OSError("the disk is gone")
        return super().read(frames, rows, columns)


@pytest.fixture
def source():
    source = Noted(FRAMES)
    for name, value in (("reads", []), ("fails", False)):
        object.__setattr__(source, name, value)
    return source


def rows_of(found):
    assert not isinstance(found.projections, np.ndarray)
    return found.projections.get()


def test_rows_are_copied_up_ahead(cupy, source):
    scan, reader = io.Scan("scan.h5", "hdf5", source, ArraySource(FRAMES[:2]), None, np.arange(8.0)), UploadAhead()
    for first in (0, 4, 8):
        following = slice(first + 4, first + 8) if first < 8 else None
        found = reader.reader(scan, following)(slice(first, first + 4))
        np.testing.assert_array_equal(rows_of(found), FRAMES[:, first : first + 4])
        np.testing.assert_array_equal(found.flats.get(), FRAMES[:2, first : first + 4])
        assert found.darks is None
    assert source.reads == [(0, True), (4, False), (8, False)]
    reader.reader(scan, slice(4, 8))(slice(0, 4))
    np.testing.assert_array_equal(rows_of(reader.reader(scan, None)(slice(8, 12))), FRAMES[:, 8:12])  # another block


def test_what_could_not_be_copied_ahead_is_read_when_it_is_needed(cupy, source, monkeypatch):
    scan, reader = io.Scan("scan.h5", "hdf5", source, None, None, np.arange(8.0)), UploadAhead()
    object.__setattr__(source, "fails", True)
    with pytest.raises(OSError, match="the disk is gone"):
        reader.reader(scan, slice(4, 8))(slice(0, 4))
    object.__setattr__(source, "fails", False)
    read = reader.reader(scan, slice(4, 8))
    with monkeypatch.context() as patch:
        patch.setattr(ahead, "Upload", full)
        np.testing.assert_array_equal(rows_of(read(slice(0, 4))), FRAMES[:, :4])
    reader.forget()
    source.reads.clear()
    np.testing.assert_array_equal(rows_of(reader.reader(scan, None)(slice(4, 8))), FRAMES[:, 4:8])
    assert source.reads == [(4, True)]


def full(*_):
    raise stand_in.OutOfMemoryError(1, 0)


def test_pictures_of_slices_on_a_device(cupy):
    part = np.random.default_rng(1).random((5, 16, 16)).astype(np.float32)
    sent = {"host": [], "device": []}
    for name, slices in (("host", part), ("device", to_device(part))):
        feed.SlabFeed(Grid((5, 16, 16)), Slab(0, 0, 5), sent[name].append).picture(slices)
    assert len(sent["device"]) == 3
    for here, there in zip(sent["host"], sent["device"]):
        np.testing.assert_allclose(unpack(there), unpack(here), rtol=1e-3)


@pytest.mark.without_simulator
@pytest.mark.parametrize(
    "options", [{}, {"algorithm": "sirt"}, {"method": "nufft"}, {"delta_beta": 20.0, "distance": 9}]
)
def test_the_plan_of_a_device(job, options):
    one = job(**options)
    plans = {}
    for share in (None, 10**11, 2 * 10**9, 10**6):
        resources = Resources(1, 1, 10**11, devices=("0",), kind="cuda", device_share=share)
        plans[share] = cost.make_plan(one.scan, one.settings, one.geometry, resources)
    on_cpu, roomy, small = plans[None], plans[10**11], plans[10**6]
    assert not on_cpu.device_parts
    assert not any(line.startswith("device memory") for line in on_cpu.lines())
    assert roomy.fits
    assert roomy.device_memory > 512 * 2**20
    assert any(line.startswith("device memory per worker: ") and " of 100 GB (" in line for line in roomy.lines())
    assert "not estimated" in next(line for line in roomy.lines() if line.startswith("time"))
    assert "computing" not in roomy.seconds
    assert not small.fits
    with pytest.raises(UserError, match=r"of its device's memory for 1 slice at a time but may take 1.0 MB; give more"):
        refuse_if_too_big(small, None)


@pytest.mark.without_simulator
def test_blocks_are_chosen_for_the_device(scan_file, tmp_path, monkeypatch):
    monkeypatch.setattr(cost, "installed_for_devices", lambda: True)
    settings = ReconSettings(scan=scan_file, output=tmp_path / "v.zarr", center=7.5)
    source = ArraySource(np.broadcast_to(np.zeros((), np.uint16), (1500, 64, 2048)))
    large = io.Scan("scan.h5", "hdf5", source, None, None, np.linspace(0, 180, 1500))
    geometry = geometry_of(large, 1000.0, False)
    blocks = {}
    for share in (20 * 10**9, 4 * 10**9, 2 * 10**9):
        resources = Resources(1, 1, 10**11, devices=("0",), device_share=share)
        plan = cost.make_plan(large, settings, geometry, resources)
        assert plan.fits
        assert plan.device_memory <= share
        blocks[share] = plan.block
    assert blocks[20 * 10**9] == 64
    assert 64 > blocks[4 * 10**9] > blocks[2 * 10**9] >= 1


@pytest.mark.without_simulator
@pytest.mark.parametrize(("installed", "method", "transforms"), [(1, "auto", 1), (0, "auto", 0), (0, "nufft", 1)])
def test_the_plan_sums_spectra_only_where_the_device_can(tmp_path, monkeypatch, installed, method, transforms):
    monkeypatch.setattr(cost, "installed_for_devices", lambda: bool(installed))
    settings = ReconSettings(scan=tmp_path / "s.h5", output=tmp_path / "v.zarr", center=1000.0, method=method)
    source = ArraySource(np.broadcast_to(np.zeros((), np.uint16), (1500, 64, 2048)))
    large = io.Scan("scan.h5", "hdf5", source, None, None, np.linspace(0, 180, 1500))
    geometry = geometry_of(large, 1000.0, False)
    found = cost.Sizes(large, settings, geometry, on_device=True)
    assert found.by_nufft == bool(transforms)
    assert ("transforms" in cost._device_solver(found, 8)) == bool(transforms)
    assert cost.Sizes(large, settings, geometry).by_nufft  # on the CPU it is always there


@pytest.mark.without_simulator
def test_a_method_that_devices_lack_is_refused_before_anything_starts(scan_file, tmp_path, monkeypatch):
    settings = ReconSettings(scan=scan_file, output=tmp_path / "v.zarr", center=7.5, devices="0", method="nufft")
    monkeypatch.setattr("dtomo.runs.session.device_share", lambda _: 10**10)
    monkeypatch.setattr(recon.job, "installed_for_devices", lambda: False)
    with pytest.raises(UserError, match="--method nufft takes cufinufft on a GPU, which is not installed"):
        recon.run(settings)
    assert not settings.output.exists()
    monkeypatch.setattr("dtomo.runs.session.device_share", lambda _: None)  # the CPU has it
    assert recon.job._resources(settings, lambda line: None).devices == ("0",)


@pytest.mark.without_simulator
def test_what_a_worker_may_take_of_its_device(monkeypatch):
    sizes = {"0": 80 * 10**9, "1": 40 * 10**9}
    monkeypatch.setattr(cuda, "find_spec", lambda name: object())
    monkeypatch.setattr(cuda, "_memory_of", lambda devices: min(sizes[device] for device in devices))
    local = Resources(2, 1, 10**9, kind="local", devices=("0",))
    assert cuda.device_share(local) == int(0.9 * 80e9) // 2
    both_devices = dataclasses.replace(local, kind="cuda", devices=("0", "1"))
    assert cuda.device_share(both_devices) == int(0.9 * 40e9)
    assert cuda.device_share(dataclasses.replace(both_devices, device_memory=10**10)) == 10**10
    assert cuda.device_share(dataclasses.replace(both_devices, options={"rmm_pool_size": 10**9})) == 10**9
    for devices in ((), None):
        assert cuda.device_share(dataclasses.replace(local, devices=devices)) is None
    monkeypatch.setattr(cuda, "_memory_of", no_driver)
    assert cuda.device_share(local) is None
    with pytest.raises(UserError, match="no driver"):
        cuda.device_share(both_devices)
    monkeypatch.setattr(cuda, "find_spec", lambda name: None if name == "cupy" else object())
    assert cuda.device_share(local) is None


def no_driver(_):
    raise UserError("no driver")
