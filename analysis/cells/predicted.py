"""A cell's communication as the models predict it, from the sizes in the run alone, and its columns
next to the measured.

What a calibration measured comes first; without one the ring formula at the link's specification,
which is a bound that is never reached. The two are never mixed within a cell.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from dpscope.analysis.cells.cell_ledger import NOT_MATCHED
from dpscope.analysis.cells.identity import communication_shown, on_several_devices
from dpscope.analysis.cells.view import CellView, Group, once
from dpscope.analysis.costs.calibration_fit import Statistic
from dpscope.analysis.costs.collective_streams import BucketSchedule, ddp_schedule
from dpscope.analysis.costs.cost import Basis, Cost, Place
from dpscope.analysis.costs.costs import Costs
from dpscope.analysis.costs.formulas import dp_transfer_us
from dpscope.analysis.stats.missing import Missing, known
from dpscope.analysis.stats.samples import Floats
from dpscope.analysis.traces.ranks.job import Job
from dpscope.analysis.traces.ranks.whole_steps import STEP_KEYS
from dpscope.analysis.traces.reading.table import Table
from dpscope.analysis.traces.steps.data_parallel import dp_chunks
from dpscope.analysis.traces.steps.event_kind import ROOTED
from dpscope.profiling.records.run import ParameterSizes
from dpscope.profiling.records.strategies import SHARDED_COLLECTIVES, concurrent_collectives

_CostKey = tuple[str, int, float]  # kind, ranks, bytes
COST_KEY = ("kind", "group_size", "bytes")


@dataclass(frozen=True)
class CollectivePrediction:
    """Collectives of one kind and size in one cell.

    `measured_us` is the mean transfer, so that the sizes of a step add up to its transfers; None
    where none was matched (rooted collectives have none); `predicted_us` is None for `reason`;
    `extrapolated` is set where the size lies outside those calibrated. Both are of an iteration's
    shortest rank. `in_step_us` is the time next to compute and other collectives, if a calibration
    measured how much these slow it.
    """

    cell: str
    kind: str
    size_bytes: float
    ranks: int
    per_step: float
    measured_us: float | None
    predicted_us: float | None
    reason: str = ""
    extrapolated: str | None = None
    in_step_us: float | None = None
    # the mean over collectives of their slowest rank, waiting included
    measured_slowest_us: float | None = None
    predicted_slowest_us: float | None = None  # of the slowest rank, alone, as calibrated
    unmeasured: str = ""  # the kind, and why `measured_us` is None

    @property
    def slowest_us(self) -> float | None:
        """What a step has to wait for: of the slowest rank; a link's specification makes no
        difference between ranks.
        """
        return self.predicted_us if self.predicted_slowest_us is None else self.predicted_slowest_us

    @property
    def expected_us(self) -> float | None:
        """The prediction to compare with the measured value."""
        return self.predicted_us if self.in_step_us is None else self.in_step_us

    @property
    def relative_error(self) -> float | None:
        return relative_error(self.expected_us, self.measured_us)


def relative_error(predicted_us: float | None, measured_us: float | None) -> float | None:
    """(predicted - measured) / measured."""
    return predicted_us / measured_us - 1 if predicted_us is not None and measured_us else None


def place_of(data: Job, kind: str, ranks: int) -> Place:
    """Where the ranks of a collective lie: on the cell's nodes, but within each of them for what
    HSDP runs there.
    """
    within = data.traits.hybrid and kind in SHARDED_COLLECTIVES
    return Place(ranks, ranks if within else max(1, ranks // data.nodes))


def cell_place(data: Job) -> Place:
    """Where all of its devices are."""
    return Place(data.devices, max(1, data.devices // data.nodes))


def cost_of(data: Job, costs: Costs, key: _CostKey, statistic: Statistic = "slowest") -> Cost:
    """Of one of the cell's collectives, to be compared with what was measured of it; raises
    Missing.
    """
    kind, ranks, size = key
    if kind in concurrent_collectives(data.strategy, data.devices, data.nodes):
        raise Missing(
            f"several groups run their {kind} at the same time, and what is known is of one group alone"
        )
    return costs.cost(kind, size, place_of(data, kind, ranks), statistic=statistic, exact=True)


@dataclass(frozen=True)
class Load:
    """What all-reduces share a step with: the group's workers (`servers`), others in flight,
    computing. As in `ddp_schedule`.
    """

    servers: int = 1
    slowdown: float = 2.0
    beside_compute: float = 1.0
    calibrated_at: str = ""  # where both ratios were calibrated


def _need_costs(rows: Iterable[CollectivePrediction]) -> None:
    """Raises Missing for what is not known of the cost of any of these."""
    reasons = dict.fromkeys(row.reason for row in rows if row.reason)
    if reasons:
        raise Missing("; ".join(reasons))


def step_load(data: Job, costs: Costs, own: Table) -> Load:
    """Calibrated ratios for DDP whose buckets overlap; a single bucket overlaps nothing."""
    ratios = costs.contention(cell_place(data))
    several = own.having("kind", "all_reduce").group(*STEP_KEYS).sizes.max(initial=0) > 1
    # NCCL has a stream, gloo two workers for each network device, one as torch chooses by itself:
    # threads = 2 x devices. Source: ProcessGroupGloo::Options in torch.
    gloo = data.ranks[0][1].backend == "gloo" if data.ranks else not data.on_device
    servers = 2 if gloo else 1
    if ratios is None or not several or not data.traits.reducer:
        return Load(servers)
    return Load(
        servers, ratios.two_in_flight.value, max(1.0, ratios.beside_compute.value), ratios.summary
    )


def _in_step(own: Table, load: Load) -> Table:
    """`predicted_us` of all-reduces as their step's schedule has them, where what slows them is
    calibrated; `alone_us` before.
    """
    own = own.assign(alone_us=own["predicted_us"])
    if not load.calibrated_at:
        return own
    reduced, predicted_us = (
        np.flatnonzero(own.words("kind").isin("all_reduce")),
        own["predicted_us"].copy(),
    )
    for step in own.take(reduced).group(*STEP_KEYS).rows():
        rows = reduced[step]
        if own.known("predicted_us")[rows].all():
            rows = rows[np.argsort(ready_us(own.take(rows)), kind="stable")]
            schedule = bucket_schedule(own.take(rows), "predicted_us", load)
            predicted_us[rows] = np.subtract(schedule.end_us, schedule.start_us)
    return own.assign(predicted_us=predicted_us)


def bucket_schedule(ordered: Table, cost: str, load: Load) -> BucketSchedule:
    """`ddp_schedule` of a step's all-reduces in order of readiness; `cost` is the column with what
    each takes alone.
    """
    return ddp_schedule(
        ready_us(ordered).tolist(),
        ordered[cost].tolist(),
        load.servers,
        load.slowdown,
        load.beside_compute,
    )


def exposed_us(step: Table, load: Load) -> float:
    """Predicted exposed communication of one rank's step: all-reduces by DDP's schedule, all others
    in full.

    `step` has kind, cost_us (of the slowest rank, alone) and ready_us (else start_us, which is
    later where one queued). DDP broadcasts buffers before the forward pass, which waits for them.
    """
    others = float(np.nansum(step["cost_us"][~step.words("kind").isin("all_reduce")]))
    reduced = by_readiness(step.having("kind", "all_reduce"))
    return others + bucket_schedule(reduced, "cost_us", load).exposed_us if len(reduced) else others


def ready_us(collectives: Table) -> Floats:
    """When a step's collectives could start: `ready_us` where all of them have it, else
    `start_us`.
    """
    return collectives["ready_us" if collectives.known("ready_us").all() else "start_us"]


def by_readiness(collectives: Table) -> Table:
    """A step's collectives in the order in which they could start."""
    return collectives.take(np.argsort(ready_us(collectives), kind="stable"))


