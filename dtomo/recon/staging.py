"""Whether the frames of a scan are staged before they are reconstructed, and the tasks that do it.

Reading a slab from frames that are compressed whole takes the decompression of all frames: slabs × the whole file.
Staging (`dtomo.io.staging`) takes one pass over the file and a copy on disk. The cheaper one is chosen.
"""

import contextlib
import dataclasses
import errno
import math
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dtomo import io
from dtomo.distributed import queue
from dtomo.distributed.plan import Plan, size
from dtomo.distributed.progress import Counter, duration
from dtomo.distributed.slabs import Slab
from dtomo.errors import StoppedError, UserError
from dtomo.io.chunks import Layout, layout_of
from dtomo.io.output import disk_size
from dtomo.io.sources import ArraySource, SelectedFrames, Source
from dtomo.io.staging import FrameBlock, Staging, check_scratch, is_staged, release, remove_staged, staging_folder
from dtomo.recon.faults import stopped
from dtomo.recon.prepare import full_detector, phase_bands
from dtomo.settings import ReconSettings

if TYPE_CHECKING:
    from distributed import Client

_FIELDS = {"projections": "projection", "flats": "flat", "darks": "dark"}

WORTH, LEAST = 1.3, 5.0
"""Frames are staged if reading them directly takes this many times longer, and this many seconds."""

# Seconds per byte on one core, through Zarr (measured).
WRITING, READING = 1 / 0.5e9, 1 / 1.5e9

CHUNK = 8 * 2**20
"""Bytes of a chunk of the scratch store, where memory allows it."""
ROOM = 256_000_000
"""Bytes that a staging task may take beside the programs, or what reconstructing takes if that is more."""
COPIES = 2.2
"""How often a block of frames is in memory: as the library reads it, as it is passed on, a band being compressed."""
PER_WORKER = 4
"""Tasks for each worker, at least, where there are frames enough."""


@dataclasses.dataclass(frozen=True)
class Decision:
    """Whether frames are staged, and what that costs.

    Attributes
    ----------
    staging
        What is to be done; None: the file is read directly.
    folder
        Where the scratch store is, or may have been left by a run before.
    direct, staged
        Seconds of reading for the whole run, either way.
    memory
        Bytes that a staging task takes beside the programs.
    line
        For the user; empty if there is nothing to be said.
    """

    staging: Staging | None
    folder: Path
    direct: float
    staged: float
    memory: int
    line: str


def decide(scan: io.Scan, settings: ReconSettings, plan: Plan, waiting: Sequence[Slab] | None = None) -> Decision:
    """Choose between staging and reading directly by what they cost, unless the settings say.

    Parameters
    ----------
    scan, settings, plan
        Of the run.
    waiting
        The slabs that are to be read; None: all of the plan.

    Raises
    ------
    UserError
        A scratch folder that cannot be used, or staging asked for that does not fit into memory or on the disk.
    """
    slabs = plan.slabs if waiting is None else waiting
    folder = staging_folder(settings.output, settings.scratch)
    if settings.scratch is not None and settings.stage != "no":
        check_scratch(settings.scratch)
    layouts = {name: layout_of(source) for name, source in _sources(scan).items()}
    names = [name for name, layout in layouts.items() if layout.coarse or settings.stage == "yes"]
    if not names or not slabs:
        return Decision(None, folder, 0.0, 0.0, 0, "")
    reads = raw_rows(scan, settings, slabs, plan.block)
    staging = _staging(scan, settings, names, layouts, reads, plan, folder)
    workers = min(plan.resources.workers, len(slabs))
    decoding = sum(_decoding(staging, name, layouts[name], reads) for name in names)
    passes = decoding / sum(_decoding(staging, name, layouts[name], [slice(*staging.rows)]) for name in names)
    direct, staged = decoding / workers, _staged_seconds(staging, layouts, reads) / workers
    compared = f"(reading: about {duration(staged)} staged, {duration(direct)} directly)"
    if settings.stage == "no" or (settings.stage == "auto" and (direct < WORTH * staged or direct - staged < LEAST)):
        line = f"frames are stored whole and read directly, about {passes:.1f} times each {compared}"
        return Decision(None, folder, direct, staged, 0, line if passes > 1.5 else "")
    memory = int(COPIES * staging.block * _frame_bytes(staging))
    if obstacle := _obstacle(staging, plan, settings, memory):
        if settings.stage == "yes":
            raise UserError(f"--stage yes: {obstacle}")
        line = f"frames are read directly, though staging them would pay {compared}: {obstacle}"
        return Decision(None, folder, direct, staged, 0, line)
    where = "in the output's progress folder" if settings.scratch is None else f"in {settings.scratch}"
    line = f"frames are staged {where}, up to {size(staging.size)}, removed at the end {compared}"
    return Decision(staging, folder, direct, staged, memory, line)


