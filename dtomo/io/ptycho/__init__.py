"""Files of ptychography: scans in, results out."""

from dtomo.io.ptycho.opening import open_ptycho, recognise_ptycho
from dtomo.io.ptycho.scan import PtychoScan
from dtomo.io.ptycho.writer import write_cxi

__all__ = ["PtychoScan", "open_ptycho", "recognise_ptycho", "write_cxi"]
