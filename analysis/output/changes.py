"""What `dpscope compare` prints of two runs, and its exit status: a gate that cannot judge does not
pass.

Programs get JSON or a summary for GitHub's job pages; verdicts come first.
"""

import csv
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import msgspec
from rich.console import Console

from dpscope.analysis.cells.comparison import compare
from dpscope.analysis.findings.facts import Fact, Verdict
from dpscope.analysis.findings.verdict import run_verdict, traces_verdict
from dpscope.analysis.output.change_findings import (
    by_kind,
    error_findings,
    headline,
    lost_findings,
    lost_repeats,
    model_differences,
    or_forced,
    setting_findings,
    undecided_findings,
    unlike_findings,
)
from dpscope.analysis.output.run_screen import fact_grid, load
from dpscope.analysis.output.step_changes import (
    GITHUB_ROWS,
    MOST_ROWS,
    record_of,
    sentence_of,
    tables_of,
)
from dpscope.analysis.output.traces_screen import read_jobs
from dpscope.analysis.report.files import facts_in_markdown
from dpscope.analysis.runs.compare import DEFAULT_SHARE, TRACED_STEP, Change, Outcome, compare_runs
from dpscope.analysis.runs.run_data import RunData, traced_repeats
from dpscope.analysis.runs.step_change import StepChange, step_changes
from dpscope.analysis.text.terminal import Terminal, print_sentences, print_tables, progress
from dpscope.analysis.text.text_table import (
    Field,
    OutputFormat,
    TextTable,
    estimate_fields,
    finding_line,
    in_markdown,
    render,
    table_of,
)
from dpscope.analysis.text.units import Unit, sentence, show_chance, show_share
from dpscope.analysis.traces.ranks.job import Job
from dpscope.analysis.traces.ranks.readers import holds_files
from dpscope.analysis.training.data import TrainingData, load_training
from dpscope.analysis.training.seed_statistics import (
    compare_trained_cells,
    trained_model_differences,
    training_setting_findings,
)
from dpscope.analysis.training.tables import difference_table
from dpscope.profiling.machine.conditions import ConditionDifference
from dpscope.profiling.records.config import RunConfig
from dpscope.profiling.records.finding import Finding
from dpscope.profiling.records.plan_codes import PlanCode
from dpscope.profiling.records.trace_codes import TraceCode
from dpscope.profiling.records.training import TrainConfig
from dpscope.profiling.store.errors import DpscopeError, NotComparableError
from dpscope.profiling.store.folders import is_run_folder
from dpscope.profiling.store.shown_text import write_out
from dpscope.profiling.store.training_folders import holds_epochs

ChangeFormat = OutputFormat | Literal["github"]
NO_REGRESSION, REGRESSION, NOT_COMPARABLE = 0, 1, NotComparableError.exit_status
_CSV_COLUMNS = (
    *("cell", "quantity", "before_us", "after_us", "ratio", "ratio_low", "ratio_high"),
    *("count", "verdict", "chance_slower", "detectable", "not_judged"),
)
STATUS_WORDS = {
    NO_REGRESSION: "no regression",
    REGRESSION: "regression",
    NOT_COMPARABLE: "cannot be judged",
}


@dataclass(frozen=True)
class Judgement:
    """What was found of two runs; `status` is the command's exit status, `answer` the first line,
    `notes` the findings that it does not state.

    `after` is the verdict on the later run by itself, `steps` why traced steps changed.
    """

    changes: Sequence[Change]
    findings: Sequence[Finding]
    notes: Sequence[Finding]
    status: int
    answer: str
    after: Verdict | None = None
    steps: Sequence[StepChange] = ()


def _json(found: Judgement) -> str:
    """`status` and its words, `regressions` (cells), every change with ratio, interval and verdict,
    findings.
    """
    content: dict[str, object] = {
        "status": found.status,
        "verdict": STATUS_WORDS[found.status],
        "answer": found.answer,
        "regressions": [change.cell for change in found.changes if change.is_regression],
        "changes": [_record(change) for change in found.changes],
        "step_changes": [record_of(step) for step in found.steps],
        "findings": msgspec.to_builtins(list(found.findings)),
    }
    if found.after is not None:
        content["after"] = found.after.record()
    return json.dumps(content, indent=2)


def _record(change: Change) -> dict[str, object]:
    return {
        "cell": change.cell,
        "quantity": change.quantity,
        "before_us": change.before_us,
        "after_us": change.after_us,
        "ratio": change.ratio.value,
        "ratio_low": change.ratio.low,
        "ratio_high": change.ratio.high,
        "count": change.ratio.count,
        "verdict": change.outcome,
        "chance_slower": change.chance_slower,
        "detectable": change.detectable,
        "not_judged": change.not_judged or None,
    }


