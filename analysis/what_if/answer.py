"""The answer of `dpscope whatif` as tables, facts and JSON; the same tables are the report's
chapter.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from statistics import fmean
from typing import NamedTuple

import msgspec

from dpscope.analysis.costs.calibration_files import wrong_results
from dpscope.analysis.costs.costs import Costs
from dpscope.analysis.figures.efficiency import Efficiencies
from dpscope.analysis.runs.run_data import CPU_RUN, RunData
from dpscope.analysis.text.text_table import CELL, Field, TextTable, table_of
from dpscope.analysis.text.units import Unit, sentence, show
from dpscope.analysis.what_if.band import method_error
from dpscope.analysis.what_if.bases import Question, base_of_loaded
from dpscope.analysis.what_if.cell_errors import CellError, CellErrors, with_cell_errors
from dpscope.analysis.what_if.inputs import noise_findings, setting_of
from dpscope.analysis.what_if.predict import predict, same_buckets
from dpscope.analysis.what_if.replay import base_error
from dpscope.analysis.what_if.scenario import Base, Prediction, Scenario
from dpscope.profiling.records.finding import counted, grouped
from dpscope.profiling.store.errors import DpscopeError


class Predicted(NamedTuple):
    """The options that make a scenario, and its prediction."""

    words: Mapping[str, str]
    prediction: Prediction
    is_base: bool = False  # the scenario differs in nothing from what was measured
    same: tuple[str, ...] = ()  # why it does not, where its options do

    @property
    def options(self) -> tuple[tuple[str, str], ...]:
        """Names and words but the devices."""
        words = dict(self.words)
        words.pop("devices", None)
        return tuple(words.items())


def _option(name: str) -> str:
    return name.replace("_", " ")


def _named(scenarios: Sequence[Mapping[str, str]]) -> str:
    """By their options but the devices, such as ``--bucket-mb 5, 25 with --comm-hook fp16``: one
    list where they are all its combinations.
    """
    options: dict[str, dict[str, None]] = {}
    for words in scenarios:
        for name, word in words.items():
            values = options.setdefault(name, {})
            as_typed = f'"{word}"' if " " in word else word
            values[as_typed] = None
    combinations = math.prod(map(len, options.values()))
    if combinations != len(scenarios):
        alone = []
        for words in scenarios:
            alone.append(_named([words]))
        return " or ".join(alone)
    lists = []
    for name, values in options.items():
        option = name.replace("_", "-")
        listed = ", ".join(values)
        lists.append(f"--{option} {listed}")
    return " with ".join(lists)


_MOST_CHANGES = 8
_UNSEEN_US = 50.0  # less than the last printed digit
_MS = Unit("ms", 1e3, 1)
_SHORT_MS = Unit("ms", 1e3, 2)


def _change(predicted: Predicted, base: Base) -> str:
    """What a scenario brings: samples per second where a step holds others than the base's, else how
    much shorter or longer the step is; and whether that can be told.
    """
    prediction = predicted.prediction
    times_the_samples = _times_the_samples(prediction, base)
    if times_the_samples != 1:
        return _throughput(predicted, base.step_us * times_the_samples)
    change_us = prediction.change_us or 0.0
    low_us = prediction.change_low_us or 0.0
    high_us = prediction.change_high_us or 0.0
    longer = "longer" if change_us > 0 else "shorter"
    percent = 100 * abs(change_us) / base.step_us
    by = f"{show(abs(change_us), _MS)} ms {longer} ({percent:.1f}%)"
    if abs(change_us) < _UNSEEN_US:
        by = "unchanged"
    line = f"{_named([predicted.words])}: {by}; {_signed(low_us)} to {_signed(high_us)} ms"
    if low_us <= 0 <= high_us:
        return f"{line}: within the error, cannot be told apart from no change."
    return f"{line}."


def _times_the_samples(prediction: Prediction, base: Base) -> float:
    """Samples of the predicted step over those of the base's."""
    times = prediction.devices / base.devices
    if prediction.batch_size is not None and base.batch_size is not None:
        times *= prediction.batch_size / base.batch_size
    return times


def _throughput(predicted: Predicted, even_us: float) -> str:
    """Samples per second over the base's: `even_us` is the step at which both are equal."""
    prediction = predicted.prediction
    step_us = prediction.step_us or even_us
    longest_us = prediction.high_us or step_us
    shortest_us = prediction.low_us or step_us
    least = even_us / longest_us
    most = even_us / shortest_us
    samples = f"{even_us / step_us:.2f} times the samples/s ({least:.2f} to {most:.2f})"
    steps = f"steps of {show(step_us, _MS)} ms"
    named = _named([predicted.words])
    line = f"{named}: {samples}, in {steps}"
    if least <= 1 <= most:
        return f"{line}: within the error, cannot be told apart from no change."
    return f"{line}."


