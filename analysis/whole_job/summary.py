"""What the records of a job say, as labelled facts and findings."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from dpscope.analysis.figures.waiting_over_time import WaitingOverTime
from dpscope.analysis.findings.facts import Fact, Verdict, capital, percent, time
from dpscope.analysis.text.units import as_ranges, show_bytes
from dpscope.analysis.traces.ranks.lateness import mostly_last
from dpscope.analysis.whole_job.job import RecordedJob
from dpscope.analysis.whole_job.records import Call
from dpscope.analysis.whole_job.unfinished import NotBegun, Unfinished, unfinished_of
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
_FAILED_DEVICE = (
    "look for a failed device in the logs of all hosts (Xid, ECC, links), not for a late rank"
)
_SUMS = "means over ranks of sums over collectives; of those in flight together each counts"
_BY_DURATION = "the shortest duration of a collective is that of the last rank"
_BY_CREATION = "times at which hosts created the collectives"


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
            *(_measured_facts(self.waiting) if self.measured else _created_facts(self.waiting)),
            Fact("next", "NEXT", (capital(_next_step(self)),)),
        )
        return Verdict(_setting(self), limits=tuple(_limits(self)), facts=facts)

    @property
    def measured(self) -> bool:
        """Whether transfer and wait are known."""
        return self.waiting.timed and self.waiting.counts.matched > 0

    @property
    def only_unfinished(self) -> bool:
        """Whether a watchdog wrote nothing but what had not completed."""
        return self.unfinished is not None and self.unfinished.only

    @property
    def not_begun(self) -> NotBegun | None:
        return None if self.unfinished is None else self.unfinished.oldest

    @property
    def span_us(self) -> float:
        """From the first to the last time in the records; 0 if these have none."""
        first_ns, last_ns = self.waiting.span_ns
        return (last_ns - first_ns) / 1e3

    @property
    def waiting_over_time(self) -> WaitingOverTime | None:
        """What the figure shows; None without durations or times."""
        found = self.waiting
        if not found.timed or not self.span_us:
            return None
        return WaitingOverTime(
            self.job.ranks, found.bin_edges_s, found.wait_us / 1e6, found.caused_us / 1e6
        )

    @property
    def late_rank(self) -> int | None:
        """The one that stands out: nearer to all of the waiting than to an even part of it."""
        share = self.waiting.caused_share
        place = int(share.argmax())
        return self.job.ranks[place] if share[place] >= (1 + 1 / len(share)) / 2 else None


def summarise(job: RecordedJob, link: LinkRate | None = None) -> Summary:
    """Match a job's records and find what had not completed."""
    return Summary(job, waiting_of(job), unfinished_of(job), link)


def _setting(summary: Summary) -> str:
    job = summary.job
    ranks = counted(job.world, "rank")
    if len(job.ranks) < job.world:
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
    return f"{seconds / 60:.1f} min" if seconds >= 120 else time(time_us)


def _limits(summary: Summary) -> Iterator[Fact]:
    """What limits all that follows."""
    found = summary.waiting
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
    of_span = f"{percent(total_us / span_us)} of the time" if total_us < span_us else "in sum"
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
    worst, *others = (-share).argsort(kind="stable")[:_NAMED].tolist()
    line = f"{_named(job, worst)} causes {percent(share[worst])} of the waiting"
    also = [
        f"{job.ranks[place]} ({percent(share[place])})" for place in others if share[place] > _FEW
    ]
    if also:
        line += f"; then {' and '.join(also)}"
    yield line
    yield f"last in {_last_count(found, worst)}"
    lateness_us = float(found.lateness_us[worst])
    yield f"without its lateness the job is at most {time(lateness_us)} shorter"


def _last_count(found: Waiting, place: int) -> str:
    count = int(found.last_count[place])
    text = f"{count:,} of {counted(len(found.matched.late), 'collective')}"
    typical_us = found.typical_lateness_us(place)
    return text if typical_us is None else f"{text}, typically by {time(typical_us)}"


