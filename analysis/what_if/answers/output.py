"""The answer of `dpscope whatif` for a run or a trace (tables, JSON, CSV, sentences), and what removing a part would save."""

import json
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from statistics import fmean

import numpy as np

from dpscope.analysis.text.text_table import TextTable
from dpscope.analysis.text.units import choose_unit, show, show_time
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
from dpscope.analysis.what_if.answers.bases import Question, lacks_sentence
from dpscope.analysis.what_if.answers.cell_errors import CellErrors
from dpscope.analysis.what_if.answers.questions import Solution
from dpscope.analysis.what_if.prediction import BAND, FARTHEST, Prediction, answer_sentences, distance_error, show_ms
from dpscope.analysis.what_if.replay.replay import AS_IT_WAS, base_error
from dpscope.analysis.what_if.scenarios.collective_costs import Costs
from dpscope.analysis.what_if.scenarios.inputs import ASSUMED_ERROR, GPU_ERROR
from dpscope.analysis.what_if.scenarios.predict import answered, predict
from dpscope.analysis.what_if.scenarios.predicted_ledger import detail_sentences, ledger_values
from dpscope.analysis.what_if.scenarios.scenario import Base, Scenario
from dpscope.profiling.records.finding import counted
from dpscope.profiling.records.strategies import traits_of

TWICE_AS_FAST = "a device twice as fast"
INFINITE_BANDWIDTH, ZERO_LATENCY = "infinite bandwidth", "zero latency"
_LEAST_SHOWN_US = 50.0  # 0.1 ms, rounded


@dataclass(frozen=True)
class Saving:
    """What one change alone takes off the step, in microseconds, with its 90% band.

    `is_significant`: the band's low end is more than the method's error of the step. `is_part`: the change removes a part of the
    step, and is named as that part.
    """

    change: str
    saved_us: float
    low_us: float
    high_us: float
    is_significant: bool
    is_part: bool


def savings(base: Base, scenario: Scenario, costs: Costs) -> list[Saving]:
    """Of each part of the step that can be removed, the largest saving first, then of other changes for comparison.

    Empty if the scenario itself has no number.
    """
    now = predict(base, scenario, costs)
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
        saving
        for changes, is_part in ((parts, True), (others, False))
        for name, changed in changes.items()
        if (saving := _saving(base, (scenario, changed), costs, now, name, is_part)) is not None
    ]
    return sorted(found, key=lambda one: (not one.is_part, -one.saved_us))


def _removals(base: Base, scenario: Scenario) -> dict[str, Scenario]:
    """The scenario without each part of its exposed communication, by the part's name."""
    kinds = frozenset(one.kind for profile in base.profiles for one in profile.others)
    if traits_of(scenario.strategy or "").peer_copies:
        return {UNSPLIT: replace(scenario, transfer_factor=0.0, latency_factor=0.0)}
    if base.ledger is not None and not base.ledger.is_split:
        return {UNSPLIT: replace(scenario, buckets_factor=0.0, lateness_factor=0.0, free_kinds=kinds)}
    return {
        WAITING: replace(scenario, lateness_factor=0.0),
        TRANSFER: replace(scenario, buckets_factor=0.0),
        **{other_part(kind): replace(scenario, free_kinds=frozenset({kind})) for kind in sorted(kinds)},
    }


def _saving(
    base: Base, scenarios: tuple[Scenario, Scenario], costs: Costs, now: Prediction, name: str, is_part: bool
) -> Saving | None:
    """What the second scenario takes off the first, which is `now`; None where it has no number."""
    then = predict(base, scenarios[1], costs)
    if then.step_us is None or now.step_us is None:
        return None
    saved = now.step_us - then.step_us
    part_us = now.ledger.by_name_us.get(name) if is_part and now.ledger is not None else None
    if part_us is not None:  # the typical steps that are replayed may have more or less of it than the mean step
        replayed_us = _replayed_us(base, scenarios[0], costs, name)
        saved = part_us * max(0.0, min(1.0, saved / replayed_us)) if replayed_us else min(saved, part_us)
    error = base.method_error if base.method_error is not None else ASSUMED_ERROR
    times = now.devices / base.largest_count
    share = math.hypot(error, base.spread, distance_error(min(max(times, 1.0), FARTHEST)))  # of what is saved
    unsure, unsure_then = (_unsure_us(base, one, costs) for one in scenarios)  # what both steps share cancels
    device = GPU_ERROR * then.step_us if name == TWICE_AS_FAST else 0.0
    below, above = (
        math.hypot(share * saved, device, *(ends[side] - unsure_then[part][side] for part, ends in unsure.items()))
        for side in (0, 1)
    )
    return Saving(name, saved, saved - below, saved + above, saved - below > error * now.step_us, is_part)


