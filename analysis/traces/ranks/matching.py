"""Collectives of several ranks set side by side: transfer, waiting, bandwidth.

No clock is shared between ranks, and none is needed: collective j of a group is the same one on
every rank, found by its sequence number, else by its order with the sizes checked. A rank that
comes late shows a short duration and makes the others wait, so the shortest duration is the closest
to the transfer itself (an upper bound of it). Where no group is recorded, kinds, sizes and order
also agree between groups that run the same program side by side, but not the moment of the end: a
collective that synchronises ends on all its ranks at once.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from dpscope.analysis.costs.formulas import bus_factor
from dpscope.analysis.traces.reading.event_table import BoolColumn, FloatColumn, IntColumn
from dpscope.analysis.traces.reading.table import UNKNOWN, Groups, Table, Words, divided, joined
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
    whole: BoolColumn = np.asarray((present <= size) & (present >= ENOUGH_RANKS * size))
    return whole


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
    code = groups.code
    size = table["group_size"]
    kind = table.words("kind")
    sound = _agree(table, groups)
    present = groups.different(table["rank"])[code]
    whole = sound & enough_ranks(present, size) & (size > 1)
    apart = _of_several_groups(table, np.where(whole, code, UNKNOWN), origins)
    whole &= ~apart
    synchronises = whole & ~kind.isin(*ROOTED) & table.known("kind")
    shortest_us = groups.least(table["duration_us"])[code]
    transfer_us = np.where(synchronises, shortest_us, np.nan)
    largest = groups.most(table.real("bytes"))[code]
    table = table.assign(
        group_size=np.where(apart, UNKNOWN, size),
        match=np.where(whole, code, UNKNOWN),
        transfer_us=transfer_us,
        wait_us=table["duration_us"] - transfer_us,
        # bytes per microsecond are 1e6 B/s
        algbw_gb_per_s=divided(largest, transfer_us * 1e3),
        lower_bound_gb_per_s=divided(table.real("bytes"), table["duration_us"] * 1e3),
    )
    table = table.assign(busbw_gb_per_s=table["algbw_gb_per_s"] * _bus_factors(table))
    several = len(np.unique(table["rank"])) > 1
    has_partners = several & (table["group_size"] != 1) & ~kind.isin(*_POINT_TO_POINT)
    unmatched = has_partners & ~whole & ~apart
    findings: list[Finding] = []
    if unmatched.any():
        findings.append(_unmatched(table, int(unmatched.sum()), int((has_partners & ~sound).sum())))
    if apart.any():
        findings.append(_unknown_groups(table, int(apart.sum())))
    return MatchedRanks(table, int((unmatched | apart).sum()), tuple(findings))


def _agree(table: Table, groups: Groups) -> BoolColumn:
    """Rows of collectives that have one kind and one size on all their ranks, each of which shows
    it once.
    """
    same_kind = groups.different(table.words("kind")) <= 1
    same_size = groups.different(table["bytes"]) <= 1
    one_each = groups.different(table["rank"]) == groups.sizes
    any_size = table.words("kind").isin(_VARIABLE_SIZE)
    agree: BoolColumn = (same_kind & one_each)[groups.code] & (same_size[groups.code] | any_size)
    return agree


def _unmatched(table: Table, count: int, disagreeing: int) -> Finding:
    collectives = counted(len(table), "collective")
    message = f"no counterpart on every rank of the group: {count} of {collectives}"
    if disagreeing:
        message += f" ({disagreeing} by kind or size)"
    message += ": no transfer and no wait is given for them"
    ranks_read = len(np.unique(table["rank"]))
    lacks_ranks = (table["group_size"] > ranks_read).any()
    next_step = "" if lacks_ranks else "trace the same steps on every rank"
    return TraceCode.COLLECTIVES_UNMATCHED.finding(message, next_step)


def _unknown_groups(table: Table, count: int) -> Finding:
    collectives = counted(len(table), "collective")
    return TraceCode.GROUPS_UNKNOWN.finding(
        f"no process group is named by {count} of {collectives}, and end times do not show that all ranks took "
        "part (they may belong to several groups, or to hosts whose clocks differ): they have no transfer and no wait"
    )


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
    tables: list[Table] = []
    places: list[IntColumn] = []
    findings: dict[Finding, None] = {}  # each once, in order
    unmatched = 0
    for recording in recordings:
        rows = np.flatnonzero(np.isin(trace, recording))
        part = match_tables([collectives.take(rows)], [origins[index] for index in recording])
        # numbers of matches are below the number of rows
        first_match = sum(map(len, places))
        match = np.where(part.rows.known("match"), part.rows["match"] + first_match, UNKNOWN)
        tables.append(part.rows.assign(match=match))
        places.append(rows)
        findings |= dict.fromkeys(part.findings)
        unmatched += part.unmatched
    table = joined(tables).take(np.argsort(np.concatenate(places)))
    return MatchedRanks(table, unmatched, tuple(findings))


def _group(table: Table) -> Words:
    """A group by its name and its ranks, where they are recorded: groups made by splitting share
    one name.
    """
    if "group_ranks" not in table:
        return table.words("group")
    pairs = table.group("group", "group_ranks")
    rows = table.take(pairs.first).records(("group", "group_ranks"))
    names = ["".join(part or "" for part in row.values()) or None for row in rows]
    return Words.coded(pairs.code, names)


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
    moved_as = table.words("kind")
    if "moved_as" in table:
        moved_as = table.words("moved_as").where(table.known("moved_as"), moved_as)
    kinds = table.assign(kind=moved_as)
    groups = kinds.group("kind", "group_size")
    factors = []
    for group in kinds.take(groups.first).records(("kind", "group_size")):
        factors.append(bus_factor(group["kind"], group["group_size"] or 0))
    return np.array(factors, dtype=np.float64)[groups.code]


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
    of_rank = places.group("rank", "group", "step", "numbered")
    of_step = places.group("group", "step", "numbered")
    counts = of_step.different(of_rank.sizes[of_rank.code])
    uneven = (counts > 1)[of_step.code] & on_device
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
    synchronises = ~table.words("kind").isin(*ROOTED) & table.known("kind")
    rows = np.flatnonzero(unknown & synchronises)
    if not len(rows):
        return np.zeros(len(table), dtype=bool)
    collectives, collective = np.unique(match[rows], return_inverse=True)
    ranks, rank = np.unique(table["rank"][rows], return_inverse=True)
    ends, durations = np.full((2, len(collectives), len(ranks)), np.nan)
    durations[collective, rank] = table["duration_us"][rows]
    ends[collective, rank] = table["start_us"][rows] + table["duration_us"][rows]
    origin_of = {origin.rank: origin for origin in origins}
    hosts: list[_Host] = []
    for column, number in enumerate(ranks.tolist()):
        origin = origin_of.get(number)
        hosts.append(number if origin is None else origin.host)
        if origin is not None:
            ends[:, column] += (origin.zero_ns - origins[0].zero_ns) / 1e3
    together = _end_together(ends, durations, hosts)
    return np.zeros(len(table), dtype=bool) if together else unknown


_Host = str | int | None
"""Ranks of equal hosts share a clock; one whose clock is not recorded stands for itself."""


def _end_together(ends: FloatTable, durations: FloatTable, hosts: Sequence[_Host]) -> bool:
    """Whether most collectives (rows) end at the same time on all ranks (columns).

    Ends may be apart by _CLOSE_US, by _CLOSE_SHARE of the transfer, or by _CLOSE_TO_WAITS of the
    longest wait: the later a rank arrives, the more the moment shows that the others waited for it.
    Without a common clock, and where a common one may be off, a steady distance of ends is not
    enough, since groups that run the same program have that, too: then the transfer of ranks that
    share a clock must also vary against that of the others, as it does where one rank makes all of
    them wait.
    """
    shortest = durations.min(axis=1)
    waits = durations.max(axis=1) - shortest
    close = np.maximum(_CLOSE_US, np.maximum(_CLOSE_SHARE * shortest, _CLOSE_TO_WAITS * waits))
    if len(set(hosts)) == 1 and _mostly(np.ptp(ends, axis=1) <= close):
        return True
    steady_ends = ends - np.median(ends - ends[:, :1], axis=0)
    if not _mostly(np.ptp(steady_ends, axis=1) <= close):
        return False
    blocks = _one_clock(ends, close, hosts)
    first = durations[:, blocks[0]].min(axis=1)
    for block in blocks[1:]:
        apart_us = durations[:, block].min(axis=1) - first
        if _mostly(np.abs(apart_us - np.median(apart_us)) > close):
            return True
    return False


def _one_clock(ends: FloatTable, close: FloatColumn, hosts: Sequence[_Host]) -> list[list[int]]:
    """Columns of ranks of one host whose ends fall together as recorded."""
    blocks: list[list[int]] = []
    for column, host in enumerate(hosts):
        for block in blocks:
            apart_us = np.abs(ends[:, column] - ends[:, block[0]])
            if host == hosts[block[0]] and _mostly(apart_us <= close):
                block.append(column)
                break
        else:
            blocks.append([column])
    return blocks


def _mostly(truths: BoolColumn) -> bool:
    return bool(truths.mean() > 0.5)
