"""A cell's communication as the models predict it, from the sizes in the run alone, and its columns next to the measured.

What a calibration measured comes first; without one the ring model at the link's specification, which is a bound that nobody
reaches. The two are never mixed within a cell.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from dpscope.analysis.cells.identity import (
    communication_shown,
    on_several_devices,
)
from dpscope.analysis.cells.view import CellView, Group, once
from dpscope.analysis.costs.calibration_fit import Statistic
from dpscope.analysis.costs.collective_streams import (
    BucketSchedule,
    ddp_schedule,
)
from dpscope.analysis.costs.cost import Basis, Cost, NotKnown, Place
from dpscope.analysis.costs.costs import Costs
from dpscope.analysis.costs.formulas import dp_transfer_us
from dpscope.analysis.stats.missing import known
from dpscope.analysis.stats.samples import Floats
from dpscope.analysis.traces.data_parallel.phases import dp_chunks
from dpscope.analysis.traces.ranks.job import Job
from dpscope.analysis.traces.ranks.whole_steps import STEP_KEYS
from dpscope.analysis.traces.reading.table import Table
from dpscope.profiling.records.run import ParameterSizes
from dpscope.profiling.records.strategies import (
    SHARDED_COLLECTIVES,
    concurrent_collectives,
)

_CostKey = tuple[str, int, float]  # kind, ranks, bytes
COST_KEY = ("kind", "group_size", "bytes")


@dataclass(frozen=True)
class CollectivePrediction:
    """Collectives of one kind and size in one cell.

    `measured_us` is the mean transfer, so that the sizes of a step add up to its transfers; None where none was matched (rooted
    collectives have none); `predicted_us` is None for `reason`; `extrapolated` is set where the size lies outside those
    calibrated. Both are of an iteration's shortest rank.
    `in_step_us` is the time next to compute and other collectives, if a calibration measured how much these slow it.
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
    measured_slowest_us: float | None = None  # the mean over collectives of their slowest rank, waiting included
    predicted_slowest_us: float | None = None  # of the slowest rank, alone, as calibrated

    @property
    def slowest_us(self) -> float | None:
        """What a step has to wait for: of the slowest rank; a link's specification makes no difference between ranks."""
        return self.predicted_us if self.predicted_slowest_us is None else self.predicted_slowest_us

    @property
    def expected_us(self) -> float | None:
        """The prediction to compare with the measured value."""
        return self.predicted_us if self.in_step_us is None else self.in_step_us

    @property
    def relative_error(self) -> float | None:
        return relative_error(self.expected_us, self.measured_us)


@dataclass(frozen=True)
class CellPrediction:
    """Per step and rank: `transfer_us` is compared with the sum of transfers, under DP with all communication.

    None is unknown, for `transfer_reason` and `exposed_reason`: exposed needs the cost of every collective, transfer that
    of the matched ones alone.
    """

    source: Basis | None
    transfer_us: float | None
    exposed_us: float | None
    collectives: tuple[CollectivePrediction, ...]
    transfer_reason: str
    exposed_reason: str
    # how much the calibration slows collectives next to others and next to compute, if that was used
    contention: str = ""
    alone_us: float | None = None  # of the same transfers, one after another with nothing else running


def relative_error(predicted_us: float | None, measured_us: float | None) -> float | None:
    """(predicted - measured) / measured."""
    return predicted_us / measured_us - 1 if predicted_us is not None and measured_us else None


def _unknown(source: Basis | None, reason: str) -> CellPrediction:
    return CellPrediction(source, None, None, (), reason, reason)