def _sources(scan: io.Scan) -> dict[str, Source]:
    """What lies in files and is read with every slab."""
    found = {"projections": scan.projection_source}
    if not scan.normalized:
        found |= {
            name: source
            for name, source in (("flats", scan.flat_source), ("darks", scan.dark_source))
            if source is not None
        }
    return {name: source for name, source in found.items() if not _in_memory(source)}


def _in_memory(source: Source) -> bool:
    return isinstance(source.base if isinstance(source, SelectedFrames) else source, ArraySource)


def raw_rows(scan: io.Scan, settings: ReconSettings, slabs: Sequence[Slab], block: int) -> list[slice]:
    """Rows of the detector that are read together, for each time that something is read."""
    blocks = [part for slab in slabs for part in slab.blocks(block)]
    if settings.delta_beta is None:
        read = [part.rows for part in blocks]
    else:
        read = [rows for part in blocks for _, rows in phase_bands(scan, settings, part.rows)]
    first, b = _window(scan, settings)[0], scan.binning
    return [slice(first + rows.start * b, first + rows.stop * b) for rows in read]


def _window(scan: io.Scan, settings: ReconSettings) -> tuple[int, int, int, int]:
    """Detector rows and columns that are read: (first row, end, first column, end)."""
    read = scan if settings.delta_beta is None else full_detector(scan)[0]
    return read.window or (0, 0, 0, 0)


