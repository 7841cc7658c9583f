"""The tables of a job's records, by kind, rank, host and time; all outputs loop over VIEWS."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpscope.analysis.costs.formulas import bus_factor, ring_us
from dpscope.analysis.text.text_table import Field, TextTable, table_of
from dpscope.analysis.text.units import NA, as_ranges, plain
from dpscope.analysis.whole_job.summary import Summary
from dpscope.analysis.whole_job.waiting import BINS, Row
from dpscope.profiling.records.finding import grouped
from dpscope.profiling.records.links import LinkRate

TableRow = dict[str, Any]  # a value for each column, None where it is missing


def kind_rows(summary: Summary) -> list[TableRow]:
    """Collectives by kind, group and size, the longest in sum first: means over the matched ones;
    of the durations over all records.
    """
    found = summary.waiting
    matched, records = found.matched, found.records
    rows = len(found.rows)
    count = np.bincount(matched.row, minlength=rows)
    transfer_us = np.bincount(matched.row, matched.transfer_us, minlength=rows)
    wait_us = np.bincount(matched.row, matched.wait_us / matched.ranks, minlength=rows)
    table = []
    for place in np.lexsort((-records.count, -records.duration_us)):
        row = found.rows[place]
        matches = int(count[place])
        timed = int(records.timed[place])
        entry = {
            "kind": row.kind,
            "group": row.group,
            "ranks": row.size,
            "hosts": row.hosts,
            "bytes": row.bytes,
            "records": int(records.count[place]),
            "collectives": matches if found.counts.matched else None,
            "duration_us": records.duration_us[place] / timed if timed else None,
            "transfer_us": None,
            "wait_us": None,
        }
        if found.timed and matches:
            entry["transfer_us"] = transfer_us[place] / matches
            entry["wait_us"] = wait_us[place] / matches
        table.append(entry | _speed(row, entry["transfer_us"], summary.link))
    return table


def _speed(row: Row, transfer_us: float | None, link: LinkRate | None) -> TableRow:
    """Bandwidths, and how near they are to the ring formula's."""
    speed: TableRow = dict.fromkeys(("algbw_gb_per_s", "busbw_gb_per_s", "ring_share"))
    if not transfer_us or row.bytes is None:
        return speed
    algbw = row.bytes / transfer_us / 1e3
    speed["algbw_gb_per_s"] = algbw
    factor = bus_factor(row.kind, row.size)
    if factor is not None:
        speed["busbw_gb_per_s"] = algbw * factor
    bound_us = None if link is None else ring_us(row.kind, row.bytes, row.size, link.gb_per_s)
    if bound_us is not None:
        speed["ring_share"] = bound_us / transfer_us
    return speed


def rank_rows(summary: Summary) -> list[TableRow]:
    """Ranks over the whole time, the one that the others waited for most first; none where nothing
    shows a difference. Times are None unless durations are known, and all but the sum of these
    unless collectives were matched.
    """
    found, job = summary.waiting, summary.job
    if not found.timed and not found.counts.matched:
        return []
    times = {
        "communication_us": found.duration_us,
        "transfer_us": found.transfer_us,
        "wait_us": found.wait_us.sum(axis=1),
        "caused_us": found.others,
        "caused_share": found.caused_share,
        "shorter_us": found.lateness_us,
    }
    key = found.others if found.timed else found.last_count
    rows = []
    for place in np.argsort(-key, kind="stable"):
        row: TableRow = {
            "rank": job.ranks[place],
            "host": job.hosts[place],
            "records": len(job.processes[place]),
            "last": int(found.last_count[place]) if found.counts.matched else None,
            "lateness_us": found.typical_lateness_us(place),
        }
        for name, column in times.items():
            known = summary.measured or (found.timed and name == "communication_us")
            row[name] = plain(column[place]) if known else None
        rows.append(row)
    return rows


