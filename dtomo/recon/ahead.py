"""Rows read ahead: while a worker computes, one thread reads what it will most likely need next.

It pays where a process waits for its storage: on a fast disk, and where reading is decompression, the same cores would
only be shared. So a worker times its reading, and reads ahead once it has waited for most of it.
"""

import dataclasses
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeAlias

from dtomo import io
from dtomo.device import Upload, is_full, to_device
from dtomo.distributed.plan import Plan
from dtomo.geometry import ParallelBeam
from dtomo.recon.cost import Sizes
from dtomo.settings import ReconSettings

WAITED, LEAST = 0.5, 0.05
"""Part of the time of a reading, and seconds of it, that a process must have waited for storage."""

RowReader: TypeAlias = Callable[[slice], io.RawSlab]


class ReadAhead:
    """Holds at most one piece of a scan that was read before it was asked for.

    Attributes
    ----------
    pays
        Whether the last reading that was waited for was slow for want of storage, not of processor time.
    """

    def __init__(self) -> None:
        self.pays = False
        self._thread: ThreadPoolExecutor | None = None
        self._next: tuple[io.Scan, slice, Future[io.RawSlab]] | None = None

    def reader(self, scan: io.Scan, following: slice | None) -> RowReader:
        """A function that reads rows of `scan`, from what was read ahead if they are there.

        Parameters
        ----------
        scan
            What is read.
        following
            Rows that will be needed next: their reading begins when the function has what it was asked for. None: not
            known, or no memory for them.
        """

        def read(rows: slice) -> io.RawSlab:
            found = self._ready(scan, rows) or self._read(scan, rows)
            if following is not None and self.pays:
                self._begin(scan, following)
            return found

        return read

    def _ready(self, scan: io.Scan, rows: slice) -> io.RawSlab | None:
        """What was read ahead, if it is these rows; never two pieces at once, so whatever it was ends here.

        What failed is read again, when it raises where it should, or finds memory.
        """
        if self._next is None:
            return None
        read_from, read, future = self._next
        self._next = None
        failed = future.exception() is not None  # waits
        return None if failed or read_from is not scan or read != rows else future.result()

    def _read(self, scan: io.Scan, rows: slice) -> io.RawSlab:
        wall, busy = time.perf_counter(), time.process_time()
        found = scan.read(rows)
        wall, busy = time.perf_counter() - wall, time.process_time() - busy
        self.pays = wall - busy > max(LEAST, WAITED * wall)
        return found

    def _begin(self, scan: io.Scan, rows: slice) -> None:
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="dtomo-read-ahead")
        self._next = scan, rows, self._thread.submit(scan.read, rows)


class UploadAhead:
    """Rows on the device; while they are worked on, the next ones are read and copied there by a thread.

    It holds at most one piece of a scan beside what was asked for. Whether the storage is slow does not matter: the
    processor has nothing else to do.
    """

    def __init__(self) -> None:
        self._next: tuple[io.Scan, slice, Upload, list[io.RawSlab]] | None = None

    def reader(self, scan: io.Scan, following: slice | None) -> RowReader:
        """A function that reads rows of `scan` to the device; see `ReadAhead.reader`."""

        def read(rows: slice) -> io.RawSlab:
            found = self._ready(scan, rows) or on_device(scan.read(rows))
            if following is not None:
                self._begin(scan, following, found.projections)
            return found

        return read

    def forget(self) -> None:
        """Let go of what was copied ahead: the device has no memory for it."""
        if self._next is not None:
            upload, self._next = self._next[2], None
            upload.wait()

    def _ready(self, scan: io.Scan, rows: slice) -> io.RawSlab | None:
        """What was copied ahead, if it is these rows; what failed is read again."""
        if self._next is None:
            return None
        read_from, read, upload, raw = self._next
        self._next = None
        if upload.wait() is not None or read_from is not scan or read != rows:
            return None
        return io.RawSlab(upload.result(), to_device(raw[0].flats), to_device(raw[0].darks))

    def _begin(self, scan: io.Scan, rows: slice, like: Any) -> None:
        """Take room now, for as many frames and columns as the rows before have: no work sent later uses it."""
        raw: list[io.RawSlab] = []

        def make() -> Any:
            raw.append(scan.read(rows))
            return raw[0].projections

        try:
            upload = Upload((like.shape[0], rows.stop - rows.start, like.shape[2]), like.dtype, make)
        except Exception as error:
            if not is_full(error):
                raise
            return
        self._next = scan, rows, upload, raw


def on_device(raw: io.RawSlab) -> io.RawSlab:
    """Rows of a scan, taken to the present device; what is there stays."""
    return io.RawSlab(to_device(raw.projections), to_device(raw.flats), to_device(raw.darks))


def planned(plan: Plan, scan: io.Scan, settings: ReconSettings, geometry: ParallelBeam) -> Plan:
    """The plan with memory for a block of raw rows read ahead, as they are read and passed on, if there is some left.

    Phase retrieval reads bands of rows again and again, which are not read ahead.
    """
    count = 2 * plan.block * Sizes(scan, settings, geometry).raw_row
    if settings.delta_beta is not None or plan.worker_memory + count > plan.resources.memory:
        return plan
    return dataclasses.replace(plan, ahead=True, worker_parts={**plan.worker_parts, "read ahead": count})
