"""Collectives of several ranks set side by side: transfer, waiting, bandwidth.

No clock is shared between ranks, and none is needed: collective j of a group is the same one on every rank, found by
its sequence number, else by its order with the sizes checked. A rank that comes late shows a short duration and makes the
others wait, so the shortest duration is the closest to the transfer itself (an upper bound of it).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pandas as pd

from dpscope.analysis.costs.formulas import bus_factor
from dpscope.analysis.traces.ranks.step_numbers import number_steps_alike
from dpscope.analysis.traces.ranks.unknown_groups import RankOrigin, of_several_groups
from dpscope.analysis.traces.steps.event_kind import ROOTED
from dpscope.profiling.records.finding import Finding, counted
from dpscope.profiling.records.trace_codes import TraceCode

ENOUGH_RANKS = 0.99  # of a group: the shortest duration among so many bounds the transfer
_POINT_TO_POINT = frozenset({"send", "recv", "send_recv"})  # between two ranks of a group, whatever its size
MATCHED_COLUMNS = ("match", "transfer_us", "wait_us", "algbw_gb_per_s", "busbw_gb_per_s", "lower_bound_gb_per_s")


@dataclass(frozen=True)
class MatchedCollectives:
    """`table`: the ranks' rows with MATCHED_COLUMNS; `unmatched`: rows whose partners were not found."""

    table: pd.DataFrame
    unmatched: int
    findings: tuple[Finding, ...]


def match_ranks(rank_tables: list[pd.DataFrame], origins: Sequence[RankOrigin] = ()) -> MatchedCollectives:
    """Match the `collectives` tables of the ranks of one job; adds MATCHED_COLUMNS. `origins` are the ranks' clocks.

    transfer_us = min over ranks of duration_us; wait_us = duration_us - transfer_us. Both NA for rooted collectives,
    which do not synchronise, and unless all ranks of the group are there, of 100 and more ENOUGH_RANKS of them. `match` numbers
    the collectives found so. Collectives of unknown groups that do not end together are not matched; their group's size is NA.
    Bandwidths in GB/s (1e9 B/s).
    """
    table = _one_table(rank_tables)
    if table.empty:
        empty = table.reindex(columns=[*table.columns, *MATCHED_COLUMNS])
        return MatchedCollectives(empty.astype(dict.fromkeys(MATCHED_COLUMNS, "Float64") | {"match": "Int64"}), 0, ())
    rank = table["rank"].fillna(-1)
    job_steps, numbering = number_steps_alike(table)
    keys = _same_collective(table.assign(group=_group(table), step=job_steps))
    compared = table[["rank", "kind", "bytes", "duration_us"]]  # not all columns again: they are millions of rows
    groups = compared.join(keys).groupby(list(keys.columns), dropna=False, sort=False)
    present = groups["rank"].transform("nunique")
    same_kind = groups["kind"].transform("nunique") <= 1
    same_size = groups["bytes"].transform("nunique") <= 1
    one_each = groups["rank"].transform("size") == present
    variable_size = table["kind"].eq("all_to_all").fillna(False)  # each rank may send another amount
    sound = same_kind & (same_size | variable_size) & one_each
    enough = (present <= table["group_size"]) & (present >= ENOUGH_RANKS * table["group_size"])
    whole = enough.fillna(False) & sound & (table["group_size"] > 1).fillna(False)
    apart = of_several_groups(table, groups.ngroup().astype("Int64").where(whole), origins)
    whole &= ~apart
    table["group_size"] = table["group_size"].mask(apart)
    matched = whole & ~table["kind"].isin(list(ROOTED)) & table["kind"].notna()
    shortest = groups["duration_us"].transform("min")
    table["match"] = groups.ngroup().astype("Int64").where(whole)
    table["transfer_us"] = shortest.where(matched)
    table["wait_us"] = (table["duration_us"] - shortest).where(matched)
    table["algbw_gb_per_s"] = _gb_per_s(groups["bytes"].transform("max"), table["transfer_us"])
    table["busbw_gb_per_s"] = table["algbw_gb_per_s"] * _bus_factors(table)
    table["lower_bound_gb_per_s"] = _gb_per_s(table["bytes"], table["duration_us"])
    several = rank.nunique() > 1
    to_match = (
        several & table["group_size"].ne(1).fillna(True) & ~table["kind"].isin(list(_POINT_TO_POINT)).fillna(False)
    )
    unmatched = int((to_match & ~whole & ~apart).sum())
    disagree = int((to_match & ~sound).sum())
    findings = numbering + _findings(unmatched, disagree, table) + _unknown_groups(int(apart.sum()), len(table))
    return MatchedCollectives(table, unmatched + int(apart.sum()), tuple(findings))


