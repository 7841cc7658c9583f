"""The plan of `dpscope train` on this machine: cells, seeds, commands. Imports no torch."""

import dataclasses
import shlex
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from dpscope.launch.jobs.attended_job import SeveralNodesJob
from dpscope.launch.jobs.devices import DeviceType, resolve_devices
from dpscope.launch.jobs.out_folder import check_train_place
from dpscope.launch.jobs.torchrun import torchrun_prefix
from dpscope.launch.planning.cells import threads_per_process
from dpscope.launch.planning.run_config import setting_text
from dpscope.launch.training.cells import TrainJob, make_train_plan, resolve_training, train_findings
from dpscope.launch.training.resume import PREVIOUS, OwnCheckpoint, Resumption, resumption
from dpscope.launch.workload.data_files import check_data
from dpscope.launch.workload.model_size import checked_model_size
from dpscope.profiling.records.finding import Finding, counted
from dpscope.profiling.records.run import Cell
from dpscope.profiling.records.settings import settings_of
from dpscope.profiling.records.training import TRAINING_MAY_CHANGE, PlannedTraining, ResolvedTrainConfig, TrainConfig
from dpscope.profiling.store.errors import DpscopeError
from dpscope.profiling.store.training_folders import TRAININGS_NAME, TrainFolder, TrainingFolder, is_train_folder


def _title(cell: Cell, seed: int) -> str:
    return f"{cell.name} seed {seed}"


@dataclass(frozen=True)
class PlannedTrainJob:
    """One training: a cell with a seed, and the command that trains it."""

    cell: Cell
    seed: int
    folder: TrainingFolder
    command: tuple[str, ...]
    resumption: Resumption | None = None  # the checkpoint that it continues from

    @property
    def name(self) -> str:
        return _title(self.cell, self.seed)

    def done(self, epochs: int) -> bool:
        """Whether it has been trained for that many epochs."""
        result = self.folder.result()
        return result is not None and result.status == "ok" and result.epochs >= epochs


@dataclass(frozen=True)
class TrainDescription:
    """Plan of `dpscope train`."""

    config: ResolvedTrainConfig
    device_type: DeviceType
    threads_per_process: int
    plan: tuple[PlannedTraining, ...]
    jobs: tuple[PlannedTrainJob, ...]  # in the order in which they run: seed by seed
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
    _check_resume_from(resume_from, folder, fresh)
    if resolved.max_restarts > 0 and resolved.matrix.layouts:
        raise DpscopeError(
            f"--max-restarts {resolved.max_restarts} with --devices {','.join(resolved.matrix.layouts)}: a training over "
            "several nodes is not restarted automatically; omit it, and give the same command again to resume from the checkpoint"
        )
    own: OwnCheckpoint = "none" if fresh else "previous" if resume_from == PREVIOUS else "last"
    origin = _origin(resume_from)
    plan = make_train_plan(resolved, devices.kind)
    threads = threads_per_process(resolved.matrix)
    return TrainDescription(
        config=resolved,
        device_type=devices.kind,
        threads_per_process=threads,
        plan=plan,
        jobs=tuple(
            _planned_job(
                TrainJob(resolved, one.cell, seed, devices.kind, threads, folder.training(one.cell, seed), origin),
                folder,
                own,
            )
            for seed in resolved.seeds
            for one in plan
            if one.planned.skip_reason is None
        ),
        findings=train_findings(resolved, plan, devices.kind),
    )


def planned_trainings(resume_from: str | None, out: Path) -> list[SeveralNodesJob]:
    """The jobs in the manifest of trainings that have begun, with or without results."""
    folder = TrainFolder(out)
    if not is_train_folder(out):
        return []
    manifest, origin = folder.manifest(), _origin(resume_from)
    return [
        SeveralNodesJob(
            _title(one.cell, seed),
            _command(one.cell, seed, folder, manifest.config.max_restarts, origin),
            folder.training(one.cell, seed),
            manifest.threads_per_process,
            in_run=True,
        )
        for seed in manifest.config.seeds
        for one in manifest.plan
        if one.planned.skip_reason is None
    ]


def _origin(resume_from: str | None) -> Path | None:
    return None if resume_from in (None, PREVIOUS) else Path(resume_from)


