"""The plan of `dpscope train` on this machine: from a TOML file and flags to configuration, cells,
learning rates and jobs. Imports no torch.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Column, Table

from dpscope.launch.jobs.assignment import Assignment
from dpscope.launch.jobs.devices import Devices, DeviceType, resolve_devices
from dpscope.launch.jobs.job_outcome import JobOutcome
from dpscope.launch.jobs.out_folder import check_train_place
from dpscope.launch.jobs.torchrun import Job
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
    estimate_training,
    measured_cells,
    print_commands,
    print_estimate,
    print_findings,
    print_left_out,
)
from dpscope.launch.workload.data_files import SMALL_RESNET, check_data
from dpscope.launch.workload.model_size import checked_model_size
from dpscope.profiling.records.config import Optimizer, Workload
from dpscope.profiling.records.finding import counted
from dpscope.profiling.records.run import Cell, PlannedCell
from dpscope.profiling.records.settings import check_settings, declarations, top_level_settings
from dpscope.profiling.records.strategies import strategy_order, traits_of
from dpscope.profiling.records.training import (
    TRAINING_MAY_CHANGE,
    PlannedTraining,
    ResolvedTrainConfig,
    TrainConfig,
    TrainResult,
)
from dpscope.profiling.records.typed_text import choose_from
from dpscope.profiling.store.errors import DpscopeError
from dpscope.profiling.store.files import write_json
from dpscope.profiling.store.folders import RunFolder
from dpscope.profiling.store.training_folders import TrainFolder, TrainingFolder, is_train_folder

TRAIN_SETTINGS = {
    name: setting for name, setting in declarations(TrainConfig).items() if name != "seed"
}
"""Settings of a training; its workload's seed is one of `seeds`."""

_DATA = ("digits", "cifar10", "fake")
_SCALINGS = ("strong", "weak")  # a training reads its batch sizes in one way
_DEFAULTS = {
    "data": "digits",
    "model": SMALL_RESNET,
    "scaling": "strong",
    "learning_rate": 0.05,
    "epochs": 12,
}
_SCHEDULE: dict[str, object] = {"epochs": 12, "warmup_epochs": 1, "milestones": (7, 10)}
"""Used together if none of them is given; digits are learned to 99% with it."""

TRAINING_BATCH_SIZE = 32


def load_train_config(config_path: Path | None, flags: dict[str, object]) -> TrainConfig:
    """The configuration of a TOML file overlaid by flags, as `run_config.load_config` reads them.

    Raises DpscopeError naming field, value and fix.
    """
    given, origins = run_config.given_settings(config_path, flags, TRAIN_SETTINGS)
    values = _DEFAULTS | ({} if _SCHEDULE.keys() & given.keys() else _SCHEDULE) | given
    # except for digits, loading takes long enough to have workers for it
    values.setdefault("workers", 0 if values["data"] == "digits" else Workload().workers)
    if values["data"] not in _DATA:
        raise DpscopeError(
            f"{origins['data']} {values['data']}: {choose_from(values['data'], _DATA)}; one synthetic batch teaches nothing"
        )
    if values["scaling"] not in _SCALINGS:
        raise DpscopeError(
            f"{origins['scaling']} {values['scaling']}: {choose_from(values['scaling'], _SCALINGS)}"
        )
    workload = run_config.build(Workload, values, origins)
    matrix = run_config.build_matrix(values, origins, workload.amp)
    if matrix.batch_growth is not None:
        raise DpscopeError(
            f"{origins['batch_sizes']} with growth: name each size to train with, such as 32,128"
        )
    parts = {
        "workload": workload,
        "optimizer": run_config.build(Optimizer, values, origins),
        "matrix": matrix,
    }
    learning = {name: values[name] for name in top_level_settings(TrainConfig) if name in values}
    config = run_config.build(TrainConfig, parts | learning, origins)
    seeds = tuple(dict.fromkeys(config.seeds))
    milestones = tuple(sorted(set(config.milestones)))
    config = msgspec.structs.replace(config, seeds=seeds, milestones=milestones)
    with run_config.raising_user_errors(origins):
        check_settings(config)
    run_config.check_idle(config, origins)
    return config


