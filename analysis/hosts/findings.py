"""What is said of a job of many hosts: which node the others wait for, and which ranks are missing."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from dpscope.analysis.hosts.folds import caused_shares
from dpscope.analysis.text.units import as_ranges
from dpscope.analysis.traces.ranks.exposed_parts import missing_ranks
from dpscope.analysis.traces.ranks.matching import ENOUGH_RANKS
from dpscope.analysis.traces.ranks.trace_analysis import TraceAnalysis
from dpscope.analysis.traces.reading.table import Table
from dpscope.profiling.records.finding import Finding, counted
from dpscope.profiling.records.trace_codes import TraceCode

_MUCH = 0.3  # of all waiting, from which on a node is named for it


def with_host_findings(analysis: TraceAnalysis, places: Table) -> TraceAnalysis:
    """The analysis with what is said of its hosts and its missing ranks, first of all findings of the job."""
    found = (*_missing(analysis), *_node(analysis, places))
    return replace(analysis, job_findings=(*found, *analysis.job_findings))


def _missing(analysis: TraceAnalysis) -> Iterator[Finding]:
    sizes = {one.parallelism.world_size for one in analysis.summaries} - {None}
    world_size = max((size for size in sizes if size is not None), default=None)
    missing = missing_ranks([one.rank for one in analysis.summaries], world_size)
    if not missing or world_size is None or len(analysis.summaries) < 2:
        return
    read = world_size - len(missing)
    waits = (
        f"transfer and waiting of the whole group are computed from {read:,} of {counted(world_size, 'rank')}, and "
        "transfer is an upper bound"
        if read >= ENOUGH_RANKS * world_size
        else "collectives that they take part in have no transfer and no wait"
    )
    yield TraceCode.RANKS_MISSING.finding(
        f"{read:,} of {counted(world_size, 'rank')} were read, missing: {as_ranges(missing)}; {waits}"
    )


def _node(analysis: TraceAnalysis, places: Table) -> Iterator[Finding]:
    """Of jobs on several hosts alone."""
    caused, placed = analysis.tables.waits_caused, places.take(places.known("host"))
    hosts = placed.group("host", in_order=True)
    if not len(caused) or len(hosts) < 2:
        return
    shares = caused_shares(caused, placed)
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
