"""DDP's own counters compared with the trace: the sizes of its buckets, and the span of its
communication.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from statistics import median
from types import MappingProxyType

import msgspec
import numpy as np

from dpscope.analysis.runs.traffic_check import MEASURE_AGAIN
from dpscope.analysis.text.units import show_time
from dpscope.analysis.traces.ranks.job import CounterCheck
from dpscope.analysis.traces.reading.table import UNKNOWN, Table
from dpscope.analysis.traces.steps import intervals
from dpscope.profiling.records.finding import Finding, counted
from dpscope.profiling.records.run import Cell, DdpCounters, RankResult
from dpscope.profiling.records.run_codes import RunCode

SPAN_TOLERANCE = 0.10
# DDP and the trace read the clock at two moments; between them a thread may wait for a core. Where
# the kernel counted no waits:
CPU_SLACK_US = 2000.0
DEVICE_SLACK_US = 50.0


def check_counters(
    counters: Sequence[DdpCounters],
    collectives: Table,
    rank: int,
    sent_share: float = 1.0,
    factored: bool = False,
    reduction_ends_us: Mapping[int | None, Sequence[float]] = MappingProxyType({}),
    buckets_alone: bool = False,
    map_bytes: int = 0,
) -> CounterCheck:
    """Compare one rank's counters with its collectives of the counters pass.

    DDP's backward_comm_us is a span, from the launch of the first bucket to the last gradient
    copied out of one. It is compared with the span from the first all-reduce (on a CPU its
    creation) to that copy (`reduction_ends_us`, by step); where the trace does not show the copies,
    the span ends with the last all-reduce, and DDP's is an upper bound. Bucket sizes are compared
    with the all-reduces' bytes. `sent_share` is how much of a bucket's bytes travels: DDP counts
    buckets before a communication hook casts them, and its span includes the casts, so it is an
    upper bound then, too. Of `factored` gradients (PowerSGD) several small messages stand for a
    bucket: their bytes are checked over the step (`traffic_check`), not bucket by bucket. With
    `buckets_alone` all-reduces of other sizes are left out: a script may make some in addition to
    DDP's. Those of `map_bytes` (`used_map_bytes`) always are.
    """
    sizes_of = {
        counter.step: sorted(round(sent_share * size) for size in counter.bucket_bytes)
        for counter in counters
    }
    reduces = collectives.having("kind", "all_reduce")
    own = reduces.take((reduces["rank"] == rank) & (reduces["bytes"] != map_bytes))
    if buckets_alone:
        own = own.take(np.isin(own["bytes"], list(chain.from_iterable(sizes_of.values()))))
    slack_us = DEVICE_SLACK_US if own.known("device").any() else CPU_SLACK_US
    compared, unclear = list[_Compared](), False
    for counter in counters:
        parts = 1 if factored else len(counter.bucket_bytes)
        reduction = _described(counter, own, reduction_ends_us, parts)
        if reduction is None or counter.backward_comm_us <= 0:
            unclear |= counter.iterations > 1 and counter.step in own["step"]
            continue
        expected = sorted(reduction.bytes) if factored else sizes_of[counter.step]
        compared.append(_Compared(counter, reduction, expected, slack_us, sent_share < 1))
    check = _check_of(rank, compared)
    if not check.buckets_equal:
        return check
    return replace(check, not_comparable=_not_comparable(rank, counters, compared, unclear))


def _check_of(rank: int, compared: "Sequence[_Compared]") -> CounterCheck:
    return CounterCheck(
        rank=rank,
        steps=len(compared),
        span_ratio=median([step.ratio for step in compared]) if compared else None,
        buckets_equal=all(sorted(step.reduction.bytes) == step.expected_bytes for step in compared),
        spans_agree=_most(step.agrees for step in compared),
        union_within_span=_most(step.within for step in compared),
        not_comparable=None,
    )


def _most(truths: Iterable[bool]) -> bool:
    """Whether more than half of them hold."""
    counts = Counter(truths)
    return counts[True] > counts[False]


def _not_comparable(
    rank: int, counters: Sequence[DdpCounters], compared: "Sequence[_Compared]", unclear: bool
) -> str | None:
    if not compared:
        times = f"DDP reduced another number of times in a step than the {counters[0].iterations} that it counted"
        return times if unclear else None
    if not all(step.cpu_wait_us > step.ddp_us for step in compared):
        return None
    waited = show_time(median([step.cpu_wait_us for step in compared]))
    communicated = show_time(median([step.ddp_us for step in compared]))
    longer = f"waited for a core longer ({waited} a step) than DDP communicated ({communicated})"
    return f"rank {rank}'s threads {longer}, so the two spans may differ by as much"


@dataclass(frozen=True)
class _Compared:
    """One reduction as DDP's counter and as the trace have it."""

    counter: DdpCounters
    reduction: "_Reduction"
    expected_bytes: list[int]
    slack_us: float
    casts: bool  # DDP's span includes casts by a communication hook, which the trace's does not

    @property
    def ddp_us(self) -> float:
        return self.counter.backward_comm_us

    @property
    def cpu_wait_us(self) -> float:
        return self.counter.cpu_wait_us or 0.0

    @property
    def ratio(self) -> float:
        return self.reduction.span_us / self.ddp_us

    @property
    def _allowed_us(self) -> float:
        return SPAN_TOLERANCE * self.ddp_us + max(self.slack_us, self.cpu_wait_us)

    @property
    def agrees(self) -> bool:
        excess_us = self.reduction.span_us - self.ddp_us
        upper_bound_only = self.casts or not self.reduction.copied_out
        return excess_us <= self._allowed_us and (
            upper_bound_only or -excess_us <= self._allowed_us
        )

    @property
    def within(self) -> bool:
        return self.reduction.busy_us <= self.ddp_us + self._allowed_us


