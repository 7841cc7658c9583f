"""Where each rank runs: its host, its place among the host's ranks, its switch."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np

from dpscope.analysis.hosts.topology import switch_of
from dpscope.analysis.traces.ranks.rank_tables import TraceSummary
from dpscope.analysis.traces.reading.event_table import IntColumn
from dpscope.analysis.traces.reading.table import Table
from dpscope.profiling.store.errors import DpscopeError

_NONE: Mapping[str, str] = MappingProxyType({})


def rank_places(summaries: Sequence[TraceSummary], switches: Mapping[str, str] = _NONE) -> Table:
    """A row for each known rank: `rank`, `host`, `local_rank`, `switch`; NA where it is not known.

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
    table = Table.of(rank=[one.rank for one in known], host=hosts, local_rank=[None] * len(known), switch=found)
    table = table.take(table.group("rank").first)
    placed = np.flatnonzero(table.known("host"))
    placed = placed[np.argsort(table["rank"][placed], kind="stable")]
    local_rank = table["local_rank"].copy()
    local_rank[placed] = _local_ranks(table.take(placed))
    return table.assign(local_rank=local_rank)


def _local_ranks(placed: Table) -> IntColumn:
    """Of ranks in order, all with a host."""
    hosts = placed.group("host")
    most = int(hosts.sizes.max()) if len(placed) else 1
    blocks = placed.assign(block=placed["rank"] // most)
    pairs = blocks.take(blocks.group("host", "block").first)
    aligned = len(pairs) == len(hosts) == len(pairs.group("block"))
    return np.asarray(placed["rank"] % most if aligned else hosts.places)
