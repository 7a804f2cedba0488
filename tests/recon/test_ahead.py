"""Reading ahead: the same rows, one piece at a time, only where storage is slow, and counted in the plan."""

import dataclasses
import threading
import time

import numpy as np
import pytest

from dtomo import io
from dtomo.distributed.clusters import Resources
from dtomo.distributed.slabs import cut
from dtomo.errors import UserError
from dtomo.io.sources import ArraySource
from dtomo.recon import ahead, cost
from dtomo.recon.ahead import ReadAhead
from dtomo.recon.scans import geometry_of, open_scan, scale_of
from dtomo.recon.slab import Job, reconstruct_slab
from dtomo.settings import ReconSettings
from dtomo.simulate import simulate_scan

FRAMES = np.random.default_rng(0).integers(100, 900, (8, 32, 24)).astype(np.uint16)


class Slow(ArraySource):
    """A disk that takes its time, or fails: waits without using the processor, and notes who read which rows."""

    def read(self, frames=slice(None), rows=slice(None), columns=slice(None)):
        if self.fails:
            raise UserError("the disk is gone")
        self.reads.append((rows.start, rows.stop, threading.current_thread() is threading.main_thread()))
        time.sleep(self.seconds)
        return super().read(frames, rows, columns)


def _slow(seconds, frames=FRAMES):
    source = Slow(frames)
    for name, value in (("seconds", seconds), ("reads", []), ("fails", False)):
        object.__setattr__(source, name, value)
    return source


def _scan(source):
    return io.Scan("scan.h5", "hdf5", source, None, None, np.arange(8.0))


def test_what_is_slow_is_read_ahead_once_and_is_the_same():
    source = _slow(0.15)
    scan, reader = _scan(source), ReadAhead()
    for first in range(0, 32, 8):
        following = slice(first + 8, first + 16) if first < 24 else None
        found = reader.reader(scan, following)(slice(first, first + 8))
        np.testing.assert_array_equal(found.projections, FRAMES[:, first : first + 8])
        time.sleep(0.2)  # computing
    assert source.reads == [(0, 8, True), (8, 16, False), (16, 24, False), (24, 32, False)]


def test_what_was_read_ahead_is_there_at_once():
    scan, reader = _scan(_slow(0.2)), ReadAhead()
    reader.reader(scan, slice(8, 16))(slice(0, 8))
    time.sleep(0.35)
    start = time.perf_counter()
    reader.reader(scan, None)(slice(8, 16))
    assert time.perf_counter() - start < 0.1


def test_other_rows_or_another_scan_than_expected():
    source = _slow(0.1)
    scan, reader = _scan(source), ReadAhead()
    reader.reader(scan, slice(8, 16))(slice(0, 8))
    np.testing.assert_array_equal(reader.reader(scan, slice(0, 8))(slice(16, 24)).projections, FRAMES[:, 16:24])
    other = _scan(_slow(0.1, FRAMES + 1))
    np.testing.assert_array_equal(reader.reader(other, None)(slice(0, 8)).projections, FRAMES[:, :8] + 1)
    assert [rows[:2] for rows in source.reads] == [(0, 8), (8, 16), (16, 24), (0, 8)]


@pytest.mark.parametrize("seconds", [0.0, 0.01])
def test_fast_storage_is_read_when_needed(seconds):
    source = _slow(seconds)
    scan, reader = _scan(source), ReadAhead()
    for first in (0, 8, 16):
        reader.reader(scan, slice(first + 8, first + 16))(slice(first, first + 8))
    assert not reader.pays
    assert [main for _, _, main in source.reads] == [True] * 3


@pytest.mark.parametrize(
    ("wall", "busy", "pays"), [(2.0, 1.9, False), (2.0, 0.9, True), (0.04, 0.0, False), (2.0, 3.5, False)]
)
def test_a_busy_processor_is_not_slow_storage(wall, busy, pays, monkeypatch):
    class Clock:
        perf_counter = iter([7.0, 7.0 + wall]).__next__
        process_time = iter([3.0, 3.0 + busy]).__next__

    monkeypatch.setattr(ahead, "time", Clock)
    reader = ReadAhead()
    reader.reader(_scan(_slow(0.0)), None)(slice(0, 8))
    assert reader.pays == pays


def test_a_failure_ahead_is_raised_where_the_rows_are_asked_for():
    source = _slow(0.1)
    scan, reader = _scan(source), ReadAhead()
    reader.reader(scan, None)(slice(0, 8))
    assert reader.pays
    object.__setattr__(source, "fails", True)
    reader._begin(scan, slice(8, 16))
    with pytest.raises(UserError, match="the disk is gone"):
        reader.reader(scan, None)(slice(8, 16))
    object.__setattr__(source, "fails", False)
    np.testing.assert_array_equal(reader.reader(scan, None)(slice(8, 16)).projections, FRAMES[:, 8:16])


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("scan") / "scan.h5"
    simulate_scan(path, size=32, rows=64, columns=40, angles=48, center=20.0, photons=1e4)
    return path


def test_slabs_have_the_same_bits(path, tmp_path):
    settings = ReconSettings(scan=path, output=tmp_path / "v.zarr", center=20.0)
    scan = open_scan(settings)
    geometry = geometry_of(scan, 20.0, False)
    counts = scan.projection_source.read()
    slow = dataclasses.replace(scan, projection_source=_slow(0.1, counts))
    volumes = []
    for name, read_from, allowed in (("a.zarr", scan, False), ("b.zarr", slow, True)):
        writer = io.create_volume(tmp_path / name, (64, geometry.height, geometry.width), slab=16)
        job = Job(read_from, settings, None, geometry, scale_of(scan)[0], 8, 1, writer.path, ahead=allowed)
        slabs = cut(64, 16)
        for slab, following in zip(slabs, [*slabs[1:], None]):
            reconstruct_slab(job, slab, following)
        volumes.append(io.open_volume(writer.finish()).array.compute())
    assert volumes[0].tobytes() == volumes[1].tobytes()
    assert [rows[2] for rows in slow.projection_source.reads] == [True] + [False] * 7


def test_the_plan_counts_it_and_leaves_it_where_memory_is_short(path, tmp_path):
    settings = ReconSettings(scan=path, output=tmp_path / "v.zarr", center=20.0)
    scan = open_scan(settings)
    geometry = geometry_of(scan, 20.0, False)
    plan = cost.make_plan(scan, settings, geometry, Resources(1, 1, 1_000_000_000))
    more = ahead.planned(plan, scan, settings, geometry)
    assert more.ahead
    assert more.worker_memory - plan.worker_memory == 2 * plan.block * 48 * 40 * 2
    tight = dataclasses.replace(plan, resources=Resources(1, 1, plan.worker_memory))
    assert ahead.planned(tight, scan, settings, geometry) is tight
    phase = settings.model_copy(update={"delta_beta": 100.0})
    assert not ahead.planned(plan, scan, phase, geometry).ahead