def _replayed_us(base: Base, scenario: Scenario, costs: Costs, name: str) -> float | None:
    """How long a part is in the replayed steps; None of a kind that the replay does not separate."""
    answers = [answered(base, profile, scenario, costs).replayed for profile in base.profiles]
    parts = [one for one in answers if one is not None]
    if len(parts) < len(answers):
        return None
    ledgers = [Ledger(sum(one), *one) for one in parts]
    if name == UNSPLIT:
        return fmean(one.exposed_us or 0.0 for one in ledgers)
    kinds = {one.kind for profile in base.profiles for one in profile.others}
    if len(kinds) == 1 and name == other_part(*kinds):
        return fmean(one.exposed_other for one in parts)
    return fmean(one.by_name_us[name] for one in ledgers) if name in (WAITING, TRANSFER, IDLE) else None


def _unsure_us(base: Base, scenario: Scenario, costs: Costs) -> dict[str, tuple[float, float]]:
    """By what a replay rests on, half a 90% band of the step below and above, microseconds: mean of the profiles."""
    found: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for profile in base.profiles:
        one = answered(base, profile, scenario, costs)
        for name, (below, above) in one.parts.items():
            found[name].append((-one.step_us * math.expm1(-below), one.step_us * math.expm1(above)))
    means = {name: (fmean(one[0] for one in ends), fmean(one[1] for one in ends)) for name, ends in found.items()}
    return defaultdict(lambda: (0.0, 0.0), means)


def savings_sentences(found: Sequence[Saving], devices: int, ledger: Ledger | None) -> list[str]:
    """What is saved by removing one part, and by other changes; `ledger` is that of the step from which they are removed.

    If the largest part is not the one whose removal saves most, a sentence states it.
    """
    parts, others = ([one for one in found if one.is_part is of_part] for of_part in (True, False))
    sentences, where = [], counted(devices, "device")
    if parts:
        sentences.append(f"Largest saving on {where}, one part removed at a time: {_listed(parts)}.")
        sentences += _smaller_than_its_part(parts, ledger)
    if others:
        sentences.append(f"For comparison: {_listed(sorted(others, key=lambda one: -one.saved_us))}.")
    return sentences


def _listed(found: Sequence[Saving]) -> str:
    """Savings that show in their digits, then the names of the others."""
    listed, nothing = [], []
    for one in found:
        if abs(one.saved_us) >= _LEAST_SHOWN_US:
            error = "" if one.is_significant else " (within the error)"
            listed.append(f"{_saves([one.change])} {one.saved_us / 1e3:.1f} ms{error}")
        else:
            nothing.append(one.change)
    return "; ".join([*listed, *([f"{_saves(nothing)} nothing"] if nothing else [])])


def _saves(changes: Sequence[str]) -> str:
    several = len(changes) > 1 or changes == [BUFFER_BROADCASTS]
    return f"{', '.join(changes)} {'save' if several else 'saves'}"


def _smaller_than_its_part(parts: Sequence[Saving], ledger: Ledger | None) -> list[str]:
    """Why the largest part of the step, which an action would remove first, is not the largest saving."""
    sizes = ledger.by_name_us if ledger is not None else {}
    largest = max(parts, key=lambda one: sizes.get(one.change, -math.inf))
    if largest is parts[0] or largest.change not in sizes:
        return []
    return [
        f"The largest of these parts is {largest.change} ({show_time(sizes[largest.change])} of the step), but its removal alone "
        f"saves only {show_time(max(0.0, largest.saved_us))}: other parts take its place."
    ]


_LedgerRow = tuple[str, float | None, Ledger | None, Mapping[str, str]]
"""Label, step, ledger and the reason of each unknown part."""
_ON_CPU = "The devices are processes on a CPU: none of this applies to GPUs."


