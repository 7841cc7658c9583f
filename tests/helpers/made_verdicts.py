"""Rows of cells on four devices, and the verdict on them without samples and traces."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec

from dpscope.analysis.cells.comparison import Comparison, StrategyGap
from dpscope.analysis.cells.row import CellRow
from dpscope.analysis.cells.scaling import ScalingPoint, ScalingSeries
from dpscope.analysis.findings.facts import Verdict
from dpscope.analysis.findings.verdict import run_verdict
from dpscope.analysis.runs.run_data import RunData
from dpscope.analysis.stats.samples import Estimate
from dpscope.analysis.traces.ranks.job import planned_job
from dpscope.analysis.traces.ranks.ledger import Ledger
from dpscope.profiling.records.finding import Finding
from dpscope.profiling.records.run import Cell
from dpscope.profiling.store.folders import RunFolder
from tests.helpers.known import known
from tests.helpers.made_rows import made_row
from tests.helpers.paths import EXAMPLE_RUN

FASTER = Estimate(3.6, 3.4, 3.8, 60)
AHEAD = Estimate(1.3, 1.2, 1.4, 60)


def cell(strategy: str, devices: int, batch: int, **values: Any) -> CellRow:
    """A row: a traced step of 100 ms of which 20 ms are exposed of 30 ms of communication, unless
    `values` differ.
    """
    usual: dict[str, Any] = {
        "step_us": 100e3,
        "step_without_wait_us": 100e3,
        "traced_step_us": 100e3,
        "idle_us": 1e3,
    }
    if devices > 1:
        usual |= {"communication_us": 30e3, "exposed_us": 20e3}
        usual |= {"exposed_wait_us": 0.0, "exposed_transfer_us": 20e3, "exposed_other_us": 0.0}
    name = f"{strategy}-d{devices}-b{batch}"
    row = made_row(name, strategy, devices, batch_size=batch, **(usual | values))
    return replace(row, ledger=_ledger(row)) if row.traced_step_us is not None else row


def _ledger(row: CellRow) -> Ledger:
    """Of a row: compute is what the other parts leave of the step; broadcasts are all that is
    other.
    """
    parts = {
        name: row.number(f"{name}_us")
        for name in ("exposed_wait", "exposed_transfer", "exposed_other", "idle")
    }
    other, bounds = parts["exposed_other"], row.interval("exposed_us")
    return Ledger(
        traced_step_us=100e3,
        compute_us=100e3 - sum(value for value in parts.values() if value is not None),
        **{f"{name}_us": value for name, value in parts.items()},  # type: ignore[arg-type]
        communication_us=row.communication_us,
        unlaunched_us=row.unlaunched_us,
        other_by_kind_us={"broadcast": other} if other else {},
        intervals={"exposed": bounds} if bounds is not None else {},
    )


def comparison(
    *rows: CellRow, speedups: Mapping[str, Estimate] | None = None, ratio: Estimate | None = None
) -> Comparison:
    """`speedups` by cell; `ratio` is DP's step over DDP's at 4 devices and batch 32."""
    series = tuple(
        ScalingSeries(
            "ddp" if name.startswith("ddp") else "dp",
            "",
            "weak",
            32,
            (ScalingPoint(name, 4, speedup, 0.1),),
            None,
        )
        for name, speedup in (speedups or {}).items()
    )
    stand_in = any(row.strategy == "dp-host" for row in rows)
    dp, label = ("dp-host", "dp-host") if stand_in else ("dp", "DP")
    gaps = []
    if ratio is not None:
        gaps = [StrategyGap(f"{dp}-d4-b32", "ddp-d4-b32", 4, 32, label, ratio, *[None] * 6)]
    return Comparison({row.cell: row for row in rows}, tuple(gaps), series)


def answer(
    of: Comparison, device_type: str, findings: Mapping[str, tuple[Finding, ...]] | None = None
) -> Verdict:
    """The verdict on cells that were measured on `device_type`."""
    fields = ("strategy", "devices", "batch_size")
    planned = {
        name: msgspec.convert({field: row.value(field) for field in fields}, Cell)
        for name, row in of.rows.items()
    }
    cells = {
        name: planned_job(cell).with_findings(*(findings or {}).get(name, ()))
        for name, cell in planned.items()
    }
    manifest = msgspec.structs.replace(
        RunFolder(EXAMPLE_RUN).manifest(),
        device_type=device_type,
        repeats_by_cell=dict.fromkeys(cells, 0),  # none is missing
    )
    return run_verdict(RunData(EXAMPLE_RUN, manifest, cells), of)


SINGLE = cell("single", 1, 32)
DP = cell("dp", 4, 32, step_us=130e3)
DDP = cell("ddp", 4, 32)


def verdict_on(
    *rows: CellRow,
    gain: Estimate | None = FASTER,
    of: str = "ddp-d4-b32",
    ratio: Estimate | None = None,
) -> Verdict:
    """On GPUs; `gain` is the speedup of a cell over one device, `ratio` as in `comparison`."""
    speedups = {of: gain} if gain is not None else None
    return answer(comparison(SINGLE, *rows, speedups=speedups, ratio=ratio), "cuda")


def said(verdict: Verdict, question: str) -> str:
    """The text of the fact that answers a question."""
    return known(verdict.fact(question)).text
