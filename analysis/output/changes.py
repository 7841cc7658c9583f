"""What `dpscope compare` prints of two runs or a series of them, and its exit status: a gate that cannot judge does not pass.

Programs get JSON, a summary for GitHub's job pages, or JUnit XML; verdicts come first.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Literal
from xml.etree import ElementTree

import msgspec
from rich.console import Console

from dpscope.analysis.cells.comparison import compare
from dpscope.analysis.cells.device_use import UseChange, use_changes, use_table
from dpscope.analysis.findings.answers import Verdict, traces_verdict
from dpscope.analysis.findings.verdict import run_verdict
from dpscope.analysis.output.analyze import load
from dpscope.analysis.output.traced_report import read_jobs
from dpscope.analysis.partials.found import find_partials
from dpscope.analysis.runs.compare import (
    JUDGED,
    Change,
    change_table,
    compare_runs,
    detection_text,
    lost_findings,
    mark_unseen,
    regressions,
    setting_findings,
    undecided_findings,
    verdict_table,
)
from dpscope.analysis.runs.run_data import RunData, traced_repeats
from dpscope.analysis.stats.samples import pooled_median
from dpscope.analysis.text.terminal import Trimmed, folded, print_findings, print_table, print_tables, progress
from dpscope.analysis.text.text_table import Field, OutputFormat, TextTable, finding_line, in_markdown, render, table_of
from dpscope.analysis.text.units import NA
from dpscope.analysis.training.data import TrainingData, load_training
from dpscope.analysis.training.seed_statistics import compare_trained_cells, training_setting_findings
from dpscope.analysis.training.tables import difference_table
from dpscope.profiling.records.config import Workload
from dpscope.profiling.records.finding import Finding
from dpscope.profiling.records.run import SHORT_HASH_DIGITS, Commit
from dpscope.profiling.store.errors import DpscopeError, NotComparableError
from dpscope.profiling.store.folders import is_run_folder
from dpscope.profiling.store.shown_text import complain, write_out
from dpscope.profiling.store.training_folders import holds_epochs

HistoryOrder = Literal["time", "commit"]
ChangeFormat = OutputFormat | Literal["github", "junit"]
NO_REGRESSION, REGRESSION, NOT_COMPARABLE = 0, 1, NotComparableError.exit_status
STATUS_WORDS = {NO_REGRESSION: "no regression", REGRESSION: "regression", NOT_COMPARABLE: "cannot be judged"}
DEFAULT_SHARE = 0.05  # --fail-over


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


def _json(found: Judgement) -> str:
    """`status` and its words, `regressions` (cells), every change with ratio, interval and verdict, findings, history."""
    content: dict[str, object] = {
        "status": found.status,
        "verdict": STATUS_WORDS[found.status],
        "regressions": [change.cell for change in found.worse],
        "changes": [
            {
                **{name: getattr(one, name) for name in ("cell", "quantity", "before_us", "after_us")},
                **{"ratio": one.ratio.value, "ratio_low": one.ratio.low, "ratio_high": one.ratio.high},
                "count": one.ratio.count,
                **{name: getattr(one, name) for name in ("verdict", "chance_slower", "detectable")},
                "not_judged": one.not_judged or None,
            }
            for one in found.changes
        ],
        "device_use": [one.record() for one in found.uses],
        "findings": msgspec.to_builtins(list(found.findings)),
    }
    if found.after is not None:
        content["after"] = found.after.record()
    if found.history is not None:
        content["history"] = [dict(zip(found.history.headings, row, strict=True)) for row in found.history.rows]
    return json.dumps(content, indent=2)


def _github(found: Judgement) -> str:
    """Markdown for $GITHUB_STEP_SUMMARY: the verdict, the steps, the findings; all quantities folded."""
    parts = [f"### dpscope compare: {STATUS_WORDS[found.status]}\n", render(verdict_table(found.changes), "markdown")]
    parts += map(finding_line, found.findings)
    if found.after is not None:
        parts += ["\n**After**\n", *map(in_markdown, _answers(found.after, "- **", "**: ")), ""]
    parts += [render(found.history, "markdown")] if found.history is not None else []
    every = render(change_table(found.changes), "markdown")
    if (use := use_table(found.uses)) is not None:
        every += f"\n{render(use, 'markdown')}"
    parts += [f"\n<details><summary>Every quantity</summary>\n\n{every}\n</details>"]
    return "\n".join(parts)


def _junit(found: Judgement) -> str:
    """JUnit XML: a test case per cell's step, failed where it regressed, skipped where it cannot be judged."""
    steps = [change for change in found.changes if change.quantity in JUDGED]
    cases: list[tuple[str, str, str]] = []  # name, outcome (empty: passed) and its message
    for change in steps:
        name, ratio = f"{change.cell} {change.quantity}", change.ratio
        if change in found.worse:
            interval = f"95% interval {ratio.low:.3f} to {ratio.high:.3f}"
            cases.append((name, "failure", f"{change.quantity} took {ratio.value:.3f} times as long ({interval})"))
        else:
            cases.append((name, "skipped" if change.not_judged else "", change.not_judged))
    if found.status == NOT_COMPARABLE:
        reasons = "; ".join(one.message for one in found.findings) or STATUS_WORDS[NOT_COMPARABLE]
        cases.append(("comparable", "error", reasons))
    counts = {
        "tests": len(cases),
        "failures": len(found.worse),
        "skipped": sum(bool(change.not_judged) for change in steps),
        "errors": int(found.status == NOT_COMPARABLE),
    }
    named = {name: str(count) for name, count in counts.items()}
    suite = ElementTree.Element("testsuite", {"name": "dpscope compare", **named})
    for name, outcome, message in cases:
        tested = ElementTree.SubElement(suite, "testcase", classname="dpscope", name=name)
        if outcome:
            ElementTree.SubElement(tested, outcome, message=message)
    if found.after is not None:
        ElementTree.SubElement(suite, "system-out").text = "\n".join(_answers(found.after, "", ": "))
    ElementTree.indent(suite)
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True)


