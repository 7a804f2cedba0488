"""Hostile ptychographic scans, tilt series and what lies beside them."""

import zipfile
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from tests.hostile.inputs import PTYCHO, Marker, into


def _cxi(folder: Path, **changed: Any) -> Path:
    parts: dict[str, Any] = {
        "entry_1/data_1/data": np.ones((4, 8, 8), np.uint16),
        "entry_1/sample_1/geometry_1/translation": np.arange(12.0).reshape(4, 3) * 1e-6,
        "entry_1/instrument_1/source_1/energy": 1e-15,
        "entry_1/instrument_1/detector_1/distance": 1.0,
        "entry_1/instrument_1/detector_1/x_pixel_size": 1e-4,
        "entry_1/instrument_1/detector_1/y_pixel_size": 1e-4,
    }
    names = {name.rsplit("/", 1)[1]: name for name in parts}
    with h5py.File(folder / "scan.cxi", "w") as file:
        file["cxi_version"] = 160
        for name, value in changed.items():
            parts[names[name]] = value
        for name, value in parts.items():
            if callable(value):
                value(file, name)
            else:
                file[name] = value
    return folder / "scan.cxi"


@into(PTYCHO)
def cxi_words(folder: Path) -> Path:
    """CXI with text where frames belong."""
    return _cxi(folder, data=np.full((4, 8, 8), b"nine"))


@into(PTYCHO)
def cxi_nan(folder: Path) -> Path:
    """CXI with a NaN position."""
    return _cxi(folder, translation=np.full((4, 3), np.nan))


@into(PTYCHO)
def cxi_far(folder: Path) -> Path:
    """CXI with positions a light year apart."""
    return _cxi(folder, translation=np.arange(12.0).reshape(4, 3) * 1e15)


@into(PTYCHO)
def cxi_absurd(folder: Path) -> Path:
    """CXI of 10¹² frames that takes no space."""
    return _cxi(folder, data=lambda f, n: f.create_dataset(n, (10**12, 8, 8), "u2", chunks=(1, 8, 8)))


@into(PTYCHO)
def cxi_places(folder: Path) -> Path:
    """CXI of 10¹² positions that take no space."""
    return _cxi(folder, translation=lambda f, n: f.create_dataset(n, (10**12, 3), "f8", chunks=(64, 3)))


@into(PTYCHO)
def cxi_zero(folder: Path) -> Path:
    """CXI with a distance of 0."""
    return _cxi(folder, distance=0.0)


@into(PTYCHO)
def cxi_circle(folder: Path) -> Path:
    """CXI with frames made of themselves."""

    def put(file: h5py.File, name: str) -> None:
        layout = h5py.VirtualLayout((4, 8, 8), "u2")
        layout[:] = h5py.VirtualSource(".", "/" + name, (4, 8, 8))
        file.create_virtual_dataset(name, layout)

    return _cxi(folder, data=put)


@into(PTYCHO)
def npz_pickle(folder: Path) -> Path:
    """NPZ of pickled objects."""
    np.savez(folder / "scan.npz", frames=np.array([Marker(folder / "executed")], object), allow_pickle=True)
    return folder / "scan.npz"


@into(PTYCHO)
def zip_bomb(folder: Path) -> Path:
    """NPZ that unpacks to 300 times its size."""
    head = b"{'descr': '<u2', 'fortran_order': False, 'shape': (1000000, 1024, 1024)}".ljust(117) + b"\n"
    with zipfile.ZipFile(folder / "scan.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        content = b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head
        archive.writestr("data.npy", content + bytes(2**20))
    return folder / "scan.npz"


@into(PTYCHO)
def zip_cut(folder: Path) -> Path:
    """NPZ cut off."""
    path = zip_bomb(folder)
    path.write_bytes(path.read_bytes()[:200])
    return path
