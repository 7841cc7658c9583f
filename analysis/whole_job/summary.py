"""What the records of a job say, as labelled facts and findings."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dpscope.analysis.figures.waiting_over_time import WaitingOverTime
from dpscope.analysis.findings.facts import Fact, Verdict, capital, percent, time
from dpscope.analysis.findings.trace_limits import limits_of_files
from dpscope.analysis.text.units import ranks_named
from dpscope.analysis.traces.ranks.lateness import mostly_last
from dpscope.analysis.whole_job.job import RecordedJob
from dpscope.analysis.whole_job.stopped import (
    BY_CREATION,
    stopped_fact,
    stopped_finding,
    stopped_step,
)
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
        findings = list(self.job.findings)
        findings += _unmatched(self)
        if self.unfinished is not None:
            findings.append(stopped_finding(self.unfinished))
        return tuple(findings)

    @cached_property
    def verdict(self) -> Verdict:
        facts = []
        if self.unfinished is not None:
            facts.append(stopped_fact(self.unfinished))
        facts += _measured_facts(self) if self.measured else _created_facts(self)
        facts.append(Fact("next", "NEXT", (capital(_next_step(self)),), self.basis))
        return Verdict(_setting(self), limits=tuple(_limits(self)), facts=tuple(facts))

    @property
    def measured(self) -> bool:
        """Whether transfer and wait are known."""
        return self.waiting.timed and self.waiting.counts.matched > 0

    @property
    def basis(self) -> str:
        """How its conclusions are known."""
        return _BY_DURATION if self.measured else BY_CREATION

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
    absent = summary.job.absent
    damaged = list(summary.job.damaged)
    if damaged:
        ranks = ranks_named(damaged)
        line = f"the records of {ranks} are cut short or damaged: what is lost has no counterpart"
        yield Fact("limits", "CUT", (line,))
    yield from limits_of_files(summary.job.findings)
    if absent:
        line = f"no record of {ranks_named(absent)}"
        yield Fact("limits", "INCOMPLETE", (line,), "the groups' ranks")
    if found.basis == "nothing":
        why = "ranks run on several hosts, whose clocks differ: creation times are not compared"
        yield Fact("limits", "CLOCKS", (why,))
    elif found.basis == "creation" and found.counts.matched and summary.job.hosts[0] is None:
        why = "creation times are compared as if all ranks shared one host's clock; state hosts with --hosts"
        yield Fact("limits", "CLOCKS", (why,))


def _measured_facts(summary: Summary) -> Iterator[Fact]:
    """From durations: what collectives cost, and who was late."""
    found = summary.waiting
    total_us = float(found.duration_us.mean())
    wait_us = float(found.wait_us.sum(axis=1).mean())
    transfer_us = float(found.transfer_us.mean())
    other_us = total_us - wait_us - transfer_us
    of_span = "in sum"
    if total_us < summary.span_us:
        share = total_us / summary.span_us
        of_span = f"{percent(share)} of the time"
    line = (
        f"collectives take {long_time(total_us)} per rank ({of_span}): {long_time(wait_us)} waiting for late ranks, "
        f"{long_time(transfer_us)} moving data"
    )
    if other_us > _FEW * total_us:
        line += f", {long_time(other_us)} not separated"
    yield Fact("cost", "COST", (line,), _SUMS)
    if wait_us:
        label = "LATE RANK"
        if summary.late_rank is None:
            label = "LATE RANKS"
        yield Fact("late", label, tuple(_late_lines(found)), _BY_DURATION)


def _late_lines(found: Waiting) -> Iterator[str]:
    job, share = found.job, found.caused_share
    by_share = (-share).argsort(kind="stable")
    worst, *others = by_share[:_NAMED].tolist()
    line = f"{_named(job, worst)} causes {percent(share[worst])} of the waiting"
    also = []
    for place in others:
        if share[place] > _FEW:
            part = percent(share[place])
            also.append(f"{job.ranks[place]} ({part})")
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
    delays_us = found.larger_delays_us(place)
    if not len(delays_us):
        return text
    median_us = float(np.median(delays_us))
    delays = counted(len(delays_us), "larger delay")
    return f"{text}, typically by {time(median_us)} (median of its {delays})"


def _named(job: RecordedJob, place: int) -> str:
    host = job.hosts[place]
    rank = f"rank {job.ranks[place]}"
    if host is None:
        return rank
    return f"{rank} ({host})"


def _created_facts(summary: Summary) -> Iterator[Fact]:
    """From creation times: who called last. This is no waiting: calls return at once on devices."""
    if summary.only_unfinished:
        return
    found = summary.waiting
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
    label = "LATE RANK"
    if not mostly_last(count, len(found.matched.late), len(found.job.ranks)):
        label = "LATE RANKS"
        lines.append("no rank is always last: the ranks take turns")
    yield Fact("late", label, tuple(lines), BY_CREATION)


def _unknown_cost(summary: Summary) -> Fact:
    """Why no cost is known."""
    cost = "not measured: the records hold no durations"
    if summary.waiting.timed:
        why = "no collective could be matched"
        if summary.job.missing:
            missing = ranks_named(summary.job.missing)
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


def _add_records(ranks: Sequence[int]) -> str:
    return f"add the records of {ranks_named(ranks)}"


def _next_step(summary: Summary) -> str:
    """The first thing to do."""
    found, missing = summary.waiting, summary.job.missing
    step = stopped_step(summary.unfinished) if summary.unfinished is not None else ""
    if step:
        return step
    if missing and not summary.job.records:
        idle = ranks_named(summary.job.ranks)
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


def _unmatched(summary: Summary) -> Iterator[Finding]:
    counts = summary.waiting.counts
    # what had not completed has no counterpart to be compared with
    if summary.waiting.basis == "nothing" or summary.only_unfinished:
        return
    reasons = {
        "of groups whose ranks are unknown or were not all read": counts.of_missing_ranks,
        "numbered again after a restart, not as often on every rank": counts.restarted,
        "dropped, unfinished or not timed on a rank": counts.dropped,
        "unlike the other ranks' by kind, size or clock": counts.unlike,
        "under numbers that some rank no longer holds or never reached": counts.outside,
    }
    few = _FEW * counts.records
    many = []
    for why, count in reasons.items():
        if count > few:
            many.append(f"{count:,} {why}")
    if not many:
        return
    yield TraceCode.COLLECTIVES_UNMATCHED.finding(
        f"of {counted(counts.records, 'record')} of collectives, these are not compared between ranks: {listed(many)}",
        "record all ranks of one job over the same time",
    )
