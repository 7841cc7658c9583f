"""Summaries over many ranks: medians and percentiles, and waiting by host, local rank and switch."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from dpscope.analysis.text.units import as_ranges
from dpscope.analysis.traces.ranks.exposed_parts import missing_ranks
from dpscope.analysis.traces.ranks.ledger import whole_steps
from dpscope.analysis.traces.ranks.matching import ENOUGH_RANKS
from dpscope.analysis.traces.ranks.trace_analysis import TraceAnalysis
from dpscope.analysis.traces.reading.event_table import FloatColumn
from dpscope.analysis.traces.reading.table import Table
from dpscope.profiling.records.finding import Finding, counted
from dpscope.profiling.records.trace_codes import TraceCode

QUANTITIES = (
    "step_us", "compute_us", "communication_us", "exposed_us", "wait_us", "exposed_wait_us", "idle_us", "lateness_us",
)  # fmt: skip
"""Means over a rank's whole steps; `lateness_us` is how long another rank waits for it in a step, mean over the others."""

FOLDS = ("host", "local_rank", "switch")
_FAR = 6.0  # median absolute deviations above the median, beyond which a rank is an outlier


@dataclass(frozen=True)
class RankSpread:
    """A quantity over ranks in microseconds; `far` counts ranks more than _FAR median absolute deviations above the median."""

    quantity: str
    ranks: int
    median_us: float
    low_us: float  # 5%
    high_us: float  # 95%
    worst_us: float
    worst_rank: int
    far: int


def rank_means(analysis: TraceAnalysis) -> Table:
    """`rank` and QUANTITIES of each known rank: means over whole windows, or over all if none is whole."""
    steps = analysis.tables.steps_with_waits
    chosen = whole_steps(steps.take(steps.known("rank")))
    ranks = chosen.group("rank", in_order=True)
    names = [name for name in QUANTITIES if name in chosen]
    means = chosen.take(ranks.first).select(("rank",)).assign(**{name: ranks.means(chosen[name]) for name in names})
    if not analysis.tables.collectives.known("wait_us").any():
        return means.assign(lateness_us=None)
    lateness_us = _of_late_ranks(analysis.tables.waits_caused, "wait_per_step_us", means)
    return means.assign(lateness_us=lateness_us / max(len(means) - 1, 1))


def _of_late_ranks(caused: Table, column: str, ranks: Table) -> FloatColumn:
    """For each row of `ranks`, the sum of a column of `waits_by_pair` over the rows in which its rank is the late one."""
    late = caused.group("late_rank")
    found = Table.of(rank=caused["late_rank"][late.first])
    return np.append(late.sums(caused[column]), 0.0)[ranks.places_in(found, ("rank",))]


def spreads(means: Table) -> list[RankSpread]:
    """The spread of each quantity in `rank_means` that is known for any rank."""
    found = []
    for name in QUANTITIES:
        known = means.take(means.known(name))
        if not len(known):
            continue
        values = known[name]
        median = float(np.median(values))
        far = values > median + _FAR * float(np.median(np.abs(values - median)))
        low, high = np.quantile(values, (0.05, 0.95)).tolist()
        worst, worst_rank = float(values.max()), int(known["rank"][values.argmax()])
        found.append(RankSpread(name, len(values), median, low, high, worst, worst_rank, int(far.sum())))
    return found


def fold(analysis: TraceAnalysis, means: Table, places: Table, by: str) -> Table:
    """Waiting by one of FOLDS, a row each, largest cause first: `ranks`, `wait_us`, `caused_share`.

    `wait_us` is the mean wait of its ranks in a step, `caused_share` the part of all waiting that its ranks cause, 0..1. Empty
    if the place of no rank is known, or no rank waited.
    """
    known, caused = places.take(places.known(by)), analysis.tables.waits_caused
    if not len(caused):
        known = known.take(np.zeros(len(known), dtype=bool))
    groups = known.group(by, in_order=True)
    wait_us = np.append(means["wait_us"], np.nan)[known.places_in(means, ("rank",))]
    found = known.take(groups.first).select((by,))
    found = found.assign(
        ranks=groups.sizes,
        wait_us=groups.means(wait_us),
        caused_share=groups.sums(_of_late_ranks(caused, "share", known)),
    )
    return found.take(np.argsort(-found["caused_share"], kind="stable"))


_MUCH = 0.3  # of all waiting, from which on the node that causes it is named


def with_host_findings(analysis: TraceAnalysis, places: Table) -> TraceAnalysis:
    """The analysis with findings about its hosts and missing ranks before its other findings about the job."""
    found = (*_missing(analysis), *_node(analysis, places))
    return replace(analysis, job_findings=(*found, *analysis.job_findings))


def _missing(analysis: TraceAnalysis) -> Iterator[Finding]:
    world_size, summaries = analysis.world_size, analysis.summaries
    missing = missing_ranks([one.rank for one in summaries], world_size)
    if not missing or world_size is None or len(summaries) < 2:
        return
    read = world_size - len(missing)
    waits = (
        f"transfer and waiting of the whole group are computed from {read:,} of {counted(world_size, 'rank')}, and "
        "transfer is an upper bound"
        if read >= ENOUGH_RANKS * world_size
        else "collectives that include missing ranks have no transfer and no wait"
    )
    yield TraceCode.RANKS_MISSING.finding(
        f"{read:,} of {counted(world_size, 'rank')} were read, missing: {as_ranges(missing)}; {waits}"
    )


def _node(analysis: TraceAnalysis, places: Table) -> Iterator[Finding]:
    """Only for jobs on several hosts."""
    caused, placed = analysis.tables.waits_caused, places.take(places.known("host"))
    hosts = placed.group("host", in_order=True)
    if not len(caused) or len(hosts) < 2:
        return
    shares = _of_late_ranks(caused, "share", placed)
    by_host = hosts.sums(shares)
    host, share = int(by_host.argmax()), float(by_host.max())
    if share < _MUCH:
        return
    of_host = np.where(hosts.code == host, shares, -1.0)
    (worst,) = placed.take(np.array([of_host.argmax()])).records()
    yield TraceCode.WAITING_FOR_NODE.finding(
        f"node {worst['host']} causes {share:.0%} of all waiting; {of_host.max() / share:.0%} of that is for its local rank "
        f"{worst['local_rank']} (rank {worst['rank']})"
    )