def _signed(time_us: float) -> str:
    return f"{time_us / 1e3:+.1f}"


@dataclass(frozen=True)
class RunAnswer:
    """`predictions` in the requested order."""

    question: Question
    own: CellErrors
    predictions: tuple[Predicted, ...]

    @cached_property
    def tables(self) -> dict[str, TextTable]:
        """By name; without any prediction the reasons alone."""
        if not self.known:
            why = Field("why", str, meaning="Why no scenario has a prediction", column="why")
            return {"what_if": table_of("Predicted steps: none", (why,), self.refusals)}
        tables = {"what_if": prediction_table(self)}
        if self.own.cells:
            tables["what_if_own_error"] = error_table(self.own.cells)
        return tables

    @property
    def hint(self) -> str | None:
        """What to ask for, where nothing differs from the base."""
        if all(predicted.is_base for predicted in self.predictions):
            return "Nothing differs from what was measured: give another scenario, such as --devices 8."
        return None

    @property
    def as_base(self) -> list[str]:
        """The scenarios that have no row, as they are the first one."""
        stated = []
        for each in self.predictions:
            if each.is_base and each.words:
                stated.append((each.same, each.words))
        lines = []
        for same, words in grouped(stated).items():
            facts = ": ".join([_named(words), *same])
            lines.append(f"As measured: {facts}.")
        return lines

    @property
    def refusals(self) -> list[str]:
        """Why scenarios have no prediction, a line for each reason."""
        refused = [each for each in self.predictions if each.prediction.reason is not None]
        by_reason = []
        for each in refused:
            why = (each.prediction.reason, each.options)
            by_reason.append((why, each.prediction.devices))
        counts = grouped(by_reason)
        by_counts = []
        for (reason, options), of_devices in counts.items():
            different = sorted(set(of_devices))
            key = (reason, tuple(different))
            by_counts.append((key, dict(options)))
        lines = []
        for (reason, devices), scenarios in grouped(by_counts).items():
            place = _counts(devices)
            named = _named(scenarios)
            if named:
                place = f"{place} ({named})"
            lines.append(sentence(f"No prediction for {place}: {reason}"))
        return lines

    @property
    def limits(self) -> list[str]:
        """What makes predictions too good, a line each."""
        limits = []
        for predicted in self.predictions:
            prediction = predicted.prediction
            limits.append((prediction.limit, prediction.devices))
        return _by_text(limits, self.predicted_counts)

    @property
    def changes(self) -> list[str]:
        """Whether each scenario helps, a line each, of as many as one looks at."""
        shown = [each for each in self.known if not each.is_base]
        base = self.question.base
        return [_change(each, base) for each in shown[:_MOST_CHANGES]]

    @cached_property
    def known(self) -> list[Predicted]:
        """The scenarios that have a number."""
        return [each for each in self.predictions if each.prediction.reason is None]

    @property
    def predicted_counts(self) -> set[int]:
        """The device counts of which any scenario has a number."""
        return {each.prediction.devices for each in self.known}

    @property
    def base_line(self) -> str:
        """What is replayed, and what that is not valid for."""
        base = self.question.base
        kind = "mean traced step"
        if self.question.cell is not None:
            kind = "median untraced step of all repeats"
        measured = f"{show(base.step_us, _MS)} ms a step ({kind})"
        line = f"From {base.name} on {counted(base.devices, 'device')}: {measured}."
        if base.host_cores is None:
            return line
        return f"{line} {CPU_RUN}"

    @property
    def efficiencies(self) -> Efficiencies:
        """Efficiency over devices, predicted with its band and measured.

        The longest step of the band is the lowest efficiency.
        """
        predicted = []
        for each in self.predictions:
            prediction = each.prediction
            efficiency = prediction.efficiency
            if efficiency is not None and prediction.high_us and prediction.low_us:
                alone_us = efficiency * (prediction.step_us or 0.0)
                lowest = alone_us / prediction.high_us
                highest = alone_us / prediction.low_us
                predicted.append((prediction.devices, efficiency, lowest, highest))
        base = self.question.base.name
        measured = self.measured_efficiencies
        return Efficiencies(base, sorted(predicted), measured, self.limits)

    @property
    def measured_efficiencies(self) -> list[tuple[int, float]]:
        """Devices and efficiency of the base and of the run's other cells with its batch and
        options.
        """
        base = self.question.base
        cell = self.question.cell
        alone_us = base.single_us.get(base.batch_size or 0)
        if alone_us is None:
            return []
        variant = ""
        if cell is not None:
            variant = cell.variant
        steps_us = {base.devices: base.step_us}
        for row in self.own.cells:
            prediction = row.prediction
            if (row.variant, prediction.batch_size) == (variant, base.batch_size):
                steps_us.setdefault(prediction.devices, row.measured_us)
        efficiencies = []
        for devices, step_us in steps_us.items():
            efficiency = alone_us / step_us
            efficiencies.append((devices, efficiency))
        return sorted(efficiencies)

    def as_json(self) -> str:
        """One entry per scenario, the base, and the method's errors on the run's own cells."""
        base = self.question.base
        calibration = self.question.costs.calibration
        noise = noise_findings(calibration)
        predictions = []
        for each in self.predictions:
            content = asdict(each.prediction)
            content["scenario"] = each.words
            predictions.append(content)
        own_errors = []
        for cell in self.own.cells:
            content = asdict(cell)
            content["error"] = cell.error
            own_errors.append(content)
        answer = {
            "predictions": predictions,
            "base": {
                "cell": base.name,
                "devices": base.devices,
                "batch_size": base.batch_size,
                "step_us": base.step_us,
                "replay_error": replay_error(base),
                "valid_for_gpus": base.host_cores is None,
                "lacks": list(base.lacks),
            },
            "layout": layout(self),
            "findings": msgspec.to_builtins([*wrong_results(calibration), *noise]),
            "own_error": own_errors,
            "method_error": {"half_band": method_error(base), "assumed": base.method_error is None},
        }
        return json.dumps(answer, indent=1, allow_nan=False)


