"""What the records of a job say, as labelled facts and findings."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dpscope.analysis.figures.waiting_over_time import WaitingOverTime
from dpscope.analysis.findings.facts import Fact, Verdict, capital, percent, time
from dpscope.analysis.text.units import as_ranges, show_bytes
from dpscope.analysis.traces.ranks.lateness import mostly_last
from dpscope.analysis.whole_job.job import RecordedJob
from dpscope.analysis.whole_job.records import Call
from dpscope.analysis.whole_job.unfinished import Unfinished, unfinished_of
from dpscope.analysis.whole_job.waiting import Waiting, waiting_of
from dpscope.profiling.records.finding import Finding, counted, listed
from dpscope.profiling.records.links import LinkRate
from dpscope.profiling.records.trace_codes import TraceCode

_FEW = 0.01  # of the records: no more to worry about
_NAMED = 3
_HOW_TO_RECORD = (
    "set TORCH_NCCL_ENABLE_TIMING=1 and TORCH_FR_BUFFER_SIZE=200000 in the job, or use NCCL Inspector: "
    "NCCL_PROFILER_PLUGIN=libnccl-profiler-inspector.so NCCL_INSPECTOR_ENABLE=1 (docs/whole-job.md)"
)
_SUMS = "means over ranks of sums over collectives; of those in flight together each counts"
_BY_DURATION = "the shortest duration of a collective is that of the last rank"
_BY_CREATION = "times at which hosts created the collectives"
_FEWEST_COMPARED = 3  # ranks, of which one is unlike the others


@dataclass(frozen=True)
class Summary:
    """A job's records, matched, and what follows from them."""

    job: RecordedJob
    waiting: Waiting
    unfinished: Unfinished | None
    link: LinkRate | None = None

    @cached_property
    def findings(self) -> tuple[Finding, ...]:
        return (*self.job.findings, *_not_begun(self.unfinished), *_unmatched(self))

    @cached_property
    def verdict(self) -> Verdict:
        facts = (
            *_stopped_fact(self.unfinished),
            *(_measured_facts(self.waiting) if self.measured else _created_facts(self)),
            Fact("next", "NEXT", (capital(_next_step(self)),), self.basis),
        )
        return Verdict(_setting(self), limits=tuple(_limits(self)), facts=facts)

    @property
    def measured(self) -> bool:
        """Whether transfer and wait are known."""
        return self.waiting.timed and self.waiting.counts.matched > 0

    @property
    def basis(self) -> str:
        """How its conclusions are known."""
        return _BY_DURATION if self.measured else _BY_CREATION

    @property
    def least_busy(self) -> int | None:
        """The place of a rank that spends far less in collectives than the others: it arrives last.
        Ranks are compared if they have equally many records, all with durations.
        """
        total_us = self.waiting.duration_us
        counts = {*map(len, self.job.processes)}
        if not self.waiting.timed or len(counts) > 1:
            return None
        if len(total_us) < _FEWEST_COMPARED:
            return None
        place = int(total_us.argmin())
        half_us = np.median(total_us) / 2
        if total_us[place] >= half_us:
            return None
        return place

    @property
    def only_unfinished(self) -> bool:
        """Whether a watchdog wrote nothing but what had not completed."""
        return self.unfinished is not None and self.unfinished.only

    @property
    def span_us(self) -> float:
        """From the first to the last time in the records; 0 if these have none."""
        first_ns, last_ns = self.waiting.span_ns
        return (last_ns - first_ns) / 1e3

    @property
    def waiting_over_time(self) -> WaitingOverTime | None:
        """What the figure shows; None without durations or times."""
        found = self.waiting
        if not self.measured or not self.span_us:
            return None
        return WaitingOverTime(
            self.job.ranks, found.bin_edges_s, found.wait_us / 1e6, found.caused_us / 1e6
        )

    @property
    def late_rank(self) -> int | None:
        """The one that stands out: nearer to all of the waiting than to an even part of it."""
        share = self.waiting.caused_share
        place = int(share.argmax())
        even = 1 / len(share)
        if share[place] < (1 + even) / 2:
            return None
        return self.job.ranks[place]


