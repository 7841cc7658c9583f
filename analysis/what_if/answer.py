"""The answer of `dpscope whatif` as tables, facts and JSON; the same tables are the report's chapter."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from operator import itemgetter
from statistics import fmean
from typing import TYPE_CHECKING

import msgspec

from dpscope.analysis.costs.sources import CostSources, wrong_results
from dpscope.analysis.runs.run_data import RunData
from dpscope.analysis.text.text_table import CELL, Field, TextTable, table_of
from dpscope.analysis.text.units import Unit, show, show_time
from dpscope.analysis.traces.ranks.ledger import STEP_PARTS, Ledger
from dpscope.analysis.what_if.bases import Question, base_of_loaded
from dpscope.analysis.what_if.cell_errors import CellError, CellErrors, with_cell_errors
from dpscope.analysis.what_if.predict import predict, refusal
from dpscope.analysis.what_if.predicted_ledger import ledger_values
from dpscope.analysis.what_if.prediction import Prediction
from dpscope.analysis.what_if.replay import AS_IT_WAS, base_error
from dpscope.analysis.what_if.savings import Saving, savings
from dpscope.analysis.what_if.scenario import Base, Scenario
from dpscope.profiling.records.finding import counted
from dpscope.profiling.store.errors import DpscopeError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Predicted = tuple[dict[str, str], Scenario, Prediction]
"""The options that make a scenario, the scenario and its prediction."""

_MS = Unit("ms", 1e3, 1)
_SHORT_MS = Unit("ms", 1e3, 2)


@dataclass(frozen=True)
class RunAnswer:
    """`predictions` in the requested order; `cut` is the one that savings are of."""

    question: Question
    own: CellErrors
    predictions: tuple[Predicted, ...]
    cut: Predicted

    @cached_property
    def savings(self) -> list[Saving]:
        """What removing a part of the step saves."""
        return savings(self.question.base, self.cut[1], self.question.costs)

    @cached_property
    def tables(self) -> dict[str, TextTable]:
        """By name, those that have rows."""
        tables = {
            "what_if": prediction_table(self),
            "what_if_ledger": ledger_table(self),
            "what_if_savings": savings_table(self),
            "what_if_own_error": error_table(self.own.cells),
        }
        return {name: one for name, one in tables.items() if one.rows}

    def figure(self) -> "Figure | None":
        """Efficiency over devices, with band and measured points; None where there is none to draw."""
        from dpscope.analysis.figures.efficiency import efficiency_figure

        return efficiency_figure(self.efficiencies, self.measured_efficiencies)

    def drawn(self, suffix: str) -> bytes:
        """The figure as a file with this suffix, such as ``.svg``. Raises DpscopeError where there is none to draw."""
        from dpscope.analysis.figures.draw import saved

        if (figure := self.figure()) is None:
            raise DpscopeError("nothing to draw: no scenario has an efficiency; --format table gives the reasons")
        return saved(figure, suffix.removeprefix("."))

    @property
    def efficiencies(self) -> dict[str, list[tuple[int, float, float, float]]]:
        """Devices, efficiency and the ends of its band, by what differs in addition to the devices."""
        lines: dict[str, list[tuple[int, float, float, float]]] = {}
        for words, _, one in self.predictions:
            if one.efficiency is None or not one.step_us or not one.low_us or not one.high_us:
                continue
            alone_us = one.efficiency * one.step_us
            point = (one.devices, one.efficiency, alone_us / one.high_us, alone_us / one.low_us)
            lines.setdefault(options_text(words), []).append(point)
        return {label: sorted(points) for label, points in lines.items()}

    @property
    def measured_efficiencies(self) -> list[tuple[int, float]]:
        """Devices and efficiency of the base and of the run's other cells with its batch and options."""
        base, cell = self.question.base, self.question.cell
        alone_us = base.single_us.get(base.batch_size or 0)
        if alone_us is None:
            return []
        alike = (base.batch_size, cell.planned.variant if cell is not None else "")
        steps_us = {one.devices: one.measured_us for one in self.own.cells if (one.batch_size, one.variant) == alike}
        return sorted((devices, alone_us / us) for devices, us in (steps_us | {base.devices: base.step_us}).items())

    def as_json(self) -> str:
        """One entry per scenario, the base, what removing a part saves, and the method's errors on the run's own cells."""
        base = self.question.base
        content = {
            "predictions": [
                {
                    **one.as_plain(),
                    "scenario": words,
                    "ledger": ledger_values(one.ledger),
                    "missing": dict(one.missing),
                }
                for words, _, one in self.predictions
            ],
            "base": {
                "cell": base.name,
                **{name: getattr(base, name) for name in ("devices", "batch_size", "step_us")},
                "ledger": ledger_values(base.ledger),
                "replay_error": replay_error(base),
                "lacks": list(base.lacks),
            },
            "savings": {
                "devices": self.cut[2].devices,
                "changes": [asdict(one) | {"is_significant": one.is_significant} for one in self.savings],
            },
            "layout": layout(self),
            "findings": msgspec.to_builtins(wrong_results(self.question.costs.every)),
            "own_error": [asdict(one) | {"error": one.error} for one in self.own.cells],
        }
        return json.dumps(content, indent=1, allow_nan=False)


