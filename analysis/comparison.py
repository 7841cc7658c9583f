"""The comparison: one row a cell, and DP against DDP where both were measured alike."""

from dataclasses import dataclass

import pandas as pd

from dpscope.analysis.cell_summary import Row, summarise_cell
from dpscope.analysis.columns import NAMES
from dpscope.analysis.run_analysis import CellData, RunData
from dpscope.analysis.sample_statistics import ratio_estimate


@dataclass(frozen=True)
class StrategyGap:
    """DP less DDP at equal devices and batch; microseconds per step.

    `ratio` is DP's median step over DDP's with its 95% interval. The gap of the traced windows' means is the sum of its
    four parts (None where a trace does not tell); `tracer_us` is what they leave of the untraced gap.
    """

    dp: str
    ddp: str
    devices: int
    batch_size: int
    ratio: float | None
    ratio_low: float | None
    ratio_high: float | None
    count: int
    gap_us: float | None
    exposed_us: float | None
    host_copies_us: float | None
    compute_us: float | None
    idle_us: float | None
    tracer_us: float | None


@dataclass(frozen=True)
class Comparison:
    """`table`: a row per planned cell, columns.NAMES; `reasons`: (cell, column) -> why it is missing."""

    table: pd.DataFrame
    reasons: dict[tuple[str, str], str]
    gaps: tuple[StrategyGap, ...]


def compare(run: RunData, link_gbps: float | None = None) -> Comparison:
    """The comparison of a run's cells."""
    singles = single_cells(run)
    rows = {name: summarise_cell(data, singles, link_gbps) for name, data in run.cells.items()}
    table = pd.DataFrame([row.values for row in rows.values()], columns=list(NAMES))
    return Comparison(
        table=table.convert_dtypes(),
        reasons={(name, column): why for name, row in rows.items() for column, why in row.reasons.items()},
        gaps=tuple(_gap(run, rows, dp, ddp) for dp, ddp in _pairs(run)),
    )


def single_cells(run: RunData) -> dict[int, CellData]:
    """The measured single-device cells by batch size."""
    return {data.cell.batch_size: data for data in run.measured if data.cell.strategy == "single"}


def _pairs(run: RunData) -> list[tuple[CellData, CellData]]:
    """Measured DP and DDP cells of equal devices and batch."""
    ddp = {(data.cell.devices, data.cell.batch_size): data for data in run.measured if data.cell.strategy == "ddp"}
    return [
        (data, ddp[data.cell.devices, data.cell.batch_size])
        for data in run.measured
        if data.cell.strategy in ("dp", "dp-host") and (data.cell.devices, data.cell.batch_size) in ddp
    ]


def _gap(run: RunData, rows: dict[str, Row], dp: CellData, ddp: CellData) -> StrategyGap:
    ratio = ratio_estimate(dp.step_samples(), ddp.step_samples())
    first, second = _parts(rows[dp.cell.name], dp), _parts(rows[ddp.cell.name], ddp)
    parts = {name: _minus(first[name], second[name]) for name in first}
    gap = _minus(rows[dp.cell.name].number("step_us"), rows[ddp.cell.name].number("step_us"))
    known = [part for part in parts.values() if part is not None]
    return StrategyGap(
        dp=dp.cell.name,
        ddp=ddp.cell.name,
        devices=dp.cell.devices,
        batch_size=dp.cell.batch_size,
        ratio=ratio.value,
        ratio_low=ratio.low,
        ratio_high=ratio.high,
        count=ratio.count,
        gap_us=gap,
        tracer_us=gap - sum(known) if gap is not None and len(known) == len(parts) else None,
        **parts,
    )


def _parts(row: Row, data: CellData) -> dict[str, float | None]:
    """A traced step's four parts: exposed communication, host copies, compute, the rest of idle.

    dp-host communicates by host copies within its process, so what it exposes is host copies. A single CPU process has no
    device to copy to: its host copies are 0 there by definition and not by measurement.
    """
    exposed, copies, idle = row.number("exposed_us"), row.number("host_copy_us"), row.number("idle_us")
    if data.cell.strategy == "dp-host":
        return {"exposed_us": 0.0, "host_copies_us": exposed, "compute_us": row.number("compute_us"), "idle_us": idle}
    if data.ranks and not data.ranks[0][1].memory:  # a CPU timeline has no copies apart from compute
        copies = 0.0
    return {
        "exposed_us": exposed,
        "host_copies_us": copies,
        "compute_us": row.number("compute_us"),
        "idle_us": _minus(idle, copies),
    }


def _minus(first: float | None, second: float | None) -> float | None:
    return first - second if first is not None and second is not None else None
