"""What `dpscope whatif` says of a run or a trace: a table, JSON, sentences."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

from dpscope.analysis.text.text_table import TextTable
from dpscope.analysis.what_if.answers.bases import AskedBase, lacks_sentence
from dpscope.analysis.what_if.answers.own_error import OwnErrors
from dpscope.analysis.what_if.prediction import BAND, Prediction, answer_sentences
from dpscope.analysis.what_if.replay.base import base_error
from dpscope.analysis.what_if.replay.replay import AS_IT_WAS
from dpscope.analysis.what_if.scenarios.predict import predict
from dpscope.analysis.what_if.scenarios.scenario import Scenario
from dpscope.profiling.records.finding import counted

_ALIKE = 0.1  # of the untraced step, by which the mean traced step may differ unmentioned


@dataclass(frozen=True)
class RunAnswer:
    """`predictions` in the order asked, each with what it says of itself."""

    question: AskedBase
    own: OwnErrors
    predictions: tuple[tuple[dict[str, str], Scenario, Prediction], ...]

    def as_json(self) -> str:
        """One entry a scenario; the base and the method's own errors beside them."""
        base = self.question.base
        return json.dumps(
            {
                "predictions": [{**said.as_plain(), "scenario": words} for words, _, said in self.predictions],
                "base": {
                    "cell": base.name,
                    "devices": base.devices,
                    "batch_size": base.batch_size,
                    "step_us": base.step_us,
                    "replay_error": replay_error(self.question),
                    "lacks": list(base.lacks),
                },
                "own_error": [asdict(one) | {"error": one.error} for one in self.own.cells],
            },
            indent=1,
            allow_nan=False,
        )


def run_answer(question: AskedBase, own: OwnErrors, asked: Sequence[tuple[dict[str, str], Scenario]]) -> RunAnswer:
    """Every scenario predicted."""
    base, costs = question.base, question.costs
    return RunAnswer(question, own, tuple((words, one, predict(base, one, costs)) for words, one in asked))


def replay_error(question: AskedBase) -> float:
    """(replayed - measured) / measured of the base, the worst of its steps."""
    base = question.base
    return float(max((base_error(base.prepared(one, AS_IT_WAS)) for one in base.profiles), key=abs))


def run_table(said: RunAnswer) -> TextTable:
    """The predictions as a table; what the options vary has columns of its own."""
    varied = [name for name in _options(said) if name not in ("devices", "batch_size")]
    headings = (
        *("devices", "nodes", "batch"),
        *(name.replace("_", " ") for name in varied),
        *("step [ms]", f"{BAND:.0%} band [ms]", "exposed [ms]", "efficiency [%]", "bound by"),
    )
    rows = tuple(_cells(words, one, varied) for words, _, one in said.predictions)
    return TextTable(
        "Steps that were not measured, replayed from one that was", headings, rows, notes=tuple(_grounds(said))
    )


def run_answer_sentences(said: RunAnswer) -> list[str]:
    """The answer in words, a sentence a scenario where these are few."""
    labels = []
    for words, _, one in said.predictions:
        told = [f"{name.replace('_', ' ')} {word}" for name, word in words.items() if name != "devices"]
        labels.append(", ".join([counted(one.devices, "device"), *told]))
    return answer_sentences(labels, [one for _, _, one in said.predictions])


def _options(said: RunAnswer) -> list[str]:
    return list(dict.fromkeys(name for words, _, _ in said.predictions for name in words))


def _cells(words: dict[str, str], one: Prediction, varied: Sequence[str]) -> tuple[str, ...]:
    band = "NA" if one.low_us is None or one.high_us is None else f"{one.low_us / 1e3:.1f} to {one.high_us / 1e3:.1f}"
    return (
        *(str(one.devices), str(one.nodes), "NA" if one.batch_size is None else str(one.batch_size)),
        *(words.get(name, "as measured") for name in varied),
        *(_ms(one.step_us), band, _ms(one.exposed_us)),
        "NA" if one.efficiency is None else f"{100 * one.efficiency:.1f}",
        one.bound_by or "NA",
    )


def _ms(value: float | None) -> str:
    return "NA" if value is None else f"{value / 1e3:.1f}"


def _grounds(said: RunAnswer) -> list[str]:
    """What numbers rest on, or why there is none, each once with its device counts."""
    counts: dict[str, list[int]] = {}
    for _, _, one in said.predictions:
        counts.setdefault(one.reason or f"rests on: {one.rests_on}", []).append(one.devices)
    shown = {text: list(dict.fromkeys(found)) for text, found in counts.items()}
    return [f"{', '.join(map(str, of))} device{'' if of == [1] else 's'}: {text}" for text, of in shown.items()]


def _which_step(question: AskedBase) -> str:
    """How the base's step differs from the traced one that the report names; empty where they are alike."""
    if question.cell is None:
        return ""
    traced_us = float(question.cell.whole_windows()["step_us"].mean())
    if abs(traced_us / question.base.step_us - 1) <= _ALIKE:
        return " (median untraced step)"
    return f" (median untraced step; the {traced_us / 1e3:.1f} ms of the report's cost sentence are the mean of its traced steps)"


def base_sentences(said: RunAnswer) -> list[str]:
    """Of the base, what it lacks, and how wrong the method is on the run's own cells."""
    base = said.question.base
    replayed = float(np.mean([base.prepared(one, AS_IT_WAS).profile.step_us for one in base.profiles]))
    first = (
        f"Base: {base.name}, {counted(base.devices, 'device')}, {base.step_us / 1e3:.1f} ms a step{_which_step(said.question)}; "
        f"{len(base.profiles)} traced steps of {replayed / 1e3:.1f} ms are replayed with an error of "
        f"{100 * replay_error(said.question):+.2f}%."
    )
    refused = {one.reason for _, _, one in said.predictions if one.step_us is None}
    own = said.own.sentence
    if said.own.cells and not said.own.known and refused.issuperset(one.reason for one in said.own.cells):
        own = (
            f"None of this run's {counted(len(said.own.cells), 'other cell')} could be predicted, for the same reason."
        )
    return [one for one in (first, own, lacks_sentence(base)) if one]
