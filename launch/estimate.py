"""How long a run will take and how much it will write, before it starts. Imports no torch.

Rough on purpose: for CPUs constants measured once with ResNet-18 for CIFAR, for GPUs assumed ones. They are there so
that nobody starts an hour by mistake; the time left that a running sweep shows is corrected by what its cells really
took.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from dpscope.launch.devices import DeviceType
from dpscope.launch.plan import CIFAR_RESNET, threads_per_process
from dpscope.profiling.environment import usable_cores
from dpscope.profiling.run_types import Cell, Finding, PlannedCell, RunConfig

BASIS = {
    "cpu": "from constants measured with ResNet-18 for CIFAR on a 2-core host; other machines and models differ",
    "cuda": "from assumed step times, not from measured ones; GPUs and models differ",
}

_START_S = {"cuda": 14.0, "cpu": 6.5}  # torchrun, imports, process group, model
_PROFILER_STEPS = 6  # steps under the profiler's warm-up, and the steps beside the traced ones
_LARGE_MODEL_FACTOR = 10.0  # a 224 x 224 ImageNet model against a 32 x 32 ResNet-18
_TRACED_STEP_BYTES = {"cuda": 300_000, "cpu": 110_000}  # gzip, one process or replica


@dataclass(frozen=True)
class CellEstimate:
    """One repeat of one cell."""

    duration_s: float
    bytes: int


def estimate_cell(cell: Cell, config: RunConfig, kind: DeviceType) -> CellEstimate:
    """Time and disk of one repeat of a cell."""
    step_s = _step_s(cell, config, kind)
    duration_s = _START_S[kind] + _steps(cell, config) * step_s
    writers = cell.devices * (2 if cell.strategy == "ddp" else 1)  # DDP's counters pass is traced as well
    traced_bytes = writers * (config.traced_steps + 1) * _TRACED_STEP_BYTES[kind]
    return CellEstimate(duration_s=duration_s, bytes=traced_bytes + 20_000)


def estimate_findings(plan: Sequence[PlannedCell], config: RunConfig, kind: DeviceType) -> list[Finding]:
    """Cells that will probably be ended by the time limit before they are measured."""
    durations = {one.cell.name: estimate_cell(one.cell, config, kind).duration_s for one in plan if not one.skip_reason}
    over = {name: duration_s for name, duration_s in durations.items() if duration_s > config.timeout_s}
    if not over:
        return []
    return [
        Finding(
            severity="warning",
            code="estimate_over_timeout",
            message=f"{', '.join(over)}: a repeat is estimated to take up to {max(over.values()):.0f} s and is ended at "
            f"its time limit of {config.timeout_s:g} s, unmeasured.",
            next_step="Raise --timeout, or measure fewer steps or smaller batches.",
        )
    ]


def _steps(cell: Cell, config: RunConfig) -> int:
    passes = 2 if cell.strategy == "ddp" else 1
    beside = passes * (config.traced_steps + _PROFILER_STEPS)
    if config.epochs is None:
        return config.warmup_steps + (config.steps or 0) + beside
    return (1 + config.epochs) * math.ceil(config.samples / cell.global_batch_size) + beside


def _step_s(cell: Cell, config: RunConfig, kind: DeviceType) -> float:
    factor = 1.0 if config.model == CIFAR_RESNET or ":" in config.model else _LARGE_MODEL_FACTOR
    if kind == "cuda":
        communication_s = 0.0 if cell.devices == 1 else 0.01
        return factor * (0.015 + 5e-5 * cell.batch_size) + communication_s
    threads = threads_per_process(config)
    one_s = factor * (0.1 + 0.026 * cell.batch_size) / threads
    turns = max(1.0, cell.devices * threads / usable_cores())
    communication_s = 0.0 if cell.devices == 1 else 0.15
    return one_s * turns + communication_s