def _named(job: RecordedJob, place: int) -> str:
    host = job.hosts[place]
    rank = f"rank {job.ranks[place]}"
    return rank if host is None else f"{rank} ({host})"


def _created_facts(found: Waiting) -> Iterator[Fact]:
    """From creation times: who called last. This is no waiting: calls return at once on devices."""
    why = "no collective could be matched" if found.timed else "the records hold no durations"
    yield Fact("cost", "COST", (f"not measured: {why}",))
    worst = int(found.last_count.argmax())
    count = int(found.last_count[worst])
    if not count:
        return
    lines = [f"{_named(found.job, worst)} arrived last on the host in {_last_count(found, worst)}"]
    if not mostly_last(count, len(found.matched.late), len(found.job.ranks)):
        lines.append("no rank is always last: the ranks take turns")
    yield Fact("late", "LATE RANK", tuple(lines), _BY_CREATION)


def _stopped_fact(unfinished: Unfinished | None) -> Iterator[Fact]:
    if unfinished is None or (unfinished.oldest is None and not unfinished.only):
        return
    label = "STOPPED" if unfinished.only else "UNFINISHED"
    calls = f"{counted(unfinished.records, 'call')} on {counted(unfinished.ranks, 'rank')}"
    lines = ["all ranks had begun each of them: no rank is to be named"]
    if unfinished.oldest is not None:
        lines = _oldest_lines(unfinished.oldest)
    yield Fact(
        "late", label, (f"{calls} had not completed", *lines), "the calls that hosts created"
    )


def _oldest_lines(oldest: NotBegun) -> list[str]:
    call = described(oldest.call, oldest.number)
    if not oldest.stopped:
        return [
            f"oldest that a member never began: {call}",
            "those members wait in earlier calls themselves: hosts ran ahead of a device that stopped, and no record shows which",
        ]
    wait = "waits" if len(oldest.waiting) == 1 else "wait"
    waiting = f"in which {_ranks(oldest.waiting)} {wait}"
    return [f"{_ranks(oldest.stopped)} never began the oldest unfinished call, {waiting}: {call}"]


def _ranks(ranks: Sequence[int]) -> str:
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {as_ranges(ranks)}"


def described(call: Call, number: int) -> str:
    """A collective in words."""
    group = call.group
    members = _ranks(group.ranks) if group.ranks else counted(group.size, "rank")
    if call.bytes is not None:
        members += f", {show_bytes(call.bytes)}"
    return f"{call.kind or call.name} {number} of {group.name} ({members})"


def _next_step(summary: Summary) -> str:
    """The first thing to do."""
    found, oldest = summary.waiting, summary.not_begun
    if oldest is not None and oldest.stopped:
        return f"look at the processes of {_ranks(oldest.stopped)}: their stacks (py-spy dump), logs and loaders"
    if summary.only_unfinished:
        return _FAILED_DEVICE
    if not found.timed and summary.job.is_gloo:
        return "trace a few steps (dpscope attach): gloo records no durations"
    if not found.timed:
        return _HOW_TO_RECORD
    if not summary.measured:
        return "record all ranks of one job over the same time"
    if summary.late_rank is not None:
        return (
            f"trace rank {summary.late_rank} and another one (dpscope attach): its loader, clocks, temperature, "
            "other processes"
        )
    if found.wait_us.sum() > found.transfer_us.sum():
        return "no rank is always late: look at input lengths, the loader and other processes. A faster link gains little"
    return "compare busbw with the link: --link 25GB/s, or dpscope calibrate"


def _not_begun(unfinished: Unfinished | None) -> Iterator[Finding]:
    if unfinished is None or unfinished.oldest is None:
        return
    oldest = unfinished.oldest
    yield TraceCode.COLLECTIVE_NOT_BEGUN.finding(
        "; ".join(_oldest_lines(oldest)),
        "" if oldest.stopped else _FAILED_DEVICE,
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
