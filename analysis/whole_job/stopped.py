"""A stopped job in words: the fact, what to do first, and the finding."""

from collections.abc import Sequence

from dpscope.analysis.findings.facts import Fact
from dpscope.analysis.text.units import as_ranges, show_bytes
from dpscope.analysis.whole_job.unfinished import OpenCall, Unfinished, ranks_in
from dpscope.profiling.records.finding import Finding, Severity, counted
from dpscope.profiling.records.trace_codes import TraceCode

BY_CREATION = "times at which hosts created the collectives"
_DEVICE = "look for a failed device (Xid, ECC, links)"
_STOPPED = "a device or link stopped"
_PROCESS = "process gone? Stack (py-spy dump), log, loader"


def stopped_fact(unfinished: Unfinished) -> Fact:
    label = "UNFINISHED"
    if unfinished.only:
        label = "STOPPED"
    calls = counted(unfinished.records, "call")
    ranks = counted(unfinished.ranks, "rank")
    lines = _cause_lines(unfinished)
    lines.append(f"{calls} on {ranks} had not completed")
    return Fact("stopped", label, tuple(lines), BY_CREATION)


def stopped_finding(unfinished: Unfinished) -> Finding:
    lines = _cause_lines(unfinished)
    message = "; ".join(lines)
    step = stopped_step(unfinished)
    severity: Severity | None = "error" if unfinished.only else None
    return TraceCode.COLLECTIVE_NOT_BEGUN.finding(message, step, severity=severity)


def _cause_lines(unfinished: Unfinished) -> list[str]:
    """Where the waits end, and whose records are lost."""
    lines = []
    if unfinished.cause == "stopped":
        stopped = ranks_named(unfinished.stopped)
        calls = _pending(unfinished.not_begun)
        lines.append(f"{stopped} never began {calls}")
    if unfinished.cause == "device":
        ends = ranks_named(unfinished.ends)
        lines.append(
            f"{_STOPPED}: the chain of waits ends at {ends}, in calls that all their members began"
        )
    if unfinished.cause == "circle":
        lines.append(f"ranks wait for each other: they call in unlike orders, or {_STOPPED}")
    if unfinished.may_run:
        lines.append("or the job still ran: hosts run ahead of devices")
    if unfinished.missing:
        missing = ranks_named(unfinished.missing)
        calls = _pending(unfinished.not_recorded)
        lines.append(f"{missing} left no record, and may never have begun {calls}")
    return lines


def _pending(calls: Sequence[OpenCall]) -> str:
    """On which ranks these calls are pending, and one of them."""
    ranks = ranks_named(ranks_in(calls))
    example = described(calls[0])
    return f"calls pending on {ranks}, such as {example}"


def stopped_step(unfinished: Unfinished) -> str:
    """Where to look for what stopped the job; empty if it may still be running."""
    if unfinished.may_run:
        return ""
    missing = ranks_named(unfinished.missing)
    if unfinished.cause == "stopped":
        stopped = ranks_named(unfinished.stopped)
        step = f"look at {stopped} first"
        if unfinished.missing:
            step = f"{step}, then at {missing} (no record)"
        return f"{step}: {_PROCESS}"
    if unfinished.cause == "device":
        ends = ranks_named(unfinished.ends)
        step = f"{_DEVICE} in the logs, first of {ends}: no rank is late"
    elif unfinished.cause == "missing":
        # without its record, a host that ran ahead of its device looks like one that never began
        pending = ranks_in(unfinished.not_recorded)
        waiting = ranks_named(pending)
        where = f"look at {missing} first, then at the devices of {waiting}"
        step = f"{where}: device failed (Xid, ECC), or {_PROCESS}"
    else:
        step = f"compare the order in which ranks call (--verbose), and {_DEVICE}"
    if unfinished.missing:
        step = f"{step}; add the records of {missing}"
    return step


def described(pending: OpenCall) -> str:
    """A call in words."""
    call = pending.call
    details = ranks_named(pending.members)
    if call.bytes is not None:
        details = f"{details}, {show_bytes(call.bytes)}"
    return f"{pending.name} of {call.group.name} ({details})"


def ranks_named(ranks: Sequence[int]) -> str:
    noun = "ranks"
    if len(ranks) == 1:
        noun = "rank"
    return f"{noun} {as_ranges(ranks)}"
