"""The report's chapter on what was not measured: more devices, what each change saves, and how wrong the method is here."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dpscope.analysis.runs.run_data import RunData
from dpscope.analysis.text.text_table import TextTable
from dpscope.analysis.what_if.answers.bases import base_of_loaded
from dpscope.analysis.what_if.answers.cell_errors import with_cell_errors
from dpscope.analysis.what_if.answers.output import RunAnswer, base_sentences, ledger_table, run_answer, run_table
from dpscope.analysis.what_if.answers.savings import Saving, savings
from dpscope.analysis.what_if.scenarios.predict import refusal
from dpscope.analysis.what_if.scenarios.scenario import Scenario
from dpscope.profiling.store.errors import DpscopeError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_TIMES_AS_MANY = (1, 2, 4, 8)  # devices as the base has; beyond that nothing has a number


@dataclass(frozen=True)
class WhatIfChapter:
    """The answer, and its tables by name."""

    answer: RunAnswer
    tables: dict[str, TextTable]

    def figure(self) -> "Figure | None":
        """Efficiency over devices, with band and measured points; None where there is none to draw."""
        from dpscope.analysis.what_if.answers.written import efficiency_figure

        return efficiency_figure(self.answer)


def chapter_of(run: RunData) -> WhatIfChapter | None:
    """Configurations that were not measured, predicted from a run's largest DDP cell; None where it cannot be a base."""
    if run.recorded is None:
        return None
    try:
        question = base_of_loaded(run)
    except DpscopeError:
        return None
    question, own = with_cell_errors(question)
    base = question.base
    if refusal(base, Scenario()) is not None:
        return None
    counts = [times * base.devices for times in _TIMES_AS_MANY]
    answer = run_answer(question, own, [({"devices": str(one)}, Scenario(devices=one)) for one in counts])
    changes = savings(base, Scenario(), question.costs)
    table = run_table(answer)
    tables = {
        "what_if": TextTable(table.title, table.headings, table.rows, notes=(*base_sentences(answer), *table.notes)),
        "what_if_ledger": ledger_table(answer),
        "what_if_savings": _savings_table(changes, base.name),
        "what_if_own_error": _error_table(answer),
    }
    return WhatIfChapter(answer, {name: one for name, one in tables.items() if one.rows})


def _savings_table(changes: list[Saving], cell: str) -> TextTable:
    rows = []
    for one in changes:
        saved, low, high = (_ms(value) for value in (one.saved_us, one.low_us, one.high_us))
        rows.append((one.change, saved, f"{low} to {high}", "yes" if one.is_significant else "no"))
    return TextTable(
        f"What one change alone would take off the step of {cell}",
        ("change", "saves [ms]", "band [ms]", "significant"),
        tuple(rows),
        notes=("Parts of the step that can be removed come first, then changes for comparison",),
    )


def _ms(value_us: float | None) -> str:
    """Milliseconds; what rounds to nothing has no sign."""
    return "NA" if value_us is None else f"{round(value_us / 1e3, 2) + 0.0:.2f}"


def _error_table(answer: RunAnswer) -> TextTable:
    rows = []
    for one in answer.own.cells:
        times_us = (one.predicted_us, one.perfect_us, one.same_us)
        ratios = [None if us is None else us / one.measured_us - 1 for us in times_us]
        errors = ("NA" if ratio is None else f"{100 * ratio:+.1f}" for ratio in ratios)
        rows.append((one.cell, _ms(one.measured_us), _ms(one.predicted_us), *errors))
    reasons = dict.fromkeys(f"{one.cell}: {one.reason}" for one in answer.own.cells if one.reason is not None)
    headings = ("cell", "measured [ms]", "predicted [ms]", "error [%]", "perfect scaling [%]", "nothing changes [%]")
    return TextTable("The same method on cells that were measured", headings, tuple(rows), notes=tuple(reasons))
