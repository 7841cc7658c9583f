"""The answer of `dpscope whatif` for a run or a trace (tables, JSON, CSV, sentences), and what removing a part would save."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from operator import itemgetter
from statistics import fmean

import msgspec

from dpscope.analysis.costs.sources import wrong_results
from dpscope.analysis.text.text_table import Field, TextTable, table_of
from dpscope.analysis.text.units import show_time
from dpscope.analysis.traces.ranks.ledger import (
    BUFFER_BROADCASTS,
    IDLE,
    STEP_PARTS,
    TRANSFER,
    UNSPLIT,
    WAITING,
    Ledger,
    other_part,
)
from dpscope.analysis.what_if.bases import CellErrors, Question
from dpscope.analysis.what_if.collective_costs import Costs
from dpscope.analysis.what_if.inputs import ASSUMED_ERROR, GPU_ERROR
from dpscope.analysis.what_if.predict import Answered, detail_sentences, ledger_values, predict, predicted
from dpscope.analysis.what_if.prediction import Prediction, answer_sentences, distance_error, grounds, prediction_fields
from dpscope.analysis.what_if.replay import AS_IT_WAS, base_error
from dpscope.analysis.what_if.scenario import Base, Scenario
from dpscope.profiling.records.finding import counted

TWICE_AS_FAST = "a device twice as fast"
INFINITE_BANDWIDTH, ZERO_LATENCY = "infinite bandwidth", "zero latency"
_LEAST_SHOWN_US = 50.0  # 0.1 ms, rounded
_IDLE_STATED = 0.1  # of the step


@dataclass(frozen=True)
class Saving:
    """What one change alone takes off the step, in microseconds, with its 90% band.

    The band is that of the saving alone, in which errors that both steps share cancel. `step_error_us` is the method's error on
    the whole step; `is_significant`: the band's low end exceeds it. `is_part`: the change removes a part of the step, and is
    named as that part.
    """

    change: str
    saved_us: float
    low_us: float
    high_us: float
    step_error_us: float
    is_part: bool

    @property
    def is_significant(self) -> bool:
        return self.low_us > self.step_error_us


def savings(base: Base, scenario: Scenario, costs: Costs) -> list[Saving]:
    """Of each part of the step that can be removed, the largest saving first, then of other changes for comparison.

    Empty if the scenario itself has no number.
    """
    before = predicted(base, scenario, costs)
    now = before[0]
    if now.step_us is None:
        return []
    parts = _removals(base, scenario) if now.devices > 1 else {}
    if any(one.on_device for one in base.profiles):
        parts[IDLE] = replace(scenario, host_factor=0.0)
    others = {TWICE_AS_FAST: replace(scenario, faster=2 * scenario.faster)}
    if now.devices > 1:
        others[INFINITE_BANDWIDTH] = replace(scenario, transfer_factor=0.0)
        others[ZERO_LATENCY] = replace(scenario, latency_factor=0.0)
    found = [
        _saving(base, name, name in parts, before, then)
        for name, changed in (parts | others).items()
        if (then := predicted(base, changed, costs))[0].step_us is not None
    ]
    return sorted(found, key=lambda one: (not one.is_part, -one.saved_us))


def _removals(base: Base, scenario: Scenario) -> dict[str, Scenario]:
    """The scenario without each part of its exposed communication, by the part's name."""
    kinds = frozenset(one.kind for profile in base.profiles for one in profile.others)
    if base.ledger is not None and not base.ledger.is_split:
        return {UNSPLIT: replace(scenario, buckets_factor=0.0, lateness_factor=0.0, free_kinds=kinds)}
    return {
        WAITING: replace(scenario, lateness_factor=0.0),
        TRANSFER: replace(scenario, buckets_factor=0.0),
        **{other_part(kind): replace(scenario, free_kinds=frozenset({kind})) for kind in sorted(kinds)},
    }


_WithReplays = tuple[Prediction, Sequence[Answered]]


