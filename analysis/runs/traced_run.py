"""Traces that no run of dpscope made, as a run of one cell: the same tables, the same report, and no number made up."""

import os
from collections.abc import Sequence
from pathlib import Path

from dpscope.analysis.runs.cell_data import CellData
from dpscope.analysis.runs.run_data import RunData, TraceFile, tables_of
from dpscope.analysis.runs.traced_job import traced_job
from dpscope.analysis.traces.ranks.trace_analysis import JobAnalyses, TraceAnalysis
from dpscope.profiling.records.finding import counted
from dpscope.profiling.store.errors import DpscopeError


def traced_run(analysis: TraceAnalysis, paths: Sequence[Path]) -> RunData:
    """The result of `analyze_traces` for `paths` as a run with one cell, the job; its name contains the ranks that were read."""
    return traced_repeats({"": analysis}, paths)


def traced_repeats(jobs: JobAnalyses, paths: Sequence[Path]) -> RunData:
    """As `traced_run`, of several jobs alike: each is a repeat of the one cell. Raises DpscopeError where they are not."""
    cells = {name: traced_job(analysis) for name, analysis in jobs.items()}
    common = paths[0] if len(paths) == 1 else Path(os.path.commonpath([path.absolute() for path in paths]))
    (first, job), *others = cells.items()
    for name, other in others:
        if other != job:
            raise DpscopeError(
                f"{common} holds jobs that are not alike: {first} is {job.name} ({job.strategy}), {name} {other.name} "
                f"({other.strategy}); name folders of the same job traced several times"
            )
    repeats = list(enumerate(jobs.values()))
    data = CellData(
        cell=job,
        skip_reason=None,
        **tables_of(repeats),
        timelines=tuple((repeat, timeline) for repeat, one in repeats for timeline in one.timelines),
        findings=tuple(finding for _, one in repeats for finding in one.findings),
        not_split=next((one.not_split for _, one in repeats if one.not_split is not None), None),
        communication_known=all(one.communication_known for _, one in repeats),
    )
    files = tuple(file for _, one in repeats for file in _files(one))
    return RunData(common, None, {job.name: data}, traces=files)


def _files(analysis: TraceAnalysis) -> tuple[TraceFile, ...]:
    """The file of each rank that was read; a file of several ranks is listed with the first of them."""
    found: dict[Path, TraceFile] = {}
    for one in analysis.summaries:
        path = Path(one.source.removesuffix(f" (rank {one.rank})"))
        found.setdefault(path, TraceFile(path, one.rank))
    return tuple(found.values())


def traces_text(run: RunData) -> str:
    """What was read and what it is, in a sentence or two."""
    (data,) = run.cells.values()
    windows = data.whole_windows
    whole = bool(len(windows)) and not windows["partial_window"].fillna(True).astype(bool).all()
    steps = int(windows.groupby("rank", dropna=False)["step"].nunique().max()) if len(windows) else 0
    kind = "whole" if whole else "partial"
    first = "" if whole or not steps else " (their start was not recorded: they are timed from their first event)"
    return (
        f"{counted(len(run.traces), 'trace file')} of {counted(data.cell.processes, 'process')}, "
        f"{counted(steps, f'{kind} step')} of each{first}; not made by dpscope run: model, batch and machine are not recorded."
    )
