"""The passes over one cell in one process: warm-up, timed, traced, DDP's counters. Never mixed."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from dpscope.launch.jobs.process_group import synchronise, told_by_rank_0
from dpscope.launch.workload.compiling import compiled_so_far
from dpscope.launch.workload.train_step import TrainStep
from dpscope.profiling.instruments import ddp_counters
from dpscope.profiling.instruments.step_timer import StepSample, nothing, time_block
from dpscope.profiling.instruments.trace_recorder import record_trace
from dpscope.profiling.records.config import RunConfig
from dpscope.profiling.records.run import Cell, DeviceMemory, TimedBlock
from dpscope.profiling.records.wrapped import Compilation, ShardedUnit
from dpscope.profiling.store.files import write_json
from dpscope.profiling.store.folders import RepeatFolder

LEAST_DEVICE_STEPS = ddp_counters.ALWAYS_COUNTED_ITERATIONS + 1  # until DDP stops counting, and for the others as long
LEAST_DEVICE_S = 1.5  # clocks rise and kernels are chosen while a device warms up


@dataclass(frozen=True)
class CellProcess:
    """One process of a cell, ready to train."""

    config: RunConfig
    cell: Cell
    node: int
    rank: int
    devices: tuple[torch.device, ...]  # all the devices this process drives, its first one first
    model: nn.Module  # wrapped by the strategy
    step: TrainStep
    folder: RepeatFolder
    report: Callable[[str], None]  # tells which pass begins
    units: tuple[ShardedUnit, ...] = ()  # of FSDP
    tokens: int | None = None  # of a sample, where it is made of tokens
    look_at_devices: Callable[[], None] = nothing  # called while the last timed steps run

    def synchronise(self) -> None:
        """Wait for this process's devices and for the other processes."""
        synchronise(self.devices)


@dataclass(frozen=True)
class PassResults:
    """What the passes found."""

    samples: tuple[StepSample, ...]
    blocks: tuple[TimedBlock, ...]
    memory: tuple[DeviceMemory, ...]
    compilation: Compilation | None = None  # of a cell that is compiled


def run_passes(process: CellProcess) -> PassResults:
    """Run every pass of a cell; traces and counters are saved on the way, the rest is returned."""
    if process.config.measurement.epochs is None:
        process.step.batches.leave_out_short_batches()
    process.report("warm-up")
    _warm_up(process)
    warm = compiled_so_far() if process.cell.options.compile != "off" else None
    process.report("timed")
    _reset_peak_memory(process.devices)
    blocks, samples = _timed(process)
    process.step.batches.leave_out_short_batches()  # whole epochs had them; steps that are traced compare
    memory = _peak_memory(process.devices)
    process.report("traced")
    traced = record_trace(
        process.step,
        process.config.measurement.traced_steps,
        process.folder.trace_path(process.node, process.rank),
        process.devices[0],
        # DataParallel's replicas, and PowerSGD's second and third all-reduce, run on threads that the profiler does not see.
        all_threads=process.cell.strategy in ("dp", "dp-host") or process.cell.options.comm_hook == "powersgd",
        synchronise=process.synchronise,
    )
    if isinstance(process.model, DistributedDataParallel) and process.cell.devices > 1:
        process.report("counters")
        _count(process, process.model)
    return PassResults((*samples, *traced), tuple(blocks), memory, _compilation(warm))


def _compilation(warm: Compilation | None) -> Compilation | None:
    """All that was compiled; `warm` is what had been when warm-up was over."""
    if warm is None:
        return None
    now = compiled_so_far()
    return msgspec.structs.replace(now, late_graphs=now.graphs - warm.graphs)


def _warm_up(process: CellProcess) -> None:
    """The steps asked for; on devices LEAST_DEVICE_STEPS and LEAST_DEVICE_S at least, alike for all strategies."""
    steps, done = process.config.measurement.warmup_steps, 0
    on_device = process.devices[0].type == "cuda"
    if isinstance(process.model, DistributedDataParallel):
        ddp_counters.stop_counting(process.model)
    if on_device:
        steps = max(steps, LEAST_DEVICE_STEPS)
    # Whole epochs where epochs are timed, so that these start at their start.
    per_epoch = 1 if process.config.measurement.epochs is None else process.step.batches.steps_per_epoch
    began_s = time.monotonic()
    while steps > 0:
        whole = math.ceil(steps / per_epoch) * per_epoch
        for _ in range(whole):
            process.step()
        done += whole
        steps = _steps_left(process, done, began_s) if on_device else 0


def _steps_left(process: CellProcess, done: int, began_s: float) -> int:
    """How many more steps it takes until LEAST_DEVICE_S have passed, at the pace so far; the same in every process."""
    process.synchronise()
    passed_s = time.monotonic() - began_s
    left = math.ceil((LEAST_DEVICE_S - passed_s) * done / passed_s) if passed_s < LEAST_DEVICE_S else 0
    return told_by_rank_0(left, process.devices[0])


def _timed(process: CellProcess) -> tuple[list[TimedBlock], list[StepSample]]:
    """One block of `steps` steps, or one block per epoch."""
    device = process.devices[0]
    steps, epochs = process.config.measurement.steps, process.config.measurement.epochs
    if steps is not None:
        block, samples = time_block(
            process.step, steps, device, process.synchronise, under_load=process.look_at_devices
        )
        return [block], samples
    blocks, all_samples = [], []
    per_epoch = process.step.batches.steps_per_epoch
    for epoch in range(epochs or 0):
        first_step = epoch * per_epoch
        look = process.look_at_devices if epoch + 1 == epochs else nothing
        block, samples = time_block(process.step, per_epoch, device, process.synchronise, first_step, epoch, look)
        blocks.append(block)
        all_samples += samples
    return blocks, all_samples


def _count(process: CellProcess, model: DistributedDataParallel) -> None:
    counters = ddp_counters.record_counters(
        model,
        process.step,
        process.config.measurement.traced_steps,
        process.folder.counters_trace_path(process.node, process.rank),
        process.devices[0],
        process.synchronise,
    )
    write_json(process.folder.counters_path(process.node, process.rank), counters)


def _reset_peak_memory(devices: Sequence[torch.device]) -> None:
    for device in devices:
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)


def _peak_memory(devices: Sequence[torch.device]) -> tuple[DeviceMemory, ...]:
    return tuple(
        DeviceMemory(
            device=device.index,
            allocated_bytes=torch.cuda.max_memory_allocated(device),
            reserved_bytes=torch.cuda.max_memory_reserved(device),
        )
        for device in devices
        if device.type == "cuda"
    )
