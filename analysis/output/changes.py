"""What `dpscope compare` prints, and its exit status: a gate that cannot judge does not pass."""

import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from dpscope.analysis.output.analyze import load_any
from dpscope.analysis.runs.changes import (
    change_table,
    compare_runs,
    detection_text,
    lost_findings,
    regressions,
    setting_findings,
    undecided_findings,
)
from dpscope.analysis.text.terminal import print_findings, print_tables
from dpscope.analysis.text.text_table import OutputFormat
from dpscope.analysis.training.comparison import compare_trained_cells, training_setting_findings
from dpscope.analysis.training.data import TrainingData, load_training
from dpscope.analysis.training.tables import difference_table
from dpscope.profiling.records.config import Workload
from dpscope.profiling.records.finding import Finding
from dpscope.profiling.store.errors import DpscopeError, NotComparableError
from dpscope.profiling.store.folders import is_run_folder
from dpscope.profiling.store.training_folders import holds_epochs

NO_REGRESSION, REGRESSION = 0, 1
NOT_COMPARABLE = NotComparableError.exit_status
DEFAULT_SHARE = 0.05  # --fail-over


def print_comparison(
    before: Path, after: Path, share: float | None, output_format: OutputFormat, console: Console, force: bool = False
) -> int:
    """Two runs side by side; the exit status.

    0: no step got slower beyond noise by more than `share` (default DEFAULT_SHARE). 1: one did. 3: that cannot be said, as
    settings or machines differ, a step has no interval, or a cell is missing; why is told on standard error whatever the
    format. With `force` settings and models may differ. Raises DpscopeError for other models, NotComparableError where nothing
    is common.
    """
    if not (is_run_folder(before) or is_run_folder(after)) and holds_epochs(before) and holds_epochs(after):
        if share is not None:
            raise DpscopeError("--fail-over judges measured steps, and these folders hold trainings alone; omit it")
        return _compare_learning(before, after, output_format, console, force)
    runs = load_any(before), load_any(after)
    if (runs[0].recorded is None) != (runs[1].recorded is None):
        raise NotComparableError(
            f"{before} and {after}: one is a run and the other traces alone, whose steps nothing timed without the tracer; "
            "name two runs, or the traces of two jobs"
        )
    if runs[0].recorded is not None:
        _check_models(before, after, runs[0].manifest.config.workload, runs[1].manifest.config.workload, force)
    changes = compare_runs(*runs)
    share = DEFAULT_SHARE if share is None else share
    worse = regressions(changes, share)
    print_tables([change_table(changes)], output_format, console)
    if runs[0].training and runs[1].training:
        _print_learning_changes(runs[0].training, runs[1].training, output_format, console)
    differ = setting_findings(*runs)
    unjudged = [*lost_findings(*runs), *undecided_findings(changes)]
    _tell([*differ, *unjudged], output_format, console)
    if output_format == "table":
        cells = ", ".join(change.cell for change in worse)
        console.print(f"\nSlower by more than {share:.3g}: {cells or 'none'}", highlight=False)
        if detection := detection_text(changes):
            console.print(detection, highlight=False, soft_wrap=True)
    if differ and not force:
        return NOT_COMPARABLE
    return REGRESSION if worse else NOT_COMPARABLE if unjudged else NO_REGRESSION


def _check_models(before: Path, after: Path, one: Workload, other: Workload, force: bool) -> None:
    if one.model != other.model and not force:
        raise DpscopeError(
            f"{before} measured {one.model} and {after} {other.model}: different models do not compare; name runs of one model, "
            "or add --force"
        )


def _compare_learning(before: Path, after: Path, output_format: OutputFormat, console: Console, force: bool) -> int:
    first, second = load_training(before), load_training(after)
    if first.manifest and second.manifest:
        _check_models(before, after, first.manifest.config.workload, second.manifest.config.workload, force)
    findings = _print_learning_changes(first, second, output_format, console)
    if findings is None:
        raise NotComparableError(f"{before} and {after} trained no cell alike: nothing to compare; name others")
    return NOT_COMPARABLE if findings and not force else NO_REGRESSION


def _print_learning_changes(
    before: TrainingData, after: TrainingData, output_format: OutputFormat, console: Console
) -> list[Finding] | None:
    """What changed in the trainings of two folders, and what differs in their settings; None: no cell was trained alike."""
    table = difference_table("What changed in learning", compare_trained_cells(before, after))
    if table is None:
        return None
    print_tables([table], output_format, console)
    findings = training_setting_findings(before, after)
    _tell(findings, output_format, console)
    return findings


def _tell(findings: Sequence[Finding], output_format: OutputFormat, console: Console) -> None:
    """Findings on standard error, a line each, and on a terminal's table also where people look for them."""
    for finding in findings:
        sys.stderr.write(f"dpscope: {finding.message}; {finding.next_step}\n")
    if findings and output_format == "table":
        print_findings(console, list(findings))