def without_waits(matched: MatchedCollectives) -> MatchedCollectives:
    """The same with no transfer, wait or bandwidth, for ranks whose times cannot be compared."""
    unknown = [name for name in MATCHED_COLUMNS if name not in ("match", "lower_bound_gb_per_s")]
    table = matched.table.assign(**{name: pd.array([pd.NA] * len(matched.table), "Float64") for name in unknown})
    return replace(matched, table=table)


def match_windows(
    collectives: pd.DataFrame,
    trace: npt.NDArray[np.int64],
    windows: Sequence[Sequence[int]],
    origins: Sequence[RankOrigin],
) -> MatchedCollectives:
    """As `match_ranks`, window by window where processes were traced several times; rows stay in order.

    `trace` is the trace that each row is of, an index into `origins`; `windows` are traces of the same time, as `windows_of`
    gives them.
    """
    if len(windows) == 1:
        return match_ranks([collectives], origins)
    collectives = collectives.reset_index(drop=True)
    parts, first_match = [], 0
    for window in windows:
        own = collectives[np.isin(trace, window)]
        part = match_ranks([own], [origins[index] for index in window])
        matched = part.table.assign(match=part.table["match"] + first_match).set_index(own.index)
        parts.append(replace(part, table=matched))
        first_match += len(own)
    table = pd.concat([part.table for part in parts if len(part.table)] or [parts[0].table]).sort_index()
    findings = dict.fromkeys(finding for part in parts for finding in part.findings)
    return MatchedCollectives(table, sum(part.unmatched for part in parts), tuple(findings))


def _one_table(rank_tables: list[pd.DataFrame]) -> pd.DataFrame:
    if len(rank_tables) == 1:
        return rank_tables[0].reset_index(drop=True)
    return pd.concat(rank_tables, ignore_index=True) if rank_tables else pd.DataFrame()


def _group(table: pd.DataFrame) -> "pd.Series[str]":
    """A group by its name and its ranks, where they are recorded: groups made by splitting share one name."""
    if "group_ranks" not in table:
        return table["group"]
    both = table["group"].fillna("") + table["group_ranks"].fillna("")
    return both.where(table["group"].notna() | table["group_ranks"].notna())


def _same_collective(table: pd.DataFrame) -> pd.DataFrame:
    """Keys that are equal for the rows of one collective on every rank.

    Its number in its group, whatever the step; a number that a rank gives several times (coalesced calls share one, and
    point-to-point calls count by themselves) goes by its repetition. Without numbers: the order within group and step, and
    with gloo, whose works may begin out of order, that among works of the same kind and size.
    """
    numbered = table["sequence"].notna()
    direct = table["kind"].isin(list(_POINT_TO_POINT)).fillna(False)
    counted = table[["rank", "group", "sequence"]].assign(direct=direct)
    repetition = counted.groupby(list(counted.columns), dropna=False, sort=False).cumcount()
    queued = table["device"].isna() & ~numbered
    return pd.DataFrame(
        {
            "_group": table["group"],
            "_numbered": numbered,
            "_step": table["step"].where(~numbered),
            "_position": table["sequence"].fillna(-1).where(numbered, aligned_order(table)),
            "_repetition": repetition.where(numbered, 0),
            "_direct": direct & numbered,
            "_kind": table["kind"].where(queued),
            "_bytes": table["bytes"].where(queued),
        }
    )


def _bus_factors(table: pd.DataFrame) -> "pd.Series[float]":
    moved_as = table["moved_as"].fillna(table["kind"]) if "moved_as" in table else table["kind"]
    keys = table[["group_size"]].assign(kind=moved_as)
    groups = keys.groupby(["kind", "group_size"], dropna=False, sort=False)
    code = groups.ngroup().to_numpy()
    first = keys[~keys.duplicated()]  # in the order of their codes
    factors = [
        bus_factor(kind, int(size)) if pd.notna(size) and pd.notna(kind) else None
        for kind, size in zip(first["kind"], first["group_size"], strict=True)
    ]
    return pd.Series(pd.array(factors, dtype="Float64").take(code), index=table.index)


def _gb_per_s(size_bytes: pd.Series, time_us: pd.Series) -> pd.Series:
    """1e9 bytes per second; NA where the time is 0 or unknown."""
    return (size_bytes / time_us.where(time_us > 0) / 1e3).astype("Float64")


def _findings(unmatched: int, disagree: int, table: pd.DataFrame) -> list[Finding]:
    findings = []
    if unmatched:
        findings.append(
            TraceCode.COLLECTIVES_UNMATCHED.finding(
                message=f"no counterpart on every rank of the group: {unmatched} of {counted(len(table), 'collective')}"
                + (f" ({disagree} by kind or size)" if disagree else "")
                + ": no transfer and no wait is given for them",
                next_step=None if _lacks_ranks(table) else "trace the same steps on every rank",
            )
        )
    return findings