def run_answer(question: Question, own: CellErrors, requested: Sequence[tuple[dict[str, str], Scenario]]) -> RunAnswer:
    """Every scenario predicted; savings are of the one on the most devices, of those with a number if there are any."""
    predictions = tuple((words, one, predict(question.base, one, question.costs)) for words, one in requested)
    known = [one for one in predictions if one[2].step_us is not None] or predictions
    return RunAnswer(question, own, predictions, max(known, key=lambda one: one[2].devices))


_TIMES_AS_MANY = (1, 2, 4, 8)  # devices as the base has; beyond that nothing has a number


def chapter_of(run: RunData, sources: CostSources | None = None) -> RunAnswer | None:
    """A run's largest DDP cell on more devices; None where it cannot be a base. `sources` as of `base_of_loaded`."""
    if run.recorded is None:
        return None
    try:
        question, own = with_cell_errors(base_of_loaded(run, sources=sources))
    except DpscopeError:
        return None
    if refusal(question.base, Scenario()) is not None:
        return None
    counts = [times * question.base.devices for times in _TIMES_AS_MANY]
    answer = run_answer(question, own, [({"devices": str(one)}, Scenario(devices=one)) for one in counts])
    return replace(answer, cut=answer.predictions[0])  # the base's own step, of which the report gives advice


def replay_error(base: Base) -> float:
    """(replayed - measured) / measured of the base, the worst of its steps."""
    return float(max((base_error(base.prepared(one, AS_IT_WAS)) for one in base.profiles), key=abs))


_BAND = "Expected to contain the true value in nine cases out of ten"
_EFFICIENCY = "The step on one device divided by the predicted one, at the same batch per device"


def prediction_table(answer: RunAnswer) -> TextTable:
    """The predictions, with a column for each option that varies; notes hold their basis, or why there is no number."""
    options = dict.fromkeys(name for words, _, _ in answer.predictions for name in words)
    varied = [name for name in options if name not in ("devices", "batch_size")]
    fields = [
        Field(
            "devices",
            lambda row: row[2].devices,
            meaning="Devices of the predicted step, with unchanged links",
        ),
        Field(
            "nodes",
            lambda row: row[2].nodes,
            meaning="Nodes that this many devices are assumed to span",
        ),
        Field("batch", lambda row: row[2].batch_size, meaning="Batch per device"),
        *(Field(name.replace("_", " "), partial(_word, name)) for name in varied),
        Field(
            "step",
            lambda row: row[2].step_us,
            _MS,
            "Predicted: the measured step plus what the replay adds to it",
        ),
        Field("90% band [ms]", lambda row: _range(row[2].low_us, row[2].high_us, _MS), meaning=_BAND),
        Field(
            "exposed",
            lambda row: row[2].exposed_us,
            _MS,
            "Predicted communication that compute does not hide",
        ),
        Field("efficiency", lambda row: row[2].efficiency, "share", _EFFICIENCY),
        Field(
            "bound by",
            lambda row: row[2].bound_by,
            meaning="The largest part of the predicted step",
        ),
    ]
    notes = [layout(answer), *facts(answer), *_grounds(one for _, _, one in answer.predictions)]
    return table_of(
        "Steps that were not measured, replayed from one that was",
        fields,
        answer.predictions,
        notes,
    )


