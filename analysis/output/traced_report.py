"""The report of traces that no run made, of one job or several: models applied to them, the page, and the TensorBoard folder."""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import msgspec
from rich.console import Console
from rich.text import Text

from dpscope.analysis.findings.answers import Verdict, traces_verdict
from dpscope.analysis.findings.ledger_text import late_rank, ledger_table
from dpscope.analysis.output.many_ranks import Folded, HostOptions, fold_ranks, is_many, placed
from dpscope.analysis.output.summary import answer_grid
from dpscope.analysis.output.traces import (
    STEP_FIELDS,
    WAIT_FIELDS,
    few_of_each_kind,
    to_tables,
    trace_content,
    trace_status,
)
from dpscope.analysis.partials.found import partials_among
from dpscope.analysis.report.rank_tables import without_cell
from dpscope.analysis.runs.traced_job import traced_job, traced_straggler
from dpscope.analysis.text.terminal import Trimmed, open_in_browser, print_findings, print_table, print_tables, progress
from dpscope.analysis.text.text_table import TextTable
from dpscope.analysis.text.units import NA
from dpscope.analysis.traces.ranks.ledger import whole_steps
from dpscope.analysis.traces.ranks.trace_analysis import JobAnalyses, TraceAnalysis, analyze_jobs, require_one_job
from dpscope.analysis.traces.reading.chunks import DEFAULT_LIMITS, ReadLimits
from dpscope.profiling.records.finding import Finding
from dpscope.profiling.records.run_codes import RunCode
from dpscope.profiling.store.errors import DpscopeError

if TYPE_CHECKING:
    from dpscope.analysis.report.build import Report
    from dpscope.analysis.runs.run_data import RunData
    from dpscope.profiling.machine.gpu_speed import StatedFlops
    from dpscope.profiling.records.links import LinkRate


_OF_MODELS = (
    "device_use", "device_points", "formulas", "predictions", "collectives", "nccl_choices", "nccl_job", "nccl_peers",
    "bandwidth", "utilisation",
)  # fmt: skip


@dataclass(frozen=True)
class TraceRequest:
    """What to make of traces in addition to their tables: models by a link and a calibration, a report in a folder."""

    link: "LinkRate | None" = None
    calibration: Path | None = None  # as `costs_at` takes it
    report: Path | None = None
    figure_formats: Sequence[str] | None = None  # as in `write_report`
    open_page: bool = False  # in the user's browser, where there is one
    hosts: HostOptions = field(default_factory=HostOptions)
    nccl_logs: tuple[Path, ...] = ()  # of the job
    flops: "StatedFlops | None" = None  # of one step on one device

    @property
    def modelled(self) -> bool:
        """Whether models are requested."""
        return self.link is not None or self.calibration is not None or bool(self.nccl_logs) or self.flops is not None


def read_jobs(paths: Sequence[Path], limits: ReadLimits = DEFAULT_LIMITS) -> JobAnalyses:
    """`analyze_jobs`, with progress on standard error; or `analyze_partial_jobs`, where paths hold these."""
    if partials_among(paths):
        from dpscope.analysis.partials.file import analyze_partial_jobs

        return analyze_partial_jobs(paths)
    with progress() as report:
        return analyze_jobs(paths, limits, progress=lambda done, of: report(f"{done} of {of} read"))


def load_traces(path: Path) -> "RunData":
    """The traces of one job, a file or a folder, as a run of one cell; of several jobs alike each is a repeat of it."""
    from dpscope.analysis.runs.run_data import traced_repeats

    return traced_repeats(read_jobs([path]), [path])


def report_of_traces(analysis: TraceAnalysis, paths: Sequence[Path], request: TraceRequest) -> "Report":
    """The same report as a run's; what traces do not show is missing in it, with the reason."""
    from dpscope.analysis.costs.calibration_files import costs_at
    from dpscope.analysis.report.build import make_report
    from dpscope.analysis.runs.run_data import traced_run

    calibration = costs_at(request.calibration) if request.calibration is not None else None
    with progress("Comparing with models"):
        return make_report(
            traced_run(analysis, paths), request.link, calibration, None, request.nccl_logs, request.flops
        )