@dataclass(frozen=True)
class RunAnswer:
    """`predictions` in the requested order, each with the options that make its scenario."""

    question: Question
    own: CellErrors
    predictions: tuple[tuple[dict[str, str], Scenario, Prediction], ...]
    solution: Solution | None = None  # of an inverse question, whose scenario is the last prediction

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

    @property
    def savings_sentences(self) -> list[str]:
        """The same in words."""
        prediction = self.largest[1]
        return savings_sentences(self.savings, prediction.devices, prediction.ledger)

    def as_json(self) -> str:
        """One entry per scenario, the base, what removing a part saves, and the method's errors on the run's own cells."""
        base = self.question.base
        predictions = [
            {**one.as_plain(), "scenario": words, "ledger": ledger_values(one.ledger), "missing": dict(one.missing)}
            for words, _, one in self.predictions
        ]
        content = {
            "predictions": predictions,
            "base": {
                "cell": base.name,
                **{name: getattr(base, name) for name in ("devices", "batch_size", "step_us")},
                "ledger": ledger_values(base.ledger),
                "replay_error": replay_error(self.question),
                "lacks": list(base.lacks),
            },
            "savings": {"devices": self.largest[1].devices, "changes": [asdict(one) for one in self.savings]},
            "own_error": [asdict(one) | {"error": one.error} for one in self.own.cells],
            "solution": None if self.solution is None else self.solution.as_plain(),
        }
        return json.dumps(content, indent=1, allow_nan=False)


def run_answer(
    question: Question,
    own: CellErrors,
    requested: Sequence[tuple[dict[str, str], Scenario]],
    solution: Solution | None = None,
) -> RunAnswer:
    """Every scenario predicted, and the one that solves an inverse question."""
    base, costs = question.base, question.costs
    scenarios = list(requested)
    if solution is not None and solution.solved is not None:
        scenarios.append(({**requested[0][0], **solution.words}, solution.solved))
    predictions = tuple((words, one, predict(base, one, costs)) for words, one in scenarios)
    return RunAnswer(question, own, predictions, solution)


def replay_error(question: Question) -> float:
    """(replayed - measured) / measured of the base, the worst of its steps."""
    base = question.base
    return float(max((base_error(base.prepared(one, AS_IT_WAS)) for one in base.profiles), key=abs))


def run_table(answer: RunAnswer) -> TextTable:
    """The predictions as a table, with a column for each option that varies."""
    options = dict.fromkeys(name for words, _, _ in answer.predictions for name in words)
    varied = [name for name in options if name not in ("devices", "batch_size")]
    headings = (
        *("devices", "nodes", "batch"),
        *(name.replace("_", " ") for name in varied),
        *("step [ms]", f"{BAND:.0%} band [ms]", "exposed [ms]", "efficiency [%]", "bound by"),
    )
    rows = tuple(
        (
            *(str(one.devices), str(one.nodes), "NA" if one.batch_size is None else str(one.batch_size)),
            *(words.get(name, "as measured") for name in varied),
            *(show_ms(one.step_us), one.band, show_ms(one.exposed_us), one.percent, one.bound_by or "NA"),
        )
        for words, _, one in answer.predictions
    )
    title = "Steps that were not measured, replayed from one that was"
    return TextTable(title, headings, rows, notes=tuple(_grounds(answer)))


