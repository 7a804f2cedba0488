"""What a ptychographic reconstruction gives (`dtomo.io.ptycho.result`, where files know it too)."""

from dtomo.io.ptycho.result import PtychoResult

__all__ = ["PtychoResult"]
