"""Contention: how much longer kernels run while communication runs next to them, from kernels of
the same class that ran free.
"""

import math
from dataclasses import dataclass, replace

import numpy as np

from dpscope.analysis.stats.samples import Interval, student_t
from dpscope.analysis.text.units import show_time
from dpscope.analysis.traces.ranks.ledger import Ledger
from dpscope.analysis.traces.reading.event_table import FloatColumn
from dpscope.analysis.traces.reading.table import Groups, Table, joined

NO_OVERLAP = "no kernel ran while communication ran"
NOTHING_FREE = (
    "no comparable kernel ran without communication: the same kernel, operator, input sizes, grid and block "
    "(where no input sizes are recorded, also the same place in another step)"
)
IMPOSSIBLE = (
    "not measurable here: comparable kernels took {:.2f} times as long next to communication as alone, which communication "
    "cannot cause, so something else differs between them"
)
TOO_UNCERTAIN = (
    "not measurable here: comparable kernels ran next to communication, or without it, in one step only, or their times differ "
    "too much between steps for an interval"
)
LITTLE_HIDDEN = (
    "slowdown not known: {:.2f}x ({:.2f} to {:.2f}), from {} of hidden communication a step"
)
_FEWEST_KERNELS = 3
_FEWEST_STEPS = 2
# of the overlapped compute time: below it the ratio does not represent the step
_LEAST_COMPARED = 0.1
# of communication: from less, a ratio is noise, and no matter for the step
_LEAST_HIDDEN = 0.01
_CLASS = ("repeat", "rank", "device", "kernel_class")
_STEP = ("source", "repeat", "step")


@dataclass(frozen=True)
class Contention:
    """Of compute that overlaps communication: `ratio` is its time next to communication over its
    time alone.

    `share` of the overlapped time, 1 - 1/ratio, is lost. Intervals are 95%, None with too few
    steps. `compared` is the share of the overlapped compute time for which comparable kernels ran
    free.
    """

    operator: str | None  # None: all operators
    ratio: float
    ratio_interval: Interval | None
    share: float
    share_interval: Interval | None
    overlapped_us: float  # compared, all steps and ranks together
    kernels: int
    compared: float

    def cost_us(self, hidden_us: float) -> float:
        """What hidden communication of this length costs."""
        return self.share * hidden_us

    @property
    def is_impossible(self) -> bool:
        """Whether the kernels were significantly faster next to communication, which shows that
        they are not comparable.
        """
        return self.ratio_interval is not None and self.ratio_interval.high < 1.0


@dataclass(frozen=True)
class Contentions:
    """Of all operators and of each; `reason` states why `every` is None."""

    every: Contention | None
    by_operator: tuple[Contention, ...] = ()  # the largest cost first
    reason: str = ""


def contentions(kernels: Table, alone: Table | None = None) -> Contentions:
    """From `kernel_times` of one or several ranks, with a column `repeat` where there are several.

    Each rank's kernels are compared with its own free ones, or with those of `alone`, the same step
    without communication.
    """
    if not kernels.truths("overlapped").any():
        return Contentions(None, reason=NO_OVERLAP)
    both = _comparable(kernels, alone)
    overlapped = both.truths("overlapped")
    totals_us = dict(_overlap_by_operator(kernels))
    compared = float(both["overlap_us"].sum()) / sum(totals_us.values())
    if int(overlapped.sum()) < _FEWEST_KERNELS or compared < _LEAST_COMPARED:
        share = (
            f"; comparable ones did for {compared:.0%} of the overlapped compute time"
            if compared
            else ""
        )
        return Contentions(None, reason=NOTHING_FREE + share)
    every = _estimate(None, both, compared)
    if every is None:
        return Contentions(
            None,
            reason="the kernels took longer next to communication than that communication lasted",
        )
    if every.ratio_interval is None:
        return Contentions(None, reason=TOO_UNCERTAIN)
    if every.is_impossible:
        return Contentions(None, reason=IMPOSSIBLE.format(every.ratio))
    by_operator = []
    for operator, own_us in _overlap_by_operator(both):
        of_operator = both.having("operator", operator)
        one = _estimate(operator, of_operator, own_us / totals_us[operator])
        if one is not None and not one.is_impossible:
            by_operator.append(one)
    return Contentions(
        every,
        tuple(sorted(by_operator, key=lambda overlap: -overlap.cost_us(overlap.overlapped_us))),
    )


