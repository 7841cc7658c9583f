"""What limits all that is said of traces: files that were not read, and steps that are not whole or
were left out.
"""

from collections.abc import Iterator, Sequence

from dpscope.analysis.cells.row import CellRow
from dpscope.analysis.findings.facts import Fact, capital
from dpscope.analysis.findings.run_findings import above_peak
from dpscope.analysis.traces.ranks.job import Job
from dpscope.profiling.records.finding import Finding, counted, listed
from dpscope.profiling.records.trace_codes import TraceCode

NAMED_FILES = 3  # in a line
_LEFT_OUT = {
    TraceCode.TRACE_OF_ANOTHER_JOB: "what the traces record of their job",
    TraceCode.STEPS_FAR_LONGER: "times of the traced steps",
}


def limits_of_traces(data: Job, row: CellRow | None = None) -> tuple[Fact, ...]:
    """The limits that stand above the facts; `row` as in `traces_verdict`."""
    return tuple(_limits(data, row))


def _limits(data: Job, row: CellRow | None) -> Iterator[Fact]:
    if data.cut_short:
        line = f"{listed(data.cut_short, NAMED_FILES)}: what follows the cut is missing"
        yield Fact("limits", "CUT", (line,), basis="the file ends too early, or is damaged")
    if data.without_communication:
        files = listed([summary.source for summary in data.without_communication], NAMED_FILES)
        line = f"{files}: no communication in what could be read, so no number includes this"
        yield Fact("limits", "LEFT OUT", (line,), basis="each of them is a finding")
    yield from limits_of_files(data.findings)
    if not data.has_whole_step:
        yield _no_whole_step(data)
    if row is None:
        return
    for finding in above_peak(row):
        lines = (finding.message, finding.next_step)
        yield Fact("limits", "ABOVE PEAK", lines)


def limits_of_files(findings: Sequence[Finding]) -> Iterator[Fact]:
    """What was left out, and files that were not read."""
    for code, basis in _LEFT_OUT.items():
        for finding in _of_code(findings, code):
            yield Fact("limits", "LEFT OUT", (finding.message,), basis)
    unread = _of_code(findings, TraceCode.FILE_NOT_READ)
    if unread:
        files = counted(len(unread), "file")
        line = f"{files}: {unread[0].message}"
        yield Fact("limits", "NOT READ", (line,), basis="each of them is a finding")


def _no_whole_step(data: Job) -> Fact:
    """How steps are timed whose start is unknown, and how to mark steps where none is."""
    unmarked = _of_code(data.findings, TraceCode.NO_STEPS)
    if unmarked:
        line = "the traces mark no step: times are from a rank's first event to its last"
        advice = capital(unmarked[0].next_step)
        return Fact("limits", "NO STEPS", (line, advice))
    line = "what devices did before the step is unknown: its time is from its first device event to its last"
    return Fact("limits", "STEP START", (line,))


def _of_code(findings: Sequence[Finding], code: TraceCode) -> list[Finding]:
    return [finding for finding in findings if finding.code == code.code]