def _saving(base: Base, name: str, is_part: bool, before: _WithReplays, after: _WithReplays) -> Saving:
    """What the second prediction, and its replays, take off the first; both have numbers."""
    (now, replays), (then, changed_replays) = before, after
    step_us, then_us = now.step_us or 0.0, then.step_us or 0.0
    saved = step_us - then_us
    part_us = now.ledger.by_name_us.get(name) if is_part and now.ledger is not None else None
    if part_us is not None:  # the typical steps that are replayed may have more or less of it than the mean step
        replayed_us = _replayed_us(base, replays, name)
        saved = part_us * max(0.0, min(1.0, saved / replayed_us)) if replayed_us else min(saved, part_us)
    error = base.method_error if base.method_error is not None else ASSUMED_ERROR
    share = math.hypot(error, base.spread, distance_error(now.devices / base.largest))  # of what is saved
    unsure, unsure_then = _unsure_us(replays), _unsure_us(changed_replays)  # what both steps share cancels
    device = GPU_ERROR * then_us if name == TWICE_AS_FAST else 0.0
    below, above = (
        math.hypot(share * saved, device, *(ends[side] - unsure_then[part][side] for part, ends in unsure.items()))
        for side in (0, 1)
    )
    return Saving(name, saved, saved - below, saved + above, error * step_us, is_part)


def _replayed_us(base: Base, replays: Sequence[Answered], name: str) -> float | None:
    """How long a part is in the replayed steps; None of a kind that the replay does not separate."""
    parts = [one.replayed for one in replays]
    ledgers = [Ledger(sum(one), *one) for one in parts]
    if name == UNSPLIT:
        return fmean(one.exposed_us or 0.0 for one in ledgers)
    kinds = {one.kind for profile in base.profiles for one in profile.others}
    if len(kinds) == 1 and name == other_part(*kinds):
        return fmean(one.exposed_other for one in parts)
    return fmean(one.by_name_us[name] for one in ledgers) if name in (WAITING, TRANSFER, IDLE) else None


def _unsure_us(replays: Sequence[Answered]) -> dict[str, tuple[float, float]]:
    """By what a replay rests on, half a 90% band of the step below and above, microseconds: mean of the profiles."""
    return {
        name: (
            fmean(-one.step_us * math.expm1(-one.parts[name][0]) for one in replays),
            fmean(one.step_us * math.expm1(one.parts[name][1]) for one in replays),
        )
        for name in replays[0].parts
    }


def savings_sentences(found: Sequence[Saving], devices: int, ledger: Ledger | None) -> list[str]:
    """What is saved by removing one part, and by other changes; `ledger` is that of the step from which they are removed.

    If the largest part is not the one whose removal saves most, a sentence states it: an action would remove that one first.
    """
    parts, others = ([one for one in found if one.is_part is of_part] for of_part in (True, False))
    sentences = []
    if parts:
        listed = _listed(parts)
        sentences.append(f"Largest saving on {counted(devices, 'device')}, one part removed at a time: {listed}.")
        sizes = ledger.by_name_us if ledger is not None else {}
        largest = max(parts, key=lambda one: sizes.get(one.change, -math.inf))
        if largest is not parts[0] and largest.change in sizes:
            sentences.append(
                f"The largest of these parts is {largest.change} ({show_time(sizes[largest.change])} of the step), but its "
                f"removal alone saves only {show_time(max(0.0, largest.saved_us))}: other parts take its place."
            )
    if others:
        sentences.append(f"For comparison: {_listed(sorted(others, key=lambda one: -one.saved_us))}.")
    if any(_WITHIN in one for one in sentences):
        error = show_time(found[0].step_error_us)
        sentences.append(f"Within the error: a band that reaches below the method's error on the whole step, {error}.")
    return sentences


_WITHIN = " (within the error)"


def _listed(found: Sequence[Saving]) -> str:
    """Savings that show in their digits, then the names of the others."""

    def saves(*changes: str) -> str:
        several = len(changes) > 1 or changes == (BUFFER_BROADCASTS,)
        return f"{', '.join(changes)} {'save' if several else 'saves'}"

    visible = [one for one in found if abs(one.saved_us) >= _LEAST_SHOWN_US]
    nothing = [one.change for one in found if abs(one.saved_us) < _LEAST_SHOWN_US]
    listed = [
        f"{saves(one.change)} {one.saved_us / 1e3:.1f} ms{'' if one.is_significant else _WITHIN}" for one in visible
    ]
    return "; ".join([*listed, *([f"{saves(*nothing)} nothing"] if nothing else [])])


