"""What is printed of more ranks than a table holds: their spread, and waiting by host, local rank and switch."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from types import MappingProxyType
from typing import Any

import msgspec

from dpscope.analysis.bundle.anonymous import Anonymizer
from dpscope.analysis.hosts.places import (
    FOLDS,
    RankSpread,
    fold,
    rank_means,
    rank_places,
    spreads,
    with_host_findings,
)
from dpscope.analysis.text.text_table import Field, TextTable, table_of
from dpscope.analysis.traces.ranks.timeline import MOST_TO_DRAW
from dpscope.analysis.traces.ranks.trace_analysis import TraceAnalysis
from dpscope.analysis.traces.reading.table import Table
from dpscope.profiling.records.finding import Finding, counted

_FAR_OUT = "far out: ranks more than six median absolute deviations above the median"
_SHOWN = 10  # rows of a fold; the JSON has them all
_NAMES = {
    "step_us": "step", "compute_us": "compute", "communication_us": "communication", "exposed_us": "exposed",
    "wait_us": "waits for others", "exposed_wait_us": "exposed waiting", "idle_us": "idle",
    "lateness_us": "others wait for it",
}  # fmt: skip


@dataclass(frozen=True)
class Folded:
    """A job's ranks in few numbers."""

    places: Table
    spreads: list[RankSpread]
    folds: Mapping[str, Table]  # of FOLDS, those with rows


def placed(
    analysis: TraceAnalysis, switches: Mapping[str, str] = MappingProxyType({}), hide_hosts: bool = False
) -> tuple[TraceAnalysis, Table]:
    """The analysis with findings about its hosts, and where its ranks run; with `hide_hosts` hosts are numbered in all of it."""
    places = rank_places(analysis.summaries, switches)
    if hide_hosts:
        analysis, places = _hidden(analysis, places)
    return with_host_findings(analysis, places), places


def is_many(analysis: TraceAnalysis) -> bool:
    """Whether ranks are shown by their spread and not one by one."""
    return len(analysis.summaries) > MOST_TO_DRAW


def fold_ranks(analysis: TraceAnalysis, places: Table) -> Folded:
    """The numbers of `spread_tables`."""
    means = rank_means(analysis)
    folds = {by: fold(analysis, means, places, by) for by in FOLDS}
    return Folded(places, spreads(means), {by: table for by, table in folds.items() if len(table)})


def folded_content(found: Folded) -> dict[str, list[Any]]:
    """The same as plain data: `spreads`, and `by_host`, `by_local_rank`, `by_switch`."""
    folds = {f"by_{by}": table.records() for by, table in found.folds.items()}
    return {"spreads": [asdict(one) for one in found.spreads], **folds}


def spread_tables(found: Folded) -> list[TextTable]:
    """Ranks by their spread, then waiting by host, local rank and switch."""
    places = {row["rank"]: row for row in found.places.records()}

    def worst(one: RankSpread) -> str:
        place = places[one.worst_rank]
        where = "" if place["host"] is None else f" ({place['host']}, local {place['local_rank']})"
        return f"rank {place['rank']}{where}"

    fields = (
        Field("", lambda one: _NAMES[one.quantity]),
        Field("median", "median_us", "time"),
        Field("5%", "low_us", "time"),
        Field("95%", "high_us", "time"),
        Field("worst", "worst_us", "time"),
        Field("worst is", worst),
        Field("far out", "far"),
    )
    ranks = counted(max((one.ranks for one in found.spreads), default=0), "rank")
    notes, times = [_FAR_OUT], [one.median_us for one in found.spreads]
    spread = table_of(f"{ranks} (means over each rank's steps)", fields, found.spreads, notes, times=times)
    return [spread, *(_fold_table(by, table) for by, table in found.folds.items())]


def _fold_table(by: str, table: Table) -> TextTable:
    name, left = by.replace("_", " "), len(table) - _SHOWN
    fields = (
        Field(name, by),
        Field("ranks", "ranks"),
        Field("waits", "wait_us", "time"),
        Field("causes", "caused_share", "share"),
    )
    notes = [f"and {left} more, which cause less"] if left > 0 else []
    notes.append("waits: mean per rank and step; causes: the share of all waiting in the job that is for its ranks")
    return table_of(f"Waiting by {name}", fields, table.records()[:_SHOWN], notes, times=table["wait_us"].tolist())


def _hidden(analysis: TraceAnalysis, places: Table) -> tuple[TraceAnalysis, Table]:
    """Hosts by number, also in the names of files and in findings."""
    names = [host for one in analysis.summaries for host in (one.host, one.read_on)]
    without_names = Anonymizer(list(dict.fromkeys(host for host in names if host is not None))).text

    def numbered(host: str | None) -> str | None:
        return None if host is None else without_names(host)

    def renamed(one: Finding) -> Finding:
        return msgspec.structs.replace(one, message=without_names(one.message), next_step=without_names(one.next_step))

    summaries = (
        replace(one, host=numbered(one.host), read_on=numbered(one.read_on), source=without_names(one.source))
        for one in analysis.summaries
    )
    hidden = replace(
        analysis,
        summaries=tuple(summaries),
        timelines=tuple(replace(one, host=numbered(one.host)) for one in analysis.timelines),
        file_findings=tuple(map(renamed, analysis.file_findings)),
        job_findings=tuple(map(renamed, analysis.job_findings)),
    )
    return hidden, places.assign(host=[numbered(host) for host in places.words("host").tolist()])
