"""Makes a run's manifest, and estimates how long the run takes and how much it writes. Imports
torch only for a manifest.

The estimate is rough on purpose: a step is a fixed part, a part that grows with the model's
parameters (the optimizer, DP's and DDP's communication) and one that grows with its
multiplications. For CPUs the constants were measured once with ResNet-18 for CIFAR, for GPUs they
are assumed. They prevent starting an hour by mistake; the remaining time that a running sweep shows
is corrected by the times of its finished cells.
"""

import importlib.metadata
import math
import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec
from rich.console import Console
from rich.text import Text

from dpscope.launch.jobs.assignment import read_assignment
from dpscope.launch.jobs.devices import DeviceType
from dpscope.launch.jobs.job_queue import duration_text
from dpscope.launch.jobs.torchrun import Job
from dpscope.launch.planning.cells import plan_findings, threads_per_process
from dpscope.launch.planning.run_config import published_of, read_published, setting_text
from dpscope.launch.workload.data_files import CIFAR_RESNET, normalisation
from dpscope.launch.workload.model_size import SIZES, ModelSize
from dpscope.profiling.machine.conditions import (
    ConditionDifference,
    machine_differences,
    setting_differences,
)
from dpscope.profiling.machine.cores import usable_cores
from dpscope.profiling.machine.environment import collect_environment, machine_findings
from dpscope.profiling.machine.nvml import open_nvml
from dpscope.profiling.records.config import ResolvedConfig
from dpscope.profiling.records.finding import Finding, counted
from dpscope.profiling.records.plan_codes import PlanCode
from dpscope.profiling.records.run import (
    SCHEMA_VERSION,
    Cell,
    Commit,
    Environment,
    Host,
    Manifest,
    PlannedCell,
)
from dpscope.profiling.records.settings import settings_of
from dpscope.profiling.records.training import ResolvedTrainConfig
from dpscope.profiling.store.errors import DpscopeError

_BASIS = {
    "cpu": "from constants measured with ResNet-18 for CIFAR on a 2-core host; other machines and models differ",
    "cuda": "from assumed step times, not from measured ones; GPUs and models differ",
}
_UNCOUNTED = "this model's multiplications cannot be counted ({}) and are taken as those of ResNet-18 for CIFAR"

# torchrun, imports, process group, model; on GPUs a second of sampled load
_START_S = {"cuda": 15.0, "cpu": 6.5}
# small models; inductor less once its caches are there
_COMPILE_S = {"off": 0.0, "aot_eager": 6.0, "default": 30.0}
_PROFILER_STEPS = 6  # steps under the profiler's warm-up, and steps that are not traced
_YARDSTICK = SIZES[CIFAR_RESNET]
# of an epoch's steps: a fifth to a quarter as many samples, without backward pass and update
_TEST_SHARE = 0.1
_TRACED_STEP_BYTES = {"cuda": 300_000, "cpu": 110_000}  # gzip, one process or replica


@dataclass(frozen=True)
class JobEstimate:
    """One repeat of one cell, or one training."""

    duration_s: float
    bytes: int


_JobT = TypeVar("_JobT", bound=Job)


@dataclass(frozen=True, kw_only=True)
class Plan(Generic[_JobT]):
    """What a command will do on this machine."""

    device_type: DeviceType
    threads: int  # of each process
    jobs: tuple[_JobT, ...]  # in order
    findings: tuple[Finding, ...]
    model_size: ModelSize

    @property
    def to_do(self) -> list[_JobT]:
        """The remaining jobs."""
        return [job for job in self.jobs if not job.done]

    @property
    def duration_s(self) -> float:
        """Estimated time of the remaining jobs."""
        return sum(job.estimate_s or 0.0 for job in self.to_do)

    @property
    def cost(self) -> str:
        """Estimated time and disk usage of what remains."""
        disk_bytes = sum(job.estimate_bytes for job in self.to_do)
        return f"{duration_text(self.duration_s)} and {disk_bytes / 1e6:.0f} MB of disk"


def measured_cells(plan: Iterable[PlannedCell]) -> list[Cell]:
    return [planned.cell for planned in plan if planned.skip_reason is None]


def print_left_out(plan: Iterable[PlannedCell], console: Console) -> None:
    for planned in plan:
        if planned.skip_reason is not None:
            console.print(
                Text(f"{planned.cell.name} is left out: {planned.skip_reason}"), soft_wrap=True
            )