_PRINTERS: Mapping[str, Callable[[Judgement], str]] = {"json": _json, "github": _github, "junit": _junit}


def _answers(verdict: Verdict, before: str, between: str) -> list[str]:
    """The later run's verdict, a line for each warning and answer."""
    return [*verdict.warnings, *(f"{before}{label}{between}{text}" for label, text in verdict.labelled)]


def print_comparison(
    paths: Sequence[Path],
    share: float | None,
    output_format: ChangeFormat,
    console: Console,
    force: bool = False,
    by: HistoryOrder = "time",
) -> int:
    """Two runs side by side, or three and more in order, of which the last is judged against the one before; the exit status.

    0: no step got slower beyond noise by more than `share` (default DEFAULT_SHARE). 1: one did. 3: that cannot be judged, as
    settings or machines differ, a step has no interval or hides such a slowdown, or a cell is missing; the reason goes to
    standard error in every format. With `force` settings and models may differ.

    Raises DpscopeError for other models, NotComparableError where nothing is common.
    """
    if len(paths) == 2 and all(holds_epochs(path) and not is_run_folder(path) for path in paths):
        alone = "measured steps, and these folders hold trainings alone; omit it"
        if share is not None:
            raise DpscopeError(f"--fail-over judges {alone}")
        if output_format in _PRINTERS:
            raise DpscopeError(f"--format {output_format} shows {alone}")
        return _compare_learning(paths[0], paths[1], output_format, console, force)
    runs, history = [_load(path) for path in paths], None
    if len(runs) > 2:
        runs = in_order(runs, by)
        history = history_table(runs, by)
    *_, before, after = runs
    if (before.recorded is None) != (after.recorded is None):
        raise NotComparableError(
            f"{before.path} and {after.path}: one is a run and the other traces alone, whose steps the tracer alone timed; "
            "name two runs, or the traces of two jobs"
        )
    for run in runs[1:]:
        if (one := runs[0].recorded) is not None and (other := run.recorded) is not None:
            _check_models(runs[0].path, run.path, one.config.workload, other.config.workload, force)
    share = DEFAULT_SHARE if share is None else share
    with progress(f"Comparing {before.path} with {after.path}"):
        changes = mark_unseen(compare_runs(before, after), share)
    worse = regressions(changes, share)
    differ = setting_findings(before, after)
    unjudged = [*lost_findings(before, after), *undecided_findings(changes)]
    status = REGRESSION if worse else NOT_COMPARABLE if unjudged else NO_REGRESSION
    status = NOT_COMPARABLE if differ and not force else status
    found = Judgement(changes, worse, [*differ, *unjudged], status, history, uses=use_changes(before, after))
    if (for_programs := _PRINTERS.get(output_format)) is not None:
        with progress("Comparing cells"):
            found = replace(found, after=verdict_of(after))
        write_out(for_programs(found) + "\n")
        return status
    _print_judgement(found, share, output_format, console)
    if before.training and after.training:
        _print_learning_changes(before.training, after.training, output_format, console)
    _tell(found.findings, output_format, console)
    return status


def _load(path: Path) -> RunData:
    """A run; or the traces of one job that a file or folder holds in its place, of several jobs alike each as a repeat of it."""
    is_run = is_run_folder(path) or holds_epochs(path) or (path / "cells").is_dir()
    if path.is_file() or (not is_run and any((*path.rglob("*.json*"), *find_partials([path])))):
        return traced_repeats(read_jobs([path]), [path])
    return load(path)


def verdict_of(run: RunData) -> Verdict:
    """The verdict of a run's report; of traces that no run made, theirs."""
    if run.recorded is None:
        (data,) = run.cells.values()
        return traces_verdict(data)
    return run_verdict(run, compare(run))


