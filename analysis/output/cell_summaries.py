"""The measured cells of a run for a mirror: what each was measured with, and every number of its row."""

from dpscope.analysis.cells.row import as_number
from dpscope.analysis.report.build import Report
from dpscope.profiling.mirrors.wandb_cells import CellSummary


def cell_summaries(report: Report) -> list[CellSummary]:
    """One for each measured cell; numbers that are missing are left out, as mirrors know no NA."""
    rows = {str(row["cell"]): row for row in report.comparison.table.to_dict("records")}
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
                str(name): number
                for name, value in rows[data.cell.name].items()
                if (number := as_number(value)) is not None
            },
        )
        for data in report.run.measured
    ]