def print_traces(
    paths: Sequence[Path], output_format: str, limits: ReadLimits, console: Console, request: TraceRequest
) -> int:
    """Traces not made by a run; the exit status: 2 for a file that was cut short, which standard error names."""
    jobs: JobAnalyses = {}
    few = {}
    for name, read in read_jobs(paths, limits).items():
        jobs[name], places = placed(read, request.hosts)
        if is_many(read) or request.hosts.topology is not None:
            few[name] = fold_ranks(jobs[name], places)
    report = None
    if request.modelled or request.report:
        report = report_of_traces(the_one_job(jobs, paths, "a report or a prediction"), paths, request)
    findings, verdicts, page = job_findings(jobs), verdicts_of(jobs, report), None
    if report is not None and request.report is not None:
        from dpscope.analysis.report.build import write_report

        with progress("Writing the report"):
            page = write_report(report, request.figure_formats, folder=request.report)
    modelled = report if request.modelled else None
    if output_format == "json":
        sys.stdout.write(traces_json(jobs, modelled, few, verdicts) + "\n")
    elif output_format == "csv":
        sys.stdout.write(job_csv(jobs))
    else:
        if output_format == "table":
            _print_verdicts(console, verdicts)
        print_tables([*job_tables(jobs, few), *model_tables(modelled)], output_format, console)
        if output_format == "table":
            print_findings(console, few_of_each_kind([*findings, *_of_models(modelled)]))
    if page is not None:
        target = console if output_format == "table" else Console(markup=False, stderr=True)  # data stays data
        target.print(f"\nReport: {page}", highlight=False, soft_wrap=True)
        if request.open_page:
            open_in_browser(page)
    return trace_status(findings, [source for analysis in jobs.values() for source in analysis.cut_short])


def _print_verdicts(console: Console, verdicts: Mapping[str, Verdict]) -> None:
    for name, one in verdicts.items():
        console.print()
        if name:
            console.print(Trimmed(Text(f"Job {name.removeprefix('job ')}", style="bold")))
        console.print(answer_grid(one.warnings, one.labelled))
        if one.ledger is not None:
            print_table(console, ledger_table(one.ledger))


def _of_models(modelled: "Report | None") -> list[Finding]:
    """The report's findings that the traces alone do not give."""
    if modelled is None:
        return []
    codes = {one.code for one in (RunCode.ABOVE_PEAK, RunCode.PREDICTION_OFF, RunCode.CALIBRATION_INCOMPLETE)}
    return [*(one for one in modelled.findings if one.code in codes), *modelled.nccl.findings]


def model_tables(report: "Report | None") -> list[TextTable]:
    """The formulas with their numbers, predicted and measured values, bandwidths and utilisation.

    Nothing without a report; where none can be filled, a table of the reasons.
    """
    if report is None:
        return []
    tables = {**report.tables, "formulas": report.formulas}
    shown = [tables[name] for name in _OF_MODELS if name in tables and tables[name].rows]
    (row,) = report.comparison.rows.values()
    if not report.formulas.rows:
        why = dict.fromkeys(row.reasons.get(name, "") for name in ("ring_us", "predicted_transfer_us"))
        shown.insert(0, TextTable("No model applies", ("why",), tuple((one,) for one in why if one)))
    return [without_cell(table) for table in shown]


def verdicts_of(jobs: JobAnalyses, report: "Report | None" = None) -> dict[str, Verdict]:
    """The verdict on each job by its name; that of a report where one was made of the only job."""
    if report is not None:
        return dict.fromkeys(jobs, report.verdict)
    verdicts = {}
    for name, analysis in jobs.items():
        ledger, tables = analysis.ledger if analysis.communication_known else None, analysis.tables
        late = late_rank(whole_steps(tables.steps_with_waits), traced_straggler(analysis), ledger)
        on_device, moved = bool(tables.steps.known("device").any()), len(tables.collectives) > 0
        verdicts[name] = traces_verdict(analysis, traced_job(analysis), ledger, late, on_device, moved)
    return verdicts


def traces_json(
    jobs: JobAnalyses,
    modelled: "Report | None",
    few: Mapping[str, Folded] = MappingProxyType({}),
    verdicts: Mapping[str, Verdict] = MappingProxyType({}),
) -> str:
    """`verdict` (of several jobs a list) and `job_content`; if models were requested also `cells`, a row with the comparison's
    columns, `predictions` and `nccl`."""
    each = [{**({"job": name} if name else {}), **one.record()} for name, one in verdicts.items()]
    found = job_content(jobs, few)
    content: dict[str, object] = {**({"verdict": each[0] if len(each) == 1 else each} if each else {}), **found}
    if modelled is not None:
        from dpscope.analysis.output.run_json import cell_records, prediction_records

        comparison = modelled.comparison
        content |= {"cells": cell_records(comparison), "predictions": prediction_records(comparison)}
        content["nccl"] = modelled.nccl.content()
        content["findings"] = [*found["findings"], *msgspec.to_builtins(modelled.nccl.findings)]
    return json.dumps(content, indent=2)


