"""The traces of several jobs: a column of jobs in tables and data, a sentence for each job, findings alike listed once."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import msgspec

from dpscope.analysis.output.many_ranks import Folded
from dpscope.analysis.output.traces import to_csv, to_tables, trace_content
from dpscope.analysis.text.text_table import TextTable
from dpscope.analysis.traces.ranks.trace_analysis import JobAnalyses, TraceAnalysis, several_jobs_message
from dpscope.profiling.records.finding import Finding
from dpscope.profiling.store.errors import DpscopeError

_NAMED = 3  # jobs that a line names


def the_one_job(jobs: JobAnalyses, paths: Sequence[Path], what: str) -> TraceAnalysis:
    """The only job's analysis; raises DpscopeError naming the jobs where there are several. `what` is made of one alone."""
    if len(jobs) > 1:
        raise DpscopeError(several_jobs_message(list(jobs), paths, what))
    (analysis,) = jobs.values()
    return analysis


def job_tables(jobs: JobAnalyses, few: Mapping[str, Folded] = MappingProxyType({})) -> list[TextTable]:
    """As `to_tables`; of several jobs with their column, those with the same columns and units in one table."""
    if len(jobs) == 1:
        ((name, analysis),) = jobs.items()
        return to_tables(analysis, few.get(name))
    by_title: dict[str, dict[str, TextTable]] = {}
    for name, analysis in jobs.items():
        for table in to_tables(analysis, few.get(name)):
            by_title.setdefault(table.title, {})[name] = table
    return [table for title, tables in by_title.items() for table in _joined(title, tables)]


def _joined(title: str, tables: Mapping[str, TextTable]) -> Iterator[TextTable]:
    by_headings: dict[tuple[str, ...], dict[str, TextTable]] = {}
    for name, table in tables.items():
        by_headings.setdefault(table.headings, {})[name] = table
    for headings, alike in by_headings.items():
        rows = tuple((name, *row) for name, table in alike.items() for row in table.rows)
        of_some = f" ({_listed(list(alike))})" if len(by_headings) > 1 else ""
        yield TextTable(title + of_some, ("job", *headings), rows, tuple(_joined_notes(alike)))


def _joined_notes(tables: Mapping[str, TextTable]) -> Iterator[str]:
    """Each note once, with its jobs unless all have it."""
    jobs_by_note: dict[str, list[str]] = {}
    for name, table in tables.items():
        for note in table.notes:
            jobs_by_note.setdefault(note, []).append(name)
    for note, names in jobs_by_note.items():
        yield note if len(names) == len(tables) else f"{_listed(names)}: {note}"


def job_content(jobs: JobAnalyses, few: Mapping[str, Folded] = MappingProxyType({})) -> dict[str, object]:
    """As `trace_content`; of several jobs each record begins with its job."""
    if len(jobs) == 1:
        ((name, analysis),) = jobs.items()
        return trace_content(analysis, few.get(name))
    content: dict[str, object] = {"jobs": list(jobs)}
    for name, analysis in jobs.items():
        for key, records in trace_content(analysis, few.get(name)).items():
            together = content.setdefault(key, [])
            assert isinstance(records, list | tuple)
            assert isinstance(together, list)
            together += [{"job": name, **record} for record in records]
    return content


def job_csv(jobs: JobAnalyses) -> str:
    """As `to_csv`; of several jobs with their column first."""
    if len(jobs) == 1:
        (analysis,) = jobs.values()
        return to_csv(analysis.steps_with_waits)
    steps = [analysis.steps_with_waits.assign(job=name) for name, analysis in jobs.items()]
    import pandas as pd

    return to_csv(pd.concat(steps, ignore_index=True), ("job",))


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
        msgspec.structs.replace(finding, message=f"{_jobs(names)}: {finding.message}")
        for finding, names in alike.items()
    )


def _jobs(names: Sequence[str]) -> str:
    return f"{'job' if len(names) == 1 else 'jobs'} {_listed(names)}"


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _NAMED
    return ", ".join(names[: _NAMED + (more == 1)]) + (f" and {more} more" if more > 1 else "")
