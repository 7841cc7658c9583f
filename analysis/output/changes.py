"""What `dpscope compare` prints, and its exit status: a gate that cannot judge does not pass."""

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from rich.console import Console
from rich.text import Text

from dpscope.analysis.cells.device_use import use_changes, use_table
from dpscope.analysis.output.analyze import load_any, verdict_of
from dpscope.analysis.output.change_formats import Judgement, judgement_text, verdict_table
from dpscope.analysis.output.history import HistoryOrder, history_table, in_order
from dpscope.analysis.runs.compare import (
    JUDGED,
    change_table,
    compare_runs,
    detection_text,
    lost_findings,
    mark_unseen,
    regressions,
    setting_findings,
    undecided_findings,
)
from dpscope.analysis.runs.run_data import RunData
from dpscope.analysis.text.terminal import Trimmed, print_findings, print_table, print_tables, progress
from dpscope.analysis.text.text_table import OutputFormat, TextTable
from dpscope.analysis.training.data import TrainingData, load_training
from dpscope.analysis.training.seed_statistics import compare_trained_cells, training_setting_findings
from dpscope.analysis.training.tables import difference_table
from dpscope.profiling.records.config import Workload
from dpscope.profiling.records.finding import Finding
from dpscope.profiling.store.errors import DpscopeError, NotComparableError
from dpscope.profiling.store.folders import is_run_folder
from dpscope.profiling.store.training_folders import holds_epochs

ChangeFormat = OutputFormat | Literal["github", "junit"]
NO_REGRESSION, REGRESSION = 0, 1
NOT_COMPARABLE = NotComparableError.exit_status
DEFAULT_SHARE = 0.05  # --fail-over


def print_comparison(
    before: Path, after: Path, share: float | None, output_format: ChangeFormat, console: Console, force: bool = False
) -> int:
    """Two runs side by side; the exit status.

    0: no step got slower beyond noise by more than `share` (default DEFAULT_SHARE). 1: one did. 3: that cannot be judged, as
    settings or machines differ, a step has no interval or hides such a slowdown, or a cell is missing; the reason goes to
    standard error in every format. With `force` settings and models may differ.

    Raises DpscopeError for other models, NotComparableError where nothing is common.
    """
    if not (is_run_folder(before) or is_run_folder(after)) and holds_epochs(before) and holds_epochs(after):
        if share is not None:
            raise DpscopeError("--fail-over judges measured steps, and these folders hold trainings alone; omit it")
        if output_format in ("json", "github", "junit"):
            raise DpscopeError(
                f"--format {output_format} shows measured steps, and these folders hold trainings alone; omit it"
            )
        return _compare_learning(before, after, output_format, console, force)
    return _judge(load_any(before), load_any(after), share, output_format, console, force)


def print_history(
    paths: Sequence[Path],
    share: float | None,
    output_format: ChangeFormat,
    console: Console,
    force: bool = False,
    by: HistoryOrder = "time",
) -> int:
    """Three runs or more in order, and the last one judged against the one before; the exit status as of two."""
    runs = in_order([load_any(path) for path in paths], by)
    for run in runs[1:]:
        first = runs[0]
        _check_models(first.path, run.path, first.manifest.config.workload, run.manifest.config.workload, force)
    return _judge(runs[-2], runs[-1], share, output_format, console, force, history_table(runs, by))


def _judge(
    before: RunData,
    after: RunData,
    share: float | None,
    output_format: ChangeFormat,
    console: Console,
    force: bool,
    history: TextTable | None = None,
) -> int:
    if (before.recorded is None) != (after.recorded is None):
        raise NotComparableError(
            f"{before.path} and {after.path}: one is a run and the other traces alone, whose steps the tracer alone timed; "
            "name two runs, or the traces of two jobs"
        )
    if before.recorded is not None and after.recorded is not None:
        _check_models(before.path, after.path, before.recorded.config.workload, after.recorded.config.workload, force)
    share = DEFAULT_SHARE if share is None else share
    with progress(f"Comparing {before.path} with {after.path}"):
        changes = mark_unseen(compare_runs(before, after), share)
    worse = regressions(changes, share)
    differ = setting_findings(before, after)
    unjudged = [*lost_findings(before, after), *undecided_findings(changes)]
    status = REGRESSION if worse else NOT_COMPARABLE if unjudged else NO_REGRESSION
    status = NOT_COMPARABLE if differ and not force else status
    uses = use_changes(before, after)
    found = Judgement(changes, worse, [*differ, *unjudged], status, history, uses=uses)
    if output_format in ("json", "github", "junit"):
        with progress("Comparing cells"):
            found = replace(found, after=verdict_of(after))
        sys.stdout.write(judgement_text(found, output_format) + "\n")
        return status
    if output_format == "table":
        _print_verdict(found, share, console)
    shown = [history] if history is not None else []
    use = use_table(uses)
    print_tables([*shown, change_table(changes), *([use] if use is not None else [])], output_format, console)
    if before.training and after.training:
        _print_learning_changes(before.training, after.training, output_format, console)
    _tell(found.findings, output_format, console)
    return status


def _print_verdict(found: Judgement, share: float, console: Console) -> None:
    """The answer first: what got slower, a row per cell, what would have been seen."""
    console.print()
    console.print(Trimmed(Text(_verdict(found, share))))
    if detection := detection_text(found.changes):
        console.print(detection, highlight=False, soft_wrap=True)
    print_table(console, verdict_table(found.changes))


def _verdict(found: Judgement, share: float) -> str:
    """Which cells got slower; where none is seen to, whether that could have been seen at all."""
    if found.worse:
        return f"Slower by more than {100 * share:.3g}%: {', '.join(change.cell for change in found.worse)}."
    if not found.status:
        return f"Slower by more than {100 * share:.3g}%: none."
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
        sys.stderr.write(f"dpscope: {finding.message}; {finding.next_step}\n")
    if findings and output_format == "table":
        print_findings(console, list(findings))