def export_traces(paths: Sequence[Path], request: TraceRequest, out: Path | None) -> Path:
    """Write the TensorBoard folder of traces into `out`, or into a folder next to them with their name; returns it."""
    from dpscope.analysis.output.tensorboard import export_tensorboard

    if partials := partials_among(paths):
        raise DpscopeError(
            f"{partials[0]} is a partial and holds no trace, and TensorBoard shows traces; name the traces"
        )
    analysis = the_one_job(read_jobs(paths), paths, "a TensorBoard folder")
    if analysis.cut_short:
        raise DpscopeError(f"{analysis.cut_short[0]} is cut short or damaged: TensorBoard would hide that; trace again")
    report = report_of_traces(analysis, paths, request)
    place = report.run.path.absolute()
    return export_tensorboard(report, out or place.with_name(f"{place.name}-dpscope"))


_NAMED = 3  # jobs that a line names


def the_one_job(jobs: JobAnalyses, paths: Sequence[Path], what: str) -> TraceAnalysis:
    """The only job's analysis; raises DpscopeError naming the jobs where there are several. `what` is made of one alone."""
    require_one_job(jobs, paths, what)
    (analysis,) = jobs.values()
    return analysis


def job_tables(jobs: JobAnalyses, few: Mapping[str, Folded] = MappingProxyType({})) -> list[TextTable]:
    """As `to_tables`; of several jobs with their column, those with the same columns and units in one table."""
    by_title: dict[str, dict[tuple[str, ...], dict[str, TextTable]]] = {}
    for name, analysis in jobs.items():
        for table in to_tables(analysis, few.get(name)):
            by_title.setdefault(table.title, {}).setdefault(table.headings, {})[name] = table
    return [
        _joined(f"{title} ({_listed(list(alike))})" if len(variants) > 1 else title, alike, len(jobs) > 1)
        for title, variants in by_title.items()
        for alike in variants.values()
    ]


def _joined(title: str, tables: Mapping[str, TextTable], several: bool) -> TextTable:
    """The tables of jobs as one, each row with its job; each note once, with its jobs unless all have it."""
    first = next(iter(tables.values()))
    if not several:
        return first
    jobs_by_note: dict[str, list[str]] = {}
    for name, table in tables.items():
        for note in table.notes:
            jobs_by_note.setdefault(note, []).append(name)
    every = len(tables)
    notes = (note if len(names) == every else f"{_listed(names)}: {note}" for note, names in jobs_by_note.items())
    rows = tuple((name, *row) for name, table in tables.items() for row in table.rows)
    return TextTable(title, ("job", *first.headings), rows, tuple(notes))


def job_content(jobs: JobAnalyses, few: Mapping[str, Folded] = MappingProxyType({})) -> dict[str, list[Any]]:
    """As `trace_content`; of several jobs each record begins with its job."""
    content: dict[str, list[Any]] = {"jobs": list(jobs)} if len(jobs) > 1 else {}
    for name, analysis in jobs.items():
        for key, records in trace_content(analysis, few.get(name)).items():
            content.setdefault(key, []).extend({"job": name, **one} if len(jobs) > 1 else one for one in records)
    return content


def job_csv(jobs: JobAnalyses) -> str:
    """The steps as CSV; of several jobs with their column first. The collectives are in the JSON."""
    import pandas as pd

    steps = pd.concat([one.steps_with_waits.assign(job=name) for name, one in jobs.items()], ignore_index=True)
    columns = [*(["job"] if len(jobs) > 1 else []), *STEP_FIELDS, *WAIT_FIELDS]
    return str(steps[columns].to_csv(index=False, na_rep=NA, float_format="%.6f"))


def job_findings(jobs: JobAnalyses) -> tuple[Finding, ...]:
    """All findings; of several jobs each with its jobs, once where several have the same."""
    if len(jobs) == 1:
        (analysis,) = jobs.values()
        return analysis.findings
    alike: dict[Finding, list[str]] = {}
    for name, analysis in jobs.items():
        for finding in analysis.findings:
            alike.setdefault(finding, []).append(name)
    return tuple(
        msgspec.structs.replace(finding, message=f"job{'s' * (len(names) > 1)} {_listed(names)}: {finding.message}")
        for finding, names in alike.items()
    )


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _NAMED
    return ", ".join(names[: _NAMED + (more == 1)]) + (f" and {more} more" if more > 1 else "")
