"""The input of the ring formula: bytes and ranks, from a run's model or from what traces show."""

from dataclasses import dataclass

from dpscope.analysis.cells.predicted import KEYS, model_sizes
from dpscope.analysis.runs.cell_data import CellData
from dpscope.analysis.runs.traffic_check import expected_bytes, reduced_bytes
from dpscope.profiling.records.strategies import shard_groups

NO_ALL_REDUCE = "the traces show no all-reduce"


def runs_all_reduces(data: CellData) -> bool:
    """Whether a cell on several devices reduces gradients, or whatever else its traces show, by all-reduces."""
    if data.cell.devices == 1 or data.cell.traits.sharded:
        return False
    if data.cell.traits.reducer:
        return True
    return len(data.collectives) > 0 and bool((data.collectives["kind"] == "all_reduce").any())


@dataclass(frozen=True)
class RingLoad:
    """Input of the ring formula: bytes per step of one kind of collective, the ranks, and what the bytes are."""

    size_bytes: float
    ranks: int
    what: str
    kind: str = "all_reduce"


def has_rings(data: CellData) -> bool:
    """Whether all that a cell on several devices moves goes by collectives of which there is a ring formula."""
    return runs_all_reduces(data) or (data.cell.devices > 1 and data.cell.traits.sharded)


def ring_loads(data: CellData) -> tuple[RingLoad, ...] | str:
    """All gradients of a run's cell, of FSDP the parameters too; of traces alone what they show. Else why it is not known."""
    sizes = model_sizes(data)
    if data.cell.traits.sharded and sizes is not None:
        return _sharded_loads(data)
    if sizes is not None:
        return (RingLoad(reduced_bytes(data.planned, sizes), data.cell.devices, "all gradients"),)
    windows = data.whole_windows
    own = data.collectives.merge(windows[KEYS], on=KEYS)
    own = own[own["kind"] == "all_reduce"]
    if own.empty or own[["bytes", "group_size"]].isna().to_numpy().any():
        return "the trace gives no sizes for some all-reduces"
    ranks = {int(size) for size in own["group_size"]}
    if len(ranks) > 1:
        return f"all-reduces of {' and of '.join(map(str, sorted(ranks)))} ranks: no one ring"
    return (RingLoad(float(own["bytes"].sum()) / len(windows), ranks.pop(), "what was all-reduced in a traced step"),)


def _sharded_loads(data: CellData) -> tuple[RingLoad, ...] | str:
    """What FSDP must move, by kind."""
    units = data.ranks[0][1].units
    if not units:
        return "a script's own FSDP: what it must move is not known"
    if data.nodes > 1 and data.cell.traits.hybrid:
        return "its collectives run within nodes and between them: no one link"
    groups, shards = shard_groups(data.cell.strategy, data.cell.devices, data.nodes)
    return tuple(
        RingLoad(size, groups if kind == "all_reduce" else shards, _MOVED[kind], kind)
        for kind, size in expected_bytes(data.planned, units).items()
    )


_MOVED = {
    "all_gather": "parameters gathered",
    "reduce_scatter": "gradients scattered",
    "all_reduce": "gradients between groups",
}
