"""What people see of a comparison: the pairs, the tolerance and what rounding did, the findings; and its JSON."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from rich.console import Console

from dpscope.analysis.equality.comparison import compare_trainings, save_report
from dpscope.analysis.equality.data import load_equality
from dpscope.analysis.equality.differences import LARGEST_TOLERANCE, SAFETY, WHATS
from dpscope.analysis.equality.result import EqualityReport, PairResult
from dpscope.analysis.text.terminal import print_findings, print_table
from dpscope.analysis.text.text_table import TextTable
from dpscope.analysis.text.units import NA, sentence
from dpscope.profiling.records.finding import counted

_ROWS = 6  # of the table of tolerances


def show_equality(out: Path, output_format: Literal["table", "json"], console: Console) -> bool:
    """Compare what lies in `out`, write equality.json, print it; whether nothing differs that is not explained."""
    report = compare_trainings(load_equality(out))
    path = save_report(report, out)
    if output_format == "json":
        sys.stdout.write(path.read_text())
        return report.sound
    console.print(f"\n{sentence(headline(report))}", style="bold", highlight=False)
    for table in (pair_table(report), tolerance_table(report)):
        print_table(console, table)
    if report.findings:
        print_findings(console, report.findings)
    console.print(f"\nComparison: {path}", highlight=False, soft_wrap=True)
    return report.sound


def headline(report: EqualityReport) -> str:
    """The outcome in one line."""
    settings = report.settings
    judged = min(pair.judged_steps for pair in report.pairs)
    steps = (
        f"{counted(settings.steps, 'step')}"
        if judged == settings.steps
        else f"the first {judged} of {counted(settings.steps, 'step')}"
    )
    over = f"over {steps} of {counted(settings.global_batch_size, 'sample')} in {settings.precision}"
    if judged < settings.steps:
        over += " (rounding hides the rest)"
    if not report.sound:
        return f"a difference {over} is not explained: see the findings"
    if any(pair.verdict == "explained" for pair in report.pairs):
        return f"{', '.join(report.losses)} learn the same {over} except for batch norm, whose statistics differ as expected"
    return f"{', '.join(report.losses)} learn the same {over}"


def pair_table(report: EqualityReport) -> TextTable:
    """A row per pair: the largest relative differences of the judged steps, and the first beyond the tolerance."""
    notes = [
        f"largest relative differences over the judged steps; reference: {report.reference}; bit-equal: gradients and weights"
    ]
    for ranks in report.ranks:
        if ranks.same_bits:
            notes.append(
                f"{ranks.training}: its {counted(ranks.ranks, 'rank')} have the same gradients and weights, bit for bit, in "
                "every step"
            )
    sampled = [
        tensor for pair in report.pairs for tensor in pair.tensors if tensor.elements < tensor.elements_at_last_step
    ]
    if sampled:
        notes.append(
            "of large tensors a sample of elements is compared in every step, all of the weights after the last"
        )
    headings = (
        "pair", "verdict", "judged steps", "loss", "gradient", "weight", "first beyond", "in", "there", "tolerance",
    )  # fmt: skip
    return TextTable("Trainings in pairs", headings, tuple(_pair_row(pair) for pair in report.pairs), tuple(notes))


def _pair_row(pair: PairResult) -> tuple[str, ...]:
    judged = pair.steps[: pair.judged_steps]
    largest = [_number(_largest([getattr(step, what) for step in judged])) for what in WHATS]
    name = f"{pair.reference} / {pair.other}"
    first = pair.first_difference
    if first is None:
        return (name, pair.verdict, str(pair.judged_steps), *largest, "none", "", "", "")
    where = f"{first.what} {first.tensor}".strip()
    apart = (f"step {first.step}", where, _number(first.relative), _number(first.tolerance))
    return (name, pair.verdict, str(pair.judged_steps), *largest, *apart)


def tolerance_table(report: EqualityReport) -> TextTable:
    """Some of the steps, the last among them: what rounding did, and what is tolerated."""
    steps = report.tolerances
    every = max(1, -(-len(steps) // (_ROWS - 1)))
    shown = [step for index, step in enumerate(steps) if index % every == 0 or index == len(steps) - 1]
    rows = tuple(
        (
            str(one.step),
            *(_number(getattr(one, f"{what}_rounding")) for what in WHATS),
            *(_number(getattr(one, what)) for what in WHATS),
        )
        for one in shown
    )
    headings = ("step", *(f"rounding: {what}" for what in WHATS), *(f"tolerance: {what}" for what in WHATS))
    note = (
        f"rounding: how far {report.reference} drifts from itself when every weight starts one unit in the last place off; "
        f"tolerance: {SAFETY:g} times that, or times (B - 1) u; not judged above {LARGEST_TOLERANCE:.0%}"
    )
    return TextTable("Rounding, and what is tolerated", headings, rows, (note,))


def _largest(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return max(known) if known and len(known) == len(values) else None


def _number(value: float | None) -> str:
    return NA if value is None else "0" if value == 0 else f"{value:.1e}"