def print_findings(findings: Iterable[Finding], console: Console) -> None:
    for finding in findings:
        console.print(
            Text(f"{finding.severity}: {finding.message} {finding.next_step}"), soft_wrap=True
        )


def check_same_settings(
    holds: str, had: msgspec.Struct, now: msgspec.Struct, may_change: Collection[str]
) -> None:
    """Raise DpscopeError that names the first setting that differs from what a folder `holds` and
    may not change.
    """
    names = [name for name in settings_of(now) if name not in may_change]
    for difference in setting_differences(had, now, names)[:1]:
        then_text = setting_text(difference.what, difference.then)
        now_text = setting_text(difference.what, difference.now)
        raise DpscopeError(
            f"{holds} with {then_text}, not {now_text}; use the same settings to resume, --fresh "
            "to start over, or another --out"
        )


def estimate_basis(kind: DeviceType, size: ModelSize) -> str:
    """What the estimates rest on."""
    if size.multiplications is not None:
        return _BASIS[kind]
    return f"{_BASIS[kind]}; {_UNCOUNTED.format(size.uncounted)}"


def print_estimate(plan: Plan[_JobT], console: Console) -> None:
    """What remains to be done, how long it takes and how much it writes."""
    console.print(
        f"{plan.device_type}, {counted(plan.threads, 'thread')} per process; "
        f"{counted(len(plan.to_do), 'job')} to do: about {plan.cost} (an estimate: "
        f"{estimate_basis(plan.device_type, plan.model_size)}).",
        highlight=False,
        soft_wrap=True,
    )


def print_commands(
    plan: Plan[_JobT], console: Console, others: str, by_hand: Mapping[str, Any]
) -> None:
    """A torchrun command for the first job to do of each cell, which works by hand; `others` states
    how the commands of further jobs differ. `by_hand` are the fields of an assignment with which it
    begins the folder.
    """
    first: dict[str, Job] = {}
    for job in plan.to_do:
        first.setdefault(job.alike, job)
    if len(first) < len(plan.to_do):
        console.print(f"A command for each cell; {others}:")
    for planned in first.values():
        assignment = msgspec.structs.replace(read_assignment(planned.program[-1:]), **by_hand)
        command = shlex.join(replace(planned, program=assignment.program(plan.device_type)).command)
        # to be given on each node, with its number
        command = command.replace("--node-rank=0", "--node-rank=NODE")
        console.print(Text(command), soft_wrap=True)


def estimate_cell(
    cell: Cell, config: ResolvedConfig, kind: DeviceType, size: ModelSize
) -> JobEstimate:
    """Time and disk of one repeat of a cell."""
    measurement = config.measurement
    # The traced one, and DDP's counters pass, which is traced as well.
    passes = 2 if cell.traits.reducer and cell.devices > 1 else 1
    steps = passes * (measurement.traced_steps + _PROFILER_STEPS)
    if measurement.epochs is None:
        steps += measurement.warmup_steps + (measurement.steps or 0)
    else:
        steps += (1 + measurement.epochs) * math.ceil(
            config.workload.samples / cell.global_batch_size
        )
    compile_s = _COMPILE_S.get(cell.options.compile, _COMPILE_S["default"])
    return JobEstimate(
        duration_s=_START_S[kind] + compile_s + steps * _step_s(cell, config, kind, size),
        bytes=passes * cell.devices * (measurement.traced_steps + 1) * _TRACED_STEP_BYTES[kind]
        + 20_000,
    )


def estimate_training(
    cell: Cell, config: ResolvedTrainConfig, epochs: int, kind: DeviceType, size: ModelSize
) -> JobEstimate:
    """Time and disk of one training of a cell that has so many epochs left."""
    compile_s = _COMPILE_S.get(cell.options.compile, _COMPILE_S["default"])
    steps = math.ceil(config.workload.samples / cell.global_batch_size)
    epoch_s = steps * _step_s(cell, config, kind, size) * (1 + _TEST_SHARE)
    # weights and momentum in single precision, of the last epoch and of the best one
    checkpoint_bytes = size.parameters * 4 * 2
    return JobEstimate(
        duration_s=_START_S[kind] + compile_s + epochs * epoch_s,
        bytes=2 * checkpoint_bytes + 20_000,
    )


