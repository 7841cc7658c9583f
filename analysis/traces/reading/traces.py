"""The traces of a file, whichever program recorded it."""

from collections.abc import Iterator
from pathlib import Path

from dpscope.analysis.traces.reading.chunks import DEFAULT_LIMITS, ReadLimits
from dpscope.analysis.traces.reading.event_table import Trace
from dpscope.analysis.traces.reading.nsys_database import is_export
from dpscope.analysis.traces.reading.nsys_traces import export_traces
from dpscope.analysis.traces.reading.reader import read_trace
from dpscope.analysis.traces.reading.step_marks import with_steps


def read_traces(path: Path | str, limits: ReadLimits = DEFAULT_LIMITS) -> Iterator[Trace]:
    """The trace in a file of torch.profiler, or one by one those of the ranks in an export of
    Nsight Systems.

    Raises DpscopeError as `read_trace` does, and where no range is a step by `limits`.
    """
    path = Path(path)
    if not is_export(path):
        yield with_steps(read_trace(path, limits), limits.steps_by)
        return
    for trace in export_traces(path, limits):
        yield with_steps(trace, limits.steps_by)