def _csv(found: Judgement) -> str:
    """One table: a row for each quantity of each cell, times in microseconds; empty: not known."""
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, _CSV_COLUMNS, lineterminator="\n", extrasaction="ignore")
    writer.writeheader()
    writer.writerows(map(_record, found.changes))
    return buffer.getvalue()


def _github(found: Judgement) -> str:
    """Markdown for $GITHUB_STEP_SUMMARY: the verdict, the steps, the findings; the rest folded."""
    steps, *others = (render(table, "markdown") for table in _tables(found, GITHUB_ROWS))
    parts = [
        f"### dpscope compare: {STATUS_WORDS[found.status]}\n",
        *(f"{in_markdown(line)}\n" for line in (found.answer, *_reasons(found))),
        steps,
        *map(finding_line, found.findings),
    ]
    folded = {"Every quantity": others}
    if found.after is not None:
        folded["The later run"] = facts_in_markdown(found.after)
    for summary, lines in folded.items():
        text = "\n".join(lines)
        parts.append(f"\n<details><summary>{summary}</summary>\n\n{text}\n</details>")
    return "\n".join(parts)


def _reasons(found: Judgement) -> list[str]:
    """Why the traced steps changed, next to how the steps that are judged did."""
    outcomes = {change.cell: change.outcome for change in found.changes if change.is_step}
    return [sentence_of(step, outcomes[step.cell]) for step in _explained(found)]


def _tables(found: Judgement, most: int = MOST_ROWS) -> list[TextTable]:
    """With at most so many classes of kernels."""
    why = (table for step in _explained(found) for table in tables_of(step, most))
    return [table for table in (*change_tables(found.changes), *why) if table.rows]


_PRINTERS: Mapping[str, Callable[[Judgement], str]] = {"json": _json, "github": _github}


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
    slowdown, or a cell or repeats of it are missing; a table begins with the reason, for other formats it goes to standard
    error. With `force` settings and models may differ.

    Raises DpscopeError for other models, and where nothing is common.
    """
    if all(holds_epochs(path) and not is_run_folder(path) for path in (earlier, later)):
        alone = "measured steps, and these folders hold trainings alone; omit it"
        if share is not None:
            raise DpscopeError(f"--fail-over judges {alone}")
        if output_format in _PRINTERS:
            raise DpscopeError(f"--format {output_format} shows {alone}")
        return _compare_learning(earlier, later, output_format, console, force)
    before, after = _load(earlier), _load(later)
    if not force:
        _check_models(before, after)
    before, compared, unlike = _as_one_cell(before, after)
    with progress(f"Comparing {before.path} with {after.path}"):
        found = _judge(before, compared, share, force, unlike)
    if unlike and not force:  # by what their parts differ says nothing
        answer = _not_the_same(_kind(before), _kind(compared), unlike)
        found = replace(found, answer=answer, steps=())
    if output_format in _PRINTERS:
        with progress("Comparing cells"):
            found = replace(found, after=verdict_of(after))
        write_out(_PRINTERS[output_format](found) + "\n")
    else:
        _print(found, output_format, console)
        if output_format != "csv" and before.training and after.training:
            _print_learning_changes(before.training, after.training, output_format, console, force)
    return found.status


def _print(found: Judgement, output_format: ChangeFormat, console: Console) -> None:
    if output_format == "table":
        console.print(fact_grid(_first_lines(found)))
        print_sentences(console, _reasons(found))
    else:
        _complain(found.findings)
    if output_format == "csv":
        write_out(_csv(found))
    else:
        print_tables(_tables(found), output_format, console)


def _first_lines(found: Judgement) -> Verdict:
    """The answer, what it does not state, and what to do."""
    notes = tuple(note.message for note in found.notes)
    limits = [finding for finding in found.findings if finding.severity != "info"]
    advice = tuple(dict.fromkeys(finding.next_step for finding in limits))
    facts = (Fact("limits", "NOTE", notes), Fact("next", "NEXT", advice))
    return Verdict(found.answer, facts=tuple(fact for fact in facts if fact.lines))


def _as_one_cell(before: RunData, after: RunData) -> tuple[RunData, RunData, list[Finding]]:
    """Traces of two jobs as one cell that has their folders' names, since their common ranks
    compare; and that their devices or sizes differ, if they do. Raises DpscopeError for a run and
    traces.
    """
    if (before.recorded is None) != (after.recorded is None):
        raise DpscopeError(
            f"{before.path} and {after.path}: one is a run and the other traces alone, whose steps the tracer alone timed; "
            "name two runs, or the traces of two jobs"
        )
    if before.recorded is not None:
        return before, after, []
    (earlier,) = before.cells.values()
    (later,) = after.cells.values()
    unlike = []
    if earlier.on_device != later.on_device:
        message = f"{before.path} traced {_traced(earlier)}, {after.path} {_traced(later)}"
        unlike.append(PlanCode.SETTINGS_DIFFER.finding(message))
    if earlier.name != later.name:
        message = f"{before.path} holds {earlier.name}, {after.path} {later.name}"
        unlike.append(PlanCode.SETTINGS_DIFFER.finding(message))
    names = [run.path.resolve().name for run in (before, after)]
    if names[0] == names[1]:
        names = [str(run.path) for run in (before, after)]
    name = " to ".join(names)
    before, after = (
        replace(run, cells={name: replace(job, name=name)})
        for run, job in ((before, earlier), (after, later))
    )
    return before, after, unlike


_Kind = tuple[int, bool]


def _not_the_same(before: _Kind, after: _Kind, unlike: Sequence[Finding]) -> str:
    """The answer of two jobs that differ."""
    what = "job" if before == after else "kind of job"
    differences = "; ".join(finding.message for finding in unlike)
    return f"Not judged, as these are not the same {what}: {differences}."


def _kind(traces: RunData) -> _Kind:
    """What two jobs of one kind have in common: how many devices, and whether these are CPUs."""
    (job,) = traces.cells.values()
    return job.devices, job.on_device


def _traced(job: Job) -> str:
    """What its events are of."""
    if not job.on_device:
        return "the CPU alone"
    return job.traced_devices or "devices"


def _not_read(run: RunData) -> Iterator[Finding]:
    """Files of a job's traces that were left out, such as copies of others, in one finding."""
    if run.recorded is not None:
        return
    unread = [
        finding
        for job in run.cells.values()
        for finding in job.findings
        if finding.code == TraceCode.FILE_NOT_READ.code
    ]
    if unread:
        message = unread[0].message
        if len(unread) > 1:
            message = f"{len(unread)} files of {run.path} were not read: {message}"
        yield msgspec.structs.replace(unread[0], message=message)