def _step_s(
    cell: Cell, config: ResolvedConfig | ResolvedTrainConfig, kind: DeviceType, size: ModelSize
) -> float:
    parameters = size.parameters / _YARDSTICK.parameters
    assert _YARDSTICK.multiplications is not None
    multiplications = (
        size.multiplications or _YARDSTICK.multiplications
    ) / _YARDSTICK.multiplications
    traffic = cell.traits.traffic if cell.devices > 1 else 0.0
    if kind == "cuda":
        return (
            0.014
            + 0.001 * parameters
            + 5e-5 * multiplications * cell.batch_size
            + 0.01 * parameters * traffic
        )
    threads = threads_per_process(config.matrix)
    one_s = 0.01 + (0.09 * parameters + 0.026 * multiplications * cell.batch_size) / threads
    turns = max(1.0, cell.devices * threads / usable_cores())
    return one_s * turns + (0.01 + 0.14 * parameters) * traffic


def baseline_findings(plan: Sequence[PlannedCell]) -> list[Finding]:
    """That no cell on one device is planned, with which those on several could be compared."""
    counts = sorted({planned.cell.devices for planned in plan if not planned.skip_reason})
    if not counts or 1 in counts:
        return []
    message = f"No cell on one device is planned, only on {' and '.join(map(str, counts))}"
    return [
        PlanCode.NO_BASELINE.finding(
            f"{message}: gain, efficiency and subtraction estimates will be NA.",
            f"Use --devices {','.join(map(str, (1, *counts)))}, with single in --strategy.",
        )
    ]


def estimate_findings(estimates: Mapping[Cell, JobEstimate], limit_s: float) -> list[Finding]:
    """Cells that will probably be ended by the time limit before they are measured."""
    if not (
        over := {
            cell.name: estimate.duration_s
            for cell, estimate in estimates.items()
            if estimate.duration_s > limit_s
        }
    ):
        return []
    return [
        PlanCode.ESTIMATE_OVER_TIMEOUT.finding(
            f"{', '.join(over)}: a repeat is estimated to take up to {duration_text(max(over.values()))} and is "
            f"ended at its time limit of {limit_s:g} s, unmeasured."
        )
    ]


def new_manifest(
    config: ResolvedConfig,
    kind: DeviceType,
    threads: int,
    plan: Sequence[PlannedCell],
    code: Path | None = None,
) -> Manifest:
    """The manifest of a run that starts now, here; `code` as in `collect_environment`."""
    environment = collect_environment(
        open_nvml() if kind == "cuda" else None, on_gpus=kind == "cuda", code=code
    )
    findings = [*plan_findings(config.workload, config.matrix, kind), *baseline_findings(plan)]
    table = config.reporting.published
    published = read_published(Path(table)) if table is not None else ()
    return Manifest(
        schema_version=SCHEMA_VERSION,
        dpscope_version=importlib.metadata.version("dpscope"),
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        config=config,
        device_type=kind,
        threads_per_process=threads,
        environment=environment,
        plan=tuple(plan),
        normalisation=normalisation(config.workload),
        findings=(*machine_findings(environment, kind, config.matrix.most_on_a_node), *findings),
        published=tuple(
            published_of(published, config.workload, [planned.cell for planned in plan])
        ),
    )


def check_comparable(out: Path, differences: Sequence[ConditionDifference]) -> None:
    """Raise DpscopeError unless what is added to a run folder will compare with what is there."""
    if differences:
        raise DpscopeError(
            f"--out {out}: begun with {differences[0]}: new cells would not compare with those that are there; set it as it "
            "was, use --fresh to redo them, or another --out"
        )


def commit_findings(then: Commit | None, now: Commit | None) -> tuple[Finding, ...]:
    """What it means that a run goes on with other code than it was begun with; nothing where either
    is not known.
    """
    if then is None or now is None or then == now:
        return ()
    return (
        PlanCode.MIXED_COMMITS.finding(
            f"the run was begun with the code at {then} and goes on with {now}."
        ),
    )


def hosts_findings(first: Environment, hosts: Sequence[Host]) -> tuple[Finding, ...]:
    """`host_findings` of all nodes of a command."""
    return tuple(
        finding
        for host in hosts
        if host.environment
        for finding in host_findings(first, host.environment)
    )


def host_findings(first: Environment, other: Environment) -> tuple[Finding, ...]:
    """Conditions that make a job over several hosts unfair, found on another host than the
    first.
    """
    if not (differences := machine_differences(first, other, partly=["GPUs"])):
        return ()
    message = f"{other.hostname} is unlike {first.hostname}, on which the run began ({'; '.join(map(str, differences))})"
    return (
        PlanCode.MIXED_HOSTS.finding(
            f"{message}: every synchronous step waits for the slowest host."
        ),
    )
