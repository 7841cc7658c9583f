"""What `dpscope compare` prints of two runs, and its exit status: a gate that cannot judge does not
pass.

Programs get JSON or a summary for GitHub's job pages; verdicts come first.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import msgspec
from rich.console import Console

from dpscope.analysis.cells.comparison import compare
from dpscope.analysis.cells.device_use import UseChange, use_changes, use_table
from dpscope.analysis.findings.answers import Verdict, traces_verdict
from dpscope.analysis.findings.verdict import run_verdict
from dpscope.analysis.output.analyze import load
from dpscope.analysis.output.traced_report import read_jobs
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
from dpscope.analysis.text.terminal import (
    Trimmed,
    folded,
    print_findings,
    print_table,
    print_tables,
    progress,
)
from dpscope.analysis.text.text_table import OutputFormat, finding_line, in_markdown, render
from dpscope.analysis.traces.ranks.readers import holds_files
from dpscope.analysis.training.data import TrainingData, load_training
from dpscope.analysis.training.seed_statistics import (
    compare_trained_cells,
    training_setting_findings,
)
from dpscope.analysis.training.tables import difference_table
from dpscope.profiling.records.config import Workload
from dpscope.profiling.records.finding import Finding
from dpscope.profiling.store.errors import DpscopeError, NotComparableError
from dpscope.profiling.store.folders import is_run_folder
from dpscope.profiling.store.shown_text import complain, write_out
from dpscope.profiling.store.training_folders import holds_epochs

ChangeFormat = OutputFormat | Literal["github"]
NO_REGRESSION, REGRESSION, NOT_COMPARABLE = 0, 1, NotComparableError.exit_status
STATUS_WORDS = {
    NO_REGRESSION: "no regression",
    REGRESSION: "regression",
    NOT_COMPARABLE: "cannot be judged",
}
DEFAULT_SHARE = 0.05  # --fail-over


@dataclass(frozen=True)
class Judgement:
    """What was found of two runs: `worse` are the regressions among the changes, `status` is the
    command's exit status.

    `after` is the verdict on the later run by itself, `uses` are rates and shares of peaks.
    """

    changes: Sequence[Change]
    worse: Sequence[Change]
    findings: Sequence[Finding]
    status: int
    after: Verdict | None = None
    uses: Sequence[UseChange] = ()


def _json(found: Judgement) -> str:
    """`status` and its words, `regressions` (cells), every change with ratio, interval and verdict,
    findings.
    """
    content: dict[str, object] = {
        "status": found.status,
        "verdict": STATUS_WORDS[found.status],
        "regressions": [change.cell for change in found.worse],
        "changes": [
            {
                **{
                    name: getattr(one, name)
                    for name in ("cell", "quantity", "before_us", "after_us")
                },
                **{
                    "ratio": one.ratio.value,
                    "ratio_low": one.ratio.low,
                    "ratio_high": one.ratio.high,
                },
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
    return json.dumps(content, indent=2)


def _github(found: Judgement) -> str:
    """Markdown for $GITHUB_STEP_SUMMARY: the verdict, the steps, the findings; all quantities
    folded.
    """
    parts = [
        f"### dpscope compare: {STATUS_WORDS[found.status]}\n",
        render(verdict_table(found.changes), "markdown"),
    ]
    parts += map(finding_line, found.findings)
    if found.after is not None:
        parts += ["\n**After**\n", *map(in_markdown, _answers(found.after, "- **", "**: ")), ""]
    every = render(change_table(found.changes), "markdown")
    if (use := use_table(found.uses)) is not None:
        every += f"\n{render(use, 'markdown')}"
    parts += [f"\n<details><summary>Every quantity</summary>\n\n{every}\n</details>"]
    return "\n".join(parts)


_PRINTERS: Mapping[str, Callable[[Judgement], str]] = {"json": _json, "github": _github}


def _answers(verdict: Verdict, before: str, between: str) -> list[str]:
    """The later run's verdict, a line for each warning and answer."""
    return [
        *verdict.warnings,
        *(f"{before}{label}{between}{text}" for label, text in verdict.labelled),
    ]


