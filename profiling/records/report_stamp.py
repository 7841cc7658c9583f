"""Of which data a report was made, so that the same one is not drawn again."""

from dpscope.profiling.records.stored import Stored


class ReportStamp(Stored, frozen=True, kw_only=True):
    """Written last into the report's folder."""

    made_from: str  # a digest of the run's files, of what was asked and of the code
    files: dict[str, tuple[int, int]]  # each file of the report: its size in bytes, its time of change in nanoseconds
