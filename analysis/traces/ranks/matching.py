"""Collectives of several ranks set side by side: transfer, waiting, bandwidth.

No clock is shared between ranks, and none is needed: collective j of a group is the same one on every rank, found by
its sequence number, else by its order with the sizes checked. A rank that comes late shows a short duration and makes the
others wait, so the shortest duration is the closest to the transfer itself (an upper bound of it).
"""

from dataclasses import dataclass

import pandas as pd

from dpscope.analysis.rank_alignment import aligned_order
from dpscope.analysis.traces.steps import intervals
from dpscope.analysis.traces.steps.event_kind import ROOTED
from dpscope.profiling.records.run import Finding

_POINT_TO_POINT = frozenset({"send", "recv", "send_recv"})  # between two ranks of a group, whatever its size
MATCHED_COLUMNS = ("match", "transfer_us", "wait_us", "algbw_gbps", "busbw_gbps", "lower_bound_gbps")


@dataclass(frozen=True)
class MatchedCollectives:
    """`table`: the ranks' rows with MATCHED_COLUMNS; `unmatched`: rows whose partners were not found."""

    table: pd.DataFrame
    unmatched: int
    findings: tuple[Finding, ...]


def bus_factor(kind: str | None, group_size: int) -> float | None:
    """busbw / algbw of a collective on N ranks; None for one that has no such factor, or at N = 1.

    Source: nccl-tests, doc/PERFORMANCE.md: 2(N-1)/N for all-reduce, (N-1)/N for all-gather, reduce-scatter and
    all-to-all, 1 for broadcast, reduce and send/recv.
    """
    if group_size < 2:
        return None
    if kind == "all_reduce":
        return 2 * (group_size - 1) / group_size
    if kind in ("all_gather", "reduce_scatter", "all_to_all"):
        return (group_size - 1) / group_size
    if kind in ("broadcast", "reduce", "send", "recv", "send_recv"):
        return 1.0
    return None


def match_ranks(rank_tables: list[pd.DataFrame]) -> MatchedCollectives:
    """Match the `collectives` tables of the ranks of one job; adds MATCHED_COLUMNS.

    transfer_us = min over ranks of duration_us; wait_us = duration_us - transfer_us. Both NA for rooted collectives,
    which do not synchronise, and unless all ranks of the group are there. `match` numbers the collectives found on all
    their ranks. Bandwidths in GB/s (1e9 B/s).
    """
    table = pd.concat(rank_tables, ignore_index=True) if rank_tables else pd.DataFrame()
    if table.empty:
        return MatchedCollectives(table.reindex(columns=[*table.columns, *MATCHED_COLUMNS]), 0, ())
    rank = table["rank"].fillna(-1)
    keys = _same_collective(table.assign(group=_group(table)))
    groups = table.join(keys).groupby(list(keys.columns), dropna=False, sort=False)
    present = groups["rank"].transform("nunique")
    same_kind = groups["kind"].transform("nunique") <= 1
    same_size = groups["bytes"].transform("nunique") <= 1
    one_each = groups["rank"].transform("size") == present
    variable_size = table["kind"].eq("all_to_all").fillna(False)  # each rank may send another amount
    sound = same_kind & (same_size | variable_size) & one_each
    whole = (present == table["group_size"]).fillna(False) & sound & (table["group_size"] > 1).fillna(False)
    matched = whole & ~table["kind"].isin(list(ROOTED)) & table["kind"].notna()
    shortest = groups["duration_us"].transform("min")
    table["match"] = groups.ngroup().astype("Int64").where(whole)
    table["transfer_us"] = shortest.where(matched)
    table["wait_us"] = (table["duration_us"] - shortest).where(matched)
    table["algbw_gbps"] = _gbps(groups["bytes"].transform("max"), table["transfer_us"])
    table["busbw_gbps"] = table["algbw_gbps"] * _bus_factors(table)
    table["lower_bound_gbps"] = _gbps(table["bytes"], table["duration_us"])
    several = rank.nunique() > 1
    to_match = (
        several & table["group_size"].ne(1).fillna(True) & ~table["kind"].isin(list(_POINT_TO_POINT)).fillna(False)
    )
    unmatched = int((to_match & ~whole).sum())
    disagree = int((to_match & ~sound).sum())
    return MatchedCollectives(table, unmatched, tuple(_findings(unmatched, disagree, table)))


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
    factors = [
        bus_factor(kind, int(size)) if pd.notna(size) and pd.notna(kind) else None
        for kind, size in zip(table["kind"], table["group_size"], strict=True)
    ]
    return pd.Series(factors, index=table.index, dtype="Float64")


def _gbps(size_bytes: pd.Series, time_us: pd.Series) -> pd.Series:
    """1e9 bytes per second; NA where the time is 0 or unknown."""
    return (size_bytes / time_us.where(time_us > 0) / 1e3).astype("Float64")


def _findings(unmatched: int, disagree: int, table: pd.DataFrame) -> list[Finding]:
    findings = []
    if unmatched:
        findings.append(
            Finding(
                severity="warning",
                code="collectives_unmatched",
                message=f"{unmatched} of {len(table)} collectives have no counterpart on every rank of their group"
                + (f" ({disagree} by kind or size)" if disagree else "")
                + ": no transfer and no wait is given for them",
                next_step="read the traces of all ranks, over the same steps",
            )
        )
    return findings


def step_waits(table: pd.DataFrame) -> pd.DataFrame:
    """Per (rank, device, step): `transfer_us` and `wait_us` of its matched collectives.

    `transfer_us` is the sum of transfer_j. `wait_us` is the length of the union of the waiting parts (a collective's first
    wait_j microseconds): gloo's collectives queue side by side, and a wait shared by several of them is lost once.
    """
    known = table[table["wait_us"].notna()]
    keys = ["rank", "device", "step"]
    rows = []
    for key, group in known.groupby(keys, dropna=False):
        starts = group["start_us"].to_numpy(dtype=float)
        waits = group["wait_us"].to_numpy(dtype=float)
        rows.append(
            (*key, float(group["transfer_us"].sum()), intervals.length(intervals.union(starts, starts + waits)))
        )
    frame = pd.DataFrame(rows, columns=[*keys, "transfer_us", "wait_us"])
    frame[keys] = frame[keys].astype("Int64")
    return frame.astype({"transfer_us": "Float64", "wait_us": "Float64"})
