"""A run folder loaded: per cell its samples, breakdown, collectives, checks and repeats. Foreign
traces as a run of one cell.
"""

import math
import os
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Literal

from dpscope.analysis.runs.cell_findings import (
    batch_finding,
    compilation_findings,
    input_findings,
    spread_findings,
)
from dpscope.analysis.runs.counter_check import check_counters, counter_findings
from dpscope.analysis.runs.left_out import left_out_finding, whole_traces
from dpscope.analysis.runs.spreads import RunSpreads, run_spreads, step_spread
from dpscope.analysis.runs.traffic_check import (
    MEASURE_AGAIN,
    UNKNOWN_COMMUNICATION,
    check_traffic,
    incomplete_repeat,
    reduced_bytes,
    used_map_bytes,
)
from dpscope.analysis.stats.detection import RepeatCost
from dpscope.analysis.stats.samples import centre_noise
from dpscope.analysis.traces.ranks.job import (
    CounterCheck,
    Job,
    LeftOut,
    as_repeats,
    planned_job,
    together,
)
from dpscope.analysis.traces.ranks.ledger import step_count
from dpscope.analysis.traces.ranks.readers import why_no_events
from dpscope.analysis.traces.ranks.step_findings import far_longer_steps, idle_findings
from dpscope.analysis.traces.ranks.trace_analysis import JobAnalyses, job_tables, read_kept
from dpscope.analysis.traces.reading.table import Table
from dpscope.analysis.training.data import NoEpochError, TrainingData, load_training
from dpscope.profiling.machine.environment import power_cap_findings
from dpscope.profiling.records.finding import Finding, counted
from dpscope.profiling.records.run import Cell, Manifest, PlannedCell, RankResult
from dpscope.profiling.records.run_codes import RunCode
from dpscope.profiling.records.short_repr import short_repr
from dpscope.profiling.store.errors import DpscopeError
from dpscope.profiling.store.folders import RepeatFolder, RunFolder
from dpscope.profiling.store.training_folders import holds_epochs

Progress = Callable[[str], None]


CPU_RUN = "CPU run: not valid for GPUs."


@dataclass(frozen=True)
class TraceFile:
    """A trace that no run made, and the rank that it names."""

    path: Path
    rank: int | None
    repeat: int = 0


class Cells(dict[str, Job]):
    """By name."""

    def __missing__(self, name: str) -> Job:
        raise KeyError(f"{name} is no cell of the run: choose from {', '.join(self)}")


class NothingMeasuredError(DpscopeError):
    """A run folder without one measured cell."""


@dataclass(frozen=True)
class RunData:
    """A run: its manifest, its cells by name, in the plan's order, and what was trained in the same
    folder.

    Of traces that no run made, `recorded` is None and `traces` are their files.
    """

    __repr__ = short_repr

    path: Path  # the run folder; of traces their common name
    recorded: Manifest | None
    cells: dict[str, Job]
    training: TrainingData | None = None
    traces: tuple[TraceFile, ...] = ()
    no_events: str = ""  # why there are none to be read of such traces, as in partials
    untrained: str = ""  # why trainings that were begun in the same folder are not shown

    @property
    def folder(self) -> RunFolder:
        """A run's folder; traces have none."""
        assert self.recorded is not None
        return RunFolder(self.path)

    @property
    def manifest(self) -> Manifest:
        """The record of a run; use `recorded` where there may be traces alone."""
        assert self.recorded is not None
        return self.recorded

    @property
    def device_type(self) -> Literal["cuda", "cpu"]:
        """What was measured on; cuda stands for every accelerator that a trace may be of."""
        if self.recorded is not None:
            return self.recorded.device_type
        return "cuda" if any(cell.on_device for cell in self.cells.values()) else "cpu"

    @property
    def measured(self) -> list[Job]:
        return [cell for cell in self.cells.values() if cell.measured]

    def trace_files(self, job: Job) -> dict[int, list[Path]]:
        """The files with a cell's traces, by repeat. Raises DpscopeError where they hold no events."""
        if self.no_events:
            raise DpscopeError(self.no_events)
        if self.recorded is None:
            repeats = {trace.repeat for trace in self.traces}
            return {
                repeat: [trace.path for trace in self.traces if trace.repeat == repeat]
                for repeat in sorted(repeats)
            }
        repeats = set(job.tables.steps["repeat"].tolist())
        return {repeat: self.folder.repeat(job.cell, repeat).traces() for repeat in sorted(repeats)}

    @cached_property
    def spreads(self) -> RunSpreads:
        """How far repeats lie apart, pooled over all measured cells."""
        return run_spreads(self.measured)