def print_comparison(
    earlier: Path,
    later: Path,
    share: float | None,
    output_format: ChangeFormat,
    console: Console,
    force: bool = False,
) -> int:
    """Two runs side by side; the exit status.

    0: no step got slower beyond noise by more than `share` (default DEFAULT_SHARE). 1: one did. 3:
    that cannot be judged, as settings or machines differ, a step has no interval or hides such a
    slowdown, or a cell is missing; the reason goes to standard error in every format. With `force`
    settings and models may differ.

    Raises DpscopeError for other models, NotComparableError where nothing is common.
    """
    if all(holds_epochs(path) and not is_run_folder(path) for path in (earlier, later)):
        alone = "measured steps, and these folders hold trainings alone; omit it"
        if share is not None:
            raise DpscopeError(f"--fail-over judges {alone}")
        if output_format in _PRINTERS:
            raise DpscopeError(f"--format {output_format} shows {alone}")
        return _compare_learning(earlier, later, output_format, console, force)
    before, after = _load(earlier), _load(later)
    if (before.recorded is None) != (after.recorded is None):
        raise NotComparableError(
            f"{before.path} and {after.path}: one is a run and the other traces alone, whose steps the tracer alone timed; "
            "name two runs, or the traces of two jobs"
        )
    if before.recorded is not None and after.recorded is not None:
        _check_models(
            earlier, later, before.recorded.config.workload, after.recorded.config.workload, force
        )
    share = DEFAULT_SHARE if share is None else share
    with progress(f"Comparing {before.path} with {after.path}"):
        changes = mark_unseen(compare_runs(before, after), share)
    worse = regressions(changes, share)
    differ = setting_findings(before, after)
    unjudged = [*lost_findings(before, after), *undecided_findings(changes)]
    status = REGRESSION if worse else NOT_COMPARABLE if unjudged else NO_REGRESSION
    status = NOT_COMPARABLE if differ and not force else status
    found = Judgement(changes, worse, [*differ, *unjudged], status, uses=use_changes(before, after))
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
    """A run; or the traces of one job that a file or folder holds in its place, of several jobs
    alike each as a repeat of it.
    """
    is_run = is_run_folder(path) or holds_epochs(path) or (path / "cells").is_dir()
    if path.is_file() or (not is_run and holds_files(path)):
        return traced_repeats(read_jobs([path]), [path])
    return load(path)


def verdict_of(run: RunData) -> Verdict:
    """The verdict of a run's report; of traces that no run made, theirs."""
    if run.recorded is None:
        (data,) = run.cells.values()
        return traces_verdict(data)
    return run_verdict(run, compare(run))


def _print_judgement(
    found: Judgement, share: float, output_format: ChangeFormat, console: Console
) -> None:
    # the answer first: what got slower, a row per cell, what would have been seen
    if output_format == "table":
        console.print()
        console.print(Trimmed(folded(_verdict(found, share))))
        if detection := detection_text(found.changes):
            console.print(detection, highlight=False, soft_wrap=True)
        print_table(console, verdict_table(found.changes))
    tables = (change_table(found.changes), use_table(found.uses))
    print_tables([table for table in tables if table is not None], output_format, console)


def _verdict(found: Judgement, share: float) -> str:
    """Which cells got slower; where none is seen to, whether that could have been seen at all."""
    if found.worse:
        return f"Slower by more than {100 * share:g}%: {', '.join(change.cell for change in found.worse)}."
    if not found.status:
        return f"Slower by more than {100 * share:g}%: none."
    steps = [
        change
        for change in found.changes
        if change.quantity in JUDGED and change.ratio.value is not None
    ]
    ratios = ", ".join(
        f"{change.cell} {100 * ((change.ratio.value or 1) - 1):+.1f}%" for change in steps
    )
    return f"Cannot be judged: {found.findings[0].message}." + (
        f" Measured: {ratios}." if ratios else ""
    )


def _check_models(before: Path, after: Path, one: Workload, other: Workload, force: bool) -> None:
    if one.model != other.model and not force:
        raise DpscopeError(
            f"{before} measured {one.model} and {after} {other.model}: different models do not compare; name runs of one model, "
            "or add --force"
        )


def _compare_learning(
    before: Path, after: Path, output_format: ChangeFormat, console: Console, force: bool
) -> int:
    first, second = load_training(before), load_training(after)
    if first.manifest and second.manifest:
        _check_models(
            before, after, first.manifest.config.workload, second.manifest.config.workload, force
        )
    findings = _print_learning_changes(first, second, output_format, console)
    if findings is None:
        raise NotComparableError(
            f"{before} and {after} trained no cell alike: nothing to compare; name others"
        )
    return NOT_COMPARABLE if findings and not force else NO_REGRESSION


def _print_learning_changes(
    before: TrainingData, after: TrainingData, output_format: ChangeFormat, console: Console
) -> list[Finding] | None:
    """What changed in the trainings of two folders, and what differs in their settings; None: no
    cell was trained alike.
    """
    table = difference_table("What changed in learning", compare_trained_cells(before, after))
    if table is None:
        return None
    print_tables([table], output_format, console)
    findings = training_setting_findings(before, after)
    _tell(findings, output_format, console)
    return findings


def _tell(findings: Sequence[Finding], output_format: ChangeFormat, console: Console) -> None:
    """Findings on standard error, a line each, and on a terminal's table also where people look for
    them.
    """
    for finding in findings:
        complain(f"{finding.message}; {finding.next_step}")
    if output_format == "table":
        print_findings(console, findings)
