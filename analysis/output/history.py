"""`dpscope compare A B C ...`: runs in the order in which they were measured, each cell's step as a column of times."""

from collections.abc import Sequence
from datetime import datetime

from dpscope.analysis.runs.run_data import RunData
from dpscope.analysis.stats.samples import pooled_median
from dpscope.analysis.text.text_table import TextTable
from dpscope.analysis.text.units import choose_unit, show
from dpscope.profiling.store.errors import NotComparableError


def in_order(runs: Sequence[RunData]) -> list[RunData]:
    """By the time at which they were begun; raises NotComparableError for traces, which do not tell it."""
    for run in runs:
        if run.recorded is None:
            raise NotComparableError(f"{run.path} holds traces alone, which do not tell when they were made; name runs")
    return sorted(runs, key=lambda run: datetime.fromisoformat(run.manifest.created_at))


def history_table(runs: Sequence[RunData]) -> TextTable:
    """A row per run and a column per cell, medians of untraced steps; NA where a run did not measure the cell."""
    cells = list(dict.fromkeys(data.cell.name for run in runs for data in run.measured))
    steps = {
        (index, data.cell.name): pooled_median(data.step_samples())
        for index, run in enumerate(runs)
        for data in run.measured
    }
    unit = choose_unit("time", list(steps.values()))
    rows = [
        (run.path.name, run.manifest.created_at[:16], *(show(steps.get((index, cell)), unit) for cell in cells))
        for index, run in enumerate(runs)
    ]
    headings = ("run", "begun", *(f"{cell} [{unit.label}]" for cell in cells))
    return TextTable(
        "Steps by time",
        headings,
        tuple(rows),
        ("in the order in which the runs were started; runs do not record a commit",),
    )
