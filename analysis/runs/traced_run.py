"""Traces that no run of dpscope made, as a run of one cell: the same tables, the same report, and no number made up."""

import os
from collections.abc import Sequence
from pathlib import Path

from dpscope.analysis.runs.run_data import CellData, RunData, TraceFile, copies_between_devices
from dpscope.analysis.runs.traced_job import TracedJob
from dpscope.analysis.text.units import counted
from dpscope.analysis.traces.ranks.parallelism import told_strategy
from dpscope.analysis.traces.ranks.trace_analysis import TraceAnalysis


def traced_run(analysis: TraceAnalysis, paths: Sequence[Path]) -> RunData:
    """What `analyze_traces` gave of `paths`, as a run whose one cell is the job; its name tells the ranks that were read."""
    job = traced_job(analysis)
    cell = CellData(
        cell=job,
        skip_reason=None,
        steps=analysis.steps_with_waits.assign(repeat=0),
        collectives=analysis.collectives.assign(repeat=0),
        dp_phases=analysis.dp_phases.assign(repeat=0),
        copies=copies_between_devices(analysis).assign(repeat=0),
        timelines=tuple((0, one) for one in analysis.timelines),
        findings=analysis.findings,
        communication_known=all(one.communication_shown for one in analysis.summaries),
    )
    return RunData(_common(paths), None, {job.name: cell}, traces=_files(analysis))


def traced_job(analysis: TraceAnalysis) -> TracedJob:
    """Ranks and devices as the traces tell them; a trace that tells neither is of one process."""
    evidence = [one.parallelism for one in analysis.summaries]
    ranks = [one.rank for one in analysis.summaries if one.rank is not None]
    told = [one.world_size for one in evidence if one.world_size is not None]
    groups = analysis.collectives["group_size"].dropna() if len(analysis.collectives) else ()
    processes = max([len(evidence), *told, *(rank + 1 for rank in ranks), *(int(size) for size in groups)])
    read = len(evidence)
    missing = "" if processes == read else f" of {processes}"
    return TracedJob(
        name=f"traces of {read}{missing} ranks" if processes > 1 else "trace of one process",
        strategy=told_strategy(evidence, analysis.collectives),
        devices=max(processes, *(one.devices for one in evidence)),
        processes=processes,
    )


def _files(analysis: TraceAnalysis) -> tuple[TraceFile, ...]:
    """The file of each rank that was read; a file that holds several stands here with the first of them."""
    found: dict[Path, TraceFile] = {}
    for one in analysis.summaries:
        path = Path(one.source.removesuffix(f" (rank {one.rank})"))
        found.setdefault(path, TraceFile(path, one.rank))
    return tuple(found.values())


def _common(paths: Sequence[Path]) -> Path:
    """The one path that was named, else the folder that holds them all."""
    return paths[0] if len(paths) == 1 else Path(os.path.commonpath([path.absolute() for path in paths]))


def traces_said(run: RunData) -> str:
    """What was read and what it is, in a sentence or two."""
    (data,) = run.cells.values()
    windows = data.whole_windows()
    whole = bool(len(windows)) and not windows["partial_window"].fillna(True).astype(bool).all()
    steps = windows["step"].nunique() if len(windows) else 0
    kind = "whole" if whole else "partial"
    first = "" if whole or not steps else " (their start was not recorded: they are timed from their first event)"
    return (
        f"{counted(len(run.traces), 'trace file')} of {counted(data.cell.processes, 'process')}, "
        f"{counted(steps, f'{kind} step')} of each{first}; not made by dpscope run: model, batch and machine are not recorded."
    )
