"""The plan of a run on this machine: cells, jobs, commands, estimates. Imports no torch."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from dpscope.launch.jobs.attended_job import SeveralNodesJob
from dpscope.launch.jobs.devices import DeviceType, resolve_devices
from dpscope.launch.jobs.job_queue import duration_text
from dpscope.launch.jobs.out_folder import check_run_place
from dpscope.launch.jobs.torchrun import torchrun_command
from dpscope.launch.measuring.calibration import calibration_seconds, described, plan_calibration, stored_calibration
from dpscope.launch.measuring.job_repeat import standalone_worker_command
from dpscope.launch.planning.cells import make_plan, plan_findings, resolve, threads_per_process
from dpscope.launch.planning.manifest import (
    CellEstimate,
    baseline_findings,
    estimate_basis,
    estimate_cell,
    estimate_findings,
)
from dpscope.launch.planning.run_config import setting_text
from dpscope.launch.workload.data_files import check_data
from dpscope.launch.workload.model_size import ModelSize, checked_model_size
from dpscope.profiling.records.calibration import CalibrationSettings
from dpscope.profiling.records.config import MAY_CHANGE, ResolvedConfig, RunConfig
from dpscope.profiling.records.finding import Finding, counted
from dpscope.profiling.records.run import Cell, Manifest, PlannedCell
from dpscope.profiling.records.settings import settings_of
from dpscope.profiling.store.errors import DpscopeError
from dpscope.profiling.store.folders import RepeatFolder, RunFolder, is_run_folder


def _title(cell: Cell, repeat: int) -> str:
    return f"{cell.name} repeat {repeat}"


@dataclass(frozen=True)
class PlannedJob:
    """One repeat of one cell, and the command that measures it."""

    cell: Cell
    repeat: int
    folder: RepeatFolder
    estimate: CellEstimate
    command: tuple[str, ...]
    done: bool  # already measured

    @property
    def name(self) -> str:
        return _title(self.cell, self.repeat)


@dataclass(frozen=True)
class PlanDescription:
    """Plan of `dpscope run`."""

    config: ResolvedConfig
    device_type: DeviceType
    threads_per_process: int
    plan: tuple[PlannedCell, ...]
    jobs: tuple[PlannedJob, ...]  # in order
    findings: tuple[Finding, ...]
    estimate_basis: str
    model_size: ModelSize
    calibration: CalibrationSettings | None  # before the cells

    @property
    def duration_s(self) -> float:
        """Estimated time of the calibration and the remaining jobs."""
        first = calibration_seconds(self.calibration) if self.calibration is not None else 0.0
        return first + sum(job.estimate.duration_s for job in self.jobs if not job.done)

    @property
    def disk_bytes(self) -> int:
        """Estimated disk usage of the remaining jobs."""
        return sum(job.estimate.bytes for job in self.jobs if not job.done)


def plan_run(
    config: RunConfig, out: Path, fresh: bool = False, repeats_by_cell: Mapping[str, int] | None = None, nodes: int = 1
) -> PlanDescription:
    """Plan of `run_sweep`; starts and writes nothing. Raises DpscopeError for a run that is not possible.

    `repeats_by_cell` reduces the number of repeats of cells, by name; cells may span up to `nodes` nodes.
    """
    fewer = repeats_by_cell or {}
    devices = resolve_devices(config.workload.device)
    resolved = resolve(config, devices, nodes=nodes)
    check_data(resolved.workload)
    run = RunFolder(out)
    _check_out(run, resolved, fresh)
    plan = make_plan(resolved.matrix, resolved.workload.samples, devices.kind)
    plan = plan if fresh or not is_run_folder(out) else _as_begun(plan, run.manifest())
    size = checked_model_size(resolved.workload, resolved.optimizer)
    jobs = tuple(
        _planned_job(run, planned.cell, repeat, resolved, devices.kind, size, fresh)
        for repeat in range(resolved.measurement.repeats)
        for planned in plan
        if planned.skip_reason is None and repeat < fewer.get(planned.cell.name, resolved.measurement.repeats)
    )
    return PlanDescription(
        config=resolved,
        device_type=devices.kind,
        threads_per_process=threads_per_process(resolved.matrix),
        plan=plan,
        jobs=jobs,
        findings=(
            *plan_findings(resolved.workload, resolved.matrix, devices.kind),
            *baseline_findings(plan),
            *estimate_findings(plan, resolved, devices.kind, size),
        ),
        estimate_basis=estimate_basis(devices.kind, size),
        model_size=size,
        calibration=plan_calibration(plan, resolved, devices.kind, size, stored_calibration(run))
        if any(not job.done for job in jobs)
        else None,
    )


def planned_cells(out: Path) -> list[SeveralNodesJob]:
    """The jobs in the manifest of a run that has begun, with or without results."""
    if not is_run_folder(out):
        return []
    run = RunFolder(out)
    manifest = run.manifest()
    return [
        SeveralNodesJob(
            _title(planned.cell, repeat),
            tuple(torchrun_command(run.path, planned.cell, repeat)),
            run.repeat(planned.cell, repeat),
            manifest.threads_per_process,
            in_run=True,
        )
        for repeat in range(manifest.config.measurement.repeats)
        for planned in manifest.plan
        if planned.skip_reason is None
    ]


def _as_begun(plan: tuple[PlannedCell, ...], begun: Manifest) -> tuple[PlannedCell, ...]:
    """The plan without DDP on one device if an older version began the run without it."""
    known = {planned.cell for planned in begun.plan}
    return tuple(one for one in plan if one.cell in known or not (one.cell.traits.reducer and one.cell.devices == 1))


def _planned_job(
    run: RunFolder, cell: Cell, repeat: int, config: ResolvedConfig, kind: DeviceType, size: ModelSize, fresh: bool
) -> PlannedJob:
    folder = run.repeat(cell, repeat)
    result = None if fresh else folder.result()
    return PlannedJob(
        cell=cell,
        repeat=repeat,
        folder=folder,
        estimate=estimate_cell(cell, config, kind, size),
        command=tuple(torchrun_command(run.path, cell, repeat)),
        done=result is not None and result.status == "ok",
    )


def _check_out(run: RunFolder, config: ResolvedConfig, fresh: bool) -> None:
    check_run_place(run.path)
    if fresh or not is_run_folder(run.path):
        return
    before = settings_of(run.manifest().config)
    for field, now in settings_of(config).items():
        if field not in MAY_CHANGE and before[field] != now:
            raise DpscopeError(
                f"--out {run.path}: holds a run with {setting_text(field, before[field])}, not {setting_text(field, now)}; use "
                "the same settings to resume it, --fresh to redo it, or another --out"
            )


def describe_plan(
    config: RunConfig, out: Path, console: Console, fresh: bool = False, nodes: int = 1
) -> PlanDescription:
    """Print and return the plan of a run, with its estimates and exact commands; starts nothing.

    The commands of the jobs to do work by hand: those of a run that has begun name a cell of its manifest, others name all
    settings.
    """
    description = plan_run(config, out, fresh, nodes=nodes)
    print_plan(description, console)
    begun = is_run_folder(out) and not fresh
    for job in (one for one in description.jobs if not one.done):
        command = job.command if begun else standalone_worker_command(description.config, job.cell, job.repeat, out)
        console.print(Text(shlex.join(command)), soft_wrap=True)
    return description


def print_plan(description: PlanDescription, console: Console) -> None:
    """Print the cells of a run and the estimated time and disk usage."""
    _print_cells(description, console)
    if (first := description.calibration) is not None:
        console.print(
            f"{described(first)}: about {duration_text(calibration_seconds(first))}", highlight=False, soft_wrap=True
        )
    to_do = sum(not job.done for job in description.jobs)
    console.print(
        f"{description.device_type}, {counted(description.threads_per_process, 'thread')} per process; "
        f"{counted(to_do, 'job')} to do: about {_cost(description)} (an estimate: {description.estimate_basis}).",
        highlight=False,
        soft_wrap=True,
    )
    _print_findings(description, console)


def print_beginning(description: PlanDescription, console: Console) -> None:
    """Print the plan of a run in a few lines."""
    for planned in description.plan:
        if planned.skip_reason is not None:
            console.print(Text(_left_out(planned)), soft_wrap=True)
    done = sum(job.done for job in description.jobs)
    cells = len({job.cell for job in description.jobs})
    already = f", {done} done already" if done else ""
    console.print(
        f"{counted(len(description.jobs), 'job')} of {counted(cells, 'cell')} on {description.device_type}{already}; about "
        f"{_cost(description)} (--dry-run lists them).",
        highlight=False,
    )
    _print_findings(description, console)


def _cost(description: PlanDescription) -> str:
    return f"{duration_text(description.duration_s)} and {description.disk_bytes / 1e6:.0f} MB of disk"


def _left_out(planned: PlannedCell) -> str:
    return f"{planned.cell.name} is left out: {planned.skip_reason}"


def _print_findings(description: PlanDescription, console: Console) -> None:
    for finding in description.findings:
        console.print(Text(f"{finding.severity}: {finding.message} {finding.next_step}"), soft_wrap=True)


def _print_cells(description: PlanDescription, console: Console) -> None:
    table = Table(Column("cell: -d devices, -b batch per device", no_wrap=True), "repeats", "done", "time per repeat")
    for planned in description.plan:
        jobs = [job for job in description.jobs if job.cell == planned.cell]
        if planned.skip_reason is not None:
            console.print(Text(_left_out(planned)), soft_wrap=True)
            continue
        done = sum(job.done for job in jobs)
        table.add_row(planned.cell.name, str(len(jobs)), str(done), duration_text(jobs[0].estimate.duration_s))
    console.print(table)