@dataclass(frozen=True)
class _Reduction:
    """All-reduces of one of DDP's backward passes; microseconds."""

    bytes: list[int]  # of each; -1 where the trace does not show it
    span_us: float
    busy_us: float
    copied_out: bool  # whether the span ends with the last gradient copied out of its bucket


def _described(
    counter: DdpCounters, own: Table, ends_us: Mapping[int | None, Sequence[float]], buckets: int
) -> _Reduction | None:
    """The reduction that a counter describes: of several in its step the one before the last.

    None where the trace does not hold it, or the step has another number of reductions than DDP
    counted.
    """
    step = own.take(own["step"] == counter.step)
    if not len(step):
        return None
    step = step.take(np.argsort(step["start_us"], kind="stable"))
    times = len(step) // buckets if counter.iterations > 1 else 1
    # several forward passes and one backward pass: that of the step before
    if times == 1 and counter.iterations > 1:
        return _described(
            msgspec.structs.replace(counter, step=counter.step - 1, iterations=1),
            own,
            ends_us,
            buckets,
        )
    if times != counter.iterations:
        return None
    parts = np.array_split(np.arange(len(step)), times)
    part = step.take(parts[max(times - 2, 0)])
    starts, ends = part["start_us"], part["start_us"] + part["duration_us"]
    first_us = starts.min()
    if not part.known("device").any():
        first_us = np.nanmin([first_us, *part["ready_us"]])
    next_us = step["start_us"][parts[times - 1][0]] if times > 1 else np.inf
    copied_us = [end for end in ends_us.get(counter.step, ()) if first_us < end < next_us]
    return _Reduction(
        bytes=[-1 if size == UNKNOWN else size for size in part["bytes"].tolist()],
        span_us=max([ends.max(), *copied_us]) - first_us,
        busy_us=intervals.length(intervals.union(starts, ends)),
        copied_out=bool(copied_us),
    )


def counter_findings(
    cell: Cell, ranks: Sequence[RankResult], checks: Sequence[CounterCheck]
) -> Iterator[Finding]:
    """A mismatch is an error: either the trace or its reading is wrong.

    So is a check that did not take place, whose silence must not read as agreement: also where
    ranks lack the counters that they should have saved. What is `not_comparable` is none: nobody
    can change it, and `traffic_check` still checks the bytes.
    """
    for check in checks:
        if check.not_comparable is not None:
            continue
        if not check.steps:
            yield _not_compared(
                cell, f"rank {check.rank}'s trace and counters have no step in common"
            )
        else:
            yield from _mismatches(cell, check)
    counting = [
        rank for rank in ranks if rank.attached is None or rank.attached.counters_missing is None
    ]
    if cell.traits.reducer and cell.devices > 1 and len(checks) < len(counting):
        yield _not_compared(
            cell, f"{len(counting) - len(checks)} of {counted(len(counting), 'rank')} saved none"
        )


def _mismatches(cell: Cell, check: CounterCheck) -> Iterator[Finding]:
    ratio = check.span_ratio or 0.0
    agreed = {
        "the all-reduces' sizes are not DDP's bucket sizes": check.buckets_equal,
        "the all-reduces take longer than DDP's communication span": check.union_within_span,
        f"the communication span by the trace is {ratio:.3f} of DDP's own": check.spans_agree,
    }
    for what, agrees in agreed.items():
        if not agrees:
            text = (
                f"rank {check.rank}: {what} ({counted(check.steps, 'step')} of the counters pass)"
            )
            yield RunCode.COUNTERS_DISAGREE.finding(text, about=cell.name)


def _not_compared(cell: Cell, why: str) -> Finding:
    text = f"DDP's own counters could not be compared with the trace: {why}"
    action = f"{MEASURE_AGAIN} before trusting its communication"
    return RunCode.COUNTERS_NOT_COMPARED.finding(text, action, about=cell.name)
