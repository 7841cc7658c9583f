"""What is printed of traces that no run made, of one job or several; the report of one job, with
models applied to it.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from rich.console import Console

from dpscope.analysis.bundle.anonymous import Anonymizer
from dpscope.analysis.findings.cost import ledger_table
from dpscope.analysis.findings.facts import Verdict
from dpscope.analysis.findings.no_overlap import waiting_findings
from dpscope.analysis.findings.verdict import traces_verdict
from dpscope.analysis.output.run_screen import Targets, fact_grid
from dpscope.analysis.output.trace_tables import (
    WAIT_FIELDS,
    Folded,
    few_of_each_kind,
    fold_ranks,
    placed,
    to_tables,
    trace_content,
    trace_status,
)
from dpscope.analysis.report.rank_tables import without_cell
from dpscope.analysis.report.sections import SECTIONS
from dpscope.analysis.text.terminal import (
    Terminal,
    Trimmed,
    folded,
    open_in_browser,
    print_findings,
    print_table,
    print_tables,
    progress,
    separate,
)
from dpscope.analysis.text.text_table import TextTable
from dpscope.analysis.text.units import NA
from dpscope.analysis.traces.ranks.job import Job
from dpscope.analysis.traces.ranks.jobs import distinct_names
from dpscope.analysis.traces.ranks.timeline import MOST_TO_DRAW
from dpscope.analysis.traces.ranks.trace_analysis import JobAnalyses, analyze_jobs, require_one
from dpscope.analysis.traces.reading.chunks import DEFAULT_LIMITS, ReadLimits
from dpscope.analysis.traces.steps.breakdown import COLUMNS as STEP_FIELDS
from dpscope.profiling.records.finding import Finding, counted, grouped, listed
from dpscope.profiling.store.shown_text import write_out

if TYPE_CHECKING:
    from dpscope.analysis.report.build import Report


@dataclass(frozen=True)
class ReadJob:
    """A job's traces as every format shows them: `few` stands in place of the rows of each rank
    where there are many.
    """

    analysis: Job
    few: Folded | None = None
    report: "Report | None" = None  # if one was made of it

    @cached_property
    def verdict(self) -> Verdict:
        """That of its report, if it has one."""
        if self.report is not None:
            return self.report.verdict
        return traces_verdict(self.analysis)

    @cached_property
    def findings(self) -> tuple[Finding, ...]:
        """Those of its report, one by one where that joins them: of the traces, and of the models
        where there is a report.
        """
        own = (*self.analysis.findings, *waiting_findings(self.analysis))
        codes = {said.code for said in own}
        return (
            (*own, *(finding for finding in self.report.findings if finding.code not in codes))
            if self.report
            else own
        )


ReadJobs = Mapping[str, ReadJob]
"""By name; a single job is called ``""``."""


def read_jobs(paths: Sequence[Path], limits: ReadLimits = DEFAULT_LIMITS) -> JobAnalyses:
    """`analyze_jobs`, with progress on standard error."""
    with progress() as report:

        def show(done: int, of: int) -> None:
            report(f"{done} of {of} read")

        return analyze_jobs(paths, limits, progress=show)


def report_of_traces(analysis: Job, paths: Sequence[Path], targets: Targets) -> "Report":
    """The same report as a run's; what traces do not show is missing in it, with the reason."""
    from dpscope.analysis.costs.calibration_files import costs_at
    from dpscope.analysis.report.build import make_report
    from dpscope.analysis.runs.run_data import traced_run

    calibration = costs_at(targets.calibration) if targets.calibration is not None else None
    with progress("Comparing with models"):
        return make_report(
            traced_run(analysis, paths),
            targets.link,
            calibration,
            None,
            targets.nccl_logs,
            targets.flops,
        )