def all_known(own: Table, columns: Sequence[str]) -> bool:
    """Whether there are rows, and all of them have a value in each of these columns."""
    return len(own) > 0 and all(own.known(name).all() for name in columns)


def cost_keys(own: Table) -> list[_CostKey]:
    """Kind, ranks and bytes of each collective, which must be known."""
    return [
        (record["kind"], record["group_size"], float(record["bytes"]))
        for record in own.records(COST_KEY)
    ]


def _by_size(
    data: Job, own: Table, rows: Mapping[_CostKey, CollectivePrediction]
) -> tuple[CollectivePrediction, ...]:
    """A row per kind and size with what was measured, the largest first."""
    measured, sizes = [], own.group(*COST_KEY)
    for key, of_size in zip(cost_keys(own.take(sizes.first)), sizes.rows(), strict=True):
        group = own.take(of_size)
        transfers_us = group["transfer_us"][group.known("transfer_us")]
        expected_us, alone_us = (
            group.mean(name) if group.known(name).all() else None
            for name in ("predicted_us", "alone_us")
        )
        kind, _, _ = key
        unmeasured = ""
        if not len(transfers_us):
            unmeasured = f"{kind}: {_why_no_transfer(data, kind)}"
        matched = group.take(group.known("match"))
        slowest_us = matched.group("repeat", "match").most(matched["duration_us"])
        measured.append(
            replace(
                rows[key],
                per_step=len(group) / len(data.whole_windows),
                measured_us=float(transfers_us.mean()) if len(transfers_us) else None,
                unmeasured=unmeasured,
                in_step_us=expected_us if expected_us != alone_us else None,
                measured_slowest_us=float(slowest_us.mean())
                if len(slowest_us) and len(transfers_us)
                else None,
            )
        )
    return tuple(sorted(measured, key=lambda row: -row.size_bytes))


