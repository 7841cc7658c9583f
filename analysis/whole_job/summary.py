"""What the records of a job say, as labelled facts and findings."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from dpscope.analysis.figures.waiting_over_time import WaitingOverTime
from dpscope.analysis.findings.facts import Fact, Scale, Verdict, percent, time
from dpscope.analysis.text.units import as_ranges, show_bytes
from dpscope.analysis.traces.ranks.lateness import mostly_last
from dpscope.analysis.whole_job.job import RecordedJob
from dpscope.analysis.whole_job.records import Call
from dpscope.analysis.whole_job.unfinished import NotBegun, Unfinished, unfinished_of
from dpscope.analysis.whole_job.waiting import Counts, Waiting, waiting_of
from dpscope.profiling.records.finding import Finding, counted, listed
from dpscope.profiling.records.links import LinkRate
from dpscope.profiling.records.trace_codes import TraceCode

HOW_TO_RECORD = (
    "set TORCH_NCCL_ENABLE_TIMING=1 and TORCH_FR_BUFFER_SIZE=200000 in the job, or use NCCL Inspector: "
    "NCCL_PROFILER_PLUGIN=libnccl-profiler-inspector.so NCCL_INSPECTOR_ENABLE=1 (docs/whole-job.md)"
)
_FEW = 0.01  # of the records: no more to worry about
_NAMED = 3
_FAILED_DEVICE = (
    "look for a failed device in the logs of all hosts (Xid, ECC, links), not for a late rank"
)


@dataclass(frozen=True)
class Summary:
    """A job's records, matched, and what follows from them."""

    job: RecordedJob
    waiting: Waiting
    unfinished: Unfinished | None
    link: LinkRate | None = None

    @cached_property
    def findings(self) -> tuple[Finding, ...]:
        return (*self.job.findings, *_findings(self))

    @cached_property
    def verdict(self) -> Verdict:
        waits = self.waiting.basis == "durations" and self.waiting.counts.matched > 0
        facts = [
            *_stopped_fact(self.unfinished),
            *(_measured_facts(self.waiting) if waits else _created_facts(self.waiting)),
        ]
        return Verdict(
            _setting(self), limits=tuple(_limits(self)), facts=(*facts, _next_fact(self))
        )

    @property
    def only_unfinished(self) -> bool:
        """Whether a watchdog wrote nothing but what had not completed."""
        return self.unfinished is not None and self.unfinished.only

    @property
    def waiting_over_time(self) -> WaitingOverTime | None:
        """What the figure shows; None without durations or times."""
        found = self.waiting
        if found.basis != "durations" or found.span_ns[1] <= found.span_ns[0]:
            return None
        return WaitingOverTime(
            self.job.ranks, found.bin_edges_s, found.wait_us / 1e6, found.caused_us / 1e6
        )

    @property
    def late_place(self) -> int | None:
        """The place among the ranks of the one that stands out; None if none does."""
        caused_us = self.waiting.others
        total_us, ranks = float(caused_us.sum()), len(self.job.ranks)
        if not total_us:
            return None
        place = int(caused_us.argmax())
        # nearer to all of the waiting than to an even part of it
        return place if caused_us[place] >= (1 + 1 / ranks) / 2 * total_us else None


def summarise(job: RecordedJob, link: LinkRate | None = None) -> Summary:
    """Match a job's records and find what had not completed."""
    return Summary(job, waiting_of(job), unfinished_of(job), link)