def print_traces(
    paths: Sequence[Path],
    output_format: str,
    limits: ReadLimits,
    console: Console,
    targets: Targets,
    verbose: bool = False,
) -> int:
    """Traces not made by a run; the exit status, as of `trace_status`.

    On a terminal the facts, where a step goes and errors come first; all other tables and findings
    follow if that is `verbose`.
    """
    jobs = _with_places(read_jobs(paths, limits), targets)
    report = page = None
    if targets.modelled or targets.report:
        require_one({name: job.analysis for name, job in jobs.items()}, "a report or a prediction")
        ((name, job),) = jobs.items()
        report = report_of_traces(job.analysis, paths, targets)
        jobs = {name: replace(job, report=report)}
    findings = job_findings(jobs)
    if report is not None and targets.report is not None:
        from dpscope.analysis.report.build import write_report

        with progress("Writing the report"):
            page = write_report(report, targets.figure_formats, folder=targets.report)
    modelled = report if targets.modelled else None
    if output_format == "json":
        write_out(traces_json(jobs, modelled) + "\n")
    elif output_format == "csv":
        write_out(job_csv(jobs))
    elif output_format == "table":
        _print_screen(console, jobs, modelled, whole=verbose)
    else:
        tables = [*job_tables(jobs, with_ledger=True), *model_tables(modelled)]
        print_tables(tables, output_format, console)
    if page is not None:
        target = console if output_format == "table" else Terminal(stderr=True)  # data stays data
        target.print(f"\nReport: {page}", highlight=False, soft_wrap=True)
        if targets.open_page:
            open_in_browser(page)
    return trace_status(findings, _cut_short(jobs), on_screen=output_format == "table")


def _cut_short(jobs: ReadJobs) -> list[str]:
    return [source for job in jobs.values() for source in job.analysis.cut_short]


def _with_places(analyses: JobAnalyses, targets: Targets) -> dict[str, ReadJob]:
    """Each job with what is known of its hosts, and with numbers for them where names are to be
    hidden.
    """
    found = (one for read in analyses.values() for one in read.summaries)
    hosts = dict.fromkeys(
        host for rank in found for host in (rank.host, rank.read_on) if host is not None
    )
    numbers = Anonymizer(hosts) if targets.hide_hosts else None
    # Two folders may be named after one host.
    names = distinct_names([name if numbers is None else numbers.text(name) for name in analyses])
    jobs: dict[str, ReadJob] = {}
    for name, read in zip(names, analyses.values(), strict=True):
        analysis, places = placed(read, numbers)
        many = len(read.summaries) > MOST_TO_DRAW  # are shown by their spread and not one by one
        jobs[name] = ReadJob(analysis, fold_ranks(analysis, places) if many else None)
    return jobs


def _print_screen(console: Console, jobs: ReadJobs, modelled: "Report | None", whole: bool) -> None:
    """Facts, where a step goes, what models predict, and findings; if `whole`, all tables."""
    _print_verdicts(console, jobs)
    tables = [*(job_tables(jobs) if whole else []), *model_tables(modelled)]
    print_tables(tables, "table", console)
    _print_findings(console, job_findings(jobs), whole, _cut_short(jobs))


def _print_verdicts(console: Console, jobs: ReadJobs) -> None:
    if len(jobs) > 1:
        console.print(f"{len(jobs)} jobs, analysed one by one:", highlight=False)
    for name, job in jobs.items():
        if name:
            separate(console)
            console.print(Trimmed(folded(f"Job {name.removeprefix('job ')}", "bold")))
        console.print(fact_grid(job.verdict))
        if (steps := ledger_table(job.analysis)) is not None:
            print_table(console, steps)


def _print_findings(
    console: Console, findings: Sequence[Finding], whole: bool, cut_short: Sequence[str]
) -> None:
    """All findings, those of a kind together; else errors, and how many more there are.

    Errors about a file that is cut are not among them: the facts name the cut and what to do.
    """
    kinds = few_of_each_kind(findings)
    shown = kinds
    if not whole:
        errors = [finding for finding in kinds if finding.severity == "error"]
        shown = [error for error in errors if not any(cut in error.message for cut in cut_short)]
    if shown:
        print_findings(console, shown)
    if not whole:
        left = len(kinds) - len(shown)
        more = "The tables"
        if left:
            more = f"{counted(left, 'finding')} and the tables"
        console.print(f"{more} of steps, collectives and ranks: --verbose")


def model_tables(report: "Report | None") -> list[TextTable]:
    """The formulas with their numbers, predicted and measured values, bandwidths and utilisation.

    Nothing without a report; where a link or a calibration is stated and no formula applies, a
    table of the reasons.
    """
    if report is None:
        return []
    shown = [
        table
        for section in SECTIONS
        if section.modelled
        for table in report.section(section.name).values()
    ]
    (row,) = report.comparison.rows.values()
    costs = report.comparison.collective_costs
    stated = costs.stated is not None or costs.calibration is not None
    if stated and "formulas" not in report.tables:
        why = dict.fromkeys(
            row.reasons.get(name, "") for name in ("ring_us", "predicted_transfer_us")
        )
        shown.insert(
            0, TextTable("No model applies", ("why",), tuple((reason,) for reason in why if reason))
        )
    return [without_cell(table) for table in shown]


