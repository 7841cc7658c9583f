"""Contention: how much longer kernels run while communication runs next to them, from kernels of the same class that ran free."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from dpscope.analysis.stats.samples import Interval
from dpscope.analysis.traces.ranks.ledger import Ledger

NO_OVERLAP = "no kernel ran while communication ran"
NOTHING_FREE = (
    "no comparable kernel ran without communication: the same kernel, operator, input sizes, grid and block "
    "(where no input sizes are recorded, also the same place in another step)"
)
_FEWEST_KERNELS = 3
_OWN_VARIANCE = 6
_LEAST_COMPARED = 0.1  # of the overlapped compute time: below it the ratio does not represent the step
_CLASS = ["repeat", "rank", "device", "kernel_class"]


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


def contentions(kernels: pd.DataFrame, alone: pd.DataFrame | None = None) -> Contentions:
    """From `kernel_times` of one or several ranks, with a column `repeat` where there are several.

    Each rank's kernels are compared with its own free ones, or with those of `alone`, the same step without communication.
    """
    if kernels.empty:
        return Contentions(None, reason=NO_OVERLAP)
    kernels = _with_keys(kernels)
    overlapped = kernels[kernels["overlapped"]]
    if overlapped.empty:
        return Contentions(None, reason=NO_OVERLAP)
    keys = _CLASS
    if alone is None or alone.empty:
        free = _free_means(kernels[~kernels["overlapped"]], keys)
    else:
        keys = ["kernel_class"]
        free = _free_means(_with_keys(alone[~alone["overlapped"]]), keys)
    matched = overlapped.merge(free, on=keys)
    total_us = float(overlapped["overlap_us"].sum())
    compared = float(matched["overlap_us"].sum()) / total_us
    if int(matched["count"].sum()) < _FEWEST_KERNELS or compared < _LEAST_COMPARED:
        share = f"; comparable ones did for {compared:.0%} of the overlapped compute time" if compared else ""
        return Contentions(None, reason=NOTHING_FREE + share)
    freedom = int((free["units"] - 1).sum())
    matched = matched.assign(free_class=matched.groupby(keys).ngroup())
    every = _estimate(None, matched, freedom, compared)
    if every is None:
        return Contentions(None, reason="the kernels took longer next to communication than that communication lasted")
    return Contentions(every, tuple(_of_operators(matched, overlapped, freedom)))


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


def _with_keys(kernels: pd.DataFrame) -> pd.DataFrame:
    return kernels.assign(
        repeat=kernels.get("repeat", 0), rank=kernels["rank"].fillna(-1), device=kernels["device"].fillna(-1)
    )


def _free_means(free: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """Of each class the mean duration of its units, how many there are, and the variance of one, relative to the mean.

    The variance is the class's own from _OWN_VARIANCE units on, that of all classes together below.
    """
    free = free.assign(mean_us=(free["time_us"] / free["count"]).astype(float))
    grouped = free.groupby(keys)["mean_us"]
    free = free.assign(square=(free["mean_us"] / grouped.transform("mean") - 1.0) ** 2)
    means = free.groupby(keys).agg(free_us=("mean_us", "mean"), units=("mean_us", "size"), squares=("square", "sum"))
    pooled = means["squares"].sum() / max(1, (means["units"] - 1).sum())
    own = means["squares"] / (means["units"] - 1).clip(lower=1)
    return means.assign(variance=own.where(means["units"] >= _OWN_VARIANCE, pooled)).reset_index()


def _of_operators(matched: pd.DataFrame, overlapped: pd.DataFrame, freedom: int) -> Iterator[Contention]:
    totals = overlapped.groupby("operator")["overlap_us"].sum()
    found = []
    for operator, own in matched.groupby("operator"):
        compared = float(own["overlap_us"].sum()) / float(totals[operator])
        one = _estimate(str(operator), own, freedom, compared)
        if one is not None:
            found.append(one)
    yield from sorted(found, key=lambda one: -one.cost_us(one.overlapped_us))


def _estimate(operator: str | None, matched: pd.DataFrame, freedom: int, compared: float) -> Contention | None:
    """A kernel of duration `free_us` alone that overlaps communication for `overlap_us` takes free_us + share * overlap_us.

    The variance: residuals of overlapped units by the places that ranks share, and the error of the free means.
    """
    overlap = matched["overlap_us"].to_numpy(dtype=float)
    added = (matched["time_us"] - matched["count"] * matched["free_us"]).to_numpy(dtype=float)
    overlapped_us, cost_us = float(overlap.sum()), float(added.sum())
    share = cost_us / overlapped_us
    if share >= 1.0:
        return None
    residual = pd.Series(added - share * overlap)
    clusters = residual.groupby([matched["kernel_class"].to_numpy(), matched["unit"].to_numpy()]).sum().to_numpy()
    half = None
    if len(clusters) >= _FEWEST_KERNELS and freedom >= 2:
        matched = matched.assign(expected_us=matched["count"] * matched["free_us"])
        classes = matched.groupby("free_class").agg(
            expected_us=("expected_us", "sum"), units=("units", "first"), variance=("variance", "first")
        )
        squares = classes["expected_us"].astype(float) ** 2 * classes["variance"]
        of_means = float((squares / classes["units"]).sum())
        of_overlapped = len(clusters) / (len(clusters) - 1) * float(np.square(clusters).sum())
        half = _t(min(len(clusters) - 1, freedom)) * math.sqrt(of_means + of_overlapped) / overlapped_us
    bounds = Interval(share - half, share + half) if half is not None else None
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


def _t(freedom: int) -> float:
    from scipy.special import stdtrit

    return float(stdtrit(freedom, 0.975))
