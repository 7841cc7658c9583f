"""Contention: how much longer kernels run while communication runs next to them, from kernels of the same class that ran free."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from dpscope.analysis.stats.samples import Interval, student_t
from dpscope.analysis.traces.ranks.ledger import Ledger
from dpscope.analysis.traces.reading.event_table import BoolColumn, FloatColumn, IntColumn
from dpscope.analysis.traces.reading.table import Groups, Table

NO_OVERLAP = "no kernel ran while communication ran"
NOTHING_FREE = (
    "no comparable kernel ran without communication: the same kernel, operator, input sizes, grid and block "
    "(where no input sizes are recorded, also the same place in another step)"
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
    classes = _free_classes(free, keys)
    place = overlapped.places_in(classes.first, keys)
    operators = overlapped.group("operator", in_order=True)
    matched = _Matched.of(overlapped, operators.code, classes, place)
    compared = float(matched.overlap_us.sum()) / float(overlapped["overlap_us"].sum())
    if int(matched.kernels.sum()) < _FEWEST_KERNELS or compared < _LEAST_COMPARED:
        share = f"; comparable ones did for {compared:.0%} of the overlapped compute time" if compared else ""
        return Contentions(None, reason=NOTHING_FREE + share)
    freedom = int((classes.units - 1).sum())
    every = _estimate(None, matched, freedom, compared)
    if every is None:
        return Contentions(None, reason="the kernels took longer next to communication than that communication lasted")
    by_operator = _of_operators(matched, overlapped, operators, freedom)
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


@dataclass(frozen=True)
class _FreeClasses:
    """Of each class of free kernels: the mean duration of its units, how many there are, and the variance of one.

    The variance is relative to the mean, the class's own from _OWN_VARIANCE units on, that of all classes together below.
    """

    first: Table
    mean_us: FloatColumn
    units: IntColumn
    variance: FloatColumn


def _free_classes(free: Table, keys: Sequence[str]) -> _FreeClasses:
    groups, unit_us = free.group(*keys), free["time_us"] / free["count"]
    mean_us, units = groups.means(unit_us), groups.sizes
    squares = groups.sums((unit_us / mean_us[groups.code] - 1.0) ** 2)
    pooled = squares.sum() / max(1, int((units - 1).sum()))
    variance = np.where(units >= _OWN_VARIANCE, squares / np.maximum(units - 1, 1), pooled)
    return _FreeClasses(free.take(groups.first), mean_us, units, variance)


@dataclass(frozen=True)
class _Matched:
    """Overlapped kernels of classes that also ran free, a unit per row."""

    operator: IntColumn  # its number among all
    cluster: IntColumn  # places that ranks share
    kernels: IntColumn
    overlap_us: FloatColumn
    time_us: FloatColumn
    expected_us: FloatColumn  # of as many free kernels
    free: IntColumn  # its class among `classes`
    classes: _FreeClasses

    @classmethod
    def of(cls, overlapped: Table, operator: IntColumn, classes: _FreeClasses, place: IntColumn) -> "_Matched":
        """`place` is the class of each row among the free ones, -1 for none."""
        own, free = overlapped.take(place >= 0), place[place >= 0]
        cluster = own.group("kernel_class", "unit").code
        expected_us = own["count"] * classes.mean_us[free]
        operator = operator[place >= 0]
        return cls(operator, cluster, own["count"], own["overlap_us"], own["time_us"], expected_us, free, classes)

    def take(self, rows: BoolColumn) -> "_Matched":
        """The rows that are marked."""
        columns = {one.name: getattr(self, one.name)[rows] for one in fields(self) if one.name != "classes"}
        return _Matched(**columns, classes=self.classes)


def _of_operators(matched: _Matched, overlapped: Table, operators: Groups, freedom: int) -> Iterator[Contention]:
    names, totals_us = overlapped.words("operator")[operators.first], operators.sums(overlapped["overlap_us"])
    for code, (operator, total_us) in enumerate(zip(names.tolist(), totals_us, strict=True)):
        own = matched.take(matched.operator == code)
        one = _estimate(operator, own, freedom, float(own.overlap_us.sum() / total_us)) if len(own.kernels) else None
        if one is not None:
            yield one


def _estimate(operator: str | None, matched: _Matched, freedom: int, compared: float) -> Contention | None:
    """A kernel of duration `free_us` alone that overlaps communication for `overlap_us` takes free_us + share * overlap_us.

    The variance: residuals of overlapped units by the places that ranks share, and the error of the free means.
    """
    added_us = matched.time_us - matched.expected_us
    overlapped_us = float(matched.overlap_us.sum())
    share = float(added_us.sum()) / overlapped_us
    if share >= 1.0:
        return None
    clusters = np.bincount(matched.cluster, weights=added_us - share * matched.overlap_us)[np.unique(matched.cluster)]
    half = None
    if len(clusters) >= _FEWEST_KERNELS and freedom >= 2:
        expected_us = np.bincount(matched.free, weights=matched.expected_us, minlength=len(matched.classes.units))
        of_means = float((expected_us**2 * matched.classes.variance / matched.classes.units).sum())
        of_overlapped = len(clusters) / (len(clusters) - 1) * float(np.square(clusters).sum())
        half = student_t(min(len(clusters) - 1, freedom)) * math.sqrt(of_means + of_overlapped) / overlapped_us
    bounds = Interval(share - half, share + half) if half is not None else None
    return Contention(
        operator=operator,
        ratio=_ratio(share),
        ratio_interval=Interval(_ratio(bounds.low), _ratio(bounds.high)) if bounds and bounds.high < 1.0 else None,
        share=share,
        share_interval=bounds,
        overlapped_us=overlapped_us,
        kernels=int(matched.kernels.sum()),
        compared=compared,
    )


def _ratio(share: float) -> float:
    return 1.0 / (1.0 - share)