Predicted = tuple[dict[str, str], Scenario, Prediction]
"""The options that make a scenario, the scenario and its prediction."""


@dataclass(frozen=True)
class RunAnswer:
    """`predictions` in the requested order."""

    question: Question
    own: CellErrors
    predictions: tuple[Predicted, ...]

    @cached_property
    def largest(self) -> tuple[Scenario, Prediction]:
        """Of the predictions with a number, else of all, the one on the most devices."""
        known = [one for one in self.predictions if one[2].step_us is not None] or self.predictions
        _, scenario, prediction = max(known, key=lambda one: one[2].devices)
        return scenario, prediction

    @cached_property
    def savings(self) -> list[Saving]:
        """What removing a part saves on the most devices."""
        return savings(self.question.base, self.largest[0], self.question.costs)

    def as_json(self) -> str:
        """One entry per scenario, the base, what removing a part saves, and the method's errors on the run's own cells."""
        base = self.question.base
        content = {
            "predictions": [
                {**one.as_plain(), "scenario": words, "ledger": ledger_values(one.ledger), "missing": dict(one.missing)}
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
                "devices": self.largest[1].devices,
                "changes": [asdict(one) | {"is_significant": one.is_significant} for one in self.savings],
            },
            "layout": layout_sentence(self),
            "findings": msgspec.to_builtins(wrong_results(self.question.costs.every)),
            "own_error": [asdict(one) | {"error": one.error} for one in self.own.cells],
        }
        return json.dumps(content, indent=1, allow_nan=False)


def run_answer(
    question: Question,
    own: CellErrors,
    requested: Sequence[tuple[dict[str, str], Scenario]],
) -> RunAnswer:
    """Every scenario predicted."""
    predictions = tuple((words, one, predict(question.base, one, question.costs)) for words, one in requested)
    return RunAnswer(question, own, predictions)


def replay_error(base: Base) -> float:
    """(replayed - measured) / measured of the base, the worst of its steps."""
    return float(max((base_error(base.prepared(one, AS_IT_WAS)) for one in base.profiles), key=abs))


def run_table(answer: RunAnswer) -> TextTable:
    """The predictions as a table, with a column for each option that varies."""
    fields = prediction_fields(itemgetter(2))
    options = dict.fromkeys(name for words, _, _ in answer.predictions for name in words)
    fields[3:3] = [
        Field(name.replace("_", " "), partial(_word, name)) for name in options if name not in ("devices", "batch_size")
    ]
    fields.append(Field("bound by", lambda row: row[2].bound_by, meaning="The largest part of the predicted step"))
    notes = grounds(one for _, _, one in answer.predictions)
    return table_of("Steps that were not measured, replayed from one that was", fields, answer.predictions, notes)


def _word(name: str, row: Predicted) -> str:
    return row[0].get(name, "as measured")


