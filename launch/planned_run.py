"""What a run would do on this machine, before it does anything: cells, jobs, commands, estimates. Imports no torch."""

import os
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from dpscope.launch.data_files import check_data
from dpscope.launch.devices import DeviceType, resolve_devices
from dpscope.launch.estimate import BASIS, CellEstimate, estimate_cell, estimate_findings
from dpscope.launch.hand_command import hand_command
from dpscope.launch.manifest import FIELDS_OF_THE_SWEEP
from dpscope.launch.out_folder import check_is_ours
from dpscope.launch.plan import (
    OWN_MODELS,
    make_plan,
    plan_findings,
    resolve,
    threads_per_process,
)
from dpscope.launch.progress import duration_text
from dpscope.launch.torchrun import torchrun_command
from dpscope.profiling.run_store import DpscopeError, RunFolder, is_run_folder
from dpscope.profiling.run_types import Cell, Finding, PlannedCell, RunConfig


@dataclass(frozen=True)
class PlannedJob:
    """One repeat of one cell, and the command that measures it."""

    cell: Cell
    repeat: int
    estimate: CellEstimate
    command: tuple[str, ...]
    done: bool  # already measured: will not be run again


@dataclass(frozen=True)
class PlanDescription:
    """What `dpscope run` would do, before it does anything."""

    config: RunConfig  # nothing left to choose
    device_type: DeviceType
    threads_per_process: int
    plan: tuple[PlannedCell, ...]
    jobs: tuple[PlannedJob, ...]  # in the order in which they run
    findings: tuple[Finding, ...]
    estimate_basis: str

    @property
    def duration_s(self) -> float:
        """Estimated time of the jobs still to do."""
        return sum(job.estimate.duration_s for job in self.jobs if not job.done)

    @property
    def disk_bytes(self) -> int:
        """Estimated disk the jobs still to do will take."""
        return sum(job.estimate.bytes for job in self.jobs if not job.done)


def plan_run(config: RunConfig, out: Path, fresh: bool = False) -> PlanDescription:
    """What `run_sweep` would do; starts and writes nothing. Raises DpscopeError for what cannot be run."""
    devices = resolve_devices(config.device)
    resolved = resolve(config, devices)
    check_data(resolved)
    if resolved.model not in OWN_MODELS:
        check_model_here(resolved.model)
    run = RunFolder(out)
    _check_out(run, resolved, fresh)
    plan = make_plan(resolved, devices.kind)
    jobs = tuple(
        _planned_job(run, planned.cell, repeat, resolved, devices.kind, fresh)
        for repeat in range(resolved.repeats)
        for planned in plan
        if planned.skip_reason is None
    )
    return PlanDescription(
        config=resolved,
        device_type=devices.kind,
        threads_per_process=threads_per_process(resolved),
        plan=plan,
        jobs=jobs,
        findings=(*plan_findings(resolved, devices.kind), *estimate_findings(plan, resolved, devices.kind)),
        estimate_basis=BASIS[devices.kind],
    )


def check_model_here(name: str) -> None:
    """As `workloads.check_model`, a user's module being found from the working directory, as it is in workers."""
    from dpscope.launch.workloads import check_model

    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    check_model(name)


def _planned_job(
    run: RunFolder, cell: Cell, repeat: int, config: RunConfig, kind: DeviceType, fresh: bool
) -> PlannedJob:
    result = None if fresh else run.repeat(cell, repeat).result()
    return PlannedJob(
        cell=cell,
        repeat=repeat,
        estimate=estimate_cell(cell, config, kind),
        command=tuple(torchrun_command(run.path, cell, repeat)),
        done=result is not None and result.status == "ok",
    )


def _check_out(run: RunFolder, config: RunConfig, fresh: bool) -> None:
    check_is_ours(run.path)
    if not is_run_folder(run.path):
        return
    if fresh:
        return
    had = run.manifest().config
    for field in RunConfig.__struct_fields__:
        if field not in FIELDS_OF_THE_SWEEP and getattr(had, field) != getattr(config, field):
            raise DpscopeError(
                f"--out {run.path}: holds a run with {field} = {getattr(had, field)}, not "
                f"{getattr(config, field)}; use the same settings to resume it, --fresh to redo it, or another --out"
            )


def describe_plan(config: RunConfig, out: Path, console: Console, fresh: bool = False) -> PlanDescription:
    """Print the plan of a run, its estimates and its exact commands; returns it, and starts nothing.

    The commands work by hand: those of a run that has begun name a cell of its manifest, those of one that has not
    name all its settings.
    """
    description = plan_run(config, out, fresh)
    print_plan(description, console)
    begun = is_run_folder(out) and not fresh
    for job in description.jobs:
        command = job.command if begun else hand_command(description.config, job.cell, job.repeat, out)
        console.print(Text(shlex.join(command)), soft_wrap=True)
    return description


def print_plan(description: PlanDescription, console: Console) -> None:
    """Print the cells of a run and the estimates of time and disk."""
    table = Table(
        Column("cell", overflow="fold"), "devices", "batch per device", "repeats", "done", "estimate a repeat"
    )
    for planned in description.plan:
        cell = planned.cell
        jobs = [job for job in description.jobs if job.cell == cell]
        last = f"left out: {planned.skip_reason}" if planned.skip_reason else duration_text(jobs[0].estimate.duration_s)
        done = sum(job.done for job in jobs)
        numbers = (cell.devices, cell.batch_size, len(jobs), done)
        table.add_row(cell.name, *(str(number) for number in numbers), last)
    console.print(table)
    to_do = sum(not job.done for job in description.jobs)
    console.print(
        f"{description.device_type}, {description.threads_per_process} thread(s) a process; {to_do} job(s) to do: "
        f"about {duration_text(description.duration_s)} and {description.disk_bytes / 1e6:.0f} MB of disk "
        f"(an estimate: {description.estimate_basis}).",
        soft_wrap=True,
    )
    for finding in description.findings:
        console.print(Text(f"{finding.severity}: {finding.message} {finding.next_step}"), soft_wrap=True)
