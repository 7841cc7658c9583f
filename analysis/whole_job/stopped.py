"""A stopped job in words: the fact, what to do first, and the finding."""

from collections.abc import Sequence
from typing import NamedTuple

from dpscope.analysis.findings.facts import Fact
from dpscope.analysis.text.units import ranks_named, show_bytes
from dpscope.analysis.whole_job.unfinished import OpenCall, Unfinished, ranks_in
from dpscope.profiling.records.finding import Finding, Severity, counted, grouped
from dpscope.profiling.records.trace_codes import TraceCode

BY_CREATION = "times at which hosts created the collectives"
_PROCESS = "process gone? Stack (py-spy dump), log, loader"


class _Words(NamedTuple):
    """What may stop without any rank being late, and how to find it."""

    stopped: str
    look: str


_DEVICES = _Words("a device or link stopped", "look for a failed device (Xid, ECC, links)")
_GLOO = _Words("a link stopped", "look for a failed link")


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
    device = _words(unfinished).stopped
    if unfinished.cause == "stopped":
        stopped = ranks_named(unfinished.stopped)
        calls = _pending(unfinished.not_begun)
        lines.append(f"{stopped} never began {calls}")
    if unfinished.cause == "device":
        ends = ranks_named(unfinished.ends)
        if unfinished.missing:
            device = f"perhaps {device}"
        lines.append(
            f"{device}: the chain of waits ends at {ends}, in calls that all their members began"
        )
    if unfinished.cause == "circle":
        lines.append(f"ranks wait for each other: they call in unlike orders, or {device}")
    by_loss = grouped((_lost(unfinished, rank), rank) for rank in unfinished.missing)
    for lost, ranks in by_loss.items():
        named = ranks_named(ranks)
        calls = _pending(unfinished.not_recorded)
        lines.append(f"{named} left {lost}, and may never have begun {calls}")
    if unfinished.may_run:
        lines.append("or the job still ran: calls in flight look the same")
    return lines


def _lost(unfinished: Unfinished, rank: int) -> str:
    if rank in unfinished.unread:
        return "a record that could not be read"
    return "no record"


def _words(unfinished: Unfinished) -> _Words:
    return _GLOO if unfinished.is_gloo else _DEVICES


def _pending(calls: Sequence[OpenCall]) -> str:
    """On which ranks these calls are pending, and one of them."""
    ranks = ranks_named(ranks_in(calls))
    example = described(calls[0])
    return f"calls pending on {ranks}, such as {example}"


def stopped_step(unfinished: Unfinished) -> str:
    """Where to look for what stopped the job; empty if it may still be running."""
    look = _words(unfinished).look
    missing = ranks_named(unfinished.missing)
    if unfinished.may_run:
        if not unfinished.missing:
            return ""
        return f"add the records of {missing}; if the job had stopped, look there first: {_PROCESS}"
    if unfinished.cause == "stopped":
        stopped = ranks_named(unfinished.stopped)
        step = f"look at {stopped} first"
        if unfinished.missing:
            step = f"{step}, then at {missing} (no record)"
        return f"{step}: {_PROCESS}"
    if unfinished.cause == "device":
        ends = ranks_named(unfinished.ends)
        step = f"{look} in the logs, first of {ends}"
    elif unfinished.cause == "missing":
        # without its record, a host that ran ahead of its device looks like one that never began
        pending = ranks_in(unfinished.not_recorded)
        waiting = ranks_named(pending)
        step = f"look at {missing} first: {_PROCESS}; then {look} of {waiting}"
    else:
        step = f"compare the order in which ranks call (--verbose), and {look}"
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