def waiting_rows(summary: Summary) -> list[TableRow]:
    """Ranks that wait in the same call, those first that wait for a rank which waits in nothing."""
    if summary.unfinished is None:
        return []
    return [
        {
            "ranks": list(waiting.ranks),
            "unfinished": list(waiting.records),
            "oldest": waiting.oldest.name,
            "group": waiting.oldest.call.group.name,
            "group_ranks": list(waiting.oldest.call.group.ranks),
            "waits_for": list(waiting.oldest.awaited),
        }
        for waiting in summary.unfinished.waiting
    ]


def host_rows(summary: Summary) -> list[TableRow]:
    """What the ranks of each host wait, on average, and what they cause; the most first."""
    found = summary.waiting
    if not summary.measured or len(set(summary.job.hosts)) < 2:
        return []
    wait_us = found.wait_us.sum(axis=1)
    rows: list[TableRow] = []
    by_host = grouped((host, place) for place, host in enumerate(summary.job.hosts))
    for host, places in by_host.items():
        row = {
            "host": host,
            "ranks": len(places),
            "wait_us": float(wait_us[places].mean()),
            "caused_us": float(found.others[places].sum()),
            "caused_share": plain(found.caused_share[places].sum()),
        }
        rows.append(row)
    return sorted(rows, key=lambda row: -row["caused_us"])


def time_rows(summary: Summary) -> list[TableRow]:
    """Equal parts of the time: the mean wait of a rank, and the rank that caused most of it."""
    found = summary.waiting
    if not (summary.measured and summary.span_us):
        return []
    rows = []
    for part, limits in enumerate(_parts(summary)):
        caused_us = found.caused_us[:, part]
        worst = int(caused_us.argmax())
        row: TableRow = {
            **limits,
            "wait_us": float(found.wait_us[:, part].mean()),
            "late_rank": None,
            "late_share": None,
        }
        if caused_us[worst]:
            row["late_rank"] = summary.job.ranks[worst]
            row["late_share"] = float(caused_us[worst] / caused_us.sum())
        rows.append(row)
    return rows


def rank_time_rows(summary: Summary) -> list[TableRow]:
    """A row for each rank and part of the time, for CSV and JSON."""
    found, job = summary.waiting, summary.job
    if not summary.measured:
        return []
    rows = []
    for place, rank in enumerate(job.ranks):
        for part, limits in enumerate(_parts(summary)):
            wait_us, caused_us = found.wait_us[place, part], found.caused_us[place, part]
            rows.append(
                {
                    "rank": rank,
                    "host": job.hosts[place],
                    **limits,
                    "wait_us": float(wait_us),
                    "caused_us": float(caused_us),
                }
            )
    return rows


def _parts(summary: Summary) -> list[TableRow]:
    """Where each part of the time begins and ends, seconds from the first record."""
    edges = summary.waiting.bin_edges_s.tolist()
    return [{"from_s": edges[part], "to_s": edges[part + 1]} for part in range(BINS)]


