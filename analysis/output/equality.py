"""What people see of a comparison: the pairs, the tolerance and what rounding did, the findings;
and its JSON.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Literal

from rich.console import Console

from dpscope.analysis.equality.comparison import compare_trainings
from dpscope.analysis.equality.data import load_equality
from dpscope.analysis.equality.differences import LARGEST_TOLERANCE, SAFETY, WHATS
from dpscope.analysis.equality.result import (
    EqualityReport,
    PairResult,
    StepTolerance,
    TensorDifference,
)
from dpscope.analysis.text.terminal import print_findings, print_table
from dpscope.analysis.text.text_table import Field, TextTable, table_of
from dpscope.analysis.text.units import NA, sentence
from dpscope.profiling.records.equality import EQUALITY_NAME
from dpscope.profiling.records.finding import counted
from dpscope.profiling.store.files import write_json
from dpscope.profiling.store.shown_text import write_out

_ROWS = 6  # of the table of tolerances


def show_equality(out: Path, output_format: Literal["table", "json"], console: Console) -> bool:
    """Compare what lies in `out`, write equality.json, print it; whether nothing differs that is
    not explained.
    """
    report, path = compare_trainings(load_equality(out)), out / EQUALITY_NAME
    write_json(path, report)
    if output_format == "json":
        write_out(path.read_text())
        return report.sound
    console.print(f"\n{sentence(headline(report))}", style="bold", highlight=False)
    for table in (pair_table(report), tolerance_table(report)):
        print_table(console, table)
    print_findings(console, report.findings)
    console.print(f"\nComparison: {path}", highlight=False, soft_wrap=True)
    return report.sound


def headline(report: EqualityReport) -> str:
    """The outcome in one line."""
    settings = report.settings
    judged = min(pair.judged_steps for pair in report.pairs)
    if not judged:
        return "not judged: no step can be judged, see the findings"
    steps = f"{'' if judged == settings.steps else f'the first {judged} of '}{counted(settings.steps, 'step')}"
    over = (
        f"over {steps} of {counted(settings.global_batch_size, 'sample')} in {settings.precision}"
    )
    if judged < settings.steps:
        over += " (rounding or divergence hides the rest)"
    if not report.sound:
        return f"different {over}: see the findings"
    return f"equal: {', '.join(report.losses)} learn the same {over}"


def pair_table(report: EqualityReport) -> TextTable:
    """A row per pair: the largest relative differences of the judged steps, and the first beyond
    the tolerance.
    """
    notes = [
        "loss, gradient, weight: the largest relative differences over the judged steps; bit-equal: all gradients and weights "
        "have equal bits"
    ]
    notes += [
        f"{agreement.training}: gradients and weights have equal bits on all {counted(agreement.ranks, 'rank')} in every step"
        for agreement in report.ranks
        if agreement.same_bits
    ]
    notes.append(
        "large tensors are compared by a sample of their elements and a hash of all of them"
    )
    return table_of("Pairs of trainings", _PAIRS, report.pairs, notes)


def tolerance_table(report: EqualityReport) -> TextTable:
    """Some of the steps, the last among them: what rounding did, and what is tolerated."""
    steps = report.tolerances
    every = max(1, -(-len(steps) // (_ROWS - 1)))
    note = (
        f"rounding: how far {report.reference} drifts from itself if every weight starts one unit in the last place off; "
        f"tolerance: {SAFETY:g} times the larger of that and (B - 1) u (B: global batch, u: unit roundoff); steps with a "
        f"tolerance above {LARGEST_TOLERANCE:.0%} are not judged"
    )
    shown = [
        step for index, step in enumerate(steps) if index % every == 0 or index == len(steps) - 1
    ]
    return table_of("Rounding and tolerance (relative differences)", _TOLERANCES, shown, [note])


def _largest(pair: PairResult, what: str) -> str:
    values = [getattr(step, what) for step in pair.steps[: pair.judged_steps]]
    return _number(None if None in values else max(values, default=None))


def _number(value: float | None) -> str:
    return NA if value is None else "0" if value == 0 else f"{value:.1e}"


def _first(pair: PairResult, get: Callable[[TensorDifference], str], otherwise: str = "") -> str:
    return otherwise if pair.first_difference is None else get(pair.first_difference)


_PAIRS = (
    Field("pair", lambda pair: f"{pair.reference} / {pair.other}"),
    Field("verdict", "verdict"),
    Field("judged steps", "judged_steps"),
    *(Field(what, partial(_largest, what=what)) for what in WHATS),
    Field(
        "first difference", lambda pair: _first(pair, lambda first: f"step {first.step}", "none")
    ),
    Field(
        "tensor", lambda pair: _first(pair, lambda first: f"{first.what} {first.tensor}".strip())
    ),
    Field("difference", lambda pair: _first(pair, lambda first: _number(first.relative))),
    Field("tolerance", lambda pair: _first(pair, lambda first: _number(first.tolerance))),
)


def _of_step(step: StepTolerance, name: str) -> str:
    return _number(getattr(step, name))


_TOLERANCES = (
    Field("step", "step"),
    *(Field(f"rounding: {what}", partial(_of_step, name=f"{what}_rounding")) for what in WHATS),
    *(Field(f"tolerance: {what}", partial(_of_step, name=what)) for what in WHATS),
)
