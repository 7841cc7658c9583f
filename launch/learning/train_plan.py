"""The plan of `dpscope train` on this machine: from a TOML file and flags to configuration, cells,
learning rates and jobs. Imports no torch.
"""

import math
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from dpscope.launch.jobs.assignment import Assignment
from dpscope.launch.jobs.devices import Devices, DeviceType, resolve_devices
from dpscope.launch.jobs.job_outcome import JobOutcome
from dpscope.launch.jobs.out_folder import check_train_place
from dpscope.launch.jobs.torchrun import Job
from dpscope.launch.learning.checkpoints import CheckpointFolder, restore_progress, verify
from dpscope.launch.planning import run_config
from dpscope.launch.planning.cells import (
    make_plan,
    plan_findings,
    resolved_matrix,
    resolved_workload,
    threads_per_process,
)
from dpscope.launch.planning.manifest import (
    Plan,
    check_same_settings,
    measured_cells,
    print_findings,
    print_left_out,
)
from dpscope.launch.workload.data_files import SMALL_RESNET, check_data
from dpscope.launch.workload.model_size import checked_model_size
from dpscope.profiling.records.config import Optimizer, Workload
from dpscope.profiling.records.finding import Finding, counted
from dpscope.profiling.records.learning_codes import LearningCode
from dpscope.profiling.records.run import Cell
from dpscope.profiling.records.settings import (
    check_settings,
    declarations,
    top_level_settings,
    value_text,
)
from dpscope.profiling.records.strategies import strategy_order, traits_of
from dpscope.profiling.records.training import (
    TRAINING_MAY_CHANGE,
    CheckpointDescription,
    PlannedTraining,
    ResolvedTrainConfig,
    TrainConfig,
    TrainResult,
)
from dpscope.profiling.store.errors import DpscopeError
from dpscope.profiling.store.files import write_json
from dpscope.profiling.store.folders import RunFolder
from dpscope.profiling.store.training_folders import TrainFolder, TrainingFolder, is_train_folder

TRAIN_SETTINGS = {name: one for name, one in declarations(TrainConfig).items() if name != "seed"}
"""Settings of a training; its workload's seed is one of `seeds`."""

_DEFAULTS = {
    "data": "digits",
    "model": SMALL_RESNET,
    "scaling": "strong",
    "learning_rate": 0.05,
    "epochs": 12,
}
_SCHEDULE: dict[str, object] = {"epochs": 12, "warmup_epochs": 1, "milestones": (7, 10)}
"""Used together if none of them is given; digits are learned to 99% with it."""


def load_train_config(config_path: Path | None, flags: dict[str, object]) -> TrainConfig:
    """The configuration of a TOML file overlaid by flags, as `run_config.load_config` reads them.

    Raises DpscopeError naming field, value and fix.
    """
    given, origins = run_config.given_settings(config_path, flags, TRAIN_SETTINGS)
    values = {**_DEFAULTS, **({} if _SCHEDULE.keys() & given.keys() else _SCHEDULE), **given}
    # except for digits, loading takes long enough to have workers for it
    values.setdefault("workers", 0 if values["data"] == "digits" else Workload().workers)
    workload = run_config.build(Workload, values, origins)
    matrix = run_config.build_matrix(values, origins, workload.amp)
    refused = ""
    if workload.data == "synthetic":
        refused = f"{origins['data']} synthetic: one random batch teaches nothing; train on digits, cifar10 or fake"
    elif matrix.scaling == "both":
        refused = f"{origins['scaling']} both: a training reads its batch sizes in one way; give strong or weak"
    elif matrix.batch_growth is not None:
        refused = (
            f"{origins['batch_sizes']} with growth: name each size to train with, such as 32,128"
        )
    if refused:
        raise DpscopeError(refused)
    parts = {
        "workload": workload,
        "optimizer": run_config.build(Optimizer, values, origins),
        "matrix": matrix,
    }
    own = {name: values[name] for name in top_level_settings(TrainConfig) if name in values}
    config = run_config.build(TrainConfig, parts | own, origins)
    seeds, milestones = tuple(dict.fromkeys(config.seeds)), tuple(sorted(set(config.milestones)))
    config = msgspec.structs.replace(config, seeds=seeds, milestones=milestones)
    with run_config.raising_user_errors(origins):
        check_settings(config)
    run_config.check_idle(config, origins)
    return config