def summarise(job: RecordedJob, link: LinkRate | None = None) -> Summary:
    """Match a job's records and find what had not completed."""
    return Summary(job, waiting_of(job), unfinished_of(job), link)


def _setting(summary: Summary) -> str:
    job = summary.job
    ranks = counted(job.world, "rank")
    if job.missing:
        ranks = f"{len(job.ranks)} of {ranks}"
    hosts = set(job.hosts) - {None}
    if hosts:
        ranks += f" on {counted(len(hosts), 'host')}"
    records = f"{counted(job.records, 'record')} of collectives"
    if summary.span_us:
        records += f" within {long_time(summary.span_us)}"
    return (
        f"{job.source} of {ranks}: {records}. Communication alone is recorded: how much of it is exposed is "
        "unknown."
    )


def long_time(time_us: float) -> str:
    """A time of a job, in hours or minutes where it is long.

    >>> long_time(9e9), long_time(5e8), long_time(2e7)
    ('2.5 h', '8.3 min', '20.0 s')
    """
    seconds = time_us / 1e6
    if seconds >= 7200:
        return f"{seconds / 3600:,.1f} h"
    if seconds >= 120:
        return f"{seconds / 60:.1f} min"
    return time(time_us)


def _limits(summary: Summary) -> Iterator[Fact]:
    """What limits all that follows."""
    found = summary.waiting
    missing = summary.job.missing
    if missing:
        yield Fact(
            "limits", "INCOMPLETE", (f"no record of {_ranks(missing)}",), "the groups' ranks"
        )
    if found.basis == "nothing":
        why = "ranks run on several hosts, whose clocks differ: creation times are not compared"
        yield Fact("limits", "CLOCKS", (why,))
    elif found.basis == "creation" and found.counts.matched and summary.job.hosts[0] is None:
        why = "creation times are compared as if all ranks shared one host's clock; state hosts with --hosts"
        yield Fact("limits", "CLOCKS", (why,))


def _measured_facts(found: Waiting) -> Iterator[Fact]:
    """From durations: what collectives cost, and who was late."""
    total_us = float(found.duration_us.mean())
    wait_us = float(found.wait_us.sum(axis=1).mean())
    transfer_us = float(found.transfer_us.mean())
    other_us = total_us - wait_us - transfer_us
    first_ns, last_ns = found.span_ns
    span_us = (last_ns - first_ns) / 1e3
    of_span = "in sum"
    if total_us < span_us:
        of_span = f"{percent(total_us / span_us)} of the time"
    line = (
        f"collectives take {long_time(total_us)} per rank ({of_span}): {long_time(wait_us)} waiting for late ranks, "
        f"{long_time(transfer_us)} moving data"
    )
    if other_us > _FEW * total_us:
        line += f", {long_time(other_us)} not separated"
    yield Fact("cost", "COST", (line,), _SUMS)
    if wait_us:
        yield Fact("late", "LATE RANK", tuple(_late_lines(found)), _BY_DURATION)


def _late_lines(found: Waiting) -> Iterator[str]:
    job, share = found.job, found.caused_share
    by_share = (-share).argsort(kind="stable")
    worst, *others = by_share[:_NAMED].tolist()
    line = f"{_named(job, worst)} causes {percent(share[worst])} of the waiting"
    also = [
        f"{job.ranks[place]} ({percent(share[place])})" for place in others if share[place] > _FEW
    ]
    if also:
        then = " and ".join(also)
        line = f"{line}; then {then}"
    yield line
    yield f"last in {_last_count(found, worst)}"
    lateness_us = float(found.lateness_us[worst])
    yield f"without its lateness the job is at most {time(lateness_us)} shorter"


def _last_count(found: Waiting, place: int) -> str:
    count = int(found.last_count[place])
    collectives = counted(len(found.matched.late), "collective")
    text = f"{count:,} of {collectives}"
    typical_us = found.typical_lateness_us(place)
    if typical_us is not None:
        text = f"{text}, typically by {time(typical_us)}"
    return text


