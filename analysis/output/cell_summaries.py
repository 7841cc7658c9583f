"""The measured cells of a run for a mirror: what each was measured with, and every number of its row."""

from dpscope.analysis.cells.columns import NAMES
from dpscope.analysis.report.build import Report
from dpscope.profiling.mirrors.wandb_mirror import CellSummary


def cell_summaries(report: Report) -> list[CellSummary]:
    """One for each measured cell; numbers that are missing are left out, as mirrors know no NA."""
    workload = report.run.manifest.config.workload
    return [
        CellSummary(
            name=data.cell.name,
            settings={
                "strategy": data.cell.strategy,
                "devices": data.cell.devices,
                "batch_size": data.cell.batch_size,
                "variant": data.cell.variant or "none",
                "model": workload.model,
                "data": workload.data,
            },
            values={
                name: float(number)
                for name in NAMES
                if (number := report.comparison.rows[data.cell.name].number(name)) is not None
            },
        )
        for data in report.run.measured
    ]