def scaled_learning_rate(config: TrainConfig, cell: Cell) -> float:
    """A cell's learning rate, before warm-up and milestones, by the growth of its global batch.

    linear: P. Goyal et al., Accurate, Large Minibatch SGD (arXiv:1706.02677), which holds while
    batches are small against the gradient's noise; sqrt: A. Krizhevsky, One weird trick
    (arXiv:1404.5997), which keeps the noise's variance.
    """
    growth = _batch_growth(config, cell)
    factors = {"none": 1.0, "sqrt": math.sqrt(growth), "linear": growth}
    return config.optimizer.learning_rate * factors[config.learning_rate_scaling]


def _batch_growth(config: TrainConfig, cell: Cell) -> int:
    """A cell's global batch divided by that of the single device that it is compared with: 1 under
    strong scaling.
    """
    return cell.devices if config.matrix.scaling == "weak" else 1


TRAINING_BATCH_SIZE = 32


def resolve_training(config: TrainConfig, devices: Devices, nodes: int = 1) -> ResolvedTrainConfig:
    """The configuration with every automatic value chosen for this machine; raises DpscopeError for
    an impossible one.
    """
    workload = resolved_workload(config.workload, devices.kind)
    matrix = resolved_matrix(config.matrix, devices, nodes=nodes)
    if config.matrix.batch_sizes is None:
        multiple = 1 if matrix.scaling == "weak" else math.lcm(*matrix.counts)
        batch_size = math.ceil(TRAINING_BATCH_SIZE / multiple) * multiple
        matrix = resolved_matrix(
            msgspec.structs.replace(config.matrix, batch_sizes=(batch_size,)), devices, nodes=nodes
        )
    return ResolvedTrainConfig(
        **{**msgspec.structs.asdict(config), "workload": workload, "matrix": matrix}
    )


def make_train_plan(config: ResolvedTrainConfig, kind: DeviceType) -> tuple[PlannedTraining, ...]:
    """The cells of a resolved configuration, each batch size's single device first.

    Under strong scaling, training's default, each listed batch is trained on whole by one device
    and divided among several: every strategy takes the same steps. Under weak scaling each device
    gets the listed batch. A single-device cell is planned whether or not 1 is among the device
    counts. Raises DpscopeError when nothing is left to train.
    """
    matrix = config.matrix
    with_single = (
        (1, *matrix.devices)
        if any(traits_of(one).baseline for one in matrix.strategies)
        else matrix.devices
    )
    shared = msgspec.structs.replace(matrix, devices=with_single, ddp_alone=False)
    planned = make_plan(shared, config.workload.samples, kind)
    # Strong scaling measures single devices at every share as well; to learn from, the whole
    # batch's is the one.
    chosen = [
        one
        for one in planned
        if not one.cell.traits.baseline or one.cell.batch_size in matrix.batch_sizes
    ]
    chosen.sort(
        key=lambda one: (
            one.cell.batch_size if matrix.scaling == "weak" else one.cell.global_batch_size,
            one.cell.devices,
            one.cell.nodes,
            strategy_order(one.cell.strategy),
        )
    )
    if all(one.skip_reason for one in chosen):
        raise DpscopeError(f"nothing to train: {chosen[0].cell.name}: {chosen[0].skip_reason}")
    samples = config.workload.samples
    return tuple(
        PlannedTraining(
            planned=one,
            learning_rate=scaled_learning_rate(config, one.cell),
            train_samples=samples,
            repeated_samples=-samples % one.cell.devices,  # as DistributedSampler does
        )
        for one in chosen
    )


def train_findings(
    config: ResolvedTrainConfig, plan: tuple[PlannedTraining, ...], kind: DeviceType
) -> Iterator[Finding]:
    """Findings about settings of this plan that may mislead a reader."""
    yield from plan_findings(config.workload, config.matrix, kind)
    epochs = counted(config.epochs, "epoch")
    if late := [milestone for milestone in config.milestones if milestone >= config.epochs]:
        yield LearningCode.SCHEDULE_WITHOUT_EFFECT.finding(
            f"--milestones {value_text(late)}: with {epochs} the learning rate is never cut there; "
            "a milestone takes effect after that many epochs.",
            f"Use milestones below {config.epochs}, or more --epochs.",
        )
    if config.warmup_epochs >= config.epochs:
        yield LearningCode.SCHEDULE_WITHOUT_EFFECT.finding(
            f"--warmup-epochs {config.warmup_epochs}: with {epochs} the learning rate grows to the end of the training.",
            f"Use fewer than {config.epochs} warm-up epochs.",
        )
    if config.learning_rate_scaling != "none" and all(
        _batch_growth(config, one.cell) == 1 for one in plan
    ):
        yield LearningCode.SCHEDULE_WITHOUT_EFFECT.finding(
            f"--learning-rate-scaling {config.learning_rate_scaling}: no cell has a larger global batch than the "
            f"single device it is compared with, so that all learn with {config.optimizer.learning_rate:g}.",
            "Use --scaling weak, with which the global batch grows with the devices.",
            severity="info",
        )
    if repeated := {one.cell.devices: one.repeated_samples for one in plan if one.repeated_samples}:
        counts = ", ".join(
            f"{count} of them with {counted(devices, 'device')}"
            for devices, count in repeated.items()
        )
        yield LearningCode.SAMPLES_PADDED.finding(
            f"{counted(plan[0].train_samples, 'sample')} cannot be shared evenly: an epoch trains twice on {counts}. "
            "Loss and accuracy of training count them twice; none is left out, and no test sample is repeated.",
            "Nothing, unless the data set is so small that this matters: then use device counts that divide it.",
        )