def _why_no_transfer(data: Job, kind: str) -> str:
    if kind in ROOTED:
        return "rooted collectives do not make all ranks wait for each other: they have no transfer"
    if data.not_split is not None:
        return data.not_split.reason
    return NOT_MATCHED


def _prediction(
    data: Job, key: _CostKey, costs: Costs, per_step: float = 1.0
) -> CollectivePrediction:
    """What is predicted of one kind and size, nothing being measured."""
    kind, ranks, size = key
    row = CollectivePrediction(
        data.name, kind, size, ranks, per_step, measured_us=None, predicted_us=None
    )
    try:
        shortest, slowest = (cost_of(data, costs, key, "shortest"), cost_of(data, costs, key))
    except Missing as unknown:
        return replace(row, reason=str(unknown))
    return replace(
        row,
        predicted_us=shortest.total_us,
        extrapolated=slowest.extrapolated,
        predicted_slowest_us=slowest.total_us if slowest.basis == "calibration" else None,
    )


def by_nccl(data: Job) -> bool:
    """Whether a DataParallel cell moved its parameters by NCCL, else by copies between devices."""
    return bool(data.tables.collectives.words("kind").isin("broadcast").any())


def model_sizes(data: Job) -> ParameterSizes | None:
    """Sizes of the model of a measured cell; traces alone do not hold them."""
    return data.ranks[0][1].model if data.ranks else None


def _predictable(cell: CellView) -> None:
    on_several_devices(cell)
    communication_shown(cell)


PREDICTIONS = Group("predictions", "Predictions", needs=_predictable)


@once
def basis(cell: CellView) -> Basis:
    """What a cell is predicted by: a calibration, else the link's specification."""
    _predictable(cell)
    if cell.traits.host_copies:
        raise Missing("host copies within one process: no link to model")
    place = cell_place(cell.data)
    return known(cell.costs.basis(place), cell.costs.no_basis(place))


@dataclass(frozen=True)
class Priced:
    """The collectives of whole steps with what each costs alone (`cost_us` of the slowest rank,
    `alone_us`) and in its step.
    """

    table: Table
    rows: Mapping[_CostKey, CollectivePrediction]
    load: Load

    def need_costs_of(self, collectives: Table) -> None:
        """Raises Missing if the cost of any of them is not known."""
        _need_costs(self.rows[key] for key in cost_keys(collectives))


@once
def priced(cell: CellView) -> Priced:
    """From kind, size and ranks of every collective of the whole steps."""
    basis(cell)
    data, costs = cell.data, cell.costs
    if not len(data.whole_windows) or not len(data.tables.collectives):
        raise Missing("the trace shows no collective in a whole step")
    table = data.whole_collectives
    if not all_known(table, COST_KEY):
        raise Missing("the trace does not show kind, size and ranks of every collective")
    keys = cost_keys(table)
    rows = {key: _prediction(data, key, costs) for key in dict.fromkeys(keys)}
    table = table.assign(
        cost_us=[rows[key].slowest_us for key in keys],
        predicted_us=[rows[key].predicted_us for key in keys],
    )
    load = step_load(data, costs, table)
    return Priced(_in_step(table, load), rows, load)


@once
def matched(cell: CellView) -> Table:
    """The collectives with a measured transfer, all of known cost."""
    table = priced(cell).table
    table = table.take(table.known("transfer_us"))
    priced(cell).need_costs_of(table)
    if not len(table):
        raise Missing(NOT_MATCHED)
    return table


@once
def predictions(cell: CellView) -> tuple[CollectivePrediction, ...]:
    """A row per kind and size of collective; none where copies between devices move everything."""
    if cell.traits.peer_copies:
        return _chunks(cell) if by_nccl(cell.data) else ()
    return _by_size(cell.data, priced(cell).table, priced(cell).rows)


