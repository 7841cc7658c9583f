"""Contention: how much longer kernels run while communication runs next to them, from kernels of the same class that ran free."""

import math
from dataclasses import dataclass, replace

import numpy as np

from dpscope.analysis.stats.samples import Interval, student_t
from dpscope.analysis.traces.ranks.ledger import Ledger
from dpscope.analysis.traces.reading.event_table import FloatColumn, IntColumn
from dpscope.analysis.traces.reading.table import Table

NO_OVERLAP = "no kernel ran while communication ran"
NOTHING_FREE = (
    "no comparable kernel ran without communication: the same kernel, operator, input sizes, grid and block "
    "(where no input sizes are recorded, also the same place in another step)"
)
IMPOSSIBLE = (
    "not measurable here: comparable kernels took {:.2f} times as long next to communication as alone, which communication "
    "cannot cause, so something else differs between them"
)
_FEWEST_KERNELS = 3
_OWN_VARIANCE = 6
_LEAST_COMPARED = 0.1  # of the overlapped compute time: below it the ratio does not represent the step
_CLASS = ("repeat", "rank", "device", "kernel_class")


@dataclass(frozen=True)
class Contention:
    """Of compute that overlaps communication: `ratio` is its time next to communication over its time alone.

    `share` of the overlapped time, 1 - 1/ratio, is lost. Intervals are 95%, None with too few kernels.
    `compared` is the share of the overlapped compute time for which comparable kernels ran free.
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
    def is_significant(self) -> bool:
        """Whether the interval of the ratio excludes 1."""
        return self.ratio_interval is not None and not self.ratio_interval.low <= 1.0 <= self.ratio_interval.high

    @property
    def is_impossible(self) -> bool:
        """Whether the kernels were significantly faster next to communication, which shows that they are not comparable."""
        return self.ratio_interval is not None and self.ratio_interval.high < 1.0


@dataclass(frozen=True)
class Contentions:
    """Of all operators and of each; `reason` states why `every` is None."""

    every: Contention | None
    by_operator: tuple[Contention, ...] = ()  # the largest cost first
    reason: str = ""


def contentions(kernels: Table, alone: Table | None = None) -> Contentions:
    """From `kernel_times` of one or several ranks, with a column `repeat` where there are several.

    Each rank's kernels are compared with its own free ones, or with those of `alone`, the same step without communication.
    """
    if not len(kernels) or not (own := kernels.truths("overlapped")).any():
        return Contentions(None, reason=NO_OVERLAP)
    keys = tuple(key for key in _CLASS if key in kernels)
    overlapped, free = kernels.take(own), kernels.take(~own)
    if alone is not None and len(alone):
        keys, free = ("kernel_class",), alone.take(~alone.truths("overlapped"))
    classes = free.group(*keys)
    unit_us = free["time_us"] / free["count"]
    mean_us, units = classes.means(unit_us), classes.sizes
    squares = classes.sums((unit_us / mean_us[classes.code] - 1.0) ** 2)
    freedom = int((units - 1).sum())
    # Of one unit, relative to the mean; of a class with few units that of all classes together.
    variance = np.where(units >= _OWN_VARIANCE, squares / np.maximum(units - 1, 1), squares.sum() / max(1, freedom))
    place = overlapped.places_in(free.take(classes.first), keys)
    operators = overlapped.group("operator", in_order=True)
    matched, of_class = overlapped.take(place >= 0), place[place >= 0]
    matched = Table(
        {
            **{name: matched[name] for name in ("count", "overlap_us", "time_us")},
            "operator": operators.code[place >= 0],
            "cluster": matched.group("kernel_class", "unit").code,
            "class": of_class,
            "expected_us": matched["count"] * mean_us[of_class],  # of as many free kernels
        }
    )
    totals_us = operators.sums(overlapped["overlap_us"])
    compared = float(matched["overlap_us"].sum()) / float(totals_us.sum())
    if int(matched["count"].sum()) < _FEWEST_KERNELS or compared < _LEAST_COMPARED:
        share = f"; comparable ones did for {compared:.0%} of the overlapped compute time" if compared else ""
        return Contentions(None, reason=NOTHING_FREE + share)
    of_free = (variance, units)
    every = _estimate(None, matched, of_free, freedom, compared)
    if every is None:
        return Contentions(None, reason="the kernels took longer next to communication than that communication lasted")
    if every.is_impossible:
        return Contentions(None, reason=IMPOSSIBLE.format(every.ratio))
    by_operator = []
    for code, operator in enumerate(overlapped.words("operator")[operators.first].tolist()):
        of_operator = matched.take(matched["operator"] == code)
        share_compared = float(of_operator["overlap_us"].sum() / totals_us[code])
        if len(of_operator) and (one := _estimate(operator, of_operator, of_free, freedom, share_compared)):
            by_operator += [one] if not one.is_impossible else []
    return Contentions(every, tuple(sorted(by_operator, key=lambda one: -one.cost_us(one.overlapped_us))))


def with_contention(ledger: Ledger, found: Contentions) -> Ledger:
    """The ledger with what its hidden communication costs."""
    every, hidden_us = found.every, ledger.hidden_us
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


def _estimate(
    operator: str | None, matched: Table, free: tuple[FloatColumn, IntColumn], freedom: int, compared: float
) -> Contention | None:
    """A kernel of duration `free_us` alone that overlaps communication for `overlap_us` takes free_us + share * overlap_us.

    The variance: residuals of overlapped units by the places that ranks share, and the error of the free means. `free`: of each
    class of free kernels the relative variance of one unit, and how many there are.
    """
    added_us, overlap_us = matched["time_us"] - matched["expected_us"], matched["overlap_us"]
    overlapped_us = float(overlap_us.sum())
    share = float(added_us.sum()) / overlapped_us
    if share >= 1.0:
        return None
    (variance, units), cluster, bounds = free, matched["cluster"], None
    residuals = np.bincount(cluster, weights=added_us - share * overlap_us)[np.unique(cluster)]
    if len(residuals) >= _FEWEST_KERNELS and freedom >= 2:
        expected_us = np.bincount(matched["class"], weights=matched["expected_us"], minlength=len(units))
        of_means = float((expected_us**2 * variance / units).sum())
        of_overlapped = len(residuals) / (len(residuals) - 1) * float(np.square(residuals).sum())
        half = student_t(min(len(residuals) - 1, freedom)) * math.sqrt(of_means + of_overlapped) / overlapped_us
        bounds = Interval(share - half, share + half)
    return Contention(
        operator=operator,
        ratio=_ratio(share),
        ratio_interval=Interval(_ratio(bounds.low), _ratio(bounds.high)) if bounds and bounds.high < 1.0 else None,
        share=share,
        share_interval=bounds,
        overlapped_us=overlapped_us,
        kernels=int(matched["count"].sum()),
        compared=compared,
    )


def _ratio(share: float) -> float:
    return 1.0 / (1.0 - share)