def _word(name: str, row: Predicted) -> str:
    return row[0].get(name, "as measured")


def _range(low_us: float | None, high_us: float | None, unit: Unit) -> str | None:
    return None if low_us is None else f"{show(low_us, unit)} to {show(high_us, unit)}"


def _grounds(predictions: Iterable[Prediction]) -> list[str]:
    """What numbers rest on, or why there is none: each clause once, with the device counts that it holds for."""
    counts: dict[str, dict[int, None]] = {}
    for one in predictions:
        for clause in [one.reason] if one.reason is not None else str(one.rests_on).split("; "):
            counts.setdefault(f"{'no number: ' if one.step_us is None else ''}{clause}", {})[one.devices] = None
    return [
        f"{', '.join(map(str, sorted(of)))} device{'' if [*of] == [1] else 's'}: {one}" for one, of in counts.items()
    ]


def csv_table(answer: RunAnswer) -> TextTable:
    """The base and every prediction with their ledgers, named as in JSON; unknown values are empty."""
    base = answer.question.base
    measured = Prediction(base.devices, base.place.nodes, base.batch_size, step_us=base.step_us, ledger=base.ledger)
    known = [
        (f"base: {base.name}", {}, measured),
        *((_label(row), row[0], row[2]) for row in answer.predictions),
    ]
    rows = [{"configuration": name} | words | one.as_plain() | ledger_values(one.ledger) for name, words, one in known]
    cells = [[_csv_value(row.get(name)) for name in rows[-1]] for row in rows]
    return TextTable("What if", tuple(rows[-1]), tuple(map(tuple, cells)))


def _csv_value(value: object) -> str:
    if value is None:
        return ""
    return f"{value:.9g}" if isinstance(value, float) else str(value)


_PARTS = {
    "compute": "The base's compute plus its change in the replay",
    "exposed_wait": "Exposed: no compute and no transfer run, and a rank waits for a late one",
    "exposed_transfer": "Exposed: no compute runs, and a collective transfers",
    "exposed_other": "Exposed communication that cannot be split into wait and transfer, such as broadcasts",
    "idle": "Neither compute nor communication",
    "tracer": "Untraced less traced step of the base; negative if tracing slowed it",
}


def ledger_table(answer: RunAnswer) -> TextTable:
    """Where the base's step goes, and each predicted one that has a number; empty where nothing is known of either."""
    base = answer.question.base
    numbers = [row for row in answer.predictions if row[2].step_us is not None]
    name = "base" if answer.question.cell is None else f"base: {base.name}"
    rows: list[tuple[str, float | None, Ledger | None]] = [(name, base.step_us, base.ledger)]
    rows += [(_label(row), row[2].step_us, row[2].ledger) for row in numbers]
    notes = dict.fromkeys(["wait, transfer and other: exposed communication"])
    for _, _, one in numbers:
        notes |= dict.fromkeys(f"NA of {part.removeprefix('exposed_')}: {why}" for part, why in one.missing.items())
    names = list(STEP_PARTS)
    if base.ledger is not None and base.ledger.tracer_us is not None:
        names.append("tracer")
        notes["tracer: untraced less traced step, taken to be the base's"] = None
    fields = [
        Field("configuration", itemgetter(0), meaning="The measured base, or what differs from it"),
        Field(
            "step",
            itemgetter(1),
            "time",
            "Untraced: the base's as measured, the others as predicted",
        ),
        *(Field(one.removeprefix("exposed_"), partial(_part_us, one), "time", _PARTS[one]) for one in names),
    ]
    title = "Where the step goes [{unit}]: the parts add up to the step"
    return table_of(title, fields, rows if base.ledger is not None else (), notes)


def _part_us(name: str, row: tuple[str, float, Ledger | None]) -> float | None:
    return getattr(row[2], f"{name}_us", None)


_SAVING_BAND = "90% band of the saving alone: errors that the step with and without the change share cancel"
_ABOVE = "Whether the band's low end exceeds the method's error on the whole step"


