"""Where ranks run: hosts and local ranks, and many ranks summarised by them: medians, percentiles,
who waits for whom.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from dpscope.analysis.text.units import as_ranges, show_share
from dpscope.analysis.traces.ranks.job import Job
from dpscope.analysis.traces.ranks.lateness import last_place
from dpscope.analysis.traces.ranks.matching import ENOUGH_RANKS
from dpscope.analysis.traces.ranks.not_split import missing_ranks
from dpscope.analysis.traces.ranks.rank_tables import TraceSummary
from dpscope.analysis.traces.ranks.whole_steps import whole_steps
from dpscope.analysis.traces.reading.event_table import FloatColumn
from dpscope.analysis.traces.reading.table import UNKNOWN, Table, without_rows
from dpscope.profiling.records.finding import Finding, counted
from dpscope.profiling.records.trace_codes import TraceCode


def rank_places(summaries: Sequence[TraceSummary]) -> Table:
    """A row for each known rank: `rank`, `host`, `local_rank`; NA if unknown.

    The host is the one in the trace, else the one that reduced it locally. torchrun numbers ranks
    node by node, so the local rank is the rank modulo the ranks per node if each host holds one
    such block; else the position among its host's ranks.
    """
    numbered = [summary for summary in summaries if summary.rank is not None]
    table = Table.of(
        rank=[place.rank for place in numbered],
        host=[place.host or place.read_on for place in numbered],
        local_rank=[None] * len(numbered),
    )
    table = table.take(table.group("rank").first)
    rows = np.flatnonzero(table.known("host"))
    rows = rows[np.argsort(table["rank"][rows], kind="stable")]
    placed = table.take(rows)
    of_host = placed.group("host")
    most = int(of_host.sizes.max(initial=1))
    blocks = placed.assign(block=placed["rank"] // most)
    pairs = blocks.group("host", "block")
    aligned = len(pairs) == len(of_host) == len(blocks.group("block"))
    local_rank = table["local_rank"].copy()
    local_rank[rows] = placed["rank"] % most if aligned else of_host.places
    return table.assign(local_rank=local_rank)


QUANTITIES = {
    "step_us": "step",
    "compute_us": "compute",
    "communication_us": "communication",
    "exposed_us": "exposed",
    "wait_us": "waits, hidden too",
    "exposed_wait_us": "exposed waiting",
    "idle_us": "idle",
    "lateness_us": "others wait for it, hidden too",
}
"""Means over a rank's whole steps, and what tables call them.

