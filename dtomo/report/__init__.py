"""Pictures and pages for people. matplotlib is imported here and nowhere below, and by what draws with it alone."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dtomo.report.pictures import trial_slices, write_pictures

__all__ = ["trial_slices", "write_pictures"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from dtomo.report import pictures

        return getattr(pictures, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
