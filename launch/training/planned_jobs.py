"""The plan of `dpscope train` on this machine: cells, seeds, commands. Imports no torch."""

import dataclasses
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from dpscope.launch.jobs.attended_job import SeveralNodesJob
from dpscope.launch.jobs.devices import DeviceType, resolve_devices
from dpscope.launch.jobs.out_folder import check_train_place
from dpscope.launch.planning.cells import threads_per_process
from dpscope.launch.planning.run_config import setting_text
from dpscope.launch.training.cells import (
    PREVIOUS,
    OwnCheckpoint,
    TrainJob,
    make_train_plan,
    resolve_training,
    train_findings,
)
from dpscope.launch.workload.data_files import check_data
from dpscope.launch.workload.model_size import checked_model_size
from dpscope.profiling.records.finding import Finding, counted
from dpscope.profiling.records.settings import settings_of
from dpscope.profiling.records.training import TRAINING_MAY_CHANGE, PlannedTraining, ResolvedTrainConfig, TrainConfig
from dpscope.profiling.store.errors import DpscopeError
from dpscope.profiling.store.training_folders import TRAININGS_NAME, TrainFolder, is_train_folder


@dataclass(frozen=True)
class TrainDescription:
    """Plan of `dpscope train`."""

    config: ResolvedTrainConfig
    device_type: DeviceType
    threads_per_process: int
    plan: tuple[PlannedTraining, ...]
    jobs: tuple[TrainJob, ...]  # in the order in which they run: seed by seed
    findings: tuple[Finding, ...]


def plan_trainings(
    config: TrainConfig, out: Path, fresh: bool = False, resume_from: str | None = None, nodes: int = 1
) -> TrainDescription:
    """Plan of `run_trainings`; starts and writes nothing. Raises DpscopeError for an impossible training.

    Cells may span up to `nodes` nodes.
    """
    devices = resolve_devices(config.workload.device)
    resolved = resolve_training(config, devices, nodes)
    check_data(resolved.workload)
    checked_model_size(resolved.workload, resolved.optimizer)
    folder = TrainFolder(out)
    check_train_place(out)
    if is_train_folder(out) and not fresh:
        _check_same_settings(folder, resolved)
    origin = None if resume_from in (None, PREVIOUS) else Path(resume_from)
    trainings = (out / TRAININGS_NAME).resolve()
    if fresh and (resume_from == PREVIOUS or (origin is not None and origin.resolve().is_relative_to(trainings))):
        raise DpscopeError(
            f"--resume-from {resume_from}: --fresh removes it; omit --fresh, or name a checkpoint outside {trainings}"
        )
    if resolved.max_restarts > 0 and resolved.matrix.layouts:
        raise DpscopeError(
            f"--max-restarts {resolved.max_restarts} with --devices {','.join(resolved.matrix.layouts)}: a training over "
            "several nodes is not restarted automatically; omit it, and give the same command again to resume from the checkpoint"
        )
    own: OwnCheckpoint = "none" if fresh else "previous" if resume_from == PREVIOUS else "last"
    plan = make_train_plan(resolved, devices.kind)
    threads = threads_per_process(resolved.matrix)
    jobs = [
        dataclasses.replace(job, resumption=None if job.done and not fresh else job.find_resumption(own))
        for job in _jobs(resolved, plan, devices.kind, threads, folder, origin)
    ]
    findings = tuple(train_findings(resolved, plan, devices.kind))
    return TrainDescription(resolved, devices.kind, threads, plan, tuple(jobs), findings)


def _jobs(
    config: ResolvedTrainConfig,
    plan: Sequence[PlannedTraining],
    kind: DeviceType,
    threads: int,
    out: TrainFolder,
    origin: Path | None,
) -> list[TrainJob]:
    """The trainings of a plan in the order in which they run."""
    cells = [one.cell for one in plan if one.planned.skip_reason is None]
    order = [(cell, seed) for seed in config.seeds for cell in cells]
    return [TrainJob(config, cell, seed, kind, threads, out.training(cell, seed), origin) for cell, seed in order]


def planned_trainings(resume_from: str | None, out: Path) -> list[SeveralNodesJob]:
    """The jobs in the manifest of trainings that have begun, with or without results."""
    if not is_train_folder(out):
        return []
    folder, origin = TrainFolder(out), None if resume_from in (None, PREVIOUS) else Path(resume_from)
    manifest = folder.manifest()
    threads = manifest.threads_per_process
    jobs = _jobs(manifest.config, manifest.plan, manifest.device_type, threads, folder, origin)
    return [SeveralNodesJob(job.name, job.command, job.folder, threads, in_run=True) for job in jobs]


def _check_same_settings(folder: TrainFolder, config: ResolvedTrainConfig) -> None:
    """Raise DpscopeError that names the setting unless the settings are those of the earlier trainings."""
    had = settings_of(folder.manifest().config)
    for field, now in settings_of(config).items():
        if field not in TRAINING_MAY_CHANGE and had[field] != now:
            raise DpscopeError(
                f"--out {folder.path}: holds trainings with {setting_text(field, had[field])}, not "
                f"{setting_text(field, now)}; use the same settings to go on, --fresh to start over, or another --out"
            )


def describe_trainings(
    config: TrainConfig,
    out: Path,
    console: Console,
    fresh: bool = False,
    resume_from: str | None = None,
    nodes: int = 1,
) -> None:
    """Print the plan of trainings and the remaining commands; starts and writes nothing."""
    description = plan_trainings(config, out, fresh, resume_from, nodes)
    print_train_plan(description, console)
    for job in description.jobs:
        if fresh or not job.done:
            console.print(Text(shlex.join(job.command)), soft_wrap=True)
    if fresh or not is_train_folder(out):
        text = "By hand they work once {} is there, which a start without --dry-run writes."
        console.print(Text(text.format(TrainFolder(out).manifest_path)), soft_wrap=True)


def print_train_plan(description: TrainDescription, console: Console) -> None:
    """Print the cells that are trained, with data and settings."""
    config, resumed = description.config, [(job, job.resumption) for job in description.jobs if job.resumption]
    table = Table(Column("cell", no_wrap=True), "devices", "global batch", "learning rate", "seeds", "done")
    for one in description.plan:
        jobs = [job for job in description.jobs if job.cell == one.cell]
        if one.planned.skip_reason is not None:
            console.print(Text(f"{one.cell.name} is left out: {one.planned.skip_reason}"), soft_wrap=True)
            continue
        done = sum(job.done for job in jobs)
        numbers = (one.cell.devices, one.cell.global_batch_size, f"{one.learning_rate:g}", len(jobs), done)
        table.add_row(one.cell.name, *map(str, numbers))
    console.print(table)
    console.print(
        f"{config.workload.model} on {config.workload.data}, {counted(config.epochs, 'epoch')} of "
        f"{counted(description.plan[0].train_samples, 'sample')}; "
        f"{description.device_type}, threads per process: {description.threads_per_process}.",
        soft_wrap=True,
    )
    lines = [f"{job.name} goes on from {found.had.place} ({found.path})" for job, found in resumed]
    findings = (*description.findings, *(finding for _, found in resumed for finding in found.findings))
    for line in (*lines, *(f"{one.severity}: {one.message} {one.next_step}" for one in findings)):
        console.print(Text(line), soft_wrap=True)