def _command(cell: Cell, seed: int, out: TrainFolder, max_restarts: int, resume_from: Path | None) -> tuple[str, ...]:
    folder = out.training(cell, seed)
    worker = ("-m", "dpscope.launch.training.worker", "--out", str(out.path), "--cell", cell.name, "--seed", str(seed))
    origin = () if resume_from is None else ("--resume-from", str(resume_from))
    # On several nodes, torchrun's agents would restart their processes independently: the same command resumes instead.
    restarts = max_restarts if cell.nodes == 1 else 0
    return (*torchrun_prefix(cell.processes, folder, restarts, cell.nodes), *worker, *origin)


def _planned_job(job: TrainJob, out: TrainFolder, own: OwnCheckpoint) -> PlannedTrainJob:
    command = _command(job.cell, job.seed, out, job.config.max_restarts, job.resume_from)
    planned = PlannedTrainJob(cell=job.cell, seed=job.seed, folder=job.folder, command=command)
    if planned.done(job.config.epochs) and own != "none":
        return planned
    return dataclasses.replace(planned, resumption=resumption(job, own))


def _check_resume_from(resume_from: str | None, folder: TrainFolder, fresh: bool) -> None:
    """Raise DpscopeError for a checkpoint that --fresh would remove."""
    trainings = (folder.path / TRAININGS_NAME).resolve()
    if (
        fresh
        and resume_from is not None
        and (resume_from == PREVIOUS or Path(resume_from).resolve().is_relative_to(trainings))
    ):
        raise DpscopeError(
            f"--resume-from {resume_from}: --fresh removes it; omit --fresh, or name a checkpoint outside {trainings}"
        )


def _check_same_settings(folder: TrainFolder, config: ResolvedTrainConfig) -> None:
    """Raise DpscopeError that names the setting unless the settings are those of the earlier trainings."""
    had, requested = settings_of(folder.manifest().config), settings_of(config)
    for field in (name for name in requested if name not in TRAINING_MAY_CHANGE):
        then, now = had[field], requested[field]
        if then != now:
            raise DpscopeError(
                f"--out {folder.path}: holds trainings with {setting_text(field, then)}, not {setting_text(field, now)}; "
                "use the same settings to go on, --fresh to start over, or another --out"
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
        if fresh or not job.done(description.config.epochs):
            console.print(Text(shlex.join(job.command)), soft_wrap=True)
    if fresh or not is_train_folder(out):
        console.print(
            Text(
                f"By hand they work once {TrainFolder(out).manifest_path} is there, which a start without --dry-run writes."
            ),
            soft_wrap=True,
        )


def print_train_plan(description: TrainDescription, console: Console) -> None:
    """Print the cells that are trained, with data and settings."""
    config = description.config
    table = Table(Column("cell", no_wrap=True), "devices", "global batch", "learning rate", "seeds", "done")
    for one in description.plan:
        jobs = [job for job in description.jobs if job.cell == one.cell]
        if one.planned.skip_reason is not None:
            console.print(Text(f"{one.cell.name} is left out: {one.planned.skip_reason}"), soft_wrap=True)
            continue
        done = sum(job.done(config.epochs) for job in jobs)
        numbers = (one.cell.devices, one.cell.global_batch_size, f"{one.learning_rate:g}", len(jobs), done)
        table.add_row(one.cell.name, *(str(number) for number in numbers))
    console.print(table)
    console.print(
        f"{config.workload.model} on {config.workload.data}, {counted(config.epochs, 'epoch')} of "
        f"{counted(description.plan[0].train_samples, 'sample')}; "
        f"{description.device_type}, threads per process: {description.threads_per_process}.",
        soft_wrap=True,
    )
    for job in description.jobs:
        if job.resumption is not None:
            found = job.resumption
            console.print(Text(f"{job.name} goes on from {found.had.place} ({found.path})"), soft_wrap=True)
    resumed = [finding for job in description.jobs if job.resumption for finding in job.resumption.findings]
    for finding in (*description.findings, *resumed):
        console.print(Text(f"{finding.severity}: {finding.message} {finding.next_step}"), soft_wrap=True)