def savings_table(answer: RunAnswer) -> TextTable:
    """What one change alone saves on the most devices: parts of the step first, then changes for comparison."""
    fields = (
        Field("change", "change", meaning="The only thing changed in the replay"),
        Field("saves", "saved_us", _SHORT_MS, "How much shorter the step would be"),
        Field(
            "band [ms]",
            lambda one: _range(one.low_us, one.high_us, _SHORT_MS),
            meaning=_SAVING_BAND,
        ),
        Field("above step error", lambda one: "yes" if one.is_significant else "no", meaning=_ABOVE),
    )
    notes = ["Parts of the step that can be removed come first, then changes for comparison"]
    if answer.savings:
        error = show_time(answer.savings[0].step_error_us)
        notes.append(f"step error: the method's error on the whole step, {error}; no: the band reaches below it")
    where = counted(answer.cut[2].devices, "device")
    return table_of(f"What one change alone would take off the step on {where}", fields, answer.savings, notes)


_PERFECT = "The error of assuming that the step takes as long as on one device"
_SAME = "The error of assuming that the step takes as long as in the other cell"


def error_table(cells: Sequence[CellError]) -> TextTable:
    """The method's error on the run's other cells, next to that of simple rules."""
    fields = (
        CELL,
        Field("measured", "measured_us", _SHORT_MS, "Median untraced step of the cell"),
        Field(
            "predicted",
            "predicted_us",
            _SHORT_MS,
            "By replaying the other cell, without using this one's time",
        ),
        Field(
            "error [%]",
            lambda one: _off(one.predicted_us, one),
            meaning="Predicted over measured, minus 1",
        ),
        Field("perfect scaling [%]", lambda one: _off(one.perfect_us, one), meaning=_PERFECT),
        Field("nothing changes [%]", lambda one: _off(one.same_us, one), meaning=_SAME),
    )
    reasons = dict.fromkeys(f"{one.cell}: {one.reason}" for one in cells if one.reason is not None)
    return table_of("The same method on cells that were measured", fields, cells, reasons)


def _off(value_us: float | None, cell: CellError) -> str | None:
    return None if value_us is None else f"{100 * (value_us / cell.measured_us - 1):+.1f}"


def layout(answer: RunAnswer) -> str:
    """On which nodes the devices are, and whether that is measured, stated or assumed."""
    base, most = answer.question.base, max(one.devices for _, _, one in answer.predictions)
    if any(scenario.per_node is not None for _, scenario, _ in answer.predictions):
        return "Layout: devices per node as stated."
    if base.place.nodes > 1:
        return f"Layout: full nodes of {counted(base.per_node, 'device')}, as in the base."
    if most <= base.devices:
        return f"Layout: one node, as the base's {counted(base.devices, 'device')}."
    return (
        f"Layout assumed: one node with all {most} devices, linked as the {base.devices} on the base's node; for several nodes "
        "give --per-node."
    )


def options_text(words: Mapping[str, str]) -> str:
    """Such as ``bucket mb 5, overlap off``; the device count is left out."""
    return ", ".join(f"{name.replace('_', ' ')} {word}" for name, word in words.items() if name != "devices")


def _label(row: Predicted) -> str:
    return ", ".join(filter(None, (counted(row[2].devices, "device"), options_text(row[0]))))


def facts(answer: RunAnswer) -> list[str]:
    """Of the base, how far it was measured and replayed, what it lacks, and how wrong the method is on the run's own cells."""
    base = answer.question.base
    replayed_us = fmean(one.step_us for one in base.profiles)
    kind = "traced step (mean)" if answer.question.cell is None else "untraced step (median over all repeats)"
    lines = [
        f"Base: {base.name} on {counted(base.devices, 'device')}, {show(base.step_us, _MS)} ms per {kind}.",
        f"Replay: {counted(len(base.profiles), 'typical traced step')} ({show(replayed_us, _MS)} ms on average) within "
        f"{max(100 * abs(replay_error(base)), 0.01):.2f}%.",
        *(f"{one.message}." for one in wrong_results(answer.question.costs.every)),
        answer.own.sentence,
    ]
    if base.lacks:
        lines.append(f"Not known of {base.name}: {'; '.join(base.lacks)}.")
    if base.host_cores is not None:
        lines.append("The devices are processes on a CPU: none of this applies to GPUs.")
    return lines