def place_of(data: Job, kind: str, ranks: int) -> Place:
    """Where the ranks of a collective lie: on the cell's nodes, but within each of them for what HSDP runs there."""
    within = data.traits.hybrid and kind in SHARDED_COLLECTIVES
    return Place(ranks, ranks if within else max(1, ranks // data.nodes))


def cell_place(data: Job) -> Place:
    """Where all of its devices are."""
    return Place(data.devices, max(1, data.devices // data.nodes))


def cost_of(
    data: Job,
    costs: Costs,
    key: _CostKey,
    statistic: Statistic = "slowest",
) -> Cost:
    """Of one of the cell's collectives, to be compared with what was measured of it; raises NotKnown."""
    kind, ranks, size = key
    if kind in concurrent_collectives(data.strategy, data.devices, data.nodes):
        raise NotKnown(f"several groups run their {kind} at the same time, and what is known is of one group alone")
    return costs.cost(kind, size, place_of(data, kind, ranks), statistic=statistic, exact=True)


def predict_cell(data: Job, costs: Costs) -> CellPrediction:
    """The prediction of one measured multi-device cell."""
    if data.traits.host_copies:
        return _unknown(None, "host copies within one process: no link to model")
    source = costs.basis(cell_place(data))
    if source is None:
        return _unknown(None, costs.no_basis(cell_place(data)))
    if data.traits.peer_copies:
        return _predict_dp(data, costs, source)
    if not len(data.whole_windows) or not len(data.tables.collectives):
        return _unknown(source, "the trace shows no collective in a whole step")
    if not all_known(data.whole_collectives, COST_KEY):
        return _unknown(
            source,
            "the trace does not show kind, size and ranks of every collective",
        )
    return _predict_collectives(data, costs, source)


@dataclass(frozen=True)
class Load:
    """What all-reduces share a step with: the group's workers (`servers`), others in flight, computing. As in `ddp_schedule`."""

    servers: int = 1
    slowdown: float = 2.0
    beside_compute: float = 1.0
    calibrated_at: str = ""  # where both ratios were calibrated


def _predict_collectives(data: Job, costs: Costs, source: Basis) -> CellPrediction:
    """From kind, size and ranks of every collective of the whole steps."""
    own = data.whole_collectives
    rows = {key: _prediction(data, key, costs) for key in dict.fromkeys(cost_keys(own))}
    priced = [rows[key] for key in cost_keys(own)]
    own = own.assign(
        cost_us=[row.slowest_us for row in priced],
        predicted_us=[row.predicted_us for row in priced],
    )
    load = step_load(data, costs, own)
    own = _in_step(own, load)
    matched = own.take(own.known("transfer_us"))
    unknown_matched, unknown = (_reasons(rows[key] for key in cost_keys(table)) for table in (matched, own))
    if not data.traits.reducer:
        unknown = unknown or "only DDP's schedule is modelled, and the traces do not show plain DDP"
    if not len(matched):
        unknown_matched = "needs matched collectives of every rank"
    sums = matched.group(*STEP_KEYS).sums(matched["predicted_us"])
    return CellPrediction(
        source=source,
        transfer_us=None if unknown_matched else float(sums.mean()),
        exposed_us=None if unknown else _mean_exposed_us(own, load),
        collectives=_by_size(data, own, rows),
        transfer_reason=unknown_matched,
        exposed_reason=unknown,
        contention=load.calibrated_at,
        alone_us=None if unknown_matched else float(matched["alone_us"].sum()) / len(data.whole_windows),
    )


def _mean_exposed_us(own: Table, load: Load) -> float:
    steps = [exposed_us(own.take(step), load) for step in own.group(*STEP_KEYS).rows()]
    return float(np.mean(steps))


def _reasons(rows: Iterable[CollectivePrediction]) -> str:
    """Why the cost of some of these collectives is not known; empty where all are."""
    return "; ".join(dict.fromkeys(row.reason for row in rows if row.reason))


def step_load(data: Job, costs: Costs, own: Table) -> Load:
    """Calibrated ratios for DDP whose buckets overlap; a single bucket overlaps nothing."""
    ratios = costs.contention(cell_place(data))
    several = own.having("kind", "all_reduce").group(*STEP_KEYS).sizes.max(initial=0) > 1
    # NCCL has a stream, gloo two workers for each network device, one as torch chooses by itself: threads = 2 x devices.
    # Source: ProcessGroupGloo::Options in torch.
    gloo = data.ranks[0][1].backend == "gloo" if data.ranks else not data.on_device
    servers = 2 if gloo else 1
    if ratios is None or not several or not data.traits.reducer:
        return Load(servers)
    return Load(
        servers,
        ratios.two_in_flight.value,
        max(1.0, ratios.beside_compute.value),
        ratios.summary,
    )


def _in_step(own: Table, load: Load) -> Table:
    """`predicted_us` of all-reduces as their step's schedule has them, where what slows them is calibrated; `alone_us` before."""
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
    """`ddp_schedule` of a step's all-reduces in order of readiness; `cost` is the column with what each takes alone."""
    return ddp_schedule(
        ready_us(ordered).tolist(),
        ordered[cost].tolist(),
        load.servers,
        load.slowdown,
        load.beside_compute,
    )


def exposed_us(step: Table, load: Load) -> float:
    """Predicted exposed communication of one rank's step: all-reduces by DDP's schedule, all others in full.

    `step` has kind, cost_us (of the slowest rank, alone) and ready_us (else start_us, which is later where one queued).
    DDP broadcasts buffers before the forward pass, which waits for them.
    """
    others = float(np.nansum(step["cost_us"][~step.words("kind").isin("all_reduce")]))
    reduced = by_readiness(step.having("kind", "all_reduce"))
    return others + bucket_schedule(reduced, "cost_us", load).exposed_us if len(reduced) else others


def ready_us(collectives: Table) -> Floats:
    """When a step's collectives could start: `ready_us` where all of them have it, else `start_us`."""
    return collectives["ready_us" if collectives.known("ready_us").all() else "start_us"]


def by_readiness(collectives: Table) -> Table:
    """A step's collectives in the order in which they could start."""
    return collectives.take(np.argsort(ready_us(collectives), kind="stable"))


def all_known(own: Table, columns: Sequence[str]) -> bool:
    """Whether there are rows, and all of them have a value in each of these columns."""
    return len(own) > 0 and all(own.known(name).all() for name in columns)


def cost_keys(own: Table) -> list[_CostKey]:
    """Kind, ranks and bytes of each collective, which must be known."""
    return [(one["kind"], one["group_size"], float(one["bytes"])) for one in own.records(COST_KEY)]


def _by_size(data: Job, own: Table, rows: Mapping[_CostKey, CollectivePrediction]) -> tuple[CollectivePrediction, ...]:
    """A row per kind and size with what was measured, the largest first."""
    measured, sizes = [], own.group(*COST_KEY)
    for key, of_size in zip(cost_keys(own.take(sizes.first)), sizes.rows(), strict=True):
        group = own.take(of_size)
        transfers_us = group["transfer_us"][group.known("transfer_us")]
        expected_us, alone_us = (
            group.mean(name) if group.known(name).all() else None for name in ("predicted_us", "alone_us")
        )
        matched = group.take(group.known("match"))
        slowest_us = matched.group("repeat", "match").most(matched["duration_us"])
        measured.append(
            replace(
                rows[key],
                per_step=len(group) / len(data.whole_windows),
                measured_us=float(transfers_us.mean()) if len(transfers_us) else None,
                in_step_us=expected_us if expected_us != alone_us else None,
                measured_slowest_us=float(slowest_us.mean()) if len(slowest_us) and len(transfers_us) else None,
            )
        )
    return tuple(sorted(measured, key=lambda row: -row.size_bytes))


def _prediction(data: Job, key: _CostKey, costs: Costs, per_step: float = 1.0) -> CollectivePrediction:
    """What is predicted of one kind and size, nothing being measured."""
    kind, ranks, size = key
    row = CollectivePrediction(
        data.name,
        kind,
        size,
        ranks,
        per_step,
        measured_us=None,
        predicted_us=None,
    )
    try:
        shortest, slowest = (
            cost_of(data, costs, key, "shortest"),
            cost_of(data, costs, key),
        )
    except NotKnown as unknown:
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


def _predict_dp(data: Job, costs: Costs, source: Basis) -> CellPrediction:
    """Each micro-batch of a step moves all parameters and gradients; by NCCL with a row per kind and size of chunk.

    By NCCL a broadcast per chunk of parameters and buffers and a reduce per chunk of gradients, else copies through device 0;
    source and assumptions: `dp_transfer_us`. The times of chunks are not measured, since the kernels have no size.
    """
    sizes, passes = model_sizes(data), data.options.accumulate
    if sizes is None or not sizes.parameter_tensors:
        holds = "traces do" if sizes is None else "the run does"
        return _unknown(None, f"{holds} not hold the sizes of the model's tensors")
    if by_nccl(data):
        chunks: Counter[_CostKey] = Counter()
        for kind, moved in zip(("broadcast", "reduce"), dp_chunks(sizes), strict=True):
            chunks.update((kind, data.devices, float(size)) for size in moved)
        rows = [_prediction(data, key, costs, count * passes) for key, count in chunks.items()]
        rows.sort(key=lambda row: -row.size_bytes)
        reason = _reasons(rows)
        us = None if reason else sum(row.per_step * (row.slowest_us or 0.0) for row in rows)
        return CellPrediction(source, us, us, tuple(rows), reason, reason)
    link = costs.link(cell_place(data))
    if link is None:
        return _unknown(
            None,
            "moved by copies between devices, which no calibration measures: give --link",
        )
    once_us = dp_transfer_us(
        sizes.parameter_bytes,
        sizes.buffer_bytes,
        data.devices,
        link.gb_per_s,
        peer_copies=True,
    )
    return CellPrediction("specification", passes * once_us, passes * once_us, (), "", "")


def _predictable(cell: CellView) -> None:
    on_several_devices(cell)
    communication_shown(cell)


PREDICTIONS = Group("predictions", "Predictions", needs=_predictable)


@once
def prediction(cell: CellView) -> CellPrediction:
    """From a calibration, else from the link's specification."""
    _predictable(cell)
    return predict_cell(cell.data, cell.costs)


@PREDICTIONS.column("from", "text", "calibration, or the link's specification")
def prediction_source(cell: CellView) -> str:
    return known(
        prediction(cell).source,
        prediction(cell).transfer_reason or "not predicted",
    )


@PREDICTIONS.column(
    "contention",
    "text",
    "Calibrated slowdown of collectives in flight together and next to compute, if it was used",
)
def prediction_contention(cell: CellView) -> str:
    return known(
        prediction(cell).contention or None,
        "no contention data in a calibration, or nothing overlaps",
    )


@PREDICTIONS.column("its prediction", "time", "Predicted transfers (DP: all communication)")
def predicted_transfer_us(cell: CellView) -> float:
    return known(
        prediction(cell).transfer_us,
        prediction(cell).transfer_reason or "not predicted",
    )


def _error(predicted_us: float, measured_us: float) -> float:
    return known(relative_error(predicted_us, measured_us), "the measured value is 0")


@PREDICTIONS.column("error", "share", "Predicted over measured, minus 1")
def predicted_transfer_error(cell: CellView) -> float:
    """All of DataParallel's communication is exposed, and it has no matched transfers."""
    predicted_us = cell.predicted_transfer_us
    return _error(
        predicted_us,
        cell.communication_us if cell.traits.peer_copies else cell.transfer_us,
    )


@PREDICTIONS.column("its prediction", "time", "Predicted exposed communication")
def predicted_exposed_us(cell: CellView) -> float:
    return known(
        prediction(cell).exposed_us,
        prediction(cell).exposed_reason or "not predicted",
    )


@PREDICTIONS.column("error", "share", "Predicted over measured exposed comm., minus 1")
def predicted_exposed_error(cell: CellView) -> float:
    return _error(cell.predicted_exposed_us, cell.exposed_us)