def _named(job: RecordedJob, place: int) -> str:
    host = job.hosts[place]
    rank = f"rank {job.ranks[place]}"
    if host is None:
        return rank
    return f"{rank} ({host})"


def _created_facts(summary: Summary) -> Iterator[Fact]:
    """From creation times: who called last. This is no waiting: calls return at once on devices."""
    found = summary.waiting
    if not summary.only_unfinished:
        yield _unknown_cost(summary)
    place = summary.least_busy
    if place is not None:
        line = _least_busy_line(found, place)
        yield Fact("late", "LATE RANK", (line,), "sums of durations")
    worst = int(found.last_count.argmax())
    count = int(found.last_count[worst])
    if not count:
        return
    lines = [f"{_named(found.job, worst)} arrived last on the host in {_last_count(found, worst)}"]
    if not mostly_last(count, len(found.matched.late), len(found.job.ranks)):
        lines.append("no rank is always last: the ranks take turns")
    yield Fact("late", "LATE RANK", tuple(lines), _BY_CREATION)


def _unknown_cost(summary: Summary) -> Fact:
    """Why no cost is known."""
    cost = "not measured: the records hold no durations"
    if summary.waiting.timed:
        why = "no collective could be matched"
        if summary.job.missing:
            missing = _ranks(summary.job.missing)
            why = f"no record of {missing}"
        cost = f"not separated into waiting and moving data: {why}"
    return Fact("cost", "COST", (cost,))


def _least_busy_line(found: Waiting, place: int) -> str:
    """A rank that spends far less in collectives than the others, which wait there."""
    total_us = found.duration_us
    own = long_time(float(total_us[place]))
    median = long_time(float(np.median(total_us)))
    rank = _named(found.job, place)
    return (
        f"{rank} spends least in collectives ({own}, the median rank {median}): likely the late one"
    )


def _stopped_fact(unfinished: Unfinished | None) -> Iterator[Fact]:
    if unfinished is None or (unfinished.oldest is None and not unfinished.only):
        return
    label = "UNFINISHED"
    if unfinished.only:
        label = "STOPPED"
    calls = counted(unfinished.records, "call")
    ranks = counted(unfinished.ranks, "rank")
    lines = _oldest_lines(unfinished)
    yield Fact("stopped", label, (f"{calls} on {ranks} had not completed", *lines), _BY_CREATION)


def _oldest_lines(unfinished: Unfinished) -> list[str]:
    oldest = unfinished.oldest
    if oldest is None:
        return ["all ranks had begun each of them, so no rank is named"]
    call = described(oldest.call, oldest.number)
    if oldest.ran_ahead:
        return [f"{_ranks(oldest.busy)} never began {call}", *_ran_ahead_lines(unfinished)]
    waiting = f"{_ranks(oldest.waiting)} wait"
    if len(oldest.waiting) == 1:
        waiting = f"{waiting}s"
    missing = f"{_ranks(oldest.missing)} left no record, and may never have begun"
    if not oldest.stopped:
        return [f"{missing} what {waiting} in: {call}"]
    who = _ranks(oldest.stopped)
    lines = [f"{who} never began the oldest unfinished call, in which {waiting}: {call}"]
    if oldest.missing:
        lines.append(f"{missing} it")
    return lines


def _ran_ahead_lines(unfinished: Unfinished) -> Iterator[str]:
    yield (
        "calls before it had not completed there, either: hosts ran ahead of a device that stopped"
    )
    if unfinished.ends:
        yield f"the chain of waits ends at {_ranks(unfinished.ends)}"
    if unfinished.without_record:
        missing = _ranks(unfinished.without_record)
        yield f"{missing} left no record: the cause may be there, or only the record lost"


def _ranks(ranks: Sequence[int]) -> str:
    noun = "ranks"
    if len(ranks) == 1:
        noun = "rank"
    return f"{noun} {as_ranges(ranks)}"


def _add_records(ranks: Sequence[int]) -> str:
    return f"add the records of {_ranks(ranks)}"


def described(call: Call, number: int) -> str:
    """A collective in words."""
    group = call.group
    members = counted(group.size, "rank")
    if group.ranks:
        members = _ranks(group.ranks)
    if call.bytes is not None:
        members += f", {show_bytes(call.bytes)}"
    return f"{called(call, number)} of {group.name} ({members})"