def _staging(
    scan: io.Scan,
    settings: ReconSettings,
    names: Sequence[str],
    layouts: dict[str, Layout],
    reads: Sequence[slice],
    plan: Plan,
    folder: Path,
) -> Staging:
    """How frames are cut: bands as slabs are read, as many frames as make a good chunk and fit into memory."""
    sources = {name: _sources(scan)[name] for name in names}
    rows = min(part.start for part in reads), max(part.stop for part in reads)
    _, _, left, right = _window(scan, settings)
    band = math.gcd(*(part.start - rows[0] for part in reads)) or rows[1] - rows[0]
    whole = Staging(folder, sources, rows, (left, right), min(band, rows[1] - rows[0]), 1)
    itemsize = max(source.dtype.itemsize for source in sources.values())
    room = min(plan.resources.memory - plan.worker_parts.get("programs", 0), max(ROOM, _beside_programs(plan)))
    most = max(1, int(room / COPIES) // _frame_bytes(whole))
    share = -(-sum(source.shape[0] for source in sources.values()) // (PER_WORKER * plan.resources.workers))
    wanted = max(1, min(most, -(-CHUNK // (whole.band * (right - left) * itemsize)), share))
    deep = max(layouts[name].frames for name in names)  # each chunk of the file is decompressed once, if that fits
    block = -(-wanted // deep) * deep
    return dataclasses.replace(whole, block=block if block <= most else max(1, most // deep * deep or most))


def _beside_programs(plan: Plan) -> int:
    return plan.worker_memory - plan.worker_parts.get("programs", 0)


def _frame_bytes(staging: Staging) -> int:
    """The largest frame, as far as it is staged."""
    return max(math.prod(staging.shape(name)[1:]) * staging.sources[name].dtype.itemsize for name in staging.sources)


def _decoding(staging: Staging, name: str, layout: Layout, reads: Sequence[slice]) -> float:
    """Seconds on one core to read those rows from the file as it is."""
    source = staging.sources[name]
    pixels = sum(layout.decoded(source.shape, rows, slice(*staging.columns)) for rows in reads)
    return source.shape[0] * pixels * source.dtype.itemsize / layout.speed


def _once(staging: Staging, name: str, layout: Layout) -> float:
    """Seconds to read what is staged of a source in blocks; a chunk of the file deeper than a block counts again."""
    again = max(1.0, layout.frames / staging.block)
    return again * _decoding(staging, name, layout, [slice(*staging.rows)])


def _staged_seconds(staging: Staging, layouts: dict[str, Layout], reads: Sequence[slice]) -> float:
    """Seconds on one core to stage, and to read from the scratch store."""
    total = 0.0
    bands = Layout(staging.block, staging.band, 1)
    for name, source in staging.sources.items():
        frames, rows, columns = staging.shape(name)
        shifted = [slice(part.start - staging.rows[0], part.stop - staging.rows[0]) for part in reads]
        pixels = sum(bands.decoded((frames, rows, columns), part, slice(0, columns)) for part in shifted)
        total += _once(staging, name, layouts[name])
        total += frames * source.dtype.itemsize * (rows * columns * WRITING + pixels * READING)
    return total


def _obstacle(staging: Staging, plan: Plan, settings: ReconSettings, memory: int) -> str:
    """Why frames cannot be staged; empty if they can."""
    programs = plan.worker_parts.get("programs", 0)
    if memory + programs > plan.resources.memory:
        limit = size(plan.resources.memory)
        return f"a task takes {size(memory + programs)} of memory, the limit is {limit}; give more --memory"
    if os.path.lexists(staging.folder) and not is_staged(staging.folder):
        return f"{staging.folder} is in the way; move it, or give another --scratch folder"
    place = staging.folder.parent if settings.scratch is not None else settings.output.absolute().parent
    free = shutil.disk_usage(place).free + disk_size(staging.folder)
    if os.stat(place).st_dev == os.stat(settings.output.absolute().parent).st_dev:
        free -= max(0, plan.bytes_written - disk_size(settings.output))
    if staging.size > free:
        spare = size(max(0, free))
        return (
            f"the copy takes {size(staging.size)} and {place} has {spare} to spare; give a --scratch folder with more"
        )
    return ""


def planned(plan: Plan, decision: Decision) -> Plan:
    """The plan with what reading takes, staged or not."""
    reading = decision.staged if decision.staging else decision.direct
    if not reading:
        return plan
    seconds = {**plan.seconds, "reading": max(reading, 0.0 if decision.staging else plan.seconds["reading"])}
    parts = plan.worker_parts
    if decision.memory > _beside_programs(plan):
        parts = {"programs": parts.get("programs", 0), "frames being staged": decision.memory}
    scratch = {**plan.scratch, **({"staged frames": decision.staging.size} if decision.staging else {})}
    notes = (*plan.notes, *([decision.line] if decision.line else []))
    return dataclasses.replace(plan, seconds=seconds, worker_parts=parts, scratch=scratch, notes=notes)


@contextlib.contextmanager
def staged(
    client: "Client",
    scan: io.Scan,
    decision: Decision,
    plan: Plan,
    settings: ReconSettings,
    inputs: list[dict[str, Any]],
    say: Callable[[str], None],
    *,
    quiet: bool,
) -> Iterator[io.Scan]:
    """The scan to read slabs from: staged if that was decided.

    The scratch store is removed at the end; a run that is stopped leaves it for ``--resume``.

    Raises
    ------
    StoppedError
        Staging was stopped part-way; with ``--stage auto`` a full disk only makes the run read directly.
    """
    if decision.staging is None:
        if is_staged(decision.folder):
            remove_staged(decision.folder, settings.output)
        yield scan
        return
    about = {"inputs": inputs, "settings": settings.that_decide_the_result()}
    try:
        yield _staged_scan(client, scan, decision.staging, plan, settings, about, say, quiet=quiet)
        remove_staged(decision.folder, settings.output)
    finally:
        release(decision.folder)


def _staged_scan(
    client: "Client",
    scan: io.Scan,
    staging: Staging,
    plan: Plan,
    settings: ReconSettings,
    about: dict[str, Any],
    say: Callable[[str], None],
    *,
    quiet: bool,
) -> io.Scan:
    """The scan with its frames staged; as it is if the disk is full and staging was not asked for."""
    try:
        staging = staging.open(about, settings.output)
        _stage(client, staging, plan, settings, quiet)
    except StoppedError as error:
        if settings.stage == "yes" or not _disk_full(error):
            raise
        say(f"note: the disk became full while frames were staged in {staging.folder}; they are read directly instead")
        remove_staged(staging.folder, settings.output)
        return scan
    sources: dict[str, Any] = {f"{_FIELDS[name]}_source": staging.staged(name) for name in staging.sources}
    return dataclasses.replace(scan, **sources)


def _disk_full(error: BaseException | None) -> bool:
    """Whether a full disk is among the causes."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return True
        if isinstance(error, StoppedError) and "the disk is full" in str(error):  # a cause does not travel
            return True
        error = error.__cause__
    return False


def _stage(client: "Client", staging: Staging, plan: Plan, settings: ReconSettings, quiet: bool) -> None:
    """Send out the blocks of frames that are not staged yet, and wait for them."""
    blocks, waiting = staging.blocks(), staging.waiting()
    with Counter(len(blocks), "blocks of frames staged,", done=len(blocks) - len(waiting), quiet=quiet) as counter:
        try:
            queue.run_tasks(client, _write, staging, waiting, lambda block, _: counter.advance())
        except queue.TaskFailed as failed:
            named = f"{failed.item} (block {failed.item.index + 1} of {len(blocks)})"
            raise stopped(failed, named, plan, settings.output) from failed.cause


def _write(staging: Staging, block: FrameBlock) -> None:
    staging.write(block)
