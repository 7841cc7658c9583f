"""What is printed of more ranks than a table holds: their spread, and waiting by host, local rank and switch."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import msgspec

from dpscope.analysis.bundle.anonymous import Anonymizer
from dpscope.analysis.hosts.folds import FOLDS, RankSpread, fold, rank_means, spreads, with_host_findings
from dpscope.analysis.hosts.topology import rank_places, read_topology
from dpscope.analysis.text.text_table import TextTable
from dpscope.analysis.text.units import Unit, choose_unit, show, text
from dpscope.analysis.traces.ranks.timeline import MOST_TO_DRAW
from dpscope.analysis.traces.ranks.trace_analysis import TraceAnalysis
from dpscope.analysis.traces.reading.table import Table
from dpscope.profiling.records.finding import counted

_SHOWN = 10  # rows of a fold; the JSON has them all
_SHARE = Unit("%", 0.01, 1)
_NAMES = {
    "step_us": "step",
    "compute_us": "compute",
    "communication_us": "communication",
    "exposed_us": "exposed",
    "wait_us": "waits for others",
    "exposed_wait_us": "exposed waiting",
    "idle_us": "idle",
    "lateness_us": "others wait for it",
}
_FOLD_NAMES = {"host": "host", "local_rank": "local rank", "switch": "switch"}


@dataclass(frozen=True)
class HostOptions:
    """`topology` names a file of hosts and their switches; `hide_hosts` replaces host names by numbers in all output."""

    topology: Path | None = None
    hide_hosts: bool = False


@dataclass(frozen=True)
class Folded:
    """A job's ranks in few numbers."""

    places: Table
    spreads: list[RankSpread]
    folds: Mapping[str, Table]  # of FOLDS, those with rows


def placed(analysis: TraceAnalysis, options: HostOptions) -> tuple[TraceAnalysis, Table]:
    """The analysis with findings about its hosts, and where its ranks run; hosts are numbered if that is requested."""
    places = rank_places(analysis.summaries, read_topology(options.topology) if options.topology is not None else {})
    if options.hide_hosts:
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


def spread_tables(found: Folded) -> list[TextTable]:
    """Ranks by their spread, then waiting by host, local rank and switch."""
    return [_spread_table(found), *(_fold_table(by, table) for by, table in found.folds.items())]


def folded_content(found: Folded) -> dict[str, object]:
    """The same as plain data: `spreads`, and `by_host`, `by_local_rank`, `by_switch`."""
    folds = {f"by_{by}": table.records() for by, table in found.folds.items()}
    return {"spreads": [asdict(one) for one in found.spreads], **folds}


def _spread_table(found: Folded) -> TextTable:
    unit = choose_unit("time", [one.median_us for one in found.spreads])
    places = {row["rank"]: row for row in found.places.records()}
    rows = []
    for one in found.spreads:
        values = (one.median_us, one.low_us, one.high_us, one.worst_us)
        rows.append(
            (
                _NAMES[one.quantity],
                *(show(value, unit) for value in values),
                _place(places[one.worst_rank]),
                str(one.far),
            )
        )
    headings = (f"{name} [{unit.label}]" for name in ("median", "5%", "95%", "worst"))
    ranks = max((one.ranks for one in found.spreads), default=0)
    return TextTable(
        f"{counted(ranks, 'rank')} (means over each rank's steps)",
        ("", *headings, "worst is", "far out"),
        tuple(rows),
        ("far out: ranks more than six median absolute deviations above the median",),
    )


def _place(place: Mapping[str, object]) -> str:
    where = "" if place["host"] is None else f" ({place['host']}, local {place['local_rank']})"
    return f"rank {place['rank']}{where}"


def _fold_table(by: str, table: Table) -> TextTable:
    unit = choose_unit("time", table["wait_us"].tolist())
    rows: tuple[tuple[str, ...], ...] = tuple(
        (text(row[by]), f"{row['ranks']}", show(row["wait_us"], unit), show(row["caused_share"], _SHARE))
        for row in table.records()[:_SHOWN]
    )
    left = len(table) - len(rows)
    name = _FOLD_NAMES[by]
    return TextTable(
        f"Waiting by {name}",
        (name, "ranks", f"waits [{unit.label}]", "causes [%]"),
        rows,
        (
            *((f"and {left} more, which cause less",) if left else ()),
            "waits: mean per rank and step; causes: the share of all waiting in the job that is for its ranks",
        ),
    )


def _hidden(analysis: TraceAnalysis, places: Table) -> tuple[TraceAnalysis, Table]:
    """Hosts by number, also in the names of files and in findings."""
    names = [host for one in analysis.summaries for host in (one.host, one.read_on)]
    hosts = list(dict.fromkeys(host for host in names if host is not None))
    without_names = Anonymizer(hosts).text
    numbers = {host: without_names(host) for host in hosts}
    summaries = tuple(
        replace(
            one,
            host=None if one.host is None else numbers[one.host],
            read_on=None if one.read_on is None else numbers[one.read_on],
            source=without_names(one.source),
        )
        for one in analysis.summaries
    )
    file_findings, job_findings = (
        tuple(
            msgspec.structs.replace(one, message=without_names(one.message), next_step=without_names(one.next_step))
            for one in found
        )
        for found in (analysis.file_findings, analysis.job_findings)
    )
    drawn = tuple(
        replace(one, host=None if one.host is None else without_names(one.host)) for one in analysis.timelines
    )
    hidden = replace(analysis, summaries=summaries, timelines=drawn)
    hidden = replace(hidden, file_findings=file_findings, job_findings=job_findings)
    return hidden, places.assign(
        host=[None if host is None else numbers[host] for host in places.words("host").tolist()]
    )