`lateness_us` is how long another rank waits for it in a step, mean over the others.
"""

FOLDS = ("host", "local_rank")
_FAR = 6.0  # median absolute deviations above the median, beyond which a rank is an outlier


@dataclass(frozen=True)
class RankSpread:
    """A quantity over ranks in microseconds; `far` counts ranks more than _FAR median absolute
    deviations above the median.
    """

    quantity: str
    ranks: int
    median_us: float
    low_us: float  # 5%
    high_us: float  # 95%
    worst_us: float
    worst_rank: int
    far: int


def rank_means(analysis: Job) -> Table:
    """`rank` and QUANTITIES of each known rank: means over whole windows, or over all if none is
    whole.
    """
    steps = analysis.tables.steps
    chosen = whole_steps(steps.with_known("rank"))
    ranks = chosen.group("rank", in_order=True)
    means = chosen.take(ranks.first).select(("rank",))
    for name in chosen.present(*QUANTITIES):
        means = means.assign(**{name: ranks.means(chosen[name])})
    if not analysis.tables.collectives.known("wait_us").any():
        return means.assign(lateness_us=None)
    lateness_us = _of_late_ranks(analysis.waits_caused, "wait_per_step_us", means)
    return means.assign(lateness_us=lateness_us / max(len(means) - 1, 1))


def _of_late_ranks(caused: Table, column: str, ranks: Table) -> FloatColumn:
    """For each row of `ranks`, the sum of a column of `waits_by_pair` over the rows in which its
    rank is the late one.
    """
    late = caused.group("late_rank")
    late_ranks = Table.of(rank=caused["late_rank"][late.first])
    return np.append(late.sums(caused[column]), 0.0)[ranks.places_in(late_ranks, ("rank",))]


def spreads(means: Table) -> list[RankSpread]:
    """The spread of each quantity in `rank_means` that is known for any rank."""
    by_quantity = []
    for name in QUANTITIES:
        measured = means.with_known(name)
        if not len(measured):
            continue
        values = measured[name]
        median = float(np.median(values))
        deviation = float(np.median(np.abs(values - median)))
        far = values > median + _FAR * deviation
        low, high = np.quantile(values, (0.05, 0.95)).tolist()
        spread = RankSpread(
            quantity=name,
            ranks=len(values),
            median_us=median,
            low_us=low,
            high_us=high,
            worst_us=float(values.max()),
            worst_rank=int(measured["rank"][values.argmax()]),
            far=int(far.sum()),
        )
        by_quantity.append(spread)
    return by_quantity


def fold(analysis: Job, means: Table, places: Table, by: str) -> Table:
    """Waiting by one of FOLDS, a row each, largest cause first: `ranks`, `wait_us`, `caused_share`;
    empty without waits.

    `wait_us` is the mean wait of its ranks in a step, `caused_share` the part of all waiting that
    its ranks cause, 0..1.
    """
    placed = places.with_known(by)
    caused = analysis.waits_caused
    if not len(caused):
        placed = without_rows(placed.names)
    groups = placed.group(by, in_order=True)
    rank_places = placed.places_in(means, ("rank",))
    wait_us = np.append(means["wait_us"], np.nan)[rank_places]
    caused_share = _of_late_ranks(caused, "wait_share", placed)
    folded = placed.take(groups.first).select((by,))
    folded = folded.assign(
        ranks=groups.sizes, wait_us=groups.means(wait_us), caused_share=groups.sums(caused_share)
    )
    return folded.take(np.argsort(-folded["caused_share"], kind="stable"))


def with_host_findings(analysis: Job, places: Table) -> Job:
    """The analysis with findings about its hosts and missing ranks after its others."""
    return analysis.with_findings(*_missing(analysis), *_node(analysis, places))


def _missing(analysis: Job) -> Iterator[Finding]:
    world_size = analysis.world_size
    ranks = [summary.rank for summary in analysis.summaries]
    missing = missing_ranks(ranks, world_size)
    if not missing or world_size is None or len(ranks) < 2:
        return
    read = world_size - len(missing)
    read_of = f"{read:,} of {counted(world_size, 'rank')}"
    waits = "collectives that include missing ranks have no transfer and no wait"
    if read >= ENOUGH_RANKS * world_size:
        waits = (
            f"transfer and waiting of the whole group are computed from {read_of}, and transfer is an upper "
            "bound"
        )
    yield TraceCode.RANKS_MISSING.finding(
        f"{read_of} were read, missing: {as_ranges(missing)}; {waits}"
    )


def _node(analysis: Job, places: Table) -> Iterator[Finding]:
    """Only for jobs on several hosts."""
    caused, placed = analysis.waits_caused, places.with_known("host")
    hosts = placed.group("host", in_order=True)
    if not len(caused) or len(hosts) < 2:
        return
    host_of = dict(zip(placed["rank"].tolist(), hosts.code.tolist(), strict=True))
    last = last_place(analysis.step_collectives, host_of)
    if last is None or not last.stands_out or last.rank == UNKNOWN:
        return
    host, shares = last.rank, _of_late_ranks(caused, "wait_share", placed)
    share = float(hosts.sums(shares)[host])
    of_host = np.where(hosts.code == host, shares, -1.0)
    (worst,) = placed.take(np.array([of_host.argmax()])).records()
    of_worst = show_share(of_host.max() / share)
    yield TraceCode.WAITING_FOR_NODE.finding(
        f"node {worst['host']} causes {show_share(share)} of all waiting; {of_worst} of that is "
        f"for its local rank {worst['local_rank']} (rank {worst['rank']}){'' if last.significant else f'; {last.doubt}'}"
    )