def _lacks_ranks(table: pd.DataFrame) -> bool:
    """Whether a group has more ranks than were read."""
    return bool((table["group_size"] > table["rank"].nunique(dropna=False)).fillna(False).any())


def _unknown_groups(apart: int, count: int) -> list[Finding]:
    if not apart:
        return []
    return [
        TraceCode.GROUPS_UNKNOWN.finding(
            f"no process group is named by {apart} of {counted(count, 'collective')}, and end times do not show that all ranks "
            "took part (they may belong to several groups, or to hosts whose clocks differ): they have no transfer and no wait"
        )
    ]


_UNKNOWN = -1  # agrees with anything
_VARIABLE_SIZE = "all_to_all"  # each rank may send another amount
_APART = 1 << 40  # positions from here on agree with no other rank's

_Codes = npt.NDArray[np.int64]


def order_in_step(table: pd.DataFrame) -> "pd.Series[int]":
    """Position of a collective among its rank's of the same group and step.

    A device runs a group's collectives in order. gloo's run on several threads and may begin out of order, so there the
    position is counted among those of the same kind and size.
    """
    on_device = table["device"].notna()
    kind = table["kind"].where(~on_device)
    size = table["bytes"].where(~on_device)
    keys = table[["rank", "group", "step"]].assign(on_device=on_device, kind=kind, size=size)
    return keys.groupby(list(keys.columns), dropna=False, sort=False).cumcount()


def aligned_order(table: pd.DataFrame) -> "pd.Series[int]":
    """`order_in_step`, shifted where a rank's series of a group and step begins at another collective.

    The shift is the one at which all that two ranks share agrees in kind and size, with as much shared as possible. Where
    none fits, positions stay, and the disagreement shows; where several fit as well, nothing is matched.
    """
    order = order_in_step(table)
    unnumbered = table["device"].notna() & table["sequence"].isna()
    if _are_alike(table[unnumbered].assign(order=order[unnumbered])):
        return order
    for _, own in table[unnumbered].groupby(["group", "step"], dropna=False, sort=False):
        by_rank = [rows for _, rows in own.groupby("rank", dropna=False, sort=True)]
        if len(by_rank) < 2:
            continue
        series = list(_series(own, by_rank))
        reference = max(range(len(series)), key=lambda index: len(series[index][0]))
        for index, rows in enumerate(by_rank):
            shift = 0 if index == reference else _shift(series[reference], series[index])
            if shift is None:
                order.loc[rows.index] += _APART * (index + 1)
            elif shift:
                order.loc[rows.index] += shift
    return order


def _are_alike(ordered: pd.DataFrame) -> bool:
    """Whether every rank shows the same kinds and sizes in the same places, so that nothing is shifted."""
    places = ordered[["group", "step", "order", "kind", "bytes"]]  # a rank has one collective at most in each
    return len(places.drop_duplicates()) * ordered["rank"].nunique(dropna=False) == len(places)


def _series(own: pd.DataFrame, by_rank: list[pd.DataFrame]) -> Iterator[tuple[_Codes, _Codes]]:
    """Kinds and sizes of each rank's collectives in order, as numbers; _UNKNOWN where they do not tell."""
    kinds = {kind: code for code, kind in enumerate(own["kind"].dropna().unique())}
    for rows in by_rank:
        kind = np.array([kinds.get(name, _UNKNOWN) for name in rows["kind"].fillna("")], dtype=np.int64)
        size = rows["bytes"].fillna(_UNKNOWN).to_numpy(dtype=np.int64)
        yield kind, np.where(kind == kinds.get(_VARIABLE_SIZE, _APART), _UNKNOWN, size)


def _shift(reference: tuple[_Codes, _Codes], own: tuple[_Codes, _Codes]) -> int | None:
    """By how much `own` is behind the reference's beginning; 0 where none fits, None where several fit as well."""
    length, count = len(reference[0]), len(own[0])
    if length == count and _agree(reference, own, 0):
        return 0
    fitting: dict[int, list[int]] = {}
    best = max(1, min(length, count) // 2)  # less in common is no evidence
    for shift in range(-(count - 1), length):
        shared = min(length, shift + count) - max(0, shift)
        if shared >= best and _agree(reference, own, shift):
            best = shared
            fitting.setdefault(shared, []).append(shift)
    found = fitting.get(best, [])
    return 0 if not found else found[0] if len(found) == 1 else None


def _agree(reference: tuple[_Codes, _Codes], own: tuple[_Codes, _Codes], shift: int) -> bool:
    """Whether all that both hold agrees when `own` begins `shift` behind the reference."""
    start, stop = max(0, shift), min(len(reference[0]), shift + len(own[0]))
    for theirs, ours in zip(reference, own, strict=True):
        one, other = theirs[start:stop], ours[start - shift : stop - shift]
        if not ((one == other) | (one == _UNKNOWN) | (other == _UNKNOWN)).all():
            return False
    return True
