"""Which tables a report shows, in the order people read them."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from dpscope.analysis.cells.comparison import Comparison
from dpscope.analysis.findings.estimate_gaps import error_table, identity_table
from dpscope.analysis.findings.predictions import collective_table, off_notes
from dpscope.analysis.findings.scaling import law_table, scaling_table
from dpscope.analysis.findings.strategy_costs import cost_table
from dpscope.analysis.report.comparison_tables import gap_table, views_by_name
from dpscope.analysis.report.contention_table import contention_table
from dpscope.analysis.report.link_projection import projection_table
from dpscope.analysis.report.nccl_tables import NcclChapter
from dpscope.analysis.report.phase_table import run_phases
from dpscope.analysis.report.wait_table import rank_table, run_waits
from dpscope.analysis.runs.engine_check import SUSPECT
from dpscope.analysis.runs.run_data import RunData
from dpscope.analysis.text.text_table import TextTable
from dpscope.analysis.training.tables import TRAINING_TABLES, training_tables
from dpscope.profiling.records.strategies import traits_of

_SOURCES = {
    "calibration": "calibration, which measured the collectives alone",
    "specification": "link's specification by the ring model without latency, a lower bound",
}
_COMPARED = (
    "transfer: of the collectives that have one (rooted broadcasts and reduces have none); under DP all communication"
)
_MAIN = (
    "time",
    "gap",
    "costs",
    "memory",
    "scaling",
    "breakdown",
    "traffic",
    "estimates",
    "identity",
    "predictions",
    "collectives",
    "nccl_choices",
    "nccl_job",
    "nccl_peers",
    "learning",
    *TRAINING_TABLES,
    "checks",
)


def report_tables(run: RunData, comparison: Comparison, nccl: NcclChapter) -> dict[str, TextTable]:
    """All tables by name, in the order of a page: times, scaling, where time goes, estimates, models, learning, checks.

    A table about which the run says nothing is left out.
    """
    known = [data for data in run.measured if data.communication_known]
    views: dict[str, TextTable | None] = {**views_by_name(comparison)}
    tables = {
        "time": views.get("time"),
        "gap": gap_table(comparison),
        "costs": cost_table(comparison.costs),
        "memory": memory if (memory := views.get("memory")) and len(memory.headings) > 2 else None,  # more than steps
        "scaling": scaling_table(comparison),
        "laws": law_table(comparison),
        "breakdown": views.get("breakdown"),
        "contention": contention_table(comparison),
        "phases": views.get("phases"),
        "traffic": views.get("traffic"),
        "dp_phases": run_phases({data.cell.name: data.dp_phases for data in known}),
        "ranks": rank_table(known),
        "waits": run_waits(known),
        "estimates": views.get("estimates"),
        "identity": identity_table(comparison),
        "reasons": error_table(comparison),
        "epoch": views.get("epoch"),
        "predictions": _with_sources(views.get("predictions"), comparison, run),
        "collectives": collective_table(
            comparison, lambda one: nccl.choice(one.ranks, run.cells[one.cell].nodes, one.kind, one.size_bytes)
        ),
        "bandwidth": views.get("bandwidth"),
        "utilisation": views.get("utilisation"),
        "projection": projection_table(run),
        "learning": views.get("learning"),
        **(training_tables(run.training) if run.training else {}),
        "checks": views.get("checks"),
    }
    return {name: table for name, table in tables.items() if table is not None and table.rows}


def _with_sources(table: TextTable | None, comparison: Comparison, run: RunData) -> TextTable | None:
    """Predictions with what they rest on in the notes."""
    if table is None:
        return None
    rows = comparison.table[comparison.table["prediction_source"].notna()]
    by_source = rows.groupby("prediction_source")["cell"].apply(lambda cells: ", ".join(map(str, cells)))
    notes = tuple(f"predicted from the {_SOURCES[str(source)]}: {cells}" for source, cells in by_source.items())
    used = rows[rows["prediction_contention"].notna()]
    by_ratios = used.groupby("prediction_contention")["cell"].apply(lambda cells: ", ".join(map(str, cells)))
    notes += tuple(f"with contention as calibrated, {told}: {cells}" for told, cells in by_ratios.items())
    idle = rows[rows["prediction_contention"].isna() & rows["strategy"].map(lambda one: traits_of(one).reducer)]
    if len(idle):
        notes += (f"without contention, as on an idle machine: {', '.join(map(str, idle['cell']))}",)
    notes += tuple(off_notes(comparison, shared_cores=run.device_type == "cpu"))
    later = (
        ("the calibration was made after the run had begun, so these are not forecasts",)
        if comparison.calibrated_later
        else ()
    )
    return replace(table, notes=(*table.notes, _COMPARED, *notes, *_engine_notes(run), *later))


def _engine_notes(run: RunData) -> Iterator[str]:
    """Which of torch's NCCL engines the schedule of exposed communication assumes, where NCCL ran."""
    ran = {rank.nccl_engine for data in run.measured for _, rank in data.ranks if rank.nccl_engine is not None}
    if SUSPECT in ran:
        yield (
            "exposed is predicted as on torch's engine ProcessGroupNCCL, whose all-reduces run beside the backward pass; "
            f"whether those of {SUSPECT}, on which cells ran, do is not confirmed on hardware"
        )
    elif ran:
        yield f"exposed is predicted for torch's engine {', '.join(sorted(ran))}, on which the cells ran"


def terminal_tables(tables: Mapping[str, TextTable]) -> list[TextTable]:
    """Those of `report_tables` that a terminal shows; the page has them all."""
    return [tables[name] for name in _MAIN if name in tables]
