"""Columns that estimate communication without a trace: by subtraction, per step and epoch, and by
the ring formula.

t_N(b) is a step on N devices at b samples per device, G = N b. The subtractions are what people
take for communication; the columns next to them are how far each is from what was measured, and
what shows why. Assumptions: same_local_batch is sound as added wall time; ideal_split takes all of
t_1(G) to shrink with the batch and errs by its fixed part; same_total compares different work per
device and goes negative as soon as parallel training pays. Epochs are over the same samples: one
device at b needs N times as many steps, but for the rounding to whole ones.
"""

from dataclasses import dataclass

from dpscope.analysis.cells.cell_ledger import change_us, exposed, interval_of_change, ledger
from dpscope.analysis.cells.identity import (
    on_several_devices,
    single_at_global_batch,
    single_at_same_batch,
)
from dpscope.analysis.cells.predicted import all_known, cell_place, model_sizes, place_of
from dpscope.analysis.cells.times import ends_of, epoch_seconds
from dpscope.analysis.cells.view import CellView, Group, once
from dpscope.analysis.costs.data_sheet import RingRate, ring_rate
from dpscope.analysis.costs.formulas import ring_us as ring_formula_us
from dpscope.analysis.runs.traffic_check import expected_bytes, reduced_bytes
from dpscope.analysis.stats.missing import Missing, known
from dpscope.analysis.stats.samples import difference_estimate
from dpscope.analysis.traces.ranks.job import Job
from dpscope.profiling.records.strategies import shard_groups

FORMULAS = {
    "same_local_batch": "t_N(b) - t_1(b)",
    "ideal_split": "t_N(b) - t_1(G)/N",
    "same_total": "t_N(b) - t_1(G)",
}
ESTIMATES = Group("estimates", "Estimates by subtraction", needs=on_several_devices)


def subtractable(cell: CellView) -> None:
    """Raises Missing for traces alone, which hold nothing on one device to subtract."""
    assert cell.data.rank


def _added_ends(cell: CellView, _: float) -> tuple[float, float]:
    single = single_at_same_batch(cell).data
    return ends_of(
        difference_estimate(cell.data.step_samples(), single.step_samples(), cell.spreads.step)
    )


@ESTIMATES.column(
    "t_N(b)-t_1(b)",
    "time",
    "Added wall time of a step on N devices, compared with one device at the same batch per device b",
    needs=subtractable,
    interval=_added_ends,
)
def same_local_batch_us(cell: CellView) -> float:
    return cell.step_us - single_at_same_batch(cell).step_us


@ESTIMATES.column("t_N(b)-t_1(b) minus exposed", "time", "Estimate minus exposed communication")
def same_local_batch_error_exposed_us(cell: CellView) -> float:
    return cell.same_local_batch_us - cell.exposed_us


def _split(cell: CellView) -> None:
    """What the terms of t_N(b) - t_1(b) need: exposed communication is the first of them."""
    exposed(cell, ledger(cell).exposed_us)


@ESTIMATES.column(
    "idle",
    "time",
    "Of t_N(b)-t_1(b): change of idle",
    needs=_split,
    interval=interval_of_change("idle"),
)
def added_idle_us(cell: CellView) -> float:
    return change_us(cell, "idle")


@ESTIMATES.column(
    "unexplained",
    "time",
    "The part of the untraced t_N(b)-t_1(b) that the traced steps do not explain: change of untraced - traced",
    needs=_split,
    interval=interval_of_change("tracer"),
)
def added_tracer_us(cell: CellView) -> float:
    return change_us(cell, "tracer")


@ESTIMATES.column(
    "t_N(b)-t_1(G)/N",
    "time",
    "Assumes that a step shrinks in proportion to its batch: G = N b is the global batch",
    needs=subtractable,
)
def ideal_split_us(cell: CellView) -> float:
    return cell.step_us - single_at_global_batch(cell).step_us / cell.devices


@ESTIMATES.column("t_N(b)-t_1(G)/N minus exposed", "time", "Estimate minus exposed communication")
def ideal_split_error_exposed_us(cell: CellView) -> float:
    return cell.ideal_split_us - cell.exposed_us


@ESTIMATES.column(
    "t_N(b)-t_1(G)",
    "time",
    "Compares steps of the same global batch G: negative once parallel training pays off",
    needs=subtractable,
)
def same_total_us(cell: CellView) -> float:
    return cell.step_us - single_at_global_batch(cell).step_us


def _epoch_us(data: Job) -> float:
    return 1e6 * known(epoch_seconds(data)[0], "the length of an epoch is not known")


@ESTIMATES.column(
    "T_N-T_1(b)/N",
    "time",
    "Of epochs, each of whole steps: one device at the same batch b has N times as many",
    needs=subtractable,
)
def same_local_batch_epoch_us(cell: CellView) -> float:
    return _epoch_us(cell.data) - _epoch_us(single_at_same_batch(cell).data) / cell.devices


@ESTIMATES.column(
    "T_N-T_1(G)/N",
    "time",
    "Of epochs, against one device at the global batch G, divided by N",
    needs=subtractable,
)
def ideal_split_epoch_us(cell: CellView) -> float:
    return _epoch_us(cell.data) - _epoch_us(single_at_global_batch(cell).data) / cell.devices


