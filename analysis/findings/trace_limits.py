"""What limits all that is said of traces: files that were not read, and steps that are not whole."""

from dpscope.analysis.cells.row import CellRow
from dpscope.analysis.findings.facts import Fact, capital
from dpscope.analysis.findings.run_findings import above_peak
from dpscope.analysis.traces.ranks.job import Job
from dpscope.profiling.records.finding import counted
from dpscope.profiling.records.trace_codes import TraceCode


def limits_of_traces(data: Job, row: CellRow | None = None) -> tuple[Fact, ...]:
    """The limits that stand above the facts; `row` as in `traces_verdict`."""
    limits = [*_not_read(data), *_of_windows(data)]
    if row is None:
        return tuple(limits)
    for finding in above_peak(row):
        limits.append(Fact("limits", "ABOVE PEAK", (finding.message, finding.next_step)))
    return tuple(limits)


def _of_windows(data: Job) -> tuple[Fact, ...]:
    """That no whole step was traced, where that is so."""
    if not data.whole_windows.truths("partial_window", missing=True).all():
        return ()
    line = "each rank is timed from its first event to its last: read all times as one sample"
    unmarked = [
        finding.next_step for finding in data.findings if finding.code == TraceCode.NO_STEPS.code
    ]
    limit = Fact(
        "limits",
        "NO WHOLE STEP",
        (line, *map(capital, unmarked[:1])),
        basis="the traces hold no start of a step",
    )
    return (limit,)


def _not_read(data: Job) -> tuple[Fact, ...]:
    """How many files were not read, and the first of them, where there are some."""
    unread = [finding for finding in data.findings if finding.code == TraceCode.FILE_NOT_READ.code]
    if not unread:
        return ()
    line = f"{counted(len(unread), 'file')}: {unread[0].message}"
    return (Fact("limits", "NOT READ", (line,), basis="each of them is a finding"),)