def load_run(
    path: str | Path, progress: Progress = lambda _: None, target_accuracy: float | None = None
) -> RunData:
    """Read a run folder, traces, trainings and all; `target_accuracy` is as in `load_training`.

    Raises DpscopeError when it is none or nothing in it was measured: with the first failure and
    where its log is.
    """
    path = Path(path)
    folder = RunFolder(path)
    manifest = folder.manifest()
    cores = manifest.environment.cpu_count if manifest.device_type == "cpu" else None
    cells = Cells()
    for planned in manifest.plan:
        progress(planned.cell.name)
        places = manifest.places(planned.cell)
        cells[planned.cell.name] = replace(load_cell(folder, planned, cores), places=places)
    training, untrained = None, ""
    try:
        if holds_epochs(path):
            training = load_training(path, target_accuracy)
    except NoEpochError as error:  # what was measured can be shown without it
        untrained = str(error)
    run = RunData(path, manifest, cells, training, untrained=untrained)
    if not run.measured:
        raise NothingMeasuredError(f"{path} holds no measured cell: {_first_failure(run)}")
    return run


def _first_failure(run: RunData) -> str:
    for data in run.cells.values():
        for result in data.results:
            if result.status not in ("ok", "skipped"):
                failure = f"{result.cell.name} {result.status}: {result.message}"
                log = run.folder.repeat(result.cell, result.repeat).log_path
                return failure if result.status == "interrupted" else f"{failure}; read {log}"
    return f"nothing to analyze; run `dpscope run --out {run.path}` to measure it"


def load_cell(folder: RunFolder, planned: PlannedCell, cores: int | None = None) -> Job:
    """One cell with all its repeats; `cores` as in its data."""
    job = replace(planned_job(planned.cell, planned.skip_reason), cores=cores)
    repeats = [_repeat(job, number, done) for number, done in folder.repeats(planned.cell)]
    job = together([job, *repeats])
    if job.why_not_traced:
        job = replace(job, communication_known=False)
    found = (*job.findings, *_findings_over_repeats(job))
    return replace(job, findings=tuple(dict.fromkeys(found)))


def _repeat(planned: Job, number: int, done: RepeatFolder) -> Job:
    """What one of a cell's repeats recorded."""
    job = with_samples(planned, number, done)
    if not job.ranks:
        return job
    ranks = [rank for _, rank in job.ranks]
    limited = power_cap_findings([state for rank in ranks for state in rank.device_states_after])
    job = job.with_findings(
        *(finding for rank in ranks for finding in rank.findings),
        # Of GPUs at their power limit those that are slower than the others' of all ranks: a rank
        # knows its own alone.
        *limited,
    )
    job = _with_traces(job, number, done)
    try:
        checks = _counter_checks(job.cell, done, ranks)
    except DpscopeError as error:
        message = f"{done.path.name}: {error}"
        lost = RunCode.COUNTERS_NOT_COMPARED.finding(message, MEASURE_AGAIN, about=job.name)
        return job.with_findings(lost)
    return replace(job, counter_checks=tuple(checks))


def with_samples(planned: Job, number: int, done: RepeatFolder) -> Job:
    """A repeat's result, and its ranks and samples if it ended well and still has them all."""
    job = planned
    try:
        result = done.result()
        if result is None:
            return job
        job = replace(job, results=(result,))
        if result.status != "ok":
            return job
        ranks = done.ranks()
        found = len({rank.rank for rank in ranks})
        if found != job.processes:
            raise DpscopeError(f"it holds results of {found} of {counted(job.processes, 'rank')}")
        samples = Table.of(**done.samples(ranks)).assign(repeat=number)
    except (OSError, ValueError, DpscopeError) as error:
        missing = " ".join(str(error).split())
        return job.with_findings(incomplete_repeat(job.cell, number, missing))
    return replace(
        job,
        ranks=tuple((number, rank) for rank in ranks),
        tables=replace(job.tables, samples=samples),
    )


