"""The figure of `dpscope whatif`, and the report's chapter."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from dpscope.analysis.costs.sources import CostSources
from dpscope.analysis.runs.run_data import RunData
from dpscope.analysis.text.text_table import CELL, Field, TextTable, table_of
from dpscope.analysis.text.units import Unit, show, show_time
from dpscope.analysis.what_if import answer as output
from dpscope.analysis.what_if.answer import RunAnswer
from dpscope.analysis.what_if.bases import CellError, base_of_loaded, with_cell_errors
from dpscope.analysis.what_if.predict import refusal
from dpscope.analysis.what_if.scenario import Scenario
from dpscope.profiling.records.finding import counted
from dpscope.profiling.store.errors import DpscopeError
from dpscope.profiling.store.files import write_bytes
from dpscope.profiling.store.ownership import check_overwritable

if TYPE_CHECKING:
    from matplotlib.figure import Figure


EfficiencyPoint = tuple[int, float, float, float]  # devices, efficiency and the ends of its band
_MOST_LINES = 8  # that a reader can distinguish
_LOGARITHMIC = 8  # times the least count, from which small counts would stand on each other
_MS = Unit("ms", 1e3, 2)
_KINDS = (".png", ".svg", ".pdf")


def check_figure_name(path: Path) -> None:
    """Raise DpscopeError for a name of another kind, a folder that is not there and a file that is not dpscope's."""
    if path.suffix not in _KINDS:
        raise DpscopeError(f"{path} must end in {', '.join(_KINDS)}")
    if not path.parent.is_dir():
        raise DpscopeError(f"{path.parent} does not exist; make it first")
    check_overwritable(path)


def write_figure(answer: RunAnswer, path: Path) -> None:
    """Draw it. Raises DpscopeError where no scenario has an efficiency, and where there are too many."""
    if (drawn := efficiency_figure(answer)) is None:
        raise DpscopeError("nothing to draw: no scenario has an efficiency; --format table gives the reasons")
    if (lines := len(_lines(answer))) > _MOST_LINES:
        raise DpscopeError(
            f"--figure would hold {counted(lines, 'line')}; vary at most {_MOST_LINES} configurations besides --devices"
        )
    from dpscope.analysis.figures.draw import saved

    check_overwritable(path)
    write_bytes(path, saved(drawn, path.suffix.removeprefix(".")))


def efficiency_figure(answer: RunAnswer) -> "Figure | None":
    """The figure; None where no scenario has an efficiency."""
    if not (lines := _lines(answer)):
        return None
    import matplotlib as mpl

    from dpscope.analysis.figures.style import STYLE, literal, new_figure

    measured = _measured(answer)
    with mpl.rc_context(STYLE):
        drawn, (axes,) = new_figure(rows=9)
        for called, points in lines.items():
            devices = [one[0] for one in points]
            low, high = ([100 * one[end] for one in points] for end in (2, 3))
            axes.fill_between(devices, low, high, alpha=0.25 / len(lines) ** 0.5, linewidth=0)
            values = [100 * one[1] for one in points]
            axes.plot(devices, values, marker=".", label=literal(called or "predicted") + ", 90% band")
        if measured:
            axes.plot(*zip(*measured, strict=True), "o", color="black", fillstyle="none", label="measured")
        ticks = sorted({point[0] for points in lines.values() for point in points} | {one for one, _ in measured})
        if ticks[-1] >= _LOGARITHMIC * ticks[0]:
            axes.set_xscale("log", base=2)
            axes.minorticks_off()
        axes.set(xlabel="devices", ylabel="efficiency t_1 / t_N [%]", ylim=(0, None))
        axes.set_xticks(ticks, labels=[str(one) for one in ticks])
        axes.margins(x=0.05)
        axes.legend(loc="lower left")
    return drawn


def _lines(answer: RunAnswer) -> dict[str, list[EfficiencyPoint]]:
    """A line for each configuration apart from its number of devices, by label."""
    found: dict[str, list[EfficiencyPoint]] = {}
    for words, _, one in answer.predictions:
        if one.efficiency is None or not one.step_us or not one.low_us or not one.high_us:
            continue
        ends = (one.efficiency * one.step_us / one.high_us, one.efficiency * one.step_us / one.low_us)
        found.setdefault(output.options_text(words), []).append((one.devices, one.efficiency, *ends))
    return {called: sorted(points) for called, points in found.items()}


