"""The tables of a job's records, by kind, rank, host and time; all outputs loop over VIEWS."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from dpscope.analysis.costs.formulas import bus_factor, ring_us
from dpscope.analysis.text.text_table import Field, TextTable, table_of
from dpscope.analysis.text.units import NA, as_ranges
from dpscope.analysis.whole_job.summary import Summary, late_ranks
from dpscope.analysis.whole_job.waiting import BINS, Row


@dataclass(frozen=True)
class KindRow:
    """Collectives of one kind, group and size: means over matched collectives."""

    kind: str
    group: str
    ranks: int
    hosts: int | None
    bytes: int | None
    records: int
    collectives: int | None
    duration_us: float | None  # of all records, matched or not
    transfer_us: float | None
    wait_us: float | None
    algbw_gb_per_s: float | None
    busbw_gb_per_s: float | None
    ring_share: float | None  # the ring formula's time over the transfer, at the stated link
    total_us: float  # mean over ranks of the transfer and wait of all of them


@dataclass(frozen=True)
class RankRow:
    """One rank, over the whole time."""

    rank: int
    host: str | None
    records: int
    communication_us: float | None
    transfer_us: float | None
    wait_us: float | None
    caused_us: float | None  # that the other ranks waited for it, in sum
    caused_share: float | None
    last: int | None
    lateness_us: float | None  # typical, where it was last
    saved_us: float | None  # the others' waiting that its lateness alone causes
    shorter_us: float | None  # the job, at most


def kind_rows(summary: Summary) -> list[KindRow]:
    """The longest in sum first."""
    found = summary.waiting
    timed = found.basis == "durations"
    rows = []
    for place, row in enumerate(found.rows):
        count = int(found.count[place])
        records = int(found.row_records[place])
        transfer_us = found.row_transfer_us[place] / count if count and timed else None
        duration_us = found.row_duration_us[place]
        rows.append(
            KindRow(
                kind=row.kind,
                group=row.group,
                ranks=row.size,
                hosts=row.hosts,
                bytes=row.bytes,
                records=records,
                collectives=count if found.counts.matched else None,
                duration_us=duration_us / records if duration_us else None,
                transfer_us=transfer_us,
                wait_us=found.row_wait_us[place] / count if count and timed else None,
                algbw_gb_per_s=_rate(row, transfer_us, 1.0),
                busbw_gb_per_s=_rate(row, transfer_us, bus_factor(row.kind, row.size)),
                ring_share=_ring_share(summary, row, transfer_us),
                total_us=float(duration_us),
            )
        )
    return sorted(rows, key=lambda summed: (-summed.total_us, -summed.records))


def _rate(row: Row, transfer_us: float | None, factor: float | None) -> float | None:
    if row.bytes is None or not transfer_us or factor is None:
        return None
    return row.bytes * factor / transfer_us / 1e3


def _ring_share(summary: Summary, row: Row, transfer_us: float | None) -> float | None:
    if summary.link is None or row.bytes is None or not transfer_us:
        return None
    bound_us = ring_us(row.kind, row.bytes, row.size, summary.link.gb_per_s)
    return None if bound_us is None else bound_us / transfer_us


def rank_rows(summary: Summary) -> list[RankRow]:
    """The rank that the others waited for most first; none where nothing shows a difference."""
    found, job = summary.waiting, summary.job
    timed = found.basis == "durations"
    if not timed and not found.counts.matched:
        return []
    total_us = float(found.others.sum())
    rows = []
    for place in late_ranks(found):
        rows.append(
            RankRow(
                rank=job.ranks[place],
                host=job.hosts[place],
                records=len(job.processes[place]),
                communication_us=float(found.duration_us[place]) if timed else None,
                transfer_us=float(found.transfer_us[place]) if timed else None,
                wait_us=float(found.wait_us[place].sum()) if timed else None,
                caused_us=float(found.others[place]) if timed else None,
                caused_share=float(found.others[place]) / total_us if timed and total_us else None,
                last=int(found.last_count[place]),
                lateness_us=found.typical_lateness_us(place),
                saved_us=float(found.saved_us[place]) if timed else None,
                shorter_us=float(found.lateness_us[place]) if timed else None,
            )
        )
    return rows


def waiting_rows(summary: Summary) -> list[dict[str, object]]:
    """Ranks that wait in the same collective, in that of the oldest first."""
    waiting = () if summary.unfinished is None else summary.unfinished.waiting
    return [
        {
            "ranks": list(one.ranks),
            "unfinished": one.records,
            "oldest": f"{one.call.kind or one.call.name} {one.number}",
            "group": one.call.group.name,
            "group_ranks": list(one.call.group.ranks),
        }
        for one in waiting
    ]


def host_rows(summary: Summary) -> list[dict[str, object]]:
    """What the ranks of each host wait, on average, and what they cause."""
    found, hosts = summary.waiting, summary.job.hosts
    total_us = float(found.others.sum())
    if found.basis != "durations" or len(set(hosts)) < 2:
        return []
    rows: list[dict[str, object]] = []
    for host in sorted({name for name in hosts if name is not None}):
        places = [place for place, one in enumerate(hosts) if one == host]
        rows.append(
            {
                "host": host,
                "ranks": len(places),
                "wait_us": float(found.wait_us[places].sum()) / len(places),
                "caused_us": float(found.others[places].sum()),
                "caused_share": float(found.others[places].sum()) / total_us if total_us else None,
            }
        )
    return sorted(rows, key=lambda row: -float(str(row["caused_us"])))


def time_rows(summary: Summary) -> list[dict[str, object]]:
    """Equal parts of the time: the mean wait of a rank, and the rank that caused most of it."""
    found, job = summary.waiting, summary.job
    if found.basis != "durations" or found.span_ns[1] <= found.span_ns[0]:
        return []
    edges = found.bin_edges_s
    wait_us = found.wait_us.mean(axis=0)
    caused_us = found.caused_us.sum(axis=0)
    worst = found.caused_us.argmax(axis=0)
    return [
        {
            "from_s": float(edges[part]),
            "to_s": float(edges[part + 1]),
            "wait_us": float(wait_us[part]),
            "late_rank": job.ranks[worst[part]] if caused_us[part] else None,
            "late_share": float(found.caused_us[worst[part], part] / caused_us[part])
            if caused_us[part]
            else None,
        }
        for part in range(BINS)
    ]


def place_rows(summary: Summary) -> list[dict[str, object]]:
    """Matched collectives of groups on one host and on several, where hosts are known."""
    found = summary.waiting
    hosts = np.array([-1 if row.hosts is None else row.hosts for row in found.rows], dtype=np.int64)
    if found.basis != "durations" or not (hosts > 1).any():
        return []
    bytes_moved = np.array([row.bytes or 0 for row in found.rows], dtype=np.float64) * found.count
    rows: list[dict[str, object]] = []
    for name, chosen in (("one host", hosts == 1), ("several hosts", hosts > 1)):
        count, transfer_us = float(found.count[chosen].sum()), found.row_transfer_us[chosen].sum()
        if count:
            rows.append(
                {
                    "groups": name,
                    "collectives": int(count),
                    "transfer_us": float(transfer_us) / count,
                    "wait_us": float(found.row_wait_us[chosen].sum()) / count,
                    "algbw_gb_per_s": float(bytes_moved[chosen].sum() / transfer_us / 1e3),
                }
            )
    return rows


def rank_time_rows(summary: Summary) -> list[dict[str, object]]:
    """A row for each rank and part of the time, for CSV and JSON."""
    found, job = summary.waiting, summary.job
    if found.basis != "durations":
        return []
    edges = found.bin_edges_s
    return [
        {
            "rank": rank,
            "host": job.hosts[place],
            "from_s": float(edges[part]),
            "to_s": float(edges[part + 1]),
            "wait_us": float(found.wait_us[place, part]),
            "caused_us": float(found.caused_us[place, part]),
        }
        for place, rank in enumerate(job.ranks)
        for part in range(BINS)
    ]


_KINDS = (
    Field("kind", "kind", meaning="The collective"),
    Field("group", "group", meaning="Its process group, by description, or its communicator"),
    Field("ranks", "ranks", meaning="Of the group"),
    Field("hosts", "hosts", meaning="On which the group runs"),
    Field(
        "bytes",
        "bytes",
        meaning="The larger of a rank's buffers; all-to-alls without durations are of any size",
        text=lambda row: NA if row.bytes is None else f"{row.bytes:,}",
    ),
    Field("records", "records", meaning="Of all ranks together"),
    Field("matched", "collectives", meaning="Collectives found on all ranks of the group"),
    Field("duration", "duration_us", "time", "Mean of all records"),
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
    Field("unfinished", "unfinished", meaning="Calls that these ranks began and that did not end"),
    Field("oldest collective", "oldest", meaning="With its number in the group"),
    Field("group", "group"),
    Field("its ranks", "group_ranks", text=lambda row: as_ranges(row["group_ranks"])),
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
    Field("late by", "lateness_us", "time", "Typical delay where it was last"),
    Field(
        "saves others", "saved_us", "time", "Their waiting that its lateness alone causes, in sum"
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
_PLACES = (
    Field("groups on", "groups"),
    Field("matched", "collectives", meaning="Collectives found on all ranks of the group"),
    Field("transfer", "transfer_us", "time", "Mean"),
    Field("wait", "wait_us", "time", "Mean over ranks"),
    Field("algbw", "algbw_gb_per_s", "bandwidth", "Bytes over transfer"),
)
_MOST_ROWS = 40
_SUM_NOTE = "sums over collectives: of those in flight together each counts"


@dataclass(frozen=True)
class View:
    """A table: the section of the page that it stands in, its rows and their columns."""

    section: str
    title: str
    fields: Sequence[Field]
    rows: Callable[[Summary], Sequence[object]]
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
    "kind": View("bandwidth", "Collectives by kind, group and size", _KINDS, kind_rows),
    "rank": View("waiting", "Ranks over the whole time", _RANKS, rank_rows, _SUM_NOTE),
    "host": View("waiting", "Waiting by host", _HOSTS, host_rows),
    "place": View("bandwidth", "Within a host and between hosts", _PLACES, place_rows),
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
