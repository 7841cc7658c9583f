"""What is said of a job of many hosts: which node the others wait for, and which ranks are missing."""

from collections.abc import Iterator
from dataclasses import replace

import pandas as pd

from dpscope.analysis.text.units import as_ranges
from dpscope.analysis.traces.ranks.matching import ENOUGH_RANKS
from dpscope.analysis.traces.ranks.not_split import missing_ranks
from dpscope.analysis.traces.ranks.trace_analysis import TraceAnalysis
from dpscope.profiling.records.finding import Finding, counted
from dpscope.profiling.records.trace_codes import TraceCode

_MUCH = 0.3  # of all waiting, from which on a node is named for it


def with_host_findings(analysis: TraceAnalysis, places: pd.DataFrame) -> TraceAnalysis:
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


def _node(analysis: TraceAnalysis, places: pd.DataFrame) -> Iterator[Finding]:
    """Of jobs on several hosts alone."""
    caused = analysis.waits_caused
    if caused.empty or places["host"].nunique() < 2:
        return
    by_rank = caused.groupby("late_rank")["share"].sum().astype("float64")
    shares = places.assign(share=places["rank"].map(by_rank).astype("float64").fillna(0.0))
    by_host = shares.groupby("host")["share"].sum()
    host, share = str(by_host.idxmax()), float(by_host.max())
    if share < _MUCH:
        return
    own = shares[shares["host"] == host].sort_values("share", ascending=False, kind="stable").iloc[0]
    yield TraceCode.WAITING_FOR_NODE.finding(
        f"node {host} causes {share:.0%} of all waiting; {own['share'] / share:.0%} of that is for its local rank "
        f"{own['local_rank']} (rank {own['rank']})"
    )