def _with_traces(job: Job, number: int, done: RepeatFolder) -> Job:
    """The repeat with its traces, or with why it is left out of traced values."""
    read = whole_traces(job, number, done)
    if isinstance(read, LeftOut):
        return replace(job, left_out=(read,))
    tables, matching = job_tables(read, number)
    rank = job.rank
    traffic = check_traffic(
        job.cell,
        rank.model,
        tables.steps,
        tables.collectives,
        [summary.range_counts for summary in read.summaries],
        tables.copies,
        rank.attached,
        rank.units,
    )
    known = all(file.communication_shown for file in read.summaries)
    shown = UNKNOWN_COMMUNICATION.isdisjoint(finding.code for finding in traffic)
    timelines = read.timelines(range(len(read.ranks)))
    return replace(
        job.with_findings(*read.findings, *matching, *traffic),
        tables=replace(tables, samples=job.tables.samples),
        summaries=read.summaries,
        timelines=tuple((number, timeline) for timeline in timelines),
        communication_known=known and shown,
    )


def _findings_over_repeats(job: Job) -> Iterator[Finding]:
    cell, ranks = job.cell, [rank for _, rank in job.ranks]
    yield from left_out_finding(job)
    yield from input_findings(
        cell, [rank for number, rank in job.ranks if number == job.ranks[0][0]]
    )
    yield from batch_finding(job)
    yield from counter_findings(cell, ranks, job.counter_checks)
    yield from compilation_findings(cell, ranks)
    if job.no_scaling:  # what such a cell lacks is cores: the plan's finding states it, once
        return
    yield from spread_findings(job.name, job.step_samples())
    waits_us = [
        wait_us for waits in job.step_samples("data_wait_us", "traced") for wait_us in waits
    ]
    recorded = bool(waits_us) and not any(map(math.isnan, waits_us))
    yield from far_longer_steps(job.tables.steps, job.name)
    wait_us = statistics.fmean(waits_us) if recorded else None
    yield from idle_findings(job.tables.steps, job.name, wait_us, job.communication_known)


def _counter_checks(
    cell: Cell, done: RepeatFolder, ranks: Sequence[RankResult]
) -> list[CounterCheck]:
    if not (traces := done.counters_traces()):
        return []
    read = read_kept(traces)
    reduction_ends_us = {summary.rank: summary.reduction_ends_us for summary in read.summaries}
    return [
        check_counters(
            done.counters(rank.node, rank.rank),
            read.tables["collectives"],
            rank.rank,
            reduced_bytes(cell, rank.model) / rank.model.gradient_bytes,
            factored=cell.options.comm_hook == "powersgd",
            reduction_ends_us=reduction_ends_us.get(rank.rank, {}),
            buckets_alone=rank.attached is not None,
            map_bytes=used_map_bytes(cell, rank.model),
        )
        for rank in ranks
        if done.counters_path(rank.node, rank.rank).exists()
    ]


def traced_run(analysis: Job, paths: Sequence[Path]) -> RunData:
    """The result of `analyze_traces` for `paths` as a run with one cell, the job; its name contains
    the ranks that were read.
    """
    return traced_repeats({"": analysis}, paths)


def traced_repeats(jobs: JobAnalyses, paths: Sequence[Path]) -> RunData:
    """As `traced_run`, of several jobs alike: each is a repeat of the one cell. Raises DpscopeError
    where they are not.
    """
    common = (
        paths[0]
        if len(paths) == 1
        else Path(os.path.commonpath([path.absolute() for path in paths]))
    )
    (first, job), *others = jobs.items()
    for name, other in others:
        if (other.name, other.strategy, other.devices) != (job.name, job.strategy, job.devices):
            raise DpscopeError(
                f"{common} holds jobs that are not alike: {first} is {job.name} ({job.strategy}), {name} {other.name} "
                f"({other.strategy}); name folders of the same job traced several times"
            )
    files: dict[Path, TraceFile] = {}
    for repeat, analysis in enumerate(jobs.values()):
        for summary in analysis.summaries:
            path = Path(summary.source.removesuffix(f" (rank {summary.rank})"))
            files.setdefault(
                path, TraceFile(path, summary.rank, repeat)
            )  # of several ranks the first
    return RunData(
        common,
        None,
        {job.name: as_repeats([*jobs.values()])},
        traces=tuple(files.values()),
        no_events=why_no_events(paths),
    )


