"""The page of a run: one HTML file that holds everything, pictures too, and asks nothing of any server."""

from dtomo.report.page.run_page import report_file, write_report

__all__ = ["report_file", "write_report"]