def run_answer(
    question: Question, own: CellErrors, requested: Iterable[tuple[Mapping[str, str], Scenario]]
) -> RunAnswer:
    """Every scenario predicted."""
    base = question.base
    predicted = []
    for words, scenario in requested:
        prediction = predict(base, scenario, question.costs)
        is_base = prediction.reason is None and setting_of(base, scenario) == base.setting
        same: tuple[str, ...] = ()
        if is_base:
            same = same_buckets(base, scenario)
        predicted.append(Predicted(words, prediction, is_base, same))
    return RunAnswer(question, own, tuple(predicted))


_TIMES_AS_MANY = (2, 4, 8)  # devices as the base has; beyond that nothing has a number


def chapter_of(run: RunData, costs: Costs | None = None) -> RunAnswer | None:
    """A run's largest DDP cell on more devices; None where it cannot be a base. `costs` as of
    `base_of_loaded`.
    """
    if run.recorded is None:
        return None
    try:
        question, own = with_cell_errors(base_of_loaded(run, costs=costs))
    except DpscopeError:
        return None
    larger = []
    for times in _TIMES_AS_MANY:
        count = times * question.base.devices
        words = {"devices": str(count)}
        larger.append((words, Scenario(devices=count)))
    return run_answer(question, own, larger)


def replay_error(base: Base) -> float:
    """(replayed - measured) / measured of the base, the worst of its steps."""
    return float(max(map(base_error, base.profiles), key=abs))


_DEVICES = "Devices of the predicted step, with unchanged links"
_NODES = "Nodes that this many devices are assumed to span"
_EXPOSED = "Predicted communication that compute does not hide"
_LOW = "Lower end of the band that is expected to hold the true value in nine cases of ten"
_HIGH = "Its upper end"
_STEP = "Predicted: the measured step plus what the replay adds to it"
_CHANGE = "The predicted step less the base's"
_EFFICIENCY = "The step on one device divided by the predicted one, at the same batch per device"


def prediction_table(answer: RunAnswer) -> TextTable:
    """The predictions that have a number, with a column for each option that varies; notes hold why
    others have none, and the basis.
    """
    rows = answer.known
    shown = [predicted for predicted in rows if not predicted.is_base]
    base_row = _base_row(answer)
    options: dict[str, None] = {}
    for predicted in answer.predictions:
        options |= dict.fromkeys(predicted.words)
    varied = [name for name in options if name not in ("devices", "batch_size")]
    fields = [
        Field("devices", "prediction.devices", meaning=_DEVICES),
        Field("nodes", "prediction.nodes", meaning=_NODES),
        Field("batch", "prediction.batch_size", meaning="Batch per device"),
        *(Field(_option(name), partial(_word, name)) for name in varied),
        Field("step", "prediction.step_us", _MS, _STEP),
        Field("low", "prediction.low_us", _MS, _LOW, column="low_us"),
        Field("high", "prediction.high_us", _MS, _HIGH, column="high_us"),
        Field("change", "prediction.change_us", _MS, _CHANGE),
        Field("exposed", "prediction.exposed_us", _MS, _EXPOSED),
        Field("efficiency", "prediction.efficiency", "share", _EFFICIENCY),
    ]
    basis = []
    for predicted in rows:
        prediction = predicted.prediction
        for clause in prediction.rests_on:
            basis.append((clause, prediction.devices))
    notes = [*answer.refusals, *facts(answer), *_by_text(basis, answer.predicted_counts)]
    title = "Predicted steps"
    if shown:
        title = "Predicted steps (low to high: 90% band); first row: the base as measured"
    return table_of(title, fields, [base_row, *shown], notes)


