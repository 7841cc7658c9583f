"""Where each rank runs: its host, its place among the host's ranks, its switch."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np
import pandas as pd

from dpscope.analysis.hosts.topology import switch_of
from dpscope.analysis.traces.ranks.rank_tables import TraceSummary
from dpscope.profiling.store.errors import DpscopeError

_NONE: Mapping[str, str] = MappingProxyType({})


def rank_places(summaries: Sequence[TraceSummary], switches: Mapping[str, str] = _NONE) -> pd.DataFrame:
    """A row for each known rank: `rank` (Int64), `host`, `local_rank` (Int64), `switch`; NA where it is not known.

    The host is the one the trace names, else the one that reduced it where it lay. torchrun numbers ranks node by node, so the
    local rank is the rest by the ranks of a node, if every host holds one such block; else the place among its host's ranks.
    Raises DpscopeError where `switches` names none of the hosts.
    """
    known = [one for one in summaries if one.rank is not None]
    hosts = [one.host or one.read_on for one in known]
    named = [host for host in hosts if host is not None]
    found = [switch_of(host, switches) for host in hosts]
    if switches and named and not any(found):
        raise DpscopeError(
            f"--topology lists none of the hosts in these traces, such as {named[0]}; add them with their switches"
        )
    table = pd.DataFrame(
        {
            "rank": pd.array([one.rank for one in known], dtype="Int64"),
            "host": pd.array(hosts, dtype="string"),
            "local_rank": pd.array([pd.NA] * len(known), dtype="Int64"),
            "switch": pd.array(found, dtype="string"),
        }
    ).drop_duplicates("rank", ignore_index=True)
    placed = table[table["host"].notna()].sort_values("rank")
    if len(placed):
        table.loc[placed.index, "local_rank"] = _local_ranks(placed)
    return table


def _local_ranks(placed: pd.DataFrame) -> "pd.Series[int]":
    by_host = placed.groupby("host")["rank"]
    most = int(by_host.size().max())
    ranks = placed["rank"].to_numpy(dtype=np.int64)
    blocks = pd.DataFrame({"host": placed["host"], "block": ranks // most}).drop_duplicates()
    aligned = blocks["host"].is_unique and blocks["block"].is_unique
    local = pd.Series(ranks % most, index=placed.index) if aligned else by_host.cumcount()
    return local.astype("Int64")