def csv_table(answer: RunAnswer) -> TextTable:
    """The base and every prediction with their ledgers, named as in JSON; unknown values are empty."""
    base = answer.question.base
    nodes = -(-base.devices // base.per_node)
    measured = Prediction(base.devices, nodes, base.batch_size, step_us=base.step_us, ledger=base.ledger)
    known: list[tuple[str, dict[str, str], Prediction]] = [(f"base: {base.name}", {}, measured)]
    known += [(_label(words, one), words, one) for words, _, one in answer.predictions]
    rows = [{"configuration": name} | words | one.as_plain() | ledger_values(one.ledger) for name, words, one in known]
    headings = tuple(rows[-1])
    values = [[row.get(name) for name in headings] for row in rows]
    cells = [
        [f"{one:.9g}" if isinstance(one, float) else "" if one is None else str(one) for one in row] for row in values
    ]
    return TextTable("What if", headings, tuple(map(tuple, cells)))


def ledger_table(answer: RunAnswer) -> TextTable:
    """Where the base's step goes, and each predicted one that has a number; empty where nothing is known of either."""
    base = answer.question.base
    answered = [(_label(words, one), one) for words, _, one in answer.predictions if one.step_us is not None]
    name = "base" if answer.question.cell is None else f"base: {base.name}"
    ledgers: list[_LedgerRow] = [(name, base.step_us, base.ledger, {})] if base.ledger is not None else []
    known = [*ledgers, *((label, one.step_us, one.ledger, one.missing) for label, one in answered)]
    with_tracer = base.ledger is not None and base.ledger.tracer_us is not None
    names = (*STEP_PARTS, "tracer") if with_tracer else STEP_PARTS
    values = [[step_us, *(getattr(one, f"{name}_us", None) for name in names)] for _, step_us, one, _ in known]
    unit = choose_unit("time", [one for row in values for one in row])
    headings = ("configuration", "step", *(name.removeprefix("exposed_") for name in names))
    rows = tuple((label, *(show(value, unit) for value in row)) for (label, *_), row in zip(known, values, strict=True))
    notes = ["wait, transfer and other: exposed communication"]
    if with_tracer:
        notes.append("tracer: untraced less traced step, taken to be the base's")
    title = f"Where the step goes [{unit.label}]: the parts add up to the step"
    parts: dict[str, dict[str, None]] = {}  # each reason for an unknown part once, with the parts that it is of
    for _, _, _, missing in known:
        for part, reason in missing.items():
            parts.setdefault(reason, {})[part.removeprefix("exposed_")] = None
    notes += [f"NA of {', '.join(named)}: {reason}" for reason, named in parts.items()]
    return TextTable(title, headings, rows if ledgers else (), notes=tuple(notes))


def run_answer_sentences(answer: RunAnswer) -> list[str]:
    """The answer in words, a sentence per scenario where there are few."""
    labels = [_label(words, one) for words, _, one in answer.predictions]
    predictions = [one for _, _, one in answer.predictions]
    return answer_sentences(labels, predictions, partial(detail_sentences, answer.question.base.ledger))


def _label(words: Mapping[str, str], one: Prediction) -> str:
    options = [f"{name.replace('_', ' ')} {word}" for name, word in words.items() if name != "devices"]
    return ", ".join([counted(one.devices, "device"), *options])


def _grounds(answer: RunAnswer) -> list[str]:
    """What numbers rest on, or why there is none: each once, with the device counts that it holds for."""
    counts: dict[tuple[bool, str], dict[int, None]] = {}  # device counts in order; the reason of a missing number first
    for _, _, one in answer.predictions:
        clauses = str(one.rests_on).split("; ") if one.reason is None else [one.reason]
        for clause in clauses:
            counts.setdefault((one.reason is not None, clause), {})[one.devices] = None
    grouped: dict[tuple[bool, tuple[int, ...]], list[str]] = {}
    for (is_reason, clause), of in counts.items():
        grouped.setdefault((is_reason, tuple(of)), []).append(clause)
    ordered = sorted(grouped.items(), key=lambda one: -len(one[0][1]))
    return [
        f"{', '.join(map(str, of))} device{'' if of == (1,) else 's'}: {'' if is_reason else 'basis: '}{'; '.join(clauses)}"
        for (is_reason, of), clauses in ordered
    ]


def base_sentences(answer: RunAnswer) -> list[str]:
    """Of the base, what it lacks, and how wrong the method is on the run's own cells."""
    base = answer.question.base
    replayed = float(np.mean([base.prepared(one, AS_IT_WAS).profile.step_us for one in base.profiles]))
    step = f"{base.step_us / 1e3:.1f} ms per traced step (mean)"
    if answer.question.cell is not None:
        step = f"{base.step_us / 1e3:.1f} ms per untraced step (median over all repeats)"
        step += f", {base.ledger.traced_step_us / 1e3:.1f} ms per traced step (mean)" if base.ledger is not None else ""
    first = (
        f"Base: {base.name} on {counted(base.devices, 'device')}, {step}. "
        f"The replay reproduces {counted(len(base.profiles), 'typical traced step')} ({replayed / 1e3:.1f} ms on average) "
        f"within {max(100 * abs(replay_error(answer.question)), 0.01):.2f}%."
    )
    refused = {one.reason for _, _, one in answer.predictions if one.step_us is None}
    own = answer.own.sentence
    if answer.own.cells and not answer.own.known and refused.issuperset(one.reason for one in answer.own.cells):
        own = f"None of this run's {counted(len(answer.own.cells), 'other cell')} could be predicted, for the same reason."
    return [one for one in (first, own, lacks_sentence(base), _ON_CPU if base.host_cores is not None else "") if one]