def called(call: Call, number: int) -> str:
    """A call by its kind and number, a transfer with sender and receiver within the group."""
    name = call.kind or call.name
    if call.pair:
        name = f"{name} {call.pair}"
    return f"{name} {number}"


def _next_step(summary: Summary) -> str:
    """The first thing to do."""
    found, missing = summary.waiting, summary.job.missing
    stopped = _stopped_step(summary.unfinished)
    if stopped:
        return stopped
    if missing and not summary.job.records:
        idle = _ranks(summary.job.ranks)
        return f"no unfinished call on {idle}: {_add_records(missing)}"
    if not found.timed and summary.job.is_gloo:
        return "trace a few steps (dpscope attach): gloo records no durations"
    if not found.timed:
        return _HOW_TO_RECORD
    if not summary.measured:
        if missing:
            return _add_records(missing)
        return "record all ranks of one job over the same time"
    if summary.late_rank is not None:
        return (
            f"trace rank {summary.late_rank} and another one (dpscope attach): its loader, clocks, temperature, "
            "other processes"
        )
    if found.wait_us.sum() > found.transfer_us.sum():
        return "no rank is always late: look at input lengths, the loader and other processes. A faster link gains little"
    return "compare busbw with the link: --link 25GB/s, or dpscope calibrate"


def _stopped_step(unfinished: Unfinished | None) -> str:
    """Where to look for what stopped the job; empty if it may still be running."""
    if unfinished is None:
        return ""
    oldest = unfinished.oldest
    add = ""
    if unfinished.without_record:
        add = f"; {_add_records(unfinished.without_record)}"
    if oldest is None or oldest.ran_ahead:
        step = f"{_failed_device(unfinished)}{add}"
        return step if unfinished.only else ""
    how = "process gone? Stack (py-spy dump), log, loader"
    likely = _ranks(unfinished.missing)
    if not oldest.stopped:
        # without its record, a host that ran ahead of its device looks like one that never began
        return f"look at {likely} first: device failed (Xid, ECC), or {how}{add}"
    proven = _ranks(oldest.stopped)
    if not unfinished.missing:
        return f"look at {proven} first: {how}"
    return f"look at {proven} first, then at {likely} (no record): {how}"


def _failed_device(unfinished: Unfinished) -> str:
    """Where to look for one: first where the chain of waits ends."""
    logs = "logs of all hosts"
    if unfinished.ends:
        logs = f"logs of {_ranks(unfinished.ends)} first, then of all hosts"
    return f"look for a failed device in the {logs} (Xid, ECC, links), not for a late rank"


def _not_begun(unfinished: Unfinished | None) -> Iterator[Finding]:
    if unfinished is None or unfinished.oldest is None:
        return
    yield TraceCode.COLLECTIVE_NOT_BEGUN.finding(
        "; ".join(_oldest_lines(unfinished)),
        _failed_device(unfinished) if unfinished.oldest.ran_ahead else "",
        severity="error" if unfinished.only else None,
    )


def _unmatched(summary: Summary) -> Iterator[Finding]:
    counts = summary.waiting.counts
    # what had not completed has no counterpart to be compared with
    if summary.waiting.basis == "nothing" or summary.only_unfinished:
        return
    reasons = {
        "of groups whose ranks are unknown or were not all read": counts.of_missing_ranks,
        "numbered again after a restart, not as often on every rank": counts.restarted,
        "dropped on another rank, or without a duration": counts.dropped,
        "unlike the other ranks' by kind, size or clock": counts.unlike,
        "under numbers that some rank no longer holds or never reached": counts.outside,
    }
    many = [f"{count:,} {why}" for why, count in reasons.items() if count > _FEW * counts.records]
    if not many:
        return
    yield TraceCode.COLLECTIVES_UNMATCHED.finding(
        f"of {counted(counts.records, 'record')} of collectives, these have no transfer and no wait: {listed(many)}",
        "record all ranks of one job over the same time",
    )
