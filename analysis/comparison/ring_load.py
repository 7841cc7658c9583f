"""What the ring formula is asked for: bytes and ranks, of a run by its model, of traces alone by what they show."""

from dataclasses import dataclass

from dpscope.analysis.comparison.predicted import KEYS, model_sizes
from dpscope.analysis.runs.run_data import CellData
from dpscope.analysis.runs.traffic_check import reduced_bytes


def runs_all_reduces(data: CellData) -> bool:
    """Whether a cell on several devices reduces gradients, or whatever else its traces show, by all-reduces."""
    if data.cell.devices == 1:
        return False
    if data.cell.strategy == "ddp":
        return True
    return len(data.collectives) > 0 and bool((data.collectives["kind"] == "all_reduce").any())


@dataclass(frozen=True)
class RingLoad:
    """What the ring formula is asked for: bytes that are all-reduced per step, by so many ranks, and how they are known."""

    size_bytes: float
    ranks: int
    told: str


def ring_load(data: CellData) -> RingLoad | str:
    """All gradients of a run's cell; of traces alone what their all-reduces moved. Else why it is not known."""
    sizes = model_sizes(data)
    if sizes is not None:
        return RingLoad(reduced_bytes(data.planned, sizes), data.cell.devices, "all gradients")
    windows = data.whole_windows()
    own = data.collectives.merge(windows[KEYS], on=KEYS)
    own = own[own["kind"] == "all_reduce"]
    if own.empty or own[["bytes", "group_size"]].isna().to_numpy().any():
        return "the trace gives no sizes for some all-reduces"
    ranks = {int(size) for size in own["group_size"]}
    if len(ranks) > 1:
        return f"all-reduces of {' and of '.join(map(str, sorted(ranks)))} ranks: no one ring"
    return RingLoad(float(own["bytes"].sum()) / len(windows), ranks.pop(), "what was all-reduced in a traced step")
