"""Cells of a run made by hand: known samples, windows and collectives, without traces."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import msgspec

from dpscope.analysis.costs.calibration_fit import fit_calibration
from dpscope.analysis.runs.run_data import RunData
from dpscope.analysis.traces.ranks.job import NO_TABLES, Job, planned_job
from dpscope.analysis.traces.reading.table import Table
from dpscope.profiling.records.calibration import (
    CALIBRATION_SCHEMA_VERSION,
    Calibration,
    CalibrationPoint,
    Collective,
    CollectiveFit,
    FitPiece,
)
from dpscope.profiling.records.run import Cell, CellOptions, ParameterSizes, RankResult, TensorSize
from dpscope.profiling.store.folders import RunFolder
from tests.helpers.paths import EXAMPLE_RUN

SIZES = ParameterSizes(
    parameter_count=1_000_000,
    parameter_bytes=4_000_000,
    gradient_bytes=4_000_000,
    buffer_bytes=0,
    parameter_tensors=(
        TensorSize(dtype="float32", bytes=3_000_000),
        TensorSize(dtype="float32", bytes=1_000_000),
    ),
)


def rank_result(rank: int, world_size: int) -> RankResult:
    return RankResult(
        rank=rank, node=0, local_rank=rank, world_size=world_size, device_names=(), threads=1, backend=None, nccl_engine=None,
        loader_workers=0, steps_per_epoch=10, model=SIZES, blocks=(), memory=(),
    )  # fmt: skip


def traced_table(name: str, rows: Iterable[Mapping[str, object]]) -> Table:
    """The table `name` of Tables with these rows: what they do not state is missing, their `repeat`
    0.
    """
    return Table.from_records(
        ({"repeat": 0, **row} for row in rows), getattr(NO_TABLES, name).names
    )


def with_tables(data: Job, **tables: Table) -> Job:
    """With these of its Tables."""
    return replace(data, tables=replace(data.tables, **tables))


def samples(repeats: Sequence[Sequence[float]], data_wait_us: float = 0.0) -> Table:
    """Timed and traced step times in microseconds, a list per repeat."""
    return traced_table(
        "samples",
        (
            {
                "measuring_pass": measuring_pass, "epoch": 0, "step": step, "step_us": float(value), "samples": 8,
                "data_wait_us": data_wait_us, "repeat": repeat,
            }
            for repeat, values in enumerate(repeats)
            for measuring_pass in ("timed", "traced")
            for step, value in enumerate(values)
        ),
    )  # fmt: skip


def windows(cell: Cell, steps: int, repeats: int = 1, /, **columns: float) -> Table:
    """Traced steps, all alike, of every rank (DDP) or device (DP); `columns` in microseconds."""
    ranks = range(cell.devices) if cell.strategy == "ddp" else (0,)
    devices = range(cell.devices) if cell.strategy == "dp" else (0,)
    if "exposed_us" in columns:  # what is not waiting or transfer
        split = columns.get("exposed_wait_us", 0.0) + columns.get("exposed_transfer_us", 0.0)
        columns.setdefault("exposed_other_us", columns["exposed_us"] - split)
    return traced_table(
        "steps",
        (
            {
                "repeat": repeat,
                "rank": rank,
                "device": device,
                "step": step,
                "partial_window": False,
                **columns,
            }
            for repeat in range(repeats)
            for rank in ranks
            for device in devices
            for step in range(steps)
        ),
    )


def all_reduces(
    cell: Cell, steps: int, buckets: Sequence[tuple[float, float, float]], repeats: int = 1
) -> Table:
    """Per rank and step an all-reduce for each (bytes, ready_us, transfer_us)."""
    return traced_table(
        "collectives",
        (
            {
                "repeat": repeat, "rank": rank, "device": 0, "step": step, "kind": "all_reduce", "group_size": cell.devices,
                "bytes": size, "start_us": ready, "duration_us": transfer, "transfer_us": transfer, "wait_us": 0.0,
                "group": "0", "sequence": order, "order": order, "match": step * len(buckets) + order,
            }
            for repeat in range(repeats)
            for rank in range(cell.devices)
            for step in range(steps)
            for order, (size, ready, transfer) in enumerate(buckets)
        ),
    )  # fmt: skip


def cell_data(
    cell: Cell,
    repeats: Sequence[Sequence[float]],
    steps: Table,
    collectives: Table = NO_TABLES.collectives,
) -> Job:
    processes = cell.devices if cell.strategy == "ddp" else 1
    ranks = (
        (repeat, rank_result(rank, processes))
        for repeat in range(len(repeats))
        for rank in range(processes)
    )
    tables = replace(NO_TABLES, samples=samples(repeats), steps=steps, collectives=collectives)
    return replace(planned_job(cell), ranks=tuple(ranks), tables=tables)


def timed_cell(cell: Cell, *levels_us: float, count: int = 8) -> Job:
    """A repeat of `count` equal steps for each level; traced steps of 2 us, half of them
    compute.
    """
    traced = windows(cell, 2, len(levels_us), step_us=2.0, compute_us=1.0, idle_us=1.0)
    return cell_data(cell, [[level] * count for level in levels_us], traced)


def calibration(
    lines: dict[Collective, tuple[float, float]],
    devices: int = 2,
    smallest: int = 4096,
    largest: int = 256 << 20,
) -> Calibration:
    """A calibration of one line per collective: alpha in microseconds, rate in GB/s."""
    fits = [
        CollectiveFit(
            collective=kind, devices=devices, pieces=(FitPiece(0, None, *[alpha_us] * 3, *[gb_per_s] * 3),), sizes=10,
            smallest_bytes=smallest, largest_bytes=largest, median_relative_error=0.0, largest_relative_error=0.0,
            prediction_relative_error=0.1, interval_source="samples",
        )
        for kind, (alpha_us, gb_per_s) in lines.items()
    ]  # fmt: skip
    return Calibration(
        schema_version=CALIBRATION_SCHEMA_VERSION, dpscope_version="0", created_at="2026-01-01T00:00:00+00:00",
        source="measured", settings=None, backend="gloo", environment=None, device_names=(), points=(), fits=tuple(fits),
    )  # fmt: skip


def timed(
    devices: int,
    alpha_us: float,
    gb_per_s: float,
    sizes: Sequence[int],
    kind: Collective = "all_reduce",
    nodes: int | None = None,
) -> list[CalibrationPoint]:
    """For each size five calls that take exactly alpha + S/B."""
    times_us = {size: (alpha_us + size / gb_per_s / 1e3,) * 5 for size in sizes}
    return [
        CalibrationPoint(kind, devices, size, size // 4, "float32", times, nodes=nodes)
        for size, times in times_us.items()
    ]


def fitted(*points: Sequence[CalibrationPoint], **changes: object) -> Calibration:
    """A calibration with lines through these points."""
    every = tuple(point for part in points for point in part)
    return fit_calibration(msgspec.structs.replace(calibration({}), points=every, **changes))


def with_ranks(data: Job, **changes: object) -> Job:
    """With these fields of every rank's results."""
    return replace(
        data,
        ranks=tuple(
            (repeat, msgspec.structs.replace(one, **changes)) for repeat, one in data.ranks
        ),
    )


def run_of(*cells: Job) -> RunData:
    """A run of these cells, in the example's folder and with its manifest."""
    return RunData(
        EXAMPLE_RUN, RunFolder(EXAMPLE_RUN).manifest(), {data.name: data for data in cells}
    )


def in_cell(data: Job, cell: Cell) -> Job:
    """What was measured as that of another cell."""
    own = planned_job(cell)
    return replace(
        data,
        plan=cell,
        name=own.name,
        strategy=own.strategy,
        devices=own.devices,
        processes=own.processes,
    )


def optioned(data: Job, times: float, **options: str | int | float) -> Job:
    """The cell under other options, each of its steps as many times as long."""
    cell = msgspec.structs.replace(data.cell, options=CellOptions(**options), variant="")  # type: ignore[arg-type]
    samples = data.tables.samples
    return with_tables(
        in_cell(data, cell), samples=samples.assign(step_us=samples["step_us"] * times)
    )