def _comparable(kernels: Table, alone: Table | None) -> Table:
    """Overlapped and free kernels of the classes that have both, with their `class` and the
    `source` of the free ones.
    """
    keys: tuple[str, ...] = _CLASS
    overlapped = kernels.truths("overlapped")
    both = kernels.assign(source=np.zeros(len(kernels), dtype=np.int64))
    if alone is not None and len(alone):
        keys, free = ("kernel_class",), alone.take(~alone.truths("overlapped"))
        free = free.assign(source=np.ones(len(free), dtype=np.int64))
        both = joined([both.take(overlapped), free])
    classes = both.group(*keys)
    share = classes.means(both.real("overlapped"))
    both = both.assign(**{"class": classes.code})
    return both.take(((share > 0) & (share < 1))[classes.code])


def _overlap_by_operator(kernels: Table) -> list[tuple[str, float]]:
    operators = kernels.group("operator", in_order=True)
    names = kernels.words("operator")[operators.first].tolist()
    return list(zip(map(str, names), operators.sums(kernels["overlap_us"]).tolist(), strict=True))


def of_enough_hidden(found: Contentions, ledger: Ledger | None) -> Contentions:
    """As found, but not known where hardly any communication of a step is hidden.

    `ledger` is where that step goes, None where it is not known.
    """
    every = found.every
    if every is None or ledger is None or ledger.hidden_us is None:
        return found
    communication_us = ledger.communication_us or 0.0
    if ledger.hidden_us >= _LEAST_HIDDEN * communication_us:
        return found
    bounds = every.ratio_interval
    assert bounds is not None  # else `every` is not known
    hidden = show_time(ledger.hidden_us)
    reason = LITTLE_HIDDEN.format(every.ratio, *bounds, hidden)
    return Contentions(None, reason=reason)


def with_contention(ledger: Ledger, measured: Contentions) -> Ledger:
    """The ledger with what its hidden communication costs."""
    every = measured.every
    hidden_us = ledger.hidden_us
    if every is None or hidden_us is None:
        return ledger
    intervals = dict(ledger.intervals)
    if every.share_interval is not None:
        low, high = every.share_interval
        intervals["contention"] = Interval(low * hidden_us, high * hidden_us)
    return replace(
        ledger,
        contention_us=every.cost_us(hidden_us),
        contention_ratio=every.ratio,
        contention_ratio_interval=every.ratio_interval,
        intervals=intervals,
    )


def _estimate(operator: str | None, both: Table, compared: float) -> Contention | None:
    """A kernel that takes `alone_us` alone and overlaps communication for `overlap_us` takes
    alone_us + share * overlap_us.

    `alone_us` is the mean of its class's free kernels, at the pace of its own step. None if the
    share is 1 or above.
    """
    overlapped, time_us, overlap_us = both.truths("overlapped"), both["time_us"], both["overlap_us"]
    classes, pace = both.group("class"), both["pace"]
    alone_us = classes.means(np.where(overlapped, np.nan, time_us / pace))[classes.code] * pace
    added_us = time_us - alone_us
    overlapped_us = float(overlap_us.sum())
    share = float(added_us[overlapped].sum()) / overlapped_us
    if share >= 1.0:
        return None
    # How much each kernel moves the sum of `added_us`: a free one by its part in the mean of its
    # class.
    weight = classes.sums(pace * overlapped) / classes.sums(both.real("overlapped") == 0)
    moved_us = np.where(
        overlapped, added_us - share * overlap_us, -weight[classes.code] * added_us / pace
    )
    bounds, steps = None, both.group(*_STEP)
    if min(len(np.unique(steps.code[side])) for side in (overlapped, ~overlapped)) >= _FEWEST_STEPS:
        half = (
            student_t(len(steps) - 1) * math.sqrt(_variance(moved_us, steps, both)) / overlapped_us
        )
        bounds = Interval(share - half, share + half)
    return Contention(
        operator=operator,
        ratio=_ratio(share),
        ratio_interval=Interval(_ratio(bounds.low), _ratio(bounds.high))
        if bounds and bounds.high < 1.0
        else None,
        share=share,
        share_interval=bounds,
        overlapped_us=overlapped_us,
        kernels=int(overlapped.sum()),
        compared=compared,
    )


def _variance(moved_us: FloatColumn, steps: Groups, kernels: Table) -> float:
    """Of the sum. Kernels are not independent: those of one step share what disturbs it, those of
    one place what precedes them.

    By clusters in two ways: Cameron, Gelbach and Miller, Journal of Business & Economic Statistics
    29 (2011), 238-249.
    """
    by_step = _clustered(moved_us, steps)
    by_place = _clustered(moved_us, kernels.group("kernel_class", "place"))
    return max(by_step, by_place, by_step + by_place - float(np.square(moved_us).sum()))


def _clustered(moved_us: FloatColumn, clusters: Groups) -> float:
    count = len(clusters)
    return (
        count / (count - 1) * float(np.square(clusters.sums(moved_us)).sum()) if count > 1 else 0.0
    )


def _ratio(share: float) -> float:
    return 1.0 / (1.0 - share)
