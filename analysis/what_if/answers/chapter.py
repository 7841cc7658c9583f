"""The report's chapter on what was not measured: more devices, what is worth most, and how wrong the method is here."""

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
    """What a run's largest DDP cell says of configurations that were not measured; None where it cannot be a base."""
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
    rows = tuple(
        (
            one.change,
            _plain_ms(one.saved_us),
            f"{_plain_ms(one.low_us)} to {_plain_ms(one.high_us)}",
            "yes" if one.is_significant else "no",
        )
        for one in changes
    )
    return TextTable(
        f"What one change alone would take off the step of {cell}",
        ("change", "saves [ms]", "band [ms]", "significant"),
        rows,
        notes=("Parts of the step that can be removed come first, then changes for comparison",),
    )


def _plain_ms(value_us: float) -> str:
    """Milliseconds; what rounds to nothing has no sign."""
    return f"{round(value_us / 1e3, 2) + 0.0:.2f}"


def _error_table(answer: RunAnswer) -> TextTable:
    def percent(value: float | None) -> str:
        return "NA" if value is None else f"{100 * value:+.1f}"

    def ms(value: float | None) -> str:
        return "NA" if value is None else f"{value / 1e3:.2f}"

    rows = tuple(
        (
            one.cell,
            ms(one.measured_us),
            ms(one.predicted_us),
            percent(one.error),
            percent(None if one.perfect_us is None else one.perfect_us / one.measured_us - 1),
            percent(one.same_us / one.measured_us - 1),
        )
        for one in answer.own.cells
    )
    reasons = dict.fromkeys(f"{one.cell}: {one.reason}" for one in answer.own.cells if one.reason is not None)
    headings = ("cell", "measured [ms]", "predicted [ms]", "error [%]", "perfect scaling [%]", "nothing changes [%]")
    return TextTable("The same method on cells that were measured", headings, rows, notes=tuple(reasons))
