"""Small tilt series with the files that lie beside them."""

import mrcfile
import numpy as np
from mrcfile.dtypes import get_ext_header_dtype

TILTS = np.array([-60.0, -40.5, -20.0, 0.0, 10.25])


def stack(path, tilts=TILTS, rows=6, columns=8):
    """An MRC stack of as many views as tilts, each of its own number."""
    data = np.arange(len(tilts), dtype=np.float32)[:, None, None] + np.zeros((rows, columns), np.float32)
    with mrcfile.new(path, overwrite=True) as file:
        file.set_data(data)
        file.set_image_stack()
        file.voxel_size = 2.5
    return path


def tlt(path, tilts=TILTS):
    path.write_text("".join(f"{tilt:8.2f}\n" for tilt in tilts))
    return path


def mdoc(path, tilts=TILTS, order=None, size=2.5, axis=85.3):
    lines = [f"PixelSpacing = {size}", "Voltage = 300", "", f"[T =     Tilt axis angle = {axis}, binning = 1]", ""]
    for view in range(len(tilts)) if order is None else order:
        lines += [f"[ZValue = {view}]", f"TiltAngle = {tilts[view]}", f"PixelSpacing = {size}", "DateTime = now", ""]
    path.write_text("\n".join(lines))
    return path


def warp(path, tilts=TILTS):
    angles = "\n".join(f"{-tilt}" for tilt in tilts)
    path.write_text(f'<TiltSeries AreAnglesInverted="False"><Angles>{angles}</Angles></TiltSeries>')
    return path


def fei(path, tilts=TILTS, metres=3.36e-9, stamp=False):
    """As old FEI programs wrote them: no MAP and no machine stamp, tilts and pixel size in the extended header."""
    head = np.zeros(256, "<i4")
    head[:4] = 8, 6, len(tilts), 1
    head[7:10] = 8, 6, len(tilts)
    head[10:13] = np.array([8, 6, len(tilts)], "<f4").view("<i4")
    head[23] = 131072
    raw = bytearray(head.tobytes())
    raw[220:224] = np.array([1], "<i4").tobytes()
    raw[224 : 224 + 15] = b"    Fei Company"
    if stamp:
        raw[208:214] = b"MAP DD"
    table = np.zeros((1024, 32), "<f4")
    table[: len(tilts), 0], table[: len(tilts), 11] = tilts, metres
    path.write_bytes(bytes(raw) + table.tobytes() + np.ones((len(tilts), 6, 8), "<i2").tobytes())
    return path


def _extended(path, kind, content):
    """A stack whose extended header is that."""
    stack(path)
    with mrcfile.open(path, "r+") as file:
        file.set_extended_header(np.frombuffer(content, "V1"))
        file.header.exttyp = kind
    return path


def fei1(path, tilts=TILTS, metres=3.36e-9, records=None):
    """As newer FEI programs write them: a record of mrcfile's dtype for each view."""
    table = np.zeros(len(tilts) if records is None else records, get_ext_header_dtype(b"FEI1"))
    table["Alpha tilt"], table["Pixel size X"] = tilts[: len(table)], metres
    return _extended(path, b"FEI1", table.tobytes())


def serial_em(path, tilts=TILTS, flags=1, values=2):
    """As SerialEM writes them: short integers for each view, the tilt in hundredths of a degree first (flag 1)."""
    table = np.full((len(tilts), values), 77, "<i2")
    table[:, 0] = np.round(100 * tilts)
    _extended(path, b"SERI", table.tobytes())
    with path.open("r+b") as file:
        file.seek(128)
        file.write(np.array([2 * values, flags], "<i2").tobytes())
    return path
