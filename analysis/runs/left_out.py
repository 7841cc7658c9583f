"""A repeat's traces, if they are whole; else why the repeat is left out of traced values.

A cut trace shows less of its rank than there was, and without one of the ranks no collective is
matched: means over such a repeat would be wrong, or missing for the whole cell. Its timed steps
are kept.
"""

from collections.abc import Iterator

from dpscope.analysis.traces.ranks.job import Job, LeftOut
from dpscope.analysis.traces.ranks.rank_tables import RankTables
from dpscope.analysis.traces.ranks.trace_analysis import read_kept
from dpscope.profiling.records.attach_codes import AttachCode
from dpscope.profiling.records.finding import Finding
from dpscope.profiling.records.trace_codes import TraceCode
from dpscope.profiling.store.errors import DpscopeError
from dpscope.profiling.store.folders import RepeatFolder

_ATTACH_AGAIN = "attach to the script again, and let it train until its steps have been traced"


def whole_traces(job: Job, repeat: int, done: RepeatFolder) -> RankTables | LeftOut:
    """What every rank of a repeat traced, or why the repeat is left out: a file is missing, cannot
    be read or is cut short.
    """
    files = {}
    for _, rank in job.ranks:
        path = done.trace_path(rank.node, rank.rank)
        file = f"traces/{path.name}"
        files[rank.rank] = file
        if not path.exists():
            reason = f"rank {rank.rank} has no trace in repeat {repeat}"
            return _left_out(job, repeat, "NO TRACE", reason, file)
    try:
        read = read_kept(done.traces())
    except DpscopeError as error:
        message = str(error).replace(f"{done.path}/", "")
        reason = f"repeat {repeat}: {message}"
        return _left_out(job, repeat, "NOT READ", reason, "traces")
    for summary in read.summaries:
        if summary.cut_short and summary.rank is not None:
            reason = f"rank {summary.rank}'s trace of repeat {repeat} is cut short"
            file = files[summary.rank]
            return _left_out(job, repeat, "CUT", reason, file)
    return read


def _left_out(job: Job, repeat: int, label: str, reason: str, lost: str) -> LeftOut:
    """`lost` is the file or folder to copy again, within the repeat's folder."""
    folder = f"cells/{job.name}/repeat{repeat}"
    next_step = f"copy {folder}/{lost} again, or delete {folder} and run again without --fresh"
    if job.rank.attached is not None:
        next_step = _ATTACH_AGAIN
    for finding in job.rank.findings:
        if finding.code == AttachCode.SCRIPT_PROFILES.code:
            reason = f"{reason}, as the script uses a profiler itself"
            next_step = finding.next_step
    return LeftOut(repeat, label, reason, next_step)


def left_out_finding(job: Job) -> Iterator[Finding]:
    """One for all repeats that are left out, with what to do about the first."""
    for first in job.left_out[:1]:
        message = job.left_out_text
        yield TraceCode.TRACE_INCOMPLETE.finding(message, first.next_step, about=job.name)
