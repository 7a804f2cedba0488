"""Wrong, truncated, empty, huge and hostile files, each a function of a folder that returns the path to be fed."""

import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import tifffile

SECRET = b"root:x:0:0:this stands outside the folder\n" * 40
"""What lies beside the folder that is fed; no word of it may be said or written."""
ANGLES = np.arange(6) * 30.0
FRAMES = np.random.default_rng(0).integers(300, 800, (6, 4, 8)).astype(np.uint16)
Maker = Callable[[Path], Path]
SCANS: dict[str, Maker] = {}
VOLUMES: dict[str, Maker] = {}
LISTS: dict[str, Maker] = {}
PTYCHO: dict[str, Maker] = {}


class Marker:
    """Makes a file where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def into(*kinds: dict[str, Maker]) -> Callable[[Maker], Maker]:
    """Put a maker under its docstring into each of `kinds`."""

    def keep(maker: Maker) -> Maker:
        for kind in kinds:
            kind[(maker.__doc__ or "").rstrip(".")] = maker
        return maker

    return keep


def scan_file(folder: Path, name: str = "scan.h5", **changed: Any) -> Path:
    """A Data Exchange scan; parts of it may be another array, or a function that puts them there."""
    parts: dict[str, Any] = {"data": FRAMES, "data_white": FRAMES[:1] + 900, "data_dark": FRAMES[:1] // 9}
    parts |= {"theta": ANGLES, **changed}
    with h5py.File(folder / name, "w") as file:
        group = file.create_group("exchange")
        for part, value in parts.items():
            if callable(value):
                value(group, part)
            elif value is not None:
                group[part] = value
        if isinstance(group.get("theta"), h5py.Dataset):
            group["theta"].attrs["units"] = "degrees"
    return folder / name


@into(SCANS, VOLUMES, LISTS, PTYCHO)
def empty(folder: Path) -> Path:
    """Empty file."""
    (folder / "empty.h5").touch()
    return folder / "empty.h5"


@into(SCANS, VOLUMES, LISTS, PTYCHO)
def missing(folder: Path) -> Path:
    """No such file."""
    return folder / "missing.h5"


@into(SCANS, VOLUMES, LISTS, PTYCHO)
def long_name(folder: Path) -> Path:
    """Name of 300 letters."""
    return folder / ("n" * 300 + ".h5")


@into(SCANS, VOLUMES, LISTS, PTYCHO)
def noise(folder: Path) -> Path:
    """Random bytes."""
    (folder / "noise.em").write_bytes(np.random.default_rng(1).bytes(5000))
    return folder / "noise.em"


@into(SCANS, VOLUMES, LISTS, PTYCHO)
def pipe(folder: Path) -> Path:
    """Named pipe nobody writes to."""
    os.mkfifo(folder / "pipe")
    return folder / "pipe"


@into(SCANS, VOLUMES, LISTS, PTYCHO)
def device(folder: Path) -> Path:
    """Device that never ends."""
    return Path("/dev/zero")


@into(SCANS, VOLUMES, LISTS, PTYCHO)
def links_round(folder: Path) -> Path:
    """Symbolic link to itself."""
    (folder / "round.h5").symlink_to(folder / "round.h5")
    return folder / "round.h5"


@into(SCANS, VOLUMES, PTYCHO)
def empty_folder(folder: Path) -> Path:
    """Empty folder."""
    (folder / "nothing").mkdir()
    return folder / "nothing"


@into(SCANS)
def truncated(folder: Path) -> Path:
    """HDF5 cut in half."""
    path = scan_file(folder)
    os.truncate(path, path.stat().st_size // 2)
    return path


@into(SCANS)
def absurd_shape(folder: Path) -> Path:
    """HDF5 of 10¹² frames that takes no space."""
    return scan_file(folder, data=lambda g, n: g.create_dataset(n, (10**12, 4, 8), "u2", chunks=(1, 4, 8)))


@into(SCANS)
def absurd_frame(folder: Path) -> Path:
    """HDF5 with frames of 10⁵ × 10⁵."""

    def put(group: h5py.Group, name: str) -> None:
        group.create_dataset(name, (6, 10**5, 10**5), "u2", chunks=(1, 64, 64))

    def flat(group: h5py.Group, name: str) -> None:
        group.create_dataset(name, (1, 10**5, 10**5), "u2", chunks=(1, 64, 64), fillvalue=7)

    return scan_file(folder, data=put, data_white=flat, data_dark=None)


@into(SCANS)
def absurd_angles(folder: Path) -> Path:
    """HDF5 with 10¹² angles."""
    return scan_file(folder, theta=lambda g, n: g.create_dataset(n, (10**12,), "f8", chunks=(4096,)))


@into(SCANS)
def bad_chunk(folder: Path) -> Path:
    """HDF5 chunk that does not unpack."""

    def put(group: h5py.Group, name: str) -> None:
        data = group.create_dataset(name, (6, 4, 800), "u2", chunks=(6, 4, 800), compression="gzip")
        data.id.write_direct_chunk((0, 0, 0), b"these are no bytes of zlib")

    return scan_file(folder, data=put, data_white=np.ones((1, 4, 800), np.uint8), data_dark=None)


@into(SCANS)
def words(folder: Path) -> Path:
    """HDF5 with text where frames belong."""
    return scan_file(folder, data=np.full((6, 4, 8), b"seven"))


@into(SCANS)
def word_angles(folder: Path) -> Path:
    """HDF5 with text where angles belong."""
    return scan_file(folder, theta=np.array([b"east"] * 6))


@into(SCANS)
def no_angle(folder: Path) -> Path:
    """HDF5 with a NaN angle."""
    return scan_file(folder, theta=np.where(np.arange(6) == 3, np.nan, ANGLES))


@into(SCANS)
def records(folder: Path) -> Path:
    """HDF5 of records."""
    return scan_file(folder, data=np.zeros((6, 4, 8), [("a", "f4"), ("b", "S9")]))


@into(SCANS)
def references(folder: Path) -> Path:
    """HDF5 of object references."""
    return scan_file(folder, data=lambda g, n: g.create_dataset(n, (6, 4, 8), h5py.ref_dtype))


@into(SCANS)
def no_space(folder: Path) -> Path:
    """HDF5 dataset without a dataspace."""
    return scan_file(folder, data=lambda g, n: g.create_dataset(n, data=h5py.Empty("u2")))


@into(SCANS)
def loop(folder: Path) -> Path:
    """HDF5 with soft links in a circle."""

    def put(group: h5py.Group, name: str) -> None:
        group[name], group["other"] = h5py.SoftLink("/exchange/other"), h5py.SoftLink(f"/exchange/{name}")

    return scan_file(folder, data=put)


@into(SCANS)
def group_loop(folder: Path) -> Path:
    """HDF5 whose group holds itself."""
    with h5py.File(folder / "loop.h5", "w") as file:
        group = file.create_group("a")
        group["a"] = file
        group["frames"] = np.zeros((2, 3, 4))
    return folder / "loop.h5"


@into(SCANS)
def outside_link(folder: Path) -> Path:
    """HDF5 with an external link to a file that is no HDF5."""
    secret = folder.parent / "secret"
    secret.write_bytes(SECRET)
    return scan_file(folder, data=lambda g, n: g.__setitem__(n, h5py.ExternalLink(str(secret), "/data")))


@into(SCANS)
def raw_outside(folder: Path) -> Path:
    """HDF5 whose frames are the bytes of a file elsewhere."""
    secret = folder.parent / "secret"
    secret.write_bytes(SECRET)

    def put(group: h5py.Group, name: str) -> None:
        group.create_dataset(name, (6, 4, 8), "u2", external=[(str(secret), 0, 384)])

    return scan_file(folder, data=put)


@into(SCANS)
def virtual_missing(folder: Path) -> Path:
    """HDF5 virtual dataset of files that are not there."""

    def put(group: h5py.Group, name: str) -> None:
        layout = h5py.VirtualLayout((6, 4, 8), "u2")
        layout[:] = h5py.VirtualSource("gone.h5", "data", (6, 4, 8))
        group.create_virtual_dataset(name, layout)

    return scan_file(folder, data=put)


@into(SCANS)
def virtual_self(folder: Path) -> Path:
    """HDF5 virtual dataset made of itself."""

    def put(group: h5py.Group, name: str) -> None:
        layout = h5py.VirtualLayout((6, 4, 8), "u2")
        layout[:] = h5py.VirtualSource(".", "/exchange/data", (6, 4, 8))
        group.create_virtual_dataset(name, layout)

    return scan_file(folder, data=put)


@into(SCANS, VOLUMES)
def pickled(folder: Path) -> Path:
    """NPY of pickled objects."""
    np.save(folder / "frames.npy", np.array([[[Marker(folder / "executed")]]], object), allow_pickle=True)
    return folder / "frames.npy"


@into(SCANS, VOLUMES)
def bare_pickle(folder: Path) -> Path:
    """Pickle."""
    (folder / "frames.npy").write_bytes(pickle.dumps(Marker(folder / "executed")))
    return folder / "frames.npy"


@into(SCANS)
def npy_bomb(folder: Path) -> Path:
    """NPY whose header promises 10¹² frames."""
    head = b"{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000, 64, 64)}".ljust(117) + b"\n"
    (folder / "frames.npy").write_bytes(b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head + bytes(64))
    return folder / "frames.npy"


@into(SCANS, VOLUMES)
def tiff_bomb(folder: Path) -> Path:
    """TIFF that promises 10⁵ × 10⁵ × 10⁴ voxels of no bytes."""
    path = folder / "bomb.tif"
    description = "ImageJ=1.11a\nimages=10000\nslices=10000\n"
    tifffile.imwrite(path, np.zeros((4, 4), np.uint16), description=description, metadata=None)
    with tifffile.TiffFile(path, mode="r+") as file:
        tags = file.pages[0].tags
        tags["ImageWidth"].overwrite(100000)
        tags["ImageLength"].overwrite(100000)
    return path


@into(SCANS, VOLUMES)
def tiff_loop(folder: Path) -> Path:
    """TIFF whose pages follow each other in a circle."""
    path = folder / "loop.tif"
    tifffile.imwrite(path, np.zeros((2, 4, 4), np.uint16), photometric="minisblack", metadata=None)
    content = bytearray(path.read_bytes())
    with tifffile.TiffFile(path) as file:
        first, last = file.pages[0], file.pages[1]
        at = last.offset + 2 + 12 * len(last.tags)
        content[at : at + 4] = first.offset.to_bytes(4, "little")
    path.write_bytes(content)
    return path


def _mrc(folder: Path, **header: int) -> Path:
    import mrcfile

    with mrcfile.new(folder / "a.mrc") as file:
        file.set_data(np.zeros((2, 3, 4), np.float32))
    content = bytearray((folder / "a.mrc").read_bytes())
    for place, value in header.items():
        at = {"nx": 0, "ny": 4, "nz": 8, "mode": 12, "extended": 92}[place]
        content[at : at + 4] = value.to_bytes(4, "little", signed=True)
    (folder / "a.mrc").write_bytes(content)
    return folder / "a.mrc"


@into(SCANS, VOLUMES)
def mrc_bomb(folder: Path) -> Path:
    """MRC that promises 2·10⁹ sections."""
    return _mrc(folder, nz=2_000_000_000)


@into(SCANS, VOLUMES)
def mrc_negative(folder: Path) -> Path:
    """MRC of negative size."""
    return _mrc(folder, nx=-4)


@into(SCANS, VOLUMES)
def mrc_header(folder: Path) -> Path:
    """MRC with an extended header of -2 GB."""
    return _mrc(folder, extended=-(2**31))


def _zarr(folder: Path, chunk: bytes | None = None, **changed: Any) -> Path:
    """A bare array of Zarr 3 with other metadata."""
    path = folder / "a.zarr"
    path.mkdir()
    codecs: list[dict[str, Any]] = [{"name": "bytes", "configuration": {"endian": "little"}}]
    metadata: dict[str, Any] = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [6, 4, 8],
        "data_type": "float32",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [6, 4, 8]}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": 0,
        "codecs": codecs,
        "attributes": {},
    }
    (path / "zarr.json").write_text(json.dumps({**metadata, **changed}))
    if chunk is not None:
        (path / "c/0/0").mkdir(parents=True)
        (path / "c/0/0/0").write_bytes(chunk)
    return path


def _chunks(*shape: int) -> dict[str, Any]:
    return {"name": "regular", "configuration": {"chunk_shape": list(shape)}}


@into(SCANS, VOLUMES)
def zarr_negative(folder: Path) -> Path:
    """Zarr of negative shape."""
    return _zarr(folder, shape=[-6, 4, 8])


@into(SCANS, VOLUMES)
def zarr_chunks(folder: Path) -> Path:
    """Zarr with chunks of 10¹⁵ voxels."""
    return _zarr(folder, chunk_grid=_chunks(10**5, 10**5, 10**5), shape=[10**5] * 3, chunk=bytes(100))


@into(SCANS, VOLUMES)
def zarr_zero_chunks(folder: Path) -> Path:
    """Zarr with chunks of size 0."""
    return _zarr(folder, chunk_grid=_chunks(0, 4, 8))


@into(SCANS, VOLUMES)
def zarr_codec(folder: Path) -> Path:
    """Zarr with an unknown codec."""
    return _zarr(folder, codecs=[{"name": "rot13"}], chunk=bytes(768))


@into(SCANS, VOLUMES)
def zarr_short(folder: Path) -> Path:
    """Zarr chunk that is too short."""
    return _zarr(folder, chunk=bytes(100))


@into(SCANS, VOLUMES)
def zarr_objects(folder: Path) -> Path:
    """Zarr 2 of pickled objects."""
    path = folder / "a.zarr"
    path.mkdir()
    metadata = {"zarr_format": 2, "shape": [1, 1, 1], "chunks": [1, 1, 1], "dtype": "|O", "order": "C"}
    metadata |= {"compressor": None, "fill_value": None, "filters": [{"id": "pickle", "protocol": 5}]}
    (path / ".zarray").write_text(json.dumps(metadata))
    (path / "0.0.0").write_bytes(pickle.dumps(np.array([[[Marker(folder / "executed")]]], object)))
    return path


@into(SCANS, VOLUMES)
def zarr_pickle(folder: Path) -> Path:
    """Zarr 2 of numbers behind a codec that unpickles."""
    path = folder / "a.zarr"
    path.mkdir()
    metadata = {"zarr_format": 2, "shape": [1, 1, 1], "chunks": [1, 1, 1], "dtype": "<f4", "order": "C"}
    metadata |= {"compressor": {"id": "pickle", "protocol": 5}, "fill_value": 0, "filters": None}
    (path / ".zarray").write_text(json.dumps(metadata))
    (path / "0.0.0").write_bytes(pickle.dumps(Marker(folder / "executed")))
    return path


@into(SCANS, VOLUMES)
def zarr_no_metadata(folder: Path) -> Path:
    """Zarr without metadata."""
    path = _zarr(folder, chunk=bytes(768))
    (path / "zarr.json").unlink()
    return path


@into(SCANS, VOLUMES)
def zarr_deep(folder: Path) -> Path:
    """Zarr metadata nested 100 000 deep."""
    path = _zarr(folder)
    (path / "zarr.json").write_text("[" * 100_000)
    return path


@into(SCANS, VOLUMES)
def zarr_outside(folder: Path) -> Path:
    """OME-Zarr whose level is a path out of the store."""
    (folder.parent / "elsewhere").mkdir(exist_ok=True)
    _zarr(folder.parent / "elsewhere", chunk=SECRET[:768])
    path = folder / "a.zarr"
    path.mkdir()
    axes = [{"name": name, "type": "space"} for name in "zyx"]
    scale = [{"type": "scale", "scale": [1, 1, 1]}]
    levels = [{"path": "../../elsewhere/a.zarr", "coordinateTransformations": scale}]
    ome = {"version": "0.5", "multiscales": [{"axes": axes, "datasets": levels}]}
    group = {"zarr_format": 3, "node_type": "group", "attributes": {"ome": ome}}
    (path / "zarr.json").write_text(json.dumps(group))
    return path


@into(VOLUMES)
def em_bomb(folder: Path) -> Path:
    """EM that promises 2·10⁹ in each direction."""
    (folder / "a.em").write_bytes(bytes([6, 0, 0, 5]) + (2_000_000_000).to_bytes(4, "little") * 3 + bytes(496))
    return folder / "a.em"