def csv_table(answer: RunAnswer) -> TextTable:
    """The base and every prediction with their ledgers, named as in JSON; unknown values are empty."""
    base = answer.question.base
    measured = Prediction(base.devices, base.place.nodes, base.batch_size, step_us=base.step_us, ledger=base.ledger)
    known = [(f"base: {base.name}", {}, measured), *((_label(row), row[0], row[2]) for row in answer.predictions)]
    rows = [{"configuration": name} | words | one.as_plain() | ledger_values(one.ledger) for name, words, one in known]
    cells = [
        [f"{one:.9g}" if isinstance(one, float) else "" if one is None else str(one) for one in map(row.get, rows[-1])]
        for row in rows
    ]
    return TextTable("What if", tuple(rows[-1]), tuple(map(tuple, cells)))


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
    name = "base" if answer.question.cell is None else f"base: {base.name}"
    known: list[tuple[str, float, Ledger | None]] = (
        [(name, base.step_us, base.ledger)] if base.ledger is not None else []
    )
    numbers = [row for row in answer.predictions if row[2].step_us is not None]
    known += [(_label(row), row[2].step_us or 0.0, row[2].ledger) for row in numbers]
    names, notes = list(STEP_PARTS), ["wait, transfer and other: exposed communication"]
    if base.ledger is not None and base.ledger.tracer_us is not None:
        names.append("tracer")
        notes.append("tracer: untraced less traced step, taken to be the base's")
    parts: dict[str, dict[str, None]] = {}  # each reason for an unknown part once, with the parts that it is of
    for _, _, one in numbers:
        for part, reason in one.missing.items():
            parts.setdefault(reason, {})[part.removeprefix("exposed_")] = None
    notes += [f"NA of {', '.join(named)}: {reason}" for reason, named in parts.items()]
    fields = [
        Field("configuration", itemgetter(0), meaning="The measured base, or what differs from it"),
        Field("step", itemgetter(1), "time", "Untraced: the base's as measured, the others as predicted"),
    ]
    fields += [Field(name.removeprefix("exposed_"), partial(_part_us, name), "time", _PARTS[name]) for name in names]
    title = "Where the step goes [{unit}]: the parts add up to the step"
    return table_of(title, fields, known if base.ledger is not None else (), notes)


def _part_us(name: str, row: tuple[str, float, Ledger | None]) -> float | None:
    return getattr(row[2], f"{name}_us", None)


def run_answer_sentences(answer: RunAnswer) -> list[str]:
    """The answer in words: the layout that it is for, then a sentence per scenario where there are few."""
    predictions = [one for _, _, one in answer.predictions]
    layout = layout_sentence(answer)
    ledger = answer.question.base.ledger
    sentences = answer_sentences(
        [_label(row) for row in answer.predictions], predictions, partial(detail_sentences, ledger)
    )
    idle_us = ledger.idle_us if ledger is not None else None
    idles = idle_us is not None and ledger is not None and idle_us >= _IDLE_STATED * ledger.traced_step_us
    if idles and ledger is not None and any(one.efficiency is not None for one in predictions):
        share = (idle_us or 0.0) / ledger.traced_step_us
        sentences.append(
            f"Perfect scaling is not full use: the base idles {share:.0%} of its step, on any number of devices."
        )
    return [layout, *sentences]


def layout_sentence(answer: RunAnswer) -> str:
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


def base_sentences(answer: RunAnswer) -> list[str]:
    """Of the base, what it lacks, and how wrong the method is on the run's own cells."""
    base = answer.question.base
    replayed = fmean(base.prepared(one, AS_IT_WAS).profile.step_us for one in base.profiles)
    step = f"{base.step_us / 1e3:.1f} ms per traced step (mean)"
    if answer.question.cell is not None:
        step = f"{base.step_us / 1e3:.1f} ms per untraced step (median over all repeats)"
        step += f", {base.ledger.traced_step_us / 1e3:.1f} ms per traced step (mean)" if base.ledger is not None else ""
    first = (
        f"Base: {base.name} on {counted(base.devices, 'device')}, {step}. "
        f"The replay reproduces {counted(len(base.profiles), 'typical traced step')} ({replayed / 1e3:.1f} ms on average) "
        f"within {max(100 * abs(replay_error(base)), 0.01):.2f}%."
    )
    refused = {one.reason for _, _, one in answer.predictions if one.step_us is None}
    own = answer.own.sentence
    if answer.own.cells and not answer.own.known and refused.issuperset(one.reason for one in answer.own.cells):
        own = f"None of this run's {counted(len(answer.own.cells), 'other cell')} could be predicted, for the same reason."
    on_cpu = "The devices are processes on a CPU: none of this applies to GPUs." if base.host_cores is not None else ""
    lacks = f"Not known of {base.name}: {'; '.join(base.lacks)}." if base.lacks else ""
    wrong = [f"{one.message}." for one in wrong_results(answer.question.costs.every)]
    return [one for one in (first, *wrong, own, lacks, on_cpu) if one]
