"""The plan of `dpscope train` on this machine: cells, seeds, commands. Imports no torch."""

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from dpscope.launch.jobs.devices import DeviceType, resolve_devices
from dpscope.launch.jobs.out_folder import check_train_place
from dpscope.launch.jobs.torchrun import Job
from dpscope.launch.planning.cells import threads_per_process
from dpscope.launch.planning.manifest import (
    Plan,
    check_same_settings,
    measured_cells,
    print_findings,
    print_left_out,
)
from dpscope.launch.training import cells
from dpscope.launch.training.cells import TrainJob, train_job
from dpscope.launch.workload.data_files import check_data
from dpscope.launch.workload.model_size import checked_model_size
from dpscope.profiling.records.finding import counted
from dpscope.profiling.records.training import (
    TRAINING_MAY_CHANGE,
    PlannedTraining,
    ResolvedTrainConfig,
    TrainConfig,
)
from dpscope.profiling.store.errors import DpscopeError
from dpscope.profiling.store.training_folders import TrainFolder, is_train_folder


@dataclass(frozen=True, kw_only=True)
class TrainPlan(Plan[TrainJob]):
    config: ResolvedTrainConfig
    plan: tuple[PlannedTraining, ...]


def plan_trainings(
    config: TrainConfig, out: Path, fresh: bool = False, nodes: int = 1
) -> TrainPlan:
    """Plan of `run_trainings`; starts and writes nothing. Raises DpscopeError for an impossible
    training.

    Cells may span up to `nodes` nodes.
    """
    devices = resolve_devices(config.workload.device)
    resolved = cells.resolve_training(config, devices, nodes)
    check_data(resolved.workload)
    checked_model_size(resolved.workload, resolved.optimizer)
    folder = TrainFolder(out)
    check_train_place(out)
    if is_train_folder(out) and not fresh:
        had = folder.manifest().config
        check_same_settings(f"--out {out}: holds trainings", had, resolved, TRAINING_MAY_CHANGE)
    if resolved.max_restarts > 0 and resolved.matrix.layouts:
        raise DpscopeError(
            f"--max-restarts {resolved.max_restarts} with --devices {','.join(resolved.matrix.layouts)}: a training over "
            "several nodes is not restarted automatically; omit it, and give the same command again to resume from the checkpoint"
        )
    plan = cells.make_train_plan(resolved, devices.kind)
    threads = threads_per_process(resolved.matrix)
    jobs = []
    for job in _jobs(folder, resolved, plan, devices.kind, threads):
        done = not fresh and job.trained is not None
        jobs.append(
            replace(job, done=done, resumption=None if done or fresh else job.find_resumption())
        )
    findings = tuple(cells.train_findings(resolved, plan, devices.kind))
    return TrainPlan(
        device_type=devices.kind,
        threads=threads,
        jobs=tuple(jobs),
        findings=findings,
        config=resolved,
        plan=plan,
    )


def _jobs(
    out: TrainFolder,
    config: ResolvedTrainConfig,
    plan: Iterable[PlannedTraining],
    kind: DeviceType,
    threads: int,
) -> list[TrainJob]:
    """The trainings of a plan in the order in which they run: seed by seed."""
    order = product(config.seeds, measured_cells(one.planned for one in plan))
    return [train_job(out, config, cell, seed, kind, threads) for seed, cell in order]


def planned_trainings(out: Path) -> Sequence[Job]:
    """The jobs in the manifest of trainings that have begun, with or without results."""
    if not is_train_folder(out):
        return []
    folder, had = TrainFolder(out), TrainFolder(out).manifest()
    return _jobs(folder, had.config, had.plan, had.device_type, had.threads_per_process)


def describe_trainings(
    config: TrainConfig, out: Path, console: Console, fresh: bool = False, nodes: int = 1
) -> None:
    """Print the plan of trainings and the remaining commands; starts and writes nothing."""
    description = plan_trainings(config, out, fresh, nodes)
    print_train_plan(description, console)
    for job in description.to_do:
        console.print(Text(shlex.join(job.command)), soft_wrap=True)
    if fresh or not is_train_folder(out):
        text = "By hand they work once {} is there, which a start without --dry-run writes."
        console.print(Text(text.format(TrainFolder(out).manifest_path)), soft_wrap=True)


def print_train_plan(description: TrainPlan, console: Console) -> None:
    """Print the cells that are trained, with data and settings."""
    config, resumed = (
        description.config,
        [(job, job.resumption) for job in description.jobs if job.resumption],
    )
    table = Table(
        Column("cell", no_wrap=True), "devices", "global batch", "learning rate", "seeds", "done"
    )
    print_left_out((one.planned for one in description.plan), console)
    for one in (one for one in description.plan if one.planned.skip_reason is None):
        jobs = [job for job in description.jobs if job.cell == one.cell]
        done = sum(job.done for job in jobs)
        numbers = (
            one.cell.devices,
            one.cell.global_batch_size,
            f"{one.learning_rate:g}",
            len(jobs),
            done,
        )
        table.add_row(one.cell.name, *map(str, numbers))
    console.print(table)
    console.print(
        f"{config.workload.model} on {config.workload.data}, {counted(config.epochs, 'epoch')} of "
        f"{counted(description.plan[0].train_samples, 'sample')}; "
        f"{description.device_type}, threads per process: {description.threads}.",
        soft_wrap=True,
    )
    for job, found in resumed:
        console.print(
            Text(f"{job.name} goes on from the end of epoch {found.epochs}"), soft_wrap=True
        )
    print_findings(description.findings, console)
