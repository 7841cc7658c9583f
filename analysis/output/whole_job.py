"""What `dpscope analyze` prints of the records of a job's collectives, and the page."""

import csv
import io
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console

from dpscope.analysis.bundle.anonymous import Anonymizer
from dpscope.analysis.output.run_screen import Targets, fact_grid
from dpscope.analysis.output.trace_tables import few_of_each_kind, trace_status
from dpscope.analysis.report.files import facts_in_markdown, write_with_figures
from dpscope.analysis.report.page import MEASURES, Page, render_page
from dpscope.analysis.text.terminal import (
    Terminal,
    open_in_browser,
    print_findings,
    print_table,
    print_tables,
    progress,
)
from dpscope.analysis.text.text_table import TextTable, in_markdown, render, render_findings
from dpscope.analysis.text.units import NA
from dpscope.analysis.traces.ranks.readers import FoundFiles
from dpscope.analysis.traces.reading.chunks import ReadLimits
from dpscope.analysis.whole_job.job import RecordedJob, read_job
from dpscope.analysis.whole_job.summary import Summary, summarise
from dpscope.analysis.whole_job.tables import VIEWS, rank_time_rows, tables_of, waiting_rows
from dpscope.profiling.records.finding import counted
from dpscope.profiling.records.trace_codes import TraceCode
from dpscope.profiling.store.shown_text import write_out

_STOPPED = TraceCode.COLLECTIVE_NOT_BEGUN.code
_MEASURES = ("Transfer and wait", "algbw and busbw", "NA")
_FIRST_ROWS = 5  # of the first table on the first screen
_CSV_COLUMNS = ("rank", "host", "from_s", "to_s", "wait_us", "caused_us")


def print_records(
    found: FoundFiles,
    hosts: Path | None,
    output_format: str,
    limits: ReadLimits,
    console: Console,
    targets: Targets,
    verbose: bool = False,
) -> int:
    """Read, match and print the records of a job; the exit status."""
    with progress("Reading records"):
        job = read_job(found, limits.max_bytes, hosts)
        if targets.hide_hosts:
            job = _without_hosts(job)
        summary = summarise(job, targets.link)
    tables = tables_of(summary)
    page = write_page(summary, tables, targets) if targets.report is not None else None
    if output_format == "json":
        write_out(json.dumps(records_json(summary), indent=2) + "\n")
    elif output_format == "csv":
        write_out(rank_csv(summary))
    elif output_format == "table":
        _print_screen(console, summary, tables, verbose)
    else:
        print_tables([*tables.values()], output_format, console)
    if page is not None:
        target = console if output_format == "table" else Terminal(stderr=True)
        target.print(f"\nReport: {page}", highlight=False, soft_wrap=True)
        if targets.open_page:
            open_in_browser(page)
    cut_short = [process.source for process in job.processes if process.damaged]
    return trace_status(summary.findings, cut_short, on_screen=output_format == "table")


def _print_screen(
    console: Console, summary: Summary, tables: Mapping[str, TextTable], verbose: bool
) -> None:
    console.print(fact_grid(summary.verdict))
    kinds = few_of_each_kind(summary.findings)
    if verbose:
        print_tables([*tables.values()], "table", console)
        print_findings(console, kinds)
        return
    ranks = tables.get("rank")
    if ranks is not None and summary.waiting.counts.matched:
        first = ranks.rows[:_FIRST_ROWS]
        print_table(console, replace(ranks, rows=first, notes=()))
    # what stopped the job is the screen's first fact, with what to do
    errors = [kind for kind in kinds if kind.severity == "error" and kind.code != _STOPPED]
    print_findings(console, errors)
    left = len(kinds) - len(errors)
    more = "The tables"
    if left:
        more = f"{counted(left, 'finding')} and the tables"
    console.print(f"{more} by kind, rank and time: --verbose", highlight=False)