@once
def _chunks(cell: CellView) -> tuple[CollectivePrediction, ...]:
    """DataParallel by NCCL: a broadcast per chunk of parameters and buffers, a reduce per chunk of
    gradients.

    Each micro-batch moves them all. Their times are not measured, since the kernels have no size.
    """
    basis(cell)
    counts: Counter[_CostKey] = Counter()
    for kind, sizes in zip(("broadcast", "reduce"), dp_chunks(_tensor_sizes(cell)), strict=True):
        counts.update((kind, cell.devices, float(size)) for size in sizes)
    passes = cell.data.options.accumulate
    rows = [
        _prediction(cell.data, key, cell.costs, count * passes) for key, count in counts.items()
    ]
    return tuple(sorted(rows, key=lambda row: -row.size_bytes))


def _tensor_sizes(cell: CellView) -> ParameterSizes:
    sizes = model_sizes(cell.data)
    if sizes is None or not sizes.parameter_tensors:
        holds = "traces do" if sizes is None else "the run does"
        raise Missing(f"{holds} not hold the sizes of the model's tensors")
    return sizes


@once
def _data_parallel_us(cell: CellView) -> float:
    """DataParallel's transfers of a step, of which nothing overlaps: by NCCL chunk by chunk, else
    copies through device 0.

    Source and assumptions: `dp_transfer_us`.
    """
    basis(cell)
    sizes = _tensor_sizes(cell)
    if by_nccl(cell.data):
        rows = _chunks(cell)
        _need_costs(rows)
        return sum(row.per_step * (row.slowest_us or 0.0) for row in rows)
    no_link = "moved by copies between devices, which no calibration measures: give --link"
    link = known(cell.costs.link(cell_place(cell.data)), no_link)
    moved = (sizes.parameter_bytes, sizes.buffer_bytes)
    once_us = dp_transfer_us(*moved, cell.devices, link.gb_per_s, peer_copies=True)
    return cell.data.options.accumulate * once_us


@PREDICTIONS.column("from", "text", "calibration, or the link's specification")
def prediction_source(cell: CellView) -> str:
    if not cell.traits.peer_copies or by_nccl(cell.data):
        return basis(cell)
    _data_parallel_us(cell)
    return "specification"


@PREDICTIONS.column(
    "contention",
    "text",
    "Calibrated slowdown of collectives in flight together and next to compute, if it was used",
)
def prediction_contention(cell: CellView) -> str:
    nothing = "no contention data in a calibration, or nothing overlaps"
    if cell.traits.peer_copies:
        raise Missing(nothing)
    return known(priced(cell).load.calibrated_at or None, nothing)


@PREDICTIONS.column("predicted transfers", "time", "Predicted transfers (DP: all communication)")
def predicted_transfer_us(cell: CellView) -> float:
    if cell.traits.peer_copies:
        return _data_parallel_us(cell)
    table = matched(cell)
    return float(table.group(*STEP_KEYS).sums(table["predicted_us"]).mean())


def alone_us(cell: CellView) -> float:
    """What a step's matched collectives take one after another with nothing else running."""
    return float(matched(cell)["alone_us"].sum()) / len(cell.data.whole_windows)


def _error(predicted_us: float, measured_us: float) -> float:
    return known(relative_error(predicted_us, measured_us), "the measured value is 0")


@PREDICTIONS.column("error of transfers", "share", "Predicted over measured, minus 1")
def predicted_transfer_error(cell: CellView) -> float:
    """All of DataParallel's communication is exposed, and it has no matched transfers."""
    predicted_us = cell.predicted_transfer_us
    return _error(
        predicted_us, cell.communication_us if cell.traits.peer_copies else cell.transfer_us
    )


@PREDICTIONS.column("predicted exposed", "time", "Predicted exposed communication")
def predicted_exposed_us(cell: CellView) -> float:
    if cell.traits.peer_copies:
        return _data_parallel_us(cell)
    table, load = priced(cell).table, priced(cell).load
    priced(cell).need_costs_of(table)
    if not cell.traits.reducer:
        raise Missing("only DDP's schedule is modelled, and the traces do not show plain DDP")
    steps = [exposed_us(table.take(step), load) for step in table.group(*STEP_KEYS).rows()]
    return float(np.mean(steps))


@PREDICTIONS.column("error of exposed", "share", "Predicted over measured exposed comm., minus 1")
def predicted_exposed_error(cell: CellView) -> float:
    """Unknown where nothing shows how much of the measured value is waiting, which no model has."""
    not_split = cell.data.not_split
    if not_split is not None and not cell.traits.peer_copies:
        raise Missing(f"the measured value includes waiting: {not_split.reason}")
    return _error(cell.predicted_exposed_us, cell.exposed_us)