def scaled_learning_rate(config: TrainConfig, cell: Cell) -> float:
    """A cell's learning rate, before warm-up and milestones, by the growth of its global batch over
    that of a single device.

    linear: P. Goyal et al., Accurate, Large Minibatch SGD (arXiv:1706.02677), which holds while
    batches are small against the gradient's noise; sqrt: A. Krizhevsky, One weird trick
    (arXiv:1404.5997), which keeps the noise's variance.
    """
    growth = cell.devices if config.matrix.scaling == "weak" else 1
    factors = {"none": 1.0, "sqrt": math.sqrt(growth), "linear": growth}
    return config.optimizer.learning_rate * factors[config.learning_rate_scaling]


def resolve_training(config: TrainConfig, devices: Devices, nodes: int = 1) -> ResolvedTrainConfig:
    """The configuration with every automatic value chosen for this machine; raises DpscopeError for
    an impossible one.
    """
    parts = {
        "workload": resolved_workload(config.workload, devices.kind),
        "matrix": resolved_matrix(config.matrix, devices, nodes, (TRAINING_BATCH_SIZE,)),
    }
    return ResolvedTrainConfig(**{**msgspec.structs.asdict(config), **parts})


def make_train_plan(config: ResolvedTrainConfig, kind: DeviceType) -> tuple[PlannedTraining, ...]:
    """The cells of a resolved configuration, each batch size's single device first.

    Under strong scaling, training's default, each listed batch is trained on whole by one device
    and divided among several: every strategy takes the same steps. Under weak scaling each device
    gets the listed batch. A single-device cell is planned whether or not 1 is among the device
    counts. Raises DpscopeError when nothing is left to train.
    """
    matrix = config.matrix
    samples = config.workload.samples
    devices = matrix.devices
    if any(traits_of(strategy).baseline for strategy in matrix.strategies):
        devices = (1, *devices)
    shared = msgspec.structs.replace(matrix, devices=devices, ddp_alone=False)
    # Strong scaling also measures a single device at every share, from which it would learn
    # something else.
    planned_cells = [
        planned
        for planned in make_plan(shared, samples, kind)
        if not planned.cell.traits.baseline or planned.cell.batch_size in matrix.batch_sizes
    ]

    def order(planned: PlannedCell) -> tuple[int, ...]:
        cell = planned.cell
        listed_batch = cell.batch_size if matrix.scaling == "weak" else cell.global_batch_size
        return listed_batch, cell.devices, cell.nodes, strategy_order(cell.strategy)

    planned_cells.sort(key=order)
    if all(planned.skip_reason for planned in planned_cells):
        first = planned_cells[0]
        raise DpscopeError(f"nothing to train: {first.cell.name}: {first.skip_reason}")
    return tuple(
        PlannedTraining(
            planned=planned,
            learning_rate=scaled_learning_rate(config, planned.cell),
            train_samples=samples,
            repeated_samples=-samples % planned.cell.devices,  # as DistributedSampler does
        )
        for planned in planned_cells
    )


@dataclass(frozen=True, kw_only=True)
class TrainJob(Job):
    """A training: a cell with a seed."""

    folder: TrainingFolder
    config: ResolvedTrainConfig
    cell: Cell
    seed: int
    kind: DeviceType

    @property
    def finished(self) -> bool:
        """Whether it has been trained for all its epochs."""
        result = self.folder.result()
        return result is not None and result.status == "ok" and result.epochs >= self.config.epochs

    @property
    def trained_epochs(self) -> int:
        """The whole epochs that are saved, after which it goes on."""
        return len(self.folder.epochs()) if self.folder.last_path.exists() else 0

    def prepare(self) -> None:
        self.folder.clear_attempt()

    def store_failure(self, outcome: JobOutcome, took_s: float) -> str:
        result = TrainResult(
            cell=self.cell,
            seed=self.seed,
            status=outcome.status,
            epochs=self.trained_epochs,
            duration_s=took_s,
            message=f"{outcome.message}; {counted(self.trained_epochs, 'epoch')} saved",
            log_tail=outcome.log_tail,
        )
        write_json(self.folder.result_path, result)
        return result.message

    @property
    def workload(self) -> Workload:
        """The workload with this training's seed."""
        return msgspec.structs.replace(self.config.workload, seed=self.seed)

    @property
    def optimizer(self) -> Optimizer:
        """The optimizer's settings, with this training's learning rate."""
        learning_rate = scaled_learning_rate(self.config, self.cell)
        return msgspec.structs.replace(self.config.optimizer, learning_rate=learning_rate)


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
        program=Assignment(task="train", out=str(out.path), cell=cell.name, seed=seed).program(
            kind
        ),
        folder=out.training(cell, seed),
        threads=threads,
        processes=cell.processes,
        nodes=cell.nodes,
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
    size = checked_model_size(resolved.workload, resolved.optimizer)
    folder = TrainFolder(out)
    check_train_place(out)
    begun = is_train_folder(out) and not fresh
    if begun:
        trained = folder.manifest().config
        check_same_settings(f"--out {out}: holds trainings", trained, resolved, TRAINING_MAY_CHANGE)
    plan = make_train_plan(resolved, devices.kind)
    threads = threads_per_process(resolved.matrix)
    jobs = []
    for job in _jobs(folder, resolved, plan, devices.kind, threads):
        trained_epochs = job.trained_epochs if begun else 0
        left = resolved.epochs - trained_epochs
        if left < 0:
            raise DpscopeError(
                f"--epochs {resolved.epochs}: {job.name} is at the end of epoch {trained_epochs} already; give more "
                "epochs, or start over with --fresh"
            )
        estimate = estimate_training(job.cell, resolved, left, devices.kind, size)
        planned = replace(
            job,
            done=begun and job.finished,
            estimate_s=estimate.duration_s,
            estimate_bytes=estimate.bytes,
        )
        jobs.append(planned)
    return TrainPlan(
        device_type=devices.kind,
        threads=threads,
        jobs=tuple(jobs),
        findings=tuple(plan_findings(resolved.workload, resolved.matrix, devices.kind)),
        model_size=size,
        config=resolved,
        plan=plan,
    )