def traces_json(jobs: ReadJobs, modelled: "Report | None") -> str:
    """`verdict` (of several jobs a list), `jobs` where there are several, and the lists of
    `trace_content`.

    Of several jobs each record begins with its job. If models were requested also `cells`, a row
    with the comparison's columns, `predictions` and `nccl`.
    """
    own: dict[str, dict[str, object]] = {
        name: {"job": name} if len(jobs) > 1 else {} for name in jobs
    }
    verdicts = [own[name] | job.verdict.record() for name, job in jobs.items()]
    lists: dict[str, list[Any]] = {}
    for name, job in jobs.items():
        for key, records in trace_content(job.analysis, job.few, job.findings).items():
            lists.setdefault(key, []).extend(own[name] | record for record in records)
    content: dict[str, object] = {"verdict": verdicts if len(jobs) > 1 else verdicts[0]}
    content |= {**({"jobs": list(jobs)} if len(jobs) > 1 else {}), **lists}
    if modelled is not None:
        from dpscope.analysis.output.run_json import cell_records, prediction_records

        comparison = modelled.comparison
        content |= {
            "cells": cell_records(comparison),
            "predictions": prediction_records(comparison),
        }
        content["nccl"] = modelled.nccl.content()
    return json.dumps(content, indent=2)


_NAMED = 3  # jobs that a line names


def job_tables(jobs: ReadJobs, with_ledger: bool = False) -> list[TextTable]:
    """As `to_tables`, after the ledger; of several jobs with their column, those with equal columns
    and units in one table.
    """
    by_title: dict[str, dict[tuple[str, ...], dict[str, TextTable]]] = {}
    for name, job in jobs.items():
        ledger = ledger_table(job.analysis) if with_ledger else None
        for table in (*([ledger] if ledger is not None else ()), *to_tables(job.analysis, job.few)):
            by_title.setdefault(table.title, {}).setdefault(table.headings, {})[name] = table
    return [
        _joined(
            f"{title} ({listed(list(alike), _NAMED)})" if len(variants) > 1 else title,
            alike,
            len(jobs) > 1,
        )
        for title, variants in by_title.items()
        for alike in variants.values()
    ]


def _joined(title: str, tables: Mapping[str, TextTable], several: bool) -> TextTable:
    """The tables of jobs as one, each row with its job; each note once, with its jobs unless all
    have it.
    """
    first = next(iter(tables.values()))
    if not several:
        return first
    jobs_by_note = grouped((note, name) for name, table in tables.items() for note in table.notes)
    notes = (
        note if len(names) == len(tables) else f"{listed(names, _NAMED)}: {note}"
        for note, names in jobs_by_note.items()
    )
    rows = tuple((name, *row) for name, table in tables.items() for row in table.rows)
    return TextTable(title, ("job", *first.headings), rows, tuple(notes))


def job_csv(jobs: ReadJobs) -> str:
    """The steps as CSV; of several jobs with their column first. The collectives are in the
    JSON.
    """
    import pandas as pd

    steps = pd.concat(
        [job.analysis.steps.assign(job=name) for name, job in jobs.items()], ignore_index=True
    )
    columns = [*(["job"] if len(jobs) > 1 else []), *STEP_FIELDS, *WAIT_FIELDS]
    return str(steps[columns].to_csv(index=False, na_rep=NA, float_format="%.6f"))


def job_findings(jobs: ReadJobs) -> tuple[Finding, ...]:
    """All findings; of several jobs each with its jobs, once where several have the same."""
    if len(jobs) == 1:
        (only,) = jobs.values()
        return only.findings
    alike = grouped((finding, name) for name, job in jobs.items() for finding in job.findings)
    return tuple(
        msgspec.structs.replace(
            finding,
            message=f"job{'s' * (len(names) > 1)} {listed(names, _NAMED)}: {finding.message}",
        )
        for finding, names in alike.items()
    )
