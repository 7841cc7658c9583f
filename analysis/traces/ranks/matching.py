"""Collectives of several ranks set side by side: transfer, waiting, bandwidth.

No clock is shared between ranks, and none is needed: collective j of a group is the same one on
every rank, found by its sequence number, else by its order with the sizes checked. A rank that
comes late shows a short duration and makes the others wait, so the shortest duration is the closest
to the transfer itself (an upper bound of it). Where no group is recorded, kinds, sizes and order
also agree between groups that run the same program side by side, but not the moment of the end: a
collective that synchronises ends on all its ranks at once.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from dpscope.analysis.costs.formulas import bus_factor
from dpscope.analysis.traces.reading.event_table import BoolColumn, FloatColumn, IntColumn
from dpscope.analysis.traces.reading.table import UNKNOWN, Groups, Table, Words, joined
from dpscope.analysis.traces.steps.event_kind import ROOTED
from dpscope.profiling.records.finding import Finding, counted
from dpscope.profiling.records.short_repr import short_repr
from dpscope.profiling.records.trace_codes import TraceCode

if TYPE_CHECKING:
    import pandas as pd

FloatTable = npt.NDArray[np.float64]

# of a group: the shortest duration among so many bounds the transfer; below 100 ranks it is all
ENOUGH_RANKS = 0.99
# between two ranks of a group, whatever its size
_POINT_TO_POINT = frozenset({"send", "recv", "send_recv"})
MATCHED_COLUMNS = (
    "match",
    "transfer_us",
    "wait_us",
    "algbw_gb_per_s",
    "busbw_gb_per_s",
    "lower_bound_gb_per_s",
)


@dataclass(frozen=True)
class RankOrigin:
    """The clock of a rank's trace: `zero_ns` is what its host's clock showed at the trace's time
    0.
    """

    rank: int
    zero_ns: int
    host: str | None = None


@dataclass(frozen=True)
class MatchedRanks:
    """`rows`: the ranks' rows with MATCHED_COLUMNS, as a DataFrame `table`; `unmatched`: how many
    have partners that were not found.
    """

    __repr__ = short_repr

    rows: Table
    unmatched: int
    findings: tuple[Finding, ...]

    @property
    def table(self) -> "pd.DataFrame":
        return self.rows.frame


def enough_ranks(present: FloatTable | IntColumn, size: FloatTable | int) -> BoolColumn:
    """Whether so many ranks of groups of these sizes are all, or nearly all of many."""
    return np.asarray((present <= size) & (present >= ENOUGH_RANKS * size))


def match_tables(rank_tables: Sequence[Table], origins: Sequence[RankOrigin] = ()) -> MatchedRanks:
    """Match the `collective_table`s of the ranks of one job; adds MATCHED_COLUMNS. `origins` are
    the ranks' clocks.

    transfer_us = min over ranks of duration_us; wait_us = duration_us - transfer_us. Both NA for
    rooted collectives, which do not synchronise, and unless all ranks of the group are there, of
    100 and more ENOUGH_RANKS of them. `match` numbers the collectives found so. Collectives of
    unknown groups that do not end together are not matched; their group's size is NA. Bandwidths in
    GB/s (1e9 B/s).
    """
    table = joined(rank_tables) if rank_tables else Table({})
    groups = _same_collective(table.assign(group=_group(table)))
    code, size, kind = groups.code, table["group_size"], table.words("kind")
    present = groups.different(table["rank"])
    same_kind = (groups.different(kind) <= 1)[code]
    same_size = (groups.different(table["bytes"]) <= 1)[code]
    one_each = (groups.sizes == present)[code]
    sound = same_kind & (same_size | kind.isin(_VARIABLE_SIZE)) & one_each
    whole = enough_ranks(present[code], size) & sound & (size > 1)
    apart = _of_several_groups(table, np.where(whole, code, UNKNOWN), origins)
    whole &= ~apart
    matched = whole & ~kind.isin(*ROOTED) & table.known("kind")
    shortest = groups.least(table["duration_us"])[code]
    transfer_us = np.where(matched, shortest, np.nan)
    largest = groups.most(table.real("bytes"))[code]
    table = table.assign(
        group_size=np.where(apart, UNKNOWN, size),
        match=np.where(whole, code, UNKNOWN),
        transfer_us=transfer_us,
        wait_us=table["duration_us"] - transfer_us,
        algbw_gb_per_s=_gb_per_s(largest, transfer_us),
        lower_bound_gb_per_s=_gb_per_s(table.real("bytes"), table["duration_us"]),
    )
    table = table.assign(busbw_gb_per_s=table["algbw_gb_per_s"] * _bus_factors(table))
    ranks = len(np.unique(table["rank"]))
    to_match = (ranks > 1) & (table["group_size"] != 1) & ~kind.isin(*_POINT_TO_POINT)
    unmatched, of_unknown_groups = int((to_match & ~whole & ~apart).sum()), int(apart.sum())
    collectives, findings = counted(len(table), "collective"), list[Finding]()
    if unmatched:
        disagree = int((to_match & ~sound).sum())
        lacks_ranks = (table["group_size"] > ranks).any()  # than were read
        disagreeing = f" ({disagree} by kind or size)" if disagree else ""
        message = (
            f"no counterpart on every rank of the group: {unmatched} of {collectives}{disagreeing}"
        )
        next_step = "" if lacks_ranks else "trace the same steps on every rank"
        message += ": no transfer and no wait is given for them"
        findings.append(TraceCode.COLLECTIVES_UNMATCHED.finding(message, next_step))
    if of_unknown_groups:
        message = (
            f"no process group is named by {of_unknown_groups} of {collectives}, and end times do not show that all ranks took "
            "part (they may belong to several groups, or to hosts whose clocks differ): they have no transfer and no wait"
        )
        findings.append(TraceCode.GROUPS_UNKNOWN.finding(message))
    return MatchedRanks(table, unmatched + of_unknown_groups, tuple(findings))


def match_recordings(
    collectives: Table,
    trace: IntColumn,
    recordings: Sequence[Sequence[int]],
    origins: Sequence[RankOrigin],
) -> MatchedRanks:
    """As `match_tables`, recording by recording where processes were traced several times; rows stay in
    order.

    `trace` is each row's trace, an index into `origins`; `recordings` are traces of the same time,
    as `recordings_of` gives them.
    """
    if len(recordings) == 1:
        return match_tables([collectives], origins)
    parts, places, first_match = [], [], 0
    for recording in recordings:
        rows = np.flatnonzero(np.isin(trace, recording))
        part = match_tables([collectives.take(rows)], [origins[index] for index in recording])
        match = part.rows["match"]
        moved = part.rows.assign(match=np.where(match == UNKNOWN, UNKNOWN, match + first_match))
        parts.append(replace(part, rows=moved))
        places.append(rows)
        first_match += len(rows)
    table = joined([part.rows for part in parts]).take(np.argsort(np.concatenate(places)))
    findings = dict.fromkeys(finding for part in parts for finding in part.findings)
    return MatchedRanks(table, sum(part.unmatched for part in parts), tuple(findings))


def _group(table: Table) -> Words:
    """A group by its name and its ranks, where they are recorded: groups made by splitting share
    one name.
    """
    if "group_ranks" not in table:
        return table.words("group")
    pairs = table.group("group", "group_ranks")
    rows = table.take(pairs.first).records(("group", "group_ranks"))
    known = [[part for part in row.values() if part is not None] for row in rows]
    return Words.coded(pairs.code, ["".join(parts) if parts else None for parts in known])


def _same_collective(table: Table) -> Groups:
    """The rows of one collective on every rank.

    Its number in its group, whatever the step; a number that a rank gives several times (coalesced
    calls share one, and point-to-point calls count by themselves) goes by its repetition. Without
    numbers: the order within group and step, and with gloo, whose works may begin out of order,
    that among works of the same kind and size.
    """
    numbered = table.known("sequence")
    direct = table.words("kind").isin(*_POINT_TO_POINT)
    repetition = table.assign(direct=direct).group("rank", "group", "sequence", "direct").places
    queued = ~table.known("device") & ~numbered
    return Groups.by(
        [
            table.words("group"),
            np.where(numbered, UNKNOWN, table["step"]),
            np.where(numbered, table["sequence"], _order(table)),
            np.where(numbered, 1 + repetition + len(table) * direct, 0),
            table.words("kind").where(queued),
            np.where(queued, table["bytes"], UNKNOWN),
        ],
        len(table),
    )


def _bus_factors(table: Table) -> FloatColumn:
    kind = table.words("kind")
    moved_as = (
        table.words("moved_as").where(table.known("moved_as"), kind)
        if "moved_as" in table
        else kind
    )
    keys = table.assign(kind=moved_as)
    groups = keys.group("kind", "group_size")
    names = ("kind", "group_size")
    pairs = [
        (record["kind"], record["group_size"] or 0)
        for record in keys.take(groups.first).records(names)
    ]
    return np.array([bus_factor(*pair) for pair in pairs], dtype=np.float64)[groups.code]


def _gb_per_s(size_bytes: FloatColumn, time_us: FloatColumn) -> FloatColumn:
    """1e9 bytes per second; NaN where the time is 0 or unknown."""
    return np.asarray(
        np.divide(size_bytes, time_us * 1e3, out=np.full(len(time_us), np.nan), where=time_us > 0)
    )


_VARIABLE_SIZE = "all_to_all"  # each rank may send another amount
_APART = 1 << 40  # positions from here on agree with no other rank's


def _order(table: Table) -> IntColumn:
    """Position of a collective among its rank's of the same group and step.

    A device runs a group's collectives in order. gloo's run on several threads and may begin out of
    order, so there the position is counted among those of the same kind and size. A device's
    positions agree with no other rank's where the ranks show unequal numbers of collectives without
    a sequence number: at least one lacks some, and nothing says which.
    """
    on_device = table.known("device")
    places = table.assign(
        on_device=on_device,
        kind=table.words("kind").where(~on_device),
        bytes=np.where(on_device, UNKNOWN, table["bytes"]),
        numbered=table.known("sequence"),
    )
    order = places.group("rank", "group", "step", "on_device", "kind", "bytes").places
    of_rank, of_step = (
        places.group(*keys, "group", "step", "numbered") for keys in (("rank",), ())
    )
    counts = of_rank.sizes[of_rank.code].astype(np.float64)
    uneven = (of_step.least(counts) < of_step.most(counts))[of_step.code] & on_device
    return order + np.where(uneven, _APART * (1 + table.group("rank").code), 0)


_SMALLEST_DIVISIBLE = 4  # ranks: two or three are one group, if a group has two ranks or more
_CLOSE_US = 20.0  # ends on GPUs of one host, in traces that state whole microseconds
_CLOSE_SHARE = 0.1  # or of the transfer
_CLOSE_TO_WAITS = 0.001  # or of the longest wait


def _of_several_groups(table: Table, match: IntColumn, origins: Sequence[RankOrigin]) -> BoolColumn:
    """Rows of unknown groups that were taken for one of all ranks and do not end together: marked
    all or none.

    `match` numbers the collectives found on all their ranks, UNKNOWN elsewhere. Ranks of one host,
    and those that name none, share a clock; of several hosts, and without `origins`, the distance
    of their ends must be steady while one rank or another makes the others wait. gloo's ranges end
    when their thread has a core again: they stay as matched.
    """
    unknown = table.known("device") & ~table.known("group") & (match != UNKNOWN)
    unknown &= table["group_size"] >= _SMALLEST_DIVISIBLE
    if "group_ranks" in table:
        unknown &= ~table.known("group_ranks")
    rows = np.flatnonzero(unknown & ~table.words("kind").isin(*ROOTED) & table.known("kind"))
    if not len(rows):
        return np.zeros(len(table), dtype=bool)
    _, collective = np.unique(match[rows], return_inverse=True)
    ranks, rank = np.unique(table["rank"][rows], return_inverse=True)
    ends, durations = np.full((2, collective.max() + 1, len(ranks)), np.nan)
    durations[collective, rank] = table["duration_us"][rows]
    ends[collective, rank] = table["start_us"][rows] + table["duration_us"][rows]
    of_rank = {origin.rank: origin for origin in origins}
    clocks = [of_rank.get(one) for one in ranks.tolist()]
    return np.asarray(unknown & (not _end_together(ends, durations, clocks)), dtype=bool)


def _end_together(
    ends: FloatTable, durations: FloatTable, clocks: Sequence[RankOrigin | None]
) -> bool:
    """Whether most collectives (rows) end at the same time on all ranks (columns).

    Ends may be apart by _CLOSE_US, by _CLOSE_SHARE of the transfer, or by _CLOSE_TO_WAITS of the
    longest wait: the later a rank arrives, the more the moment shows that the others waited for it.
    Without a common clock, and where a common one may be off, a steady distance of ends is not
    enough, since groups that run the same program have that, too: then the transfer of ranks that
    share a clock must also vary against that of the others, as it does where one rank makes all of
    them wait.
    """
    shortest, longest = durations.min(axis=1), durations.max(axis=1)
    close = np.maximum(
        np.maximum(_CLOSE_US, _CLOSE_SHARE * shortest), _CLOSE_TO_WAITS * (longest - shortest)
    )
    hosts = {None if clock is None else clock.host for clock in clocks}
    known = [clock for clock in clocks if clock is not None]
    if len(known) == len(clocks) and len(hosts) == 1:
        ends = ends + np.array([(clock.zero_ns - known[0].zero_ns) / 1e3 for clock in known])
        if _mostly(np.ptp(ends, axis=1) <= close):
            return True
    steady_ends = ends - np.median(ends - ends[:, :1], axis=0)
    if not _mostly(np.ptp(steady_ends, axis=1) <= close):
        return False
    together = [durations[:, block].min(axis=1) for block in _one_clock(ends, close, clocks)]
    apart = [block - together[0] for block in together[1:]]
    return any(
        _mostly(np.abs(differences_us - np.median(differences_us)) > close)
        for differences_us in apart
    )


def _one_clock(
    ends: FloatTable, close: FloatColumn, clocks: Sequence[RankOrigin | None]
) -> list[list[int]]:
    """Columns of ranks of one host whose ends fall together as recorded; a rank that records no
    clock stands alone.
    """
    blocks: list[list[int]] = []
    for column, clock in enumerate(clocks):
        for block in blocks:
            first = clocks[block[0]]
            if clock is not None and first is not None and clock.host == first.host:
                apart_us = (
                    ends[:, column] - ends[:, block[0]] + (clock.zero_ns - first.zero_ns) / 1e3
                )
                if _mostly(np.abs(apart_us) <= close):
                    block.append(column)
                    break
        else:
            blocks.append([column])
    return blocks


def _mostly(truths: BoolColumn) -> bool:
    return bool(truths.mean() > 0.5)
