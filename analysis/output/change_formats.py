"""What a comparison of two runs gives to programs: JSON, a summary for GitHub's job pages, JUnit XML; verdicts come first."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal
from xml.etree import ElementTree

import msgspec

from dpscope.analysis.cells.device_use import UseChange, use_table
from dpscope.analysis.findings.answers import LABELS, Verdict
from dpscope.analysis.runs.compare import JUDGED, Change, change_table
from dpscope.analysis.text.text_table import TextTable, render
from dpscope.analysis.text.units import sentence
from dpscope.profiling.records.finding import Finding

STATUS_WORDS = {0: "no regression", 1: "regression", 3: "cannot be judged"}


def verdict_table(changes: Sequence[Change]) -> TextTable:
    """A row per cell, within 80 columns: the verdict on its step first, the ratio with its interval after."""
    table = change_table([change for change in changes if change.quantity in JUDGED])
    names = [heading.partition(" [")[0] for heading in table.headings]
    kept = [names.index(name) for name in ("cell", "change", "before", "after", "ratio", "low", "high")]
    return TextTable(
        title="Verdict on each cell's step (after / before, 95% interval)",
        headings=tuple(table.headings[index] for index in kept),
        rows=tuple(tuple(row[index] for index in kept) for row in table.rows),
    )


@dataclass(frozen=True)
class Judgement:
    """What was found of two runs: `worse` are the regressions among the changes, `status` is the command's exit status.

    `history` is the table of all runs where more than two were named, of which the last two are judged. `after` is the verdict on
    the later run by itself, `uses` are rates and shares of peaks.
    """

    changes: Sequence[Change]
    worse: Sequence[Change]
    findings: Sequence[Finding]
    status: int
    history: TextTable | None = None
    after: Verdict | None = None
    uses: Sequence[UseChange] = ()


def judgement_text(found: Judgement, output_format: Literal["json", "github", "junit"]) -> str:
    """In one of the formats that programs read."""
    return {"json": _json, "github": _github, "junit": _junit}[output_format](found)


def _json(found: Judgement) -> str:
    """`status` and its words, `regressions` (cells), every change with ratio, interval and verdict, findings, history."""
    content: dict[str, object] = {
        "status": found.status,
        "verdict": STATUS_WORDS[found.status],
        "regressions": [change.cell for change in found.worse],
        "changes": [_record(change) for change in found.changes],
        "device_use": [one.record() for one in found.uses],
        "findings": msgspec.to_builtins(list(found.findings)),
    }
    if found.after is not None:
        content["after"] = found.after.record()
    if found.history is not None:
        content["history"] = [dict(zip(found.history.headings, row, strict=True)) for row in found.history.rows]
    return json.dumps(content, indent=2)


def _record(change: Change) -> dict[str, object]:
    ratio = change.ratio
    return {
        **{name: getattr(change, name) for name in ("cell", "quantity", "before_us", "after_us")},
        **{"ratio": ratio.value, "ratio_low": ratio.low, "ratio_high": ratio.high, "count": ratio.count},
        **{name: getattr(change, name) for name in ("verdict", "chance_slower", "detectable")},
        "not_judged": change.not_judged or None,
    }


def _github(found: Judgement) -> str:
    """Markdown for $GITHUB_STEP_SUMMARY: the verdict, the steps, the findings; all quantities folded."""
    parts = [f"### dpscope compare: {STATUS_WORDS[found.status]}\n", render(verdict_table(found.changes), "markdown")]
    parts += [f"- {one.severity}: {sentence(one.message)} {sentence(one.next_step)}" for one in found.findings]
    parts += [f"\n**After**\n\n{_answers(found.after, '- **', '**: ')}\n"] if found.after is not None else []
    parts += [render(found.history, "markdown")] if found.history is not None else []
    every = render(change_table(found.changes), "markdown")
    if (use := use_table(found.uses)) is not None:
        every += f"\n{render(use, 'markdown')}"
    parts += [f"\n<details><summary>Every quantity</summary>\n\n{every}\n</details>"]
    return "\n".join(parts)


def _junit(found: Judgement) -> str:
    """JUnit XML: a test case per cell's step, failed where it regressed, skipped where it cannot be judged."""
    status, worse = found.status, found.worse
    steps = [change for change in found.changes if change.quantity in JUDGED]
    skipped = [change for change in steps if change.not_judged]
    suite = ElementTree.Element(
        "testsuite",
        name="dpscope compare",
        tests=str(len(steps) + (status == 3)),
        failures=str(len(worse)),
        skipped=str(len(skipped)),
        errors=str(int(status == 3)),
    )
    for change in steps:
        case = ElementTree.SubElement(suite, "testcase", classname="dpscope", name=f"{change.cell} {change.quantity}")
        if change in worse:
            ElementTree.SubElement(case, "failure", message=_said(change))
        elif change in skipped:
            ElementTree.SubElement(case, "skipped", message=change.not_judged)
    if status == 3:
        case = ElementTree.SubElement(suite, "testcase", classname="dpscope", name="comparable")
        reasons = "; ".join(one.message for one in found.findings) or STATUS_WORDS[3]
        ElementTree.SubElement(case, "error", message=reasons)
    if found.after is not None:
        ElementTree.SubElement(suite, "system-out").text = _answers(found.after, "", ": ")
    ElementTree.indent(suite)
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True)


def _answers(verdict: Verdict, before: str, between: str) -> str:
    """The later run's verdict, a line for each warning and answer."""
    answers = (f"{before}{label}{between}{one.text}" for label, one in zip(LABELS, verdict.answers, strict=True))
    return "\n".join((*verdict.warnings, *answers))


def _said(change: Change) -> str:
    ratio = change.ratio
    return f"{change.quantity} took {ratio.value:.3f} times as long (95% interval {ratio.low:.3f} to {ratio.high:.3f})"