@ESTIMATES.column(
    "T_N-T_1(G)", "time", "Of epochs, against one device at the global batch G", needs=subtractable
)
def same_total_epoch_us(cell: CellView) -> float:
    return _epoch_us(cell.data) - _epoch_us(single_at_global_batch(cell).data)


@ESTIMATES.column("exposed", "time", "Exposed communication of an epoch's steps")
def exposed_epoch_us(cell: CellView) -> float:
    return cell.exposed_us * cell.steps_per_epoch


@ESTIMATES.column("comm.", "time", "All communication of an epoch's steps")
def communication_epoch_us(cell: CellView) -> float:
    return cell.communication_us * cell.steps_per_epoch


_MOVED = {
    "all_gather": "parameters gathered",
    "reduce_scatter": "gradients scattered",
    "all_reduce": "gradients between groups",
}


@dataclass(frozen=True)
class RingLoad:
    """Input of the ring formula: bytes per step of one kind of collective, the ranks, and what the
    bytes are.
    """

    size_bytes: float
    ranks: int
    what: str
    kind: str = "all_reduce"


def runs_all_reduces(data: Job) -> bool:
    """Whether a cell on several devices reduces gradients, or whatever else its traces show, by
    all-reduces.
    """
    if data.devices == 1 or data.traits.sharded:
        return False
    return data.traits.reducer or bool(
        data.tables.collectives.words("kind").isin("all_reduce").any()
    )


def ring_loads(data: Job) -> tuple[RingLoad, ...]:
    """All gradients of a run's cell, of FSDP the parameters too; of traces alone what they show.
    Raises Missing.
    """
    traits, sizes = data.traits, model_sizes(data)
    if not runs_all_reduces(data) and (data.devices == 1 or not traits.sharded):
        raise Missing(traits.no_rings or "the traces show no all-reduce")
    if sizes is None:
        return (_traced_load(data),)
    if traits.sharded:
        return _sharded_loads(data)
    return (RingLoad(reduced_bytes(data.cell, sizes), data.devices, "all gradients"),)


def _sharded_loads(data: Job) -> tuple[RingLoad, ...]:
    units = data.ranks[0][1].units
    if not units:
        raise Missing("a script's own FSDP: what it must move is not known")
    if data.nodes > 1 and data.traits.hybrid:
        raise Missing("its collectives run within nodes and between them: no one link")
    groups, shards = shard_groups(data.strategy, data.devices, data.nodes)
    return tuple(
        RingLoad(size, groups if kind == "all_reduce" else shards, _MOVED[kind], kind)
        for kind, size in expected_bytes(data.cell, units).items()
    )


def _traced_load(data: Job) -> RingLoad:
    own = data.whole_collectives.having("kind", "all_reduce")
    if not all_known(own, ("bytes", "group_size")):
        raise Missing("the trace gives no sizes for some all-reduces")
    ranks = set(own["group_size"].tolist())
    if len(ranks) > 1:
        raise Missing(
            f"all-reduces of {' and of '.join(map(str, sorted(ranks)))} ranks: no one ring"
        )
    size = float(own["bytes"].sum()) / len(data.whole_windows)
    return RingLoad(size, ranks.pop(), "what was all-reduced in a traced step")


@once
def ring_rates(cell: CellView) -> tuple[RingRate, ...]:
    """What the ring formula divides by, one for each of its loads: the link's rate, else the
    calibration's bus bandwidth.
    """
    on_several_devices(cell)
    loads = ring_loads(cell.data)
    rates = [
        ring_rate(cell.costs, load.kind, place_of(cell.data, load.kind, load.ranks))
        for load in loads
    ]
    return tuple(known(rate, cell.costs.no_basis(cell_place(cell.data))) for rate in rates)


@ESTIMATES.column(
    "ring formula",
    "time",
    "Ring formula of gradients, or of all that FSDP moves, one kind after the other",
)
def ring_us(cell: CellView) -> float:
    rates = ring_rates(cell)
    pairs = zip(ring_loads(cell.data), rates, strict=True)
    return sum(
        ring_formula_us(load.kind, load.size_bytes, load.ranks, rate.gb_per_s) or 0.0
        for load, rate in pairs
    )


@ESTIMATES.column("ring minus transfers", "time", "Ring prediction minus transfer")
def ring_error_us(cell: CellView) -> float:
    predicted_us, table = cell.ring_us, cell.data.tables.collectives
    kinds = set(table.words("kind")[table.known("transfer_us")].counts)
    if not kinds:
        raise Missing("no transfer time is known: traces of ranks are missing")
    if others := sorted(kinds - {load.kind for load in ring_loads(cell.data)}):
        what = f"the measured transfers include those of {', '.join(others)}"
        raise Missing(f"{what}, which the formula does not describe")
    return predicted_us - cell.transfer_us


@ESTIMATES.column(
    "ring's rate",
    "text",
    "specification: the link's, from --link or NVML; else calibration: the fastest rank's busbw by its fit at its largest size",
)
def ring_source(cell: CellView) -> str:
    return ring_rates(cell)[0].source