def _print_judgement(found: Judgement, share: float, output_format: ChangeFormat, console: Console) -> None:
    if output_format == "table":  # the answer first: what got slower, a row per cell, what would have been seen
        console.print()
        console.print(Trimmed(folded(_verdict(found, share))))
        if detection := detection_text(found.changes):
            console.print(detection, highlight=False, soft_wrap=True)
        print_table(console, verdict_table(found.changes))
    shown = (found.history, change_table(found.changes), use_table(found.uses))
    print_tables([table for table in shown if table is not None], output_format, console)


def _verdict(found: Judgement, share: float) -> str:
    """Which cells got slower; where none is seen to, whether that could have been seen at all."""
    if found.worse:
        return f"Slower by more than {100 * share:g}%: {', '.join(change.cell for change in found.worse)}."
    if not found.status:
        return f"Slower by more than {100 * share:g}%: none."
    steps = [change for change in found.changes if change.quantity in JUDGED and change.ratio.value is not None]
    ratios = ", ".join(f"{change.cell} {100 * ((change.ratio.value or 1) - 1):+.1f}%" for change in steps)
    return f"Cannot be judged: {found.findings[0].message}." + (f" Measured: {ratios}." if ratios else "")


def _check_models(before: Path, after: Path, one: Workload, other: Workload, force: bool) -> None:
    if one.model != other.model and not force:
        raise DpscopeError(
            f"{before} measured {one.model} and {after} {other.model}: different models do not compare; name runs of one model, "
            "or add --force"
        )


def _compare_learning(before: Path, after: Path, output_format: ChangeFormat, console: Console, force: bool) -> int:
    first, second = load_training(before), load_training(after)
    if first.manifest and second.manifest:
        _check_models(before, after, first.manifest.config.workload, second.manifest.config.workload, force)
    findings = _print_learning_changes(first, second, output_format, console)
    if findings is None:
        raise NotComparableError(f"{before} and {after} trained no cell alike: nothing to compare; name others")
    return NOT_COMPARABLE if findings and not force else NO_REGRESSION


def _print_learning_changes(
    before: TrainingData, after: TrainingData, output_format: ChangeFormat, console: Console
) -> list[Finding] | None:
    """What changed in the trainings of two folders, and what differs in their settings; None: no cell was trained alike."""
    table = difference_table("What changed in learning", compare_trained_cells(before, after))
    if table is None:
        return None
    print_tables([table], output_format, console)
    findings = training_setting_findings(before, after)
    _tell(findings, output_format, console)
    return findings


def _tell(findings: Sequence[Finding], output_format: ChangeFormat, console: Console) -> None:
    """Findings on standard error, a line each, and on a terminal's table also where people look for them."""
    for finding in findings:
        complain(f"{finding.message}; {finding.next_step}")
    if output_format == "table":
        print_findings(console, findings)


_ORDERS: dict[HistoryOrder, str] = {
    "time": "in the order in which the runs were started",
    "commit": "in the order in which the commits were made; runs of one commit by when they were started",
}


def in_order(runs: Sequence[RunData], by: HistoryOrder = "time") -> list[RunData]:
    """By the time at which they started, or of the commit whose code they measured.

    Raises NotComparableError for traces, which record neither, and with `by` commit for runs without one.
    """
    for run in runs:
        if run.recorded is None:
            raise NotComparableError(
                f"{run.path} holds traces alone, which do not record when they were made; name runs"
            )
        if by == "commit" and _commit(run) is None:
            raise NotComparableError(
                f"{run.path}: its manifest holds no commit: it was measured outside a git checkout, or by an older dpscope; "
                "omit --by commit"
            )
    begun = sorted(runs, key=lambda run: datetime.fromisoformat(run.manifest.created_at))
    if by == "time":
        return begun
    commits = {
        id(run): datetime.fromisoformat(commit.committed_at) for run in runs if (commit := _commit(run)) is not None
    }
    return sorted(begun, key=lambda run: commits[id(run)])


def history_table(runs: Sequence[RunData], by: HistoryOrder = "time") -> TextTable:
    """A row per run and a column per cell, medians of untraced steps; NA where a run did not measure the cell."""
    rows: list[dict[str, object]] = []
    cells = dict.fromkeys(data.cell.name for run in runs for data in run.measured)
    for run in runs:
        commit = _commit(run)
        shown = NA if commit is None else commit.name[:SHORT_HASH_DIGITS] + "+" * commit.changed
        begun = {"run": run.path.name, "begun": run.manifest.created_at[:16], "commit": shown}
        steps_us = {one.cell.name: pooled_median(one.step_samples()) for one in run.measured}
        rows.append({**dict.fromkeys(cells), **steps_us, **begun})
    notes = [_ORDERS[by]]
    if any("+" in str(row["commit"]) for row in rows):
        notes.append("+: tracked files differed from the commit when the run was started")
    if NA in [row["commit"] for row in rows]:
        notes.append(f"commit {NA}: measured outside a git checkout, or by an older version of dpscope")
    steps = (Field(cell, cell, "time") for cell in cells)
    return table_of(f"Steps by {by}", [*(Field(one, one) for one in ("run", "begun", "commit")), *steps], rows, notes)


def _commit(run: RunData) -> Commit | None:
    return run.manifest.environment.commit
