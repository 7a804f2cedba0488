"""Files: scans in, volumes out."""

from dtomo.io.checkpoints import Checkpoints, Schedule
from dtomo.io.convert import convert, convert_scan
from dtomo.io.dxchange_writer import write_dxchange
from dtomo.io.opening import open, recognise
from dtomo.io.output import check_output
from dtomo.io.probing import suspicious_darks, suspicious_flats
from dtomo.io.scan import RawSlab, Scan
from dtomo.io.sources import (
    ArraySource,
    HDF5Source,
    MrcSource,
    SelectedFrames,
    Source,
    ZarrSource,
)
from dtomo.io.tiff_source import TiffSource
from dtomo.io.volumes import Volume, VolumeWriter, create_volume, open_volume, open_writer, volume_format
from dtomo.io.zarr_store import write_zarr_scan

__all__ = [
    "ArraySource",
    "Checkpoints",
    "HDF5Source",
    "MrcSource",
    "RawSlab",
    "Scan",
    "Schedule",
    "SelectedFrames",
    "Source",
    "TiffSource",
    "Volume",
    "VolumeWriter",
    "ZarrSource",
    "check_output",
    "convert",
    "convert_scan",
    "create_volume",
    "open",
    "open_volume",
    "open_writer",
    "recognise",
    "suspicious_darks",
    "suspicious_flats",
    "volume_format",
    "write_dxchange",
    "write_zarr_scan",
]