_KINDS = (
    Field("kind", "kind", meaning="The collective"),
    Field("group", "group", meaning="Its process group, by description, or its communicator"),
    Field("ranks", "ranks", meaning="Of the group"),
    Field("hosts", "hosts", meaning="On which the group runs"),
    Field(
        "bytes",
        "bytes",
        meaning="The larger of a rank's buffers; all-to-alls without durations are of any size",
        text=lambda row: NA if row["bytes"] is None else f"{row['bytes']:,}",
    ),
    Field("records", "records", meaning="Of all ranks together"),
    Field("matched", "collectives", meaning="Collectives found on all ranks of the group"),
    Field("duration", "duration_us", "time", "Mean of all records that have one"),
    Field("transfer", "transfer_us", "time", "Mean; the shortest duration over the ranks"),
    Field("wait", "wait_us", "time", "Mean over ranks; the rest of a rank's duration"),
    Field("algbw", "algbw_gb_per_s", "bandwidth", "Bytes over transfer"),
    Field("busbw", "busbw_gb_per_s", "bandwidth", "algbw times nccl-tests' factor"),
    Field(
        "ring bound", "ring_share", "share", "The ring formula's time at --link over the transfer"
    ),
)
_WAITING = (
    Field("ranks", "ranks", text=lambda row: as_ranges(row["ranks"])),
    Field(
        "unfinished",
        "unfinished",
        meaning="Calls that each of these ranks began and that did not end",
        text=lambda row: as_ranges(sorted({*row["unfinished"]})),
    ),
    Field("oldest call", "oldest", meaning="With its number; a transfer with sender and receiver"),
    Field("its ranks", "group_ranks", text=lambda row: as_ranges(row["group_ranks"])),
    Field(
        "waits for",
        "waits_for",
        meaning="Members that never began it, or left no record; none: all take part in it",
        text=lambda row: as_ranges(row["waits_for"]) or "none",
    ),
)
_RANKS = (
    Field("rank", "rank"),
    Field("host", "host"),
    Field("communication", "communication_us", "time", "Sum of the durations of its collectives"),
    Field("transfer", "transfer_us", "time", "Sum over matched collectives"),
    Field("waits", "wait_us", "time", "Sum over matched collectives"),
    Field("makes wait", "caused_us", "time", "What all other ranks together waited for it"),
    Field("share", "caused_share", "share", "Of all waiting"),
    Field("last in", "last", meaning="Collectives to which it came last"),
    Field(
        "late by",
        "lateness_us",
        "time",
        "Median of its larger delays, from a quarter of their 95% quantile",
    ),
    Field("job shorter by", "shorter_us", "time", "At most, without its lateness"),
)
_HOSTS = (
    Field("host", "host"),
    Field("ranks", "ranks"),
    Field("waits", "wait_us", "time", "Mean over its ranks"),
    Field("makes wait", "caused_us", "time", "What all ranks together waited for its ranks"),
    Field("share", "caused_share", "share", "Of all waiting"),
)
_TIMES = (
    Field("from [s]", "from_s", text=lambda row: f"{row['from_s']:.1f}"),
    Field("to [s]", "to_s", text=lambda row: f"{row['to_s']:.1f}"),
    Field("waits", "wait_us", "time", "Mean over ranks, sum over collectives"),
    Field("late rank", "late_rank", meaning="The one that the others waited for most"),
    Field("its share", "late_share", "share", "Of the waiting in this time"),
)
_MOST_ROWS = 40
_SUM_NOTE = "sums over collectives: of those in flight together each counts"


@dataclass(frozen=True)
class View:
    """A table: the section of the page that it stands in, its rows and their columns."""

    section: str
    title: str
    fields: Sequence[Field]
    rows: Callable[[Summary], Sequence[TableRow]]
    note: str = ""

    def table(self, summary: Summary) -> TextTable:
        """Without columns that have no value in any row, and with at most _MOST_ROWS rows."""
        rows = self.rows(summary)
        kept = [field for field in self.fields if any(field.value(row) is not None for row in rows)]
        notes = [self.note] if self.note else []
        left = len(rows) - _MOST_ROWS
        if left > 0:
            notes.append(f"and {left:,} more: --format json")
        return table_of(self.title, kept, rows[:_MOST_ROWS], notes)


VIEWS = {
    "unfinished": View("waiting", "What ranks wait in", _WAITING, waiting_rows),
    "kind": View(
        "bandwidth",
        "Collectives by kind, group and size",
        _KINDS,
        kind_rows,
        "bytes: the larger of a rank's buffers; NA where a row has all-to-alls of any size",
    ),
    "rank": View("waiting", "Ranks over the whole time", _RANKS, rank_rows, _SUM_NOTE),
    "host": View("waiting", "Waiting by host", _HOSTS, host_rows),
    "time": View(
        "waiting",
        "Waiting over time",
        _TIMES,
        time_rows,
        f"{_SUM_NOTE}; times of NCCL Inspector are those at which it wrote",
    ),
}


def tables_of(summary: Summary) -> dict[str, TextTable]:
    """The tables with rows, by name."""
    made = {name: view.table(summary) for name, view in VIEWS.items()}
    return {name: table for name, table in made.items() if table.rows}