def traces_text(run: RunData) -> str:
    """What was read and what it is, in a sentence or two."""
    (data,) = run.cells.values()
    windows = data.whole_windows
    steps = step_count(windows)
    kind = "whole"
    if windows.truths("partial_window", missing=True).all():
        kind = "traced"
    files = data.foreign_format or "trace"
    if len(run.traces) > 1:
        files = f"{files}s"
    read = len(data.summaries)
    whose = counted(data.processes, "process")
    if read < data.processes:
        whose = f"{read} of {whose}"
    each = ""
    if read > 1:
        each = " of each"
    devices = ""
    if data.traced_devices:
        devices = f" on {data.traced_devices}"
    unknown = "model, batch and machine"
    if devices or any(summary.environment for summary in data.summaries):
        unknown = "model and batch"
    traced = counted(steps, f"{kind} step")
    return (
        f"{files} of {whose}{devices}, {traced}{each}; "
        f"not made by dpscope run: {unknown} are not recorded."
    )


def measured_repeats(run: RunData) -> dict[str, int]:
    """Repeats that ended well, by the name of the cell; without cells that were omitted or failed,
    which have findings.
    """
    return {
        name: len({repeat for repeat, _ in data.ranks})
        for name, data in run.cells.items()
        if data.measured or not (data.skip_reason or data.results)
    }


def repeat_costs(folder: RunFolder) -> dict[str, RepeatCost]:
    """Noise and time per repeat of each cell, from the samples of its finished repeats; reads no
    trace.

    Cells without an interval are left out.
    """
    cells = []
    for planned in folder.manifest().plan:
        job = planned_job(planned.cell)
        repeats = [with_samples(job, number, done) for number, done in folder.repeats(planned.cell)]
        if any(repeat.ranks for repeat in repeats):
            cells.append(together([job, *repeats]))
    pool = step_spread(cells)
    return {
        data.name: RepeatCost(noise, _repeat_s(data))
        for data in cells
        if (noise := centre_noise(data.step_samples(), pool)) is not None
    }


def _repeat_s(job: Job) -> float:
    """The mean time of its measured repeats, seconds."""
    done = {repeat for repeat, _ in job.ranks}
    return statistics.fmean(result.duration_s for result in job.results if result.repeat in done)


def repeats_text(run: RunData) -> str:
    """Of every cell, such as ``2 repeats`` or ``1 to 2 repeats``."""
    counts = measured_repeats(run).values()
    if min(counts) == max(counts):
        return counted(max(counts), "repeat")
    return f"{min(counts)} to {counted(max(counts), 'repeat')}"


def planned_repeats(run: RunData) -> dict[str, int]:
    """Of each cell, by its name. The plan of a script's run counts none: there they are the most
    that any cell began, finished or not.
    """
    manifest = run.manifest
    planned = manifest.config.measurement.repeats
    if manifest.script is not None:
        planned = max(len(run.folder.repeats(job.cell)) for job in run.cells.values())
    return {name: manifest.repeats_by_cell.get(name, planned) for name in run.cells}


def missing_repeats(run: RunData) -> dict[str, str]:
    """Of the cells with fewer repeats than planned what they have, such as ``0 of 5 repeats``."""
    planned = planned_repeats(run)
    missing = {}
    for name, count in measured_repeats(run).items():
        if count < planned[name]:
            missing[name] = f"{count} of {counted(planned[name], 'repeat')}"
    return missing


def repeat_findings(run: RunData) -> Iterator[Finding]:
    """Findings about missing repeats, and about runs of a single repeat."""
    missing = missing_repeats(run)
    for name, repeats in missing.items():
        yield RunCode.REPEATS_MISSING.finding(f"{repeats} measured", about=name)
    if max(measured_repeats(run).values()) == 1 and not missing:
        unknown = "the spread between repeats is unknown, so no comparison has an interval"
        yield RunCode.FEW_SAMPLES.finding(
            f"one repeat of each cell: {unknown}", "measure with --repeats 2 or more"
        )
