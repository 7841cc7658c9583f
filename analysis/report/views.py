"""The registry of views: every table of a report, in the order in which people read them.

Terminal, page, Markdown, LaTeX and the frames of the Python API are loops over VIEWS.

A view's function declares its columns as `Field`s (heading, how a row's value is read, unit or
quantity, meaning) and ends in `table_of` (text/text_table.py); notes and reasons for missing values
(`Unknown`) travel with the table. Columns of the comparison alone are a `view_of`
(comparison_tables.py).
"""

from collections.abc import Callable
from dataclasses import dataclass

from dpscope.analysis.cells.columns import OWN
from dpscope.analysis.cells.comparison import Comparison
from dpscope.analysis.findings.cost import ledger_table
from dpscope.analysis.report.comparison_tables import (
    BANDWIDTH,
    BREAKDOWN,
    CHECKS,
    DEVICE_POINTS,
    DEVICE_USE,
    ESTIMATES,
    MEMORY,
    PHASES,
    TIME,
    TRAFFIC,
    group_table,
    shortcut_table,
    step_table,
)
from dpscope.analysis.report.formulas import formula_table
from dpscope.analysis.report.nccl_tables import choices_table, job_table
from dpscope.analysis.report.prediction_tables import (
    collective_table,
    identity_table,
    prediction_table,
)
from dpscope.analysis.report.rank_tables import (
    cells_contention,
    cells_phases,
    cells_waits,
    rank_table,
)
from dpscope.analysis.report.results import Results
from dpscope.analysis.report.strategy_tables import cost_table, gap_table, scaling_table
from dpscope.analysis.report.study import (
    epoch_table,
    estimated_table,
    published_table,
    rate_table,
    traced_table,
)
from dpscope.analysis.text.text_table import TextTable
from dpscope.analysis.training.data import TrainingData
from dpscope.analysis.training.tables import TRAINING_TABLES

FIRST, STUDY = "first", "study"
"""Sections of tables that stand before all others, and of those that `--tables` prints instead."""


@dataclass(frozen=True)
class View:
    """A table, written once: its name, the section that it stands in (`sections.SECTIONS`, FIRST or
    STUDY), and a function of the report, whose result is None or has no rows where there is nothing
    to show.

    `printed`: also on a terminal, which shows each with --verbose.
    """

    name: str
    section: str
    table: Callable[[Results], TextTable | None]
    printed: bool = True


def _compared(
    name: str, section: str, table: Callable[[Comparison], TextTable | None], printed: bool = True
) -> View:
    """A table of the comparison alone."""
    return View(name, section, lambda report: table(report.comparison), printed)


def _training(
    table: Callable[[TrainingData], TextTable | None],
) -> Callable[[Results], TextTable | None]:
    """A table of the trainings in the run's folder."""
    return lambda report: table(report.run.training) if report.run.training else None


def _what_if(name: str) -> Callable[[Results], TextTable | None]:
    """A table of the what-if chapter."""
    return lambda report: report.what_if.tables.get(name) if report.what_if else None


def _steps(report: Results) -> TextTable | None:
    """Where a step goes: of each cell of a run; of traces alone, of the mean and notable ranks."""
    if report.run.recorded is not None:
        return step_table(report.comparison)
    (job,) = report.run.cells.values()
    return ledger_table(job)


VIEWS = (
    View("step", FIRST, _steps),
    _compared("shortcuts", FIRST, shortcut_table),
    _compared("time", "numbers", TIME),
    View("waits", "numbers", lambda report: cells_waits(report.run), printed=False),
    _compared("scaling", "numbers", scaling_table),
    _compared("own", "numbers", lambda comparison: group_table(comparison, OWN)),
    _compared("gap", "strategies", gap_table),
    View("dp_phases", "strategies", lambda report: cells_phases(report.run), printed=False),
    _compared("costs", "strategies", cost_table),
    _compared("memory", "strategies", MEMORY),
    _compared("breakdown", "breakdown", BREAKDOWN),
    _compared("contention", "breakdown", cells_contention, printed=False),
    _compared("phases", "breakdown", PHASES, printed=False),
    _compared("traffic", "breakdown", TRAFFIC),
    _compared("device_use", "device_use", DEVICE_USE),
    _compared("device_points", "device_use", DEVICE_POINTS),
    View("ranks", "waiting", lambda report: rank_table(report.run.measured), printed=False),
    _compared("estimates", "estimates", ESTIMATES),
    _compared("identity", "estimates", identity_table),
    View(
        "formulas",
        "models",
        lambda report: formula_table(report.run, report.comparison),
        printed=False,
    ),
    View("predictions", "models", lambda report: prediction_table(report.run, report.comparison)),
    View(
        "collectives", "models", lambda report: collective_table(report.comparison, report.choice)
    ),
    View("nccl_choices", "models", lambda report: choices_table(report.nccl.jobs)),
    View("nccl_job", "models", lambda report: job_table(report.nccl.jobs)),
    _compared("bandwidth", "bandwidth", BANDWIDTH, printed=False),
    *(
        View(name, "what_if", _what_if(name), printed=False)
        for name in ("what_if", "what_if_own_error")
    ),
    *(View(name, "learning", _training(table)) for name, table in TRAINING_TABLES.items()),
    _compared("checks", "checks", CHECKS),
    View("study_epochs", STUDY, epoch_table),
    View("study_parts", STUDY, traced_table),
    View("study_estimates", STUDY, estimated_table),
    View("study_bandwidth", STUDY, rate_table),
    View("study_published", STUDY, published_table),
)


def tables_of(report: Results, *sections: str) -> dict[str, TextTable]:
    """The tables with rows of these sections, by name."""
    made = {view.name: view.table(report) for view in VIEWS if view.section in sections}
    return {name: table for name, table in made.items() if table is not None and table.rows}