def _jobs(
    out: TrainFolder,
    config: ResolvedTrainConfig,
    plan: Sequence[PlannedTraining],
    kind: DeviceType,
    threads: int,
) -> list[TrainJob]:
    """The trainings of a plan in the order in which they run: seed by seed."""
    cells = measured_cells(training.planned for training in plan)
    return [
        train_job(out, config, cell, seed, kind, threads) for seed in config.seeds for cell in cells
    ]


def planned_trainings(out: Path) -> Sequence[Job]:
    """The jobs in the manifest of trainings that have begun, with or without results."""
    if not is_train_folder(out):
        return []
    folder = TrainFolder(out)
    begun = folder.manifest()
    return _jobs(folder, begun.config, begun.plan, begun.device_type, begun.threads_per_process)


def describe_trainings(
    config: TrainConfig,
    out: Path,
    console: Console,
    fresh: bool = False,
    nodes: int = 1,
    options: Mapping[str, object] | None = None,
    config_path: Path | None = None,
) -> None:
    """Print the plan of trainings, with its estimates and a command for each cell, which works by
    hand; starts and writes nothing. `options` and `config_path` are what `config` was read from.
    """
    description = plan_trainings(config, out, fresh, nodes)
    print_train_plan(description, console)
    by_hand: dict[str, object] = {}
    if fresh or not is_train_folder(out):
        by_hand = {"options": options or {}, "config": config_path, "nodes": nodes}
    elif TrainFolder(out).manifest().config != description.config:
        console.print(
            f"{out} still has other settings, which a cell trained by hand would use: dpscope train changes them."
        )
        return
    print_commands(description, console, "seed is one of --seeds", by_hand)


def print_train_plan(description: TrainPlan, console: Console) -> None:
    """Print the cells that are trained, with data and settings, and what remains to be done."""
    config = description.config
    print_left_out((training.planned for training in description.plan), console)
    seeds = counted(len(config.seeds), "seed")
    epochs = f"{counted(config.epochs, 'epoch')} of {counted(config.workload.samples, 'sample')}"
    console.print(
        f"{config.workload.model} on {config.workload.data}, {epochs}, {seeds}.", soft_wrap=True
    )
    headings = ("devices", "global batch", "learning rate", "epochs trained")
    cell_heading = Column("cell", no_wrap=True)
    table = Table(cell_heading, *headings, box=None, pad_edge=False)
    for cell in measured_cells(training.planned for training in description.plan):
        jobs = [job for job in description.jobs if job.cell == cell]
        trained = sum(job.trained_epochs for job in jobs)
        table.add_row(
            cell.name,
            str(cell.devices),
            str(cell.global_batch_size),
            f"{scaled_learning_rate(config, cell):g}",
            f"{trained} of {config.epochs * len(jobs)}",
        )
    console.print(table)
    print_estimate(description, console)
    print_findings(description.findings, console)
