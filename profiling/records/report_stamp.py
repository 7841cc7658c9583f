"""Of which data a report was made, so that the same one is neither made nor drawn again."""

from typing import Any

from dpscope.profiling.records.stored import Stored


class ReportStamp(Stored, frozen=True, kw_only=True):
    """Written last into the report's folder."""

    made_from: str  # a digest of the run's files, of what was asked and of the code; empty: not known
    files: dict[str, tuple[int, int]]  # each file of the report: its size in bytes, its time of change in nanoseconds
    figure_formats: tuple[str, ...] = ("pdf", "svg", "png")  # of the files in figures/
    printed: dict[str, Any] | None = None  # a PrintedReport, as plain data