def _base_row(answer: RunAnswer) -> Predicted:
    base = answer.question.base
    alone_us = base.single_us.get(base.batch_size or 0)
    efficiency = None
    if alone_us is not None:
        efficiency = alone_us / base.step_us
    measured = Prediction(
        base.devices,
        base.place.nodes,
        base.batch_size,
        base.step_us,
        exposed_us=base.left_us,
        efficiency=efficiency,
    )
    return Predicted({}, measured, is_base=True)


def _word(name: str, row: Predicted) -> str:
    return row.words.get(name, "as measured")


def _by_text(texts: Iterable[tuple[str | None, int]], every: set[int]) -> list[str]:
    """Each text once, after the device counts that have it, such as ``4, 8 devices: ...``, unless
    these are `every` one.
    """
    lines = []
    for text, devices in grouped(texts).items():
        if text is None:
            continue
        if set(devices) == every:
            lines.append(sentence(text))
        else:
            lines.append(f"{_counts(sorted(set(devices)))}: {text}.")
    return lines


def _counts(devices: Sequence[int]) -> str:
    """Such as ``4, 8 devices``."""
    *fewer, most = devices
    return ", ".join([*map(str, fewer), counted(most, "device")])


_SAME = "The error of assuming that the step takes as long as in the other cell"
_REPLAYED = "By replaying the other cell, without using this one's time"


def error_table(cells: Sequence[CellError]) -> TextTable:
    """The method's error on the run's other cells, compared with that of simple rules."""
    fields = (
        CELL,
        Field("measured", "measured_us", _SHORT_MS, "Median untraced step of the cell"),
        Field("predicted", "prediction.step_us", _SHORT_MS, _REPLAYED),
        Field(
            "error [%]",
            lambda judged: _off(judged.prediction.step_us, judged),
            meaning="Predicted over measured, minus 1",
        ),
        Field("nothing changes [%]", lambda judged: _off(judged.same_us, judged), meaning=_SAME),
    )
    reasons = (
        f"{cell.cell}: {cell.prediction.reason}"
        for cell in cells
        if cell.prediction.reason is not None
    )
    return table_of(
        "Predictions of this run's measured cells", fields, cells, dict.fromkeys(reasons)
    )


def _off(value_us: float | None, cell: CellError) -> str | None:
    if value_us is None:
        return None
    error = value_us / cell.measured_us - 1
    return f"{100 * error:+.1f}"


def layout(answer: RunAnswer) -> str | None:
    """What is assumed of nodes that the scenarios do not state; None for the base's one node."""
    base = answer.question.base
    most = max(each.prediction.devices for each in answer.known or answer.predictions)
    if base.place.nodes > 1:
        return f"Layout: full nodes of {counted(base.per_node, 'device')}, as in the base."
    stated = any("per_node" in predicted.words for predicted in answer.predictions)
    if stated or most <= base.devices:
        return None
    return (
        f"Layout assumed: all {most} devices on one node, with the links of the base's {base.devices}; for several "
        "nodes, give --per-node."
    )


def facts(answer: RunAnswer) -> list[str]:
    """The layout, the base, its replay, the method's error, and what is not known."""
    base = answer.question.base
    replayed_us = fmean(profile.step_us for profile in base.profiles)
    error = 100 * abs(replay_error(base))
    error = max(error, 0.01)
    wrong = []
    for result in wrong_results(answer.question.costs.calibration):
        wrong.append(f"{result.message}.")
    every = counted(len(base.every), "traced step")
    mean = f"{show(replayed_us, _MS)} ms on average"
    nearest = f"the {len(base.profiles)} nearest to the median ({mean})"
    lines = [
        *answer.limits,
        answer.base_line,
        answer.hint,
        *answer.as_base,
        layout(answer),
        f"Replay: of {every} of single ranks {nearest} are replayed, each within {error:.2f}%.",
        *wrong,
        answer.own.sentence,
        *(f"Not known: {lack}." for lack in base.lacks),
    ]
    return [line for line in lines if line is not None]