@dataclass(frozen=True, kw_only=True)
class TrainJob(Job):
    """A training: a cell with a seed."""

    folder: TrainingFolder
    config: ResolvedTrainConfig
    cell: Cell
    seed: int
    kind: DeviceType
    # the checkpoint that it continues from, as planned
    resumption: CheckpointDescription | None = None

    @property
    def finished(self) -> bool:
        """Whether it has been trained for all its epochs."""
        result = self.folder.result()
        return result is not None and result.status == "ok" and result.epochs >= self.config.epochs

    def prepare(self) -> None:
        self.folder.clear_attempt()
        if self.resumption is not None:
            restore_progress(self.resumption, self.folder)

    def store_failure(self, outcome: JobOutcome, took_s: float) -> str:
        last = self.checkpoints.last
        saved = "nothing was saved yet"
        if last.exists():
            saved = f"saved at the end of epoch {verify(last).epochs}"
        result = TrainResult(
            cell=self.cell,
            seed=self.seed,
            status=outcome.status,
            epochs=len(self.folder.epochs()),
            duration_s=took_s,
            message=f"{outcome.message}; {saved}",
            log_tail=outcome.log_tail,
        )
        write_json(self.folder.result_path, result)
        return result.message

    @property
    def checkpoints(self) -> CheckpointFolder:
        return CheckpointFolder(self.folder.checkpoints_path)

    @property
    def workload(self) -> Workload:
        """The workload with this training's seed."""
        return msgspec.structs.replace(self.config.workload, seed=self.seed)

    @property
    def optimizer(self) -> Optimizer:
        """The optimizer's settings, with this training's learning rate."""
        learning_rate = scaled_learning_rate(self.config, self.cell)
        return msgspec.structs.replace(self.config.optimizer, learning_rate=learning_rate)

    def find_resumption(self) -> CheckpointDescription | None:
        """What the training's verified last checkpoint is of; None if there is none.

        Raises DpscopeError for one that is incomplete or beyond the requested epochs.
        """
        last = self.checkpoints.last
        if not last.exists():
            return None
        had = verify(last)
        if (had.cell, had.seed) != (self.cell, self.seed):
            raise DpscopeError(
                f"{last} is of {had.cell.name} with seed {had.seed}; remove it, or give --fresh"
            )
        if had.epochs > self.config.epochs:
            raise DpscopeError(
                f"--epochs {self.config.epochs}: {last} is at the end of epoch {had.epochs} already; give more epochs, or start "
                "over with --fresh"
            )
        return had


def train_job(
    out: TrainFolder,
    config: ResolvedTrainConfig,
    cell: Cell,
    seed: int,
    kind: DeviceType,
    threads: int,
) -> TrainJob:
    return TrainJob(
        name=f"{cell.name} seed {seed}",
        program=Assignment(task="train", out=str(out.path), cell=cell.name, seed=seed).program,
        folder=out.training(cell, seed),
        threads=threads,
        processes=cell.processes,
        nodes=cell.nodes,
        # On several nodes, torchrun's agents would restart their processes independently: the same
        # command resumes instead.
        max_restarts=config.max_restarts if cell.nodes == 1 else 0,
        run=RunFolder(out.path),
        timeout_s=config.timeout_s,
        alike=cell.name,
        config=config,
        cell=cell,
        seed=seed,
        kind=kind,
    )


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
    resolved = resolve_training(config, devices, nodes)
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
    plan = make_train_plan(resolved, devices.kind)
    threads = threads_per_process(resolved.matrix)
    jobs = []
    for job in _jobs(folder, resolved, plan, devices.kind, threads):
        done = not fresh and job.finished
        jobs.append(
            replace(job, done=done, resumption=None if done or fresh else job.find_resumption())
        )
    findings = tuple(train_findings(resolved, plan, devices.kind))
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