def _measured(answer: RunAnswer) -> list[tuple[int, float]]:
    """Devices and efficiency of the base and of the run's other cells with its batch and options."""
    base = answer.question.base
    alone = base.single_us.get(base.batch_size) if base.batch_size is not None else None
    if alone is None:
        return []
    measured = [(base.devices, base.step_us)]
    if (cell := answer.question.cell) is not None:
        like_base = (base.batch_size, cell.planned.variant)
        measured += [
            (one.devices, one.measured_us) for one in answer.own.cells if (one.batch_size, one.variant) == like_base
        ]
    return sorted((devices, 100 * alone / step_us) for devices, step_us in measured)


_COMPUTE, _COLLECTIVES = 1, 2  # tracks


_TIMES_AS_MANY = (1, 2, 4, 8)  # devices as the base has; beyond that nothing has a number


@dataclass(frozen=True)
class WhatIfChapter:
    """The answer, and its tables by name."""

    answer: RunAnswer
    tables: dict[str, TextTable]

    def figure(self) -> "Figure | None":
        """Efficiency over devices, with band and measured points; None where there is none to draw."""
        return efficiency_figure(self.answer)


def chapter_of(run: RunData, sources: CostSources | None = None) -> WhatIfChapter | None:
    """Configurations that were not measured, predicted from a run's largest DDP cell; None where it cannot be a base.

    `sources` as of `base_of_loaded`.
    """
    if run.recorded is None:
        return None
    try:
        question = base_of_loaded(run, sources=sources)
    except DpscopeError:
        return None
    question, own = with_cell_errors(question)
    base = question.base
    if refusal(base, Scenario()) is not None:
        return None
    counts = [times * base.devices for times in _TIMES_AS_MANY]
    answer = output.run_answer(question, own, [({"devices": str(one)}, Scenario(devices=one)) for one in counts])
    table = output.run_table(answer)
    tables = {
        "what_if": replace(table, notes=(output.layout_sentence(answer), *output.base_sentences(answer), *table.notes)),
        "what_if_ledger": output.ledger_table(answer),
        "what_if_savings": _savings_table(output.savings(base, Scenario(), question.costs), base.name),
        "what_if_own_error": _error_table(own.cells),
    }
    return WhatIfChapter(answer, {name: one for name, one in tables.items() if one.rows})


_BAND = "90% band of the saving alone: errors that the step with and without the change share cancel"
_ABOVE = "Whether the band's low end exceeds the method's error on the whole step"
_PERFECT = "The error of assuming that the step takes as long as on one device"
_SAME = "The error of assuming that the step takes as long as in the other cell"


def _savings_table(changes: list[output.Saving], cell: str) -> TextTable:
    fields = (
        Field("change", "change", meaning="The only thing changed in the replay"),
        Field("saves", "saved_us", _MS, "How much shorter the step would be"),
        Field("band [ms]", lambda one: f"{show(one.low_us, _MS)} to {show(one.high_us, _MS)}", meaning=_BAND),
        Field("above step error", lambda one: "yes" if one.is_significant else "no", meaning=_ABOVE),
    )
    notes = ["Parts of the step that can be removed come first, then changes for comparison"]
    if changes:
        error = show_time(changes[0].step_error_us)
        notes.append(f"step error: the method's error on the whole step, {error}; no: the band reaches below it")
    return table_of(f"What one change alone would take off the step of {cell}", fields, changes, notes)


def _error_table(cells: Sequence[CellError]) -> TextTable:
    fields = (
        CELL,
        Field("measured", "measured_us", _MS, "Median untraced step of the cell"),
        Field("predicted", "predicted_us", _MS, "By replaying the other cell, without using this one's time"),
        Field("error [%]", lambda one: _off(one.predicted_us, one), meaning="Predicted over measured, minus 1"),
        Field("perfect scaling [%]", lambda one: _off(one.perfect_us, one), meaning=_PERFECT),
        Field("nothing changes [%]", lambda one: _off(one.same_us, one), meaning=_SAME),
    )
    reasons = dict.fromkeys(f"{one.cell}: {one.reason}" for one in cells if one.reason is not None)
    return table_of("The same method on cells that were measured", fields, cells, reasons)


def _off(value_us: float | None, cell: CellError) -> str | None:
    return None if value_us is None else f"{100 * (value_us / cell.measured_us - 1):+.1f}"