def records_json(summary: Summary) -> dict[str, Any]:
    """Everything that is known of the job, as plain data; unknown is None."""
    found, job = summary.waiting, summary.job
    rows = {f"by_{name}": view.rows(summary) for name, view in VIEWS.items()}
    rows["by_rank_and_time"] = rank_time_rows(summary)
    verdict = summary.verdict
    return {
        "setting": verdict.setting,
        "limits": [asdict(limit) for limit in verdict.limits],
        "facts": [asdict(fact) for fact in verdict.facts],
        "source": job.source,
        "ranks": list(job.ranks),
        "world_size": job.world,
        "basis": found.basis,
        "span_s": summary.span_us / 1e6,
        # those between two ranks have no counterpart on every rank
        "records": {
            "read": job.records,
            "point_to_point": job.records - found.counts.records,
            **asdict(found.counts),
        },
        "unfinished": _unfinished(summary),
        **rows,
        "findings": msgspec.to_builtins(list(summary.findings)),
    }


def _unfinished(summary: Summary) -> dict[str, Any] | None:
    unfinished = summary.unfinished
    if unfinished is None:
        return None
    return {
        "calls": unfinished.records,
        "ranks": unfinished.ranks,
        "stopped_ranks": list(unfinished.stopped),
        "device_ranks": list(unfinished.ends),
        "missing_ranks": list(unfinished.missing),
    }


def rank_csv(summary: Summary) -> str:
    """Waiting by rank and time as CSV; of a job that stopped what ranks wait in. All else is in the
    JSON.
    """
    rows = rank_time_rows(summary) or waiting_rows(summary)
    columns = [*_CSV_COLUMNS]
    if rows:
        columns = list(rows[0])
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, columns, lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({name: _csv_value(value) for name, value in row.items()})
    return buffer.getvalue()


def _csv_value(value: object) -> object:
    if isinstance(value, list):
        return " ".join(map(str, value))
    if value is None:
        return NA
    return value


def write_page(summary: Summary, tables: Mapping[str, TextTable], targets: Targets) -> Path:
    """The page, the same as Markdown, waiting by rank and time as CSV, and the figure."""
    from dpscope.analysis.figures.draw import draw_waiting_over_time

    assert targets.report is not None
    verdict = summary.verdict
    first = {}
    by_section: dict[str, dict[str, TextTable]] = {}
    for name, table in tables.items():
        if name == "unfinished":
            first[name] = table
            continue
        section = "waiting"
        if summary.measured:  # else there is no bandwidth
            section = VIEWS[name].section
        by_section.setdefault(section, {})[name] = table
    name = _folder_name(summary.job)
    markdown = [in_markdown(f"# {name}") + "\n", *facts_in_markdown(verdict), ""]
    markdown += [render(table, "markdown") for table in tables.values()]
    markdown.append(render_findings(summary.findings))

    def texts(figures: Mapping[str, Any]) -> dict[str, str]:
        page = Page(
            name=name,
            first_tables=first,
            setting=verdict.setting,
            environment=[],
            findings=summary.findings,
            tables=by_section,
            figures=figures,
            measures={name: MEASURES[name] for name in _MEASURES},
            verdict=verdict,
            data_file="waiting.csv",
        )
        return {
            "waiting.csv": rank_csv(summary),
            "report.md": "\n".join(markdown),
            "report.html": render_page(page),
        }

    with progress("Writing the report"):
        figures = draw_waiting_over_time(summary.waiting_over_time)
        limits = [fact.text for fact in verdict.limits]
        write_with_figures(
            targets.report,
            figures,
            targets.figure_formats,
            texts,
            measured=[verdict.setting, *limits],
        )
    return targets.report / "report.html"


def _folder_name(job: RecordedJob) -> str:
    """Of the folder that holds the job's files."""
    folders = [Path(process.source).absolute().parent for process in job.processes]
    common = Path(os.path.commonpath(folders))
    return f"{job.source}: {common.name}"


def _without_hosts(job: RecordedJob) -> RecordedJob:
    """Hosts by number, also in the names of files."""
    numbers = Anonymizer(dict.fromkeys(host for host in job.hosts if host is not None))
    hosts = [None if host is None else numbers.text(host) for host in job.hosts]
    findings = [
        msgspec.structs.replace(finding, message=numbers.text(finding.message))
        for finding in job.findings
    ]
    return replace(job, hosts=tuple(hosts), findings=tuple(findings))