@dataclass(frozen=True)
class _Damage:
    """What two runs lack of the cells that are to be compared, which cells these are, and other
    errors.
    """

    cells: set[str]
    lost: list[Finding]
    errors: list[Finding]

    @classmethod
    def of(cls, before: RunData, after: RunData) -> "_Damage":
        damage = cls(set(), [], [])
        for run, other in ((before, after), (after, before)):
            lacking = lost_repeats(run, other)
            known = [finding for findings in lacking.values() for finding in findings]
            errors = [error for error in error_findings(run) if error not in known]
            damage.cells.update(lacking)
            damage.lost.extend(by_kind(run, known))
            damage.errors.extend(by_kind(run, errors))
        return damage


def _judge(
    before: RunData, after: RunData, share: float | None, force: bool, unlike: Sequence[Finding]
) -> Judgement:
    changes = compare_runs(before, after, DEFAULT_SHARE if share is None else share)
    differ = [*unlike, *setting_findings(before, after)]
    if not force:
        differ = or_forced(differ)
    damage = _Damage.of(before, after)
    lost = [*lost_findings(before, after, damage.cells), *damage.lost]
    unread = [*_not_read(before), *_not_read(after)]
    judged = [change for change in changes if change.cell not in damage.cells]
    limits = [*damage.errors, *unlike_findings(before, after, judged)]
    undecided = list(undecided_findings(changes))
    reasons: list[Finding] = []
    status = NO_REGRESSION
    if differ and not force:
        status, reasons = NOT_COMPARABLE, differ
    elif any(change.is_regression for change in judged):
        status = REGRESSION
    elif lost or undecided:
        status, reasons = NOT_COMPARABLE, lost
    findings = list(dict.fromkeys([*unread, *differ, *lost, *undecided, *limits]))
    return Judgement(
        changes,
        findings,
        [finding for finding in findings if finding not in reasons],
        status,
        headline(changes, reasons),
        steps=step_changes(before, after),
    )


def _explained(found: Judgement) -> list[StepChange]:
    """Of the steps those that changed, of which a class of kernels did, and of one job each, whose
    changes nothing judges.
    """
    by_cell = {change.cell: change for change in found.changes if change.is_step}
    return [
        step
        for step in found.steps
        if (change := by_cell.get(step.cell)) is not None
        and (
            change.outcome in ("slower", "faster")
            or change.verdict == "too_few_samples"
            or any(kernels.significant for kernels in step.classes)
        )
    ]


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