def _setting(summary: Summary) -> str:
    job = summary.job
    ranks = counted(job.world, "rank")
    if len(job.ranks) < job.world:
        ranks = f"{len(job.ranks)} of {ranks}"
    hosts = set(job.hosts) - {None}
    on_hosts = f" on {counted(len(hosts), 'host')}" if hosts else ""
    records = sum(map(len, job.processes))
    first, last = summary.waiting.span_ns
    within = f" within {long_time((last - first) / 1e3)}" if last > first else ""
    return (
        f"{job.source} of {ranks}{on_hosts}: {counted(records, 'record')} of collectives{within}. "
        "Communication alone is recorded: how much of it is exposed is unknown."
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
    found, job = summary.waiting, summary.job
    if found.basis != "durations" and not summary.only_unfinished:
        yield Fact("limits", "NO TIMES", ("no duration is recorded, so no wait and no transfer",))
    if found.basis == "creation" and not job.one_clock and len(found.late):
        assumed = "creation times are compared as if all ranks shared one host's clock; state hosts with --hosts"
        yield Fact("limits", "CLOCKS", (assumed,))
    if found.basis == "nothing" and not job.one_clock:
        several = "ranks run on several hosts, whose clocks are not stated: creation times are not compared"
        yield Fact("limits", "CLOCKS", (several,))
    if missing := job.world - len(job.ranks):
        yield Fact(
            "limits", "INCOMPLETE", (f"no record of {counted(missing, 'rank')} of {job.world}",)
        )
    share = _dropped_share(found.counts)
    if share > _FEW:
        dropped = (
            f"{percent(share)} of the records are missing within the numbers that all ranks hold"
        )
        yield Fact("limits", "DROPPED", (f"{dropped}: matched by number",))


def _dropped_share(counts: Counts) -> float:
    held = counts.matched + counts.dropped + counts.unlike
    return counts.absent / (held + counts.absent) if counts.absent else 0.0


def _measured_facts(found: Waiting) -> Iterator[Fact]:
    """From durations: what collectives cost, and who was late."""
    ranks = len(found.job.ranks)
    total_us = float(found.duration_us.mean())
    wait_us = float(found.wait_us.sum()) / ranks
    transfer_us = float(found.transfer_us.mean())
    other_us = max(total_us - wait_us - transfer_us, 0.0)
    span_us = (found.span_ns[1] - found.span_ns[0]) / 1e3
    of_span = f"{percent(total_us / span_us)} of the time" if total_us < span_us else "in sum"
    line = (
        f"collectives take {long_time(total_us)} per rank ({of_span}): {long_time(wait_us)} waiting for late ranks, "
        f"{long_time(transfer_us)} moving data"
    )
    if other_us > _FEW * total_us:
        line += f", {long_time(other_us)} not separated"
    basis = f"means over {counted(ranks, 'rank')} of sums over collectives; of those in flight together each counts"
    yield Fact("cost", "COST", (line,), basis)
    if wait_us:
        yield _late_fact(found, wait_us)


def _late_fact(found: Waiting, wait_us: float) -> Fact:
    job, caused_us = found.job, found.others
    share = caused_us / caused_us.sum()
    order = (-share).argsort(kind="stable")[:_NAMED].tolist()
    worst = order[0]
    others = [
        f"{job.ranks[place]} ({percent(share[place])})"
        for place in order[1:]
        if share[place] > _FEW
    ]
    line = f"{_named(job, worst)} causes {percent(share[worst])} of the waiting"
    if others:
        line += f"; then {' and '.join(others)}"
    each_us = found.saved_us[worst] / max(len(job.ranks) - 1, 1)
    typical_us = found.typical_lateness_us(worst)
    last = f"last in {int(found.last_count[worst]):,} of {counted(len(found.late), 'collective')}"
    if typical_us is not None:
        last += f", typically by {time(typical_us)}"
    scale = Scale([each_us, float(found.lateness_us[worst])])
    without = (
        f"without its lateness the others wait {scale.time(each_us)} less each, and the job is at most "
        f"{scale.time(float(found.lateness_us[worst]))} shorter"
    )
    return Fact(
        "late",
        "LATE RANK",
        (line, last, without),
        "the shortest duration of a collective is that of the last rank",
    )


def _named(job: RecordedJob, place: int) -> str:
    host = job.hosts[place]
    rank = f"rank {job.ranks[place]}"
    return rank if host is None else f"{rank} ({host})"


def _created_facts(found: Waiting) -> Iterator[Fact]:
    """From creation times: who called last. This is no waiting: calls return at once on devices."""
    yield Fact("cost", "COST", ("not measured: the records hold no durations",))
    if found.basis != "creation" or not len(found.late):
        return
    worst = int(found.last_count.argmax())
    typical_us = found.typical_lateness_us(worst)
    if typical_us is None:
        return
    count, of = int(found.last_count[worst]), len(found.late)
    lines = [
        f"{_named(found.job, worst)} arrived last on the host in {count:,} of {counted(of, 'collective')}, "
        f"typically by {time(typical_us)}"
    ]
    if not mostly_last(count, of, len(found.job.ranks)):
        lines.append("no rank is always last: the ranks take turns")
    yield Fact("late", "LATE RANK", tuple(lines), "times at which hosts created the collectives")


def _stopped_fact(unfinished: Unfinished | None) -> Iterator[Fact]:
    if unfinished is None or (unfinished.oldest is None and not unfinished.only):
        return
    label = "STOPPED" if unfinished.only else "UNFINISHED"
    pending = f"{counted(unfinished.records, 'call')} on {counted(unfinished.ranks, 'rank')} had not completed"
    oldest = unfinished.oldest
    if oldest is None:
        yield Fact(
            "late", label, (f"{pending}; all ranks had begun each of them: no rank is to be named",)
        )
        return
    yield Fact("late", label, (pending, *_oldest_lines(oldest)), "the calls that hosts created")


def _oldest_lines(oldest: NotBegun) -> tuple[str, ...]:
    what = described(oldest.call, oldest.number)
    if not oldest.stopped:
        return (
            f"oldest that a member never began: {what}",
            "those members wait in earlier calls themselves: hosts ran ahead of a device that stopped, and no record shows which",
        )
    waiting = f"in which {_ranks(oldest.waiting)} wait{'s' * (len(oldest.waiting) == 1)}"
    return (f"{_ranks(oldest.stopped)} never began the oldest unfinished call, {waiting}: {what}",)


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {as_ranges(ranks)}"


def described(call: Call, number: int) -> str:
    """A collective in words."""
    size = "" if call.bytes is None else f", {show_bytes(call.bytes)}"
    group = call.group
    members = _ranks(group.ranks) if group.ranks else counted(group.size, "rank")
    return f"{call.kind or call.name} {number} of {group.name} ({members}{size})"


def _next_fact(summary: Summary) -> Fact:
    """The first thing to do."""
    unfinished, found, job = summary.unfinished, summary.waiting, summary.job
    oldest = unfinished.oldest if unfinished is not None else None
    if oldest is not None and oldest.stopped:
        action = f"Look at the processes of {_ranks(oldest.stopped)}: their stacks (py-spy dump), logs and loaders"
    elif summary.only_unfinished:
        action = _FAILED_DEVICE[0].upper() + _FAILED_DEVICE[1:]
    elif found.basis != "durations" and job.is_gloo:
        action = "gloo records no durations: trace a few steps for the waiting (dpscope attach)"
    elif found.basis != "durations":
        action = HOW_TO_RECORD[0].upper() + HOW_TO_RECORD[1:]
    elif summary.late_place is not None:
        action = (
            f"Trace rank {job.ranks[summary.late_place]} and another one (dpscope attach): its loader, clocks, temperature, "
            "other processes"
        )
    elif found.wait_us.sum() > found.transfer_us.sum():
        action = "No rank is always late: look at input lengths, the loader and other processes. A faster link gains little"
    else:
        action = "Compare busbw with the link: --link 25GB/s, or dpscope calibrate"
    return Fact("next", "NEXT", (action,))


def _findings(summary: Summary) -> Iterator[Finding]:
    found, unfinished = summary.waiting, summary.unfinished
    counts = found.counts
    oldest = unfinished.oldest if unfinished is not None else None
    if unfinished is not None and oldest is not None:
        message = "; ".join(_oldest_lines(oldest))
        yield TraceCode.COLLECTIVE_NOT_BEGUN.finding(
            message,
            "" if oldest.stopped else _FAILED_DEVICE,
            severity="error" if unfinished.only else None,
        )
    reasons = {
        "of groups whose ranks are unknown or were not all read": counts.of_missing_ranks,
        "numbered again after a restart, not as often on every rank": counts.restarted,
        "dropped on another rank, or without a duration": counts.dropped,
        "unlike the other ranks' by kind, size or clock": counts.unlike,
        "under numbers that some rank no longer holds or never reached": counts.outside,
    }
    named = [f"{count:,} {why}" for why, count in reasons.items() if count > _FEW * counts.records]
    # what had not completed has no counterpart to be compared with
    if named and found.basis != "nothing" and not summary.only_unfinished:
        records = counted(counts.records, "record")
        others = sum(map(len, summary.job.processes)) - counts.records
        left_out = (
            f" (and {others:,} of transfers between two ranks, which have none)" if others else ""
        )
        yield TraceCode.COLLECTIVES_UNMATCHED.finding(
            f"of {records} of collectives{left_out}, these have no transfer and no wait: {listed(named)}",
            "record all ranks of one job over the same time",
        )


def late_ranks(found: Waiting) -> Sequence[int]:
    """The places of all ranks, the one that the others waited for most first."""
    key = found.others if found.basis == "durations" else found.last_count
    return [int(place) for place in (-key).argsort(kind="stable")]