def _check_models(before: RunData, after: RunData) -> None:
    """Refuse runs of two models."""
    first, second = before.recorded, after.recorded
    if first is None or second is None:
        return
    models = model_differences(before, after)
    if models:
        _check_names(before.path, after.path, first.config, second.config, models)


def _check_names(
    before: Path,
    after: Path,
    one: RunConfig | TrainConfig,
    other: RunConfig | TrainConfig,
    models: Sequence[ConditionDifference],
) -> None:
    """Refuse models of two names, which differ in what they compute."""
    then, now = one.workload.model, other.workload.model
    if then != now:
        changes = "; ".join(difference.change for difference in models)
        raise DpscopeError(
            f"{before} measured {then} and {after} {now} ({changes}): different models do not compare; name runs of one model, "
            "or add --force"
        )


def _compare_learning(
    before: Path, after: Path, output_format: ChangeFormat, console: Console, force: bool
) -> int:
    first, second = load_training(before), load_training(after)
    models = trained_model_differences(first, second)
    if first.manifest and second.manifest and models and not force:
        _check_names(before, after, first.manifest.config, second.manifest.config, models)
    findings = _print_learning_changes(first, second, output_format, console, force)
    if findings is None:
        raise DpscopeError(
            f"{before} and {after} trained no cell alike: nothing to compare; name others"
        )
    return NOT_COMPARABLE if findings and not force else NO_REGRESSION


def _print_learning_changes(
    before: TrainingData,
    after: TrainingData,
    output_format: ChangeFormat,
    console: Console,
    force: bool,
) -> list[Finding] | None:
    """What changed in the trainings of two folders, and what differs in their settings; None: no
    cell was trained alike.
    """
    table = difference_table("What changed in learning", compare_trained_cells(before, after))
    if table is None:
        return None
    print_tables([table], output_format, console)
    findings = training_setting_findings(before, after)
    _complain(findings if force else or_forced(findings))
    return findings


def _complain(findings: Sequence[Finding]) -> None:
    """On standard error, no wider than the terminal."""
    print_sentences(
        Terminal(stderr=True),
        (f"dpscope: {finding.message}. {sentence(finding.next_step)}" for finding in findings),
    )


_VALUES = (
    Field("verdict", "outcome"),
    Field("before", "before_us", "time"),
    Field("after", "after_us", "time"),
    *estimate_fields("ratio", Unit("", 1.0, 3)),
)
_STEP_FIELDS = (
    Field("cell", "cell"),
    *_VALUES,
    Field("chance slower", lambda one: show_chance(one.chance_slower)),
    Field("can detect", lambda one: show_share(one.detectable)),
)
_PART_FIELDS = (
    Field("cell", "cell"),
    Field("part", lambda one: one.quantity.removesuffix(" comm.")),
    *_VALUES,
)
_NOTES = (
    "ratio: after / before; low, high: its 95% interval, from the spread between repeats",
    "chance slower: the probability that it got slower at all; can detect: the smallest slowdown that "
    "these repeats detect in 4 of 5 cases",
)
_PART_NOTES = ("no step is judged by its parts",)
_POOLED = "low, high rest on the spread of all these cells' repeats"
_POOLED_PARTS = f"{_POOLED}; of exposed communication on that of the cell's own alone"
_LEGEND: dict[Outcome, str] = {
    "same": "no slowdown of --fail-over",
    "not judged": "these repeats do not show whether there is a slowdown of --fail-over",
    "not significant": "the interval of the ratio includes 1",
    "no interval": "too few repeats or steps, or repeats too far apart",
}


def _legend(changes: Sequence[Change]) -> list[str]:
    """What the verdicts mean that occur."""
    outcomes = {change.outcome for change in changes}
    return [f"{outcome}: {words}" for outcome, words in _LEGEND.items() if outcome in outcomes]


def change_tables(changes: Sequence[Change]) -> list[TextTable]:
    """The steps, then the parts of the traced ones; each within 80 columns."""
    steps = [change for change in changes if change.is_step]
    parts = [change for change in changes if not change.is_step]
    kind = "mean traced" if steps[0].quantity == TRACED_STEP else "median untraced"
    step_notes = [*_NOTES, *_legend(steps)]
    part_notes = [*_legend(parts), *_PART_NOTES]
    if len(steps) > 1:
        step_notes.append(_POOLED)
        part_notes.append(_POOLED_PARTS)
    return [
        table_of(f"Each cell's step ({kind})", _STEP_FIELDS, steps, step_notes),
        table_of("Parts of the traced step (means)", _PART_FIELDS, parts, part_notes),
    ]
