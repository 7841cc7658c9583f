"""The separate passes over one cell in one process: warm-up, timed, traced, DDP's counters."""

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from threading import Event, Thread

import msgspec
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from dpscope.launch.jobs.process_group import limit_collectives, rank_0_value, synchronise
from dpscope.launch.jobs.worker_process import TorchrunPlace
from dpscope.launch.measuring.worker_arguments import WorkerJob
from dpscope.launch.workload.step_flops import matmul_peak
from dpscope.launch.workload.strategies import compiled_so_far
from dpscope.launch.workload.train_step import TrainStep
from dpscope.profiling.instruments import ddp_counters
from dpscope.profiling.instruments.step_timer import StepSample, time_block
from dpscope.profiling.instruments.trace_recorder import record_trace
from dpscope.profiling.machine.environment import states_under_load
from dpscope.profiling.records.run import (
    Compilation,
    DeviceMemory,
    DeviceState,
    MatmulPeak,
    TimedBlock,
    cell_workload,
)
from dpscope.profiling.store.files import write_json

LEAST_DEVICE_STEPS = ddp_counters.ALWAYS_COUNTED_ITERATIONS + 1  # until DDP stops counting; the same for all strategies
LEAST_DEVICE_S = 1.5  # a device's clocks rise and kernels are chosen during warm-up
LOAD_S = 1.0  # duration of the steps in which the devices' states are sampled
_LEAST_LOAD_STEPS = 2
_SAMPLE_EVERY_S = 0.1


@dataclass(frozen=True)
class CellProcess:
    """One process of a cell, ready to train."""

    job: WorkerJob
    place: TorchrunPlace
    devices: tuple[torch.device, ...]  # all devices of this process
    model: nn.Module  # wrapped by the strategy
    step: TrainStep
    report: Callable[[str], None]  # gets the name of each pass at its start
    device_states: Callable[[], tuple[DeviceState, ...]] | None = None  # current states of this process's devices

    def synchronise(self) -> None:
        """Wait for this process's devices and for the other processes."""
        synchronise(self.devices)


@dataclass(frozen=True)
class PassResults:
    """Measurements of the passes."""

    samples: tuple[StepSample, ...]
    blocks: tuple[TimedBlock, ...]
    memory: tuple[DeviceMemory, ...]
    compilation: Compilation | None  # of a compiled cell
    under_load: tuple[DeviceState, ...]
    matmul_peak: MatmulPeak | None  # of the CPU, in all processes at the same time; devices have a specified one


def run_passes(process: CellProcess) -> PassResults:
    """Run every pass of a cell; saves traces and counters, returns the other measurements."""
    job, place, device = process.job, process.place, process.devices[0]
    cell, measurement, folder = job.cell, job.config.measurement, job.folder
    if measurement.epochs is None:
        process.step.batches.leave_out_short_batches()
    peak = None
    if device.type == "cpu":
        process.report("matmul peak")
        process.synchronise()
        peak = matmul_peak(cell_workload(job.config.workload, cell).amp)
    process.report("warm-up")
    _warm_up(process)
    limit_collectives(device, measurement.timeout_s)
    warm = compiled_so_far() if cell.options.compile != "off" else None
    process.report("timed")
    for one in process.devices:
        if one.type == "cuda":
            torch.cuda.reset_peak_memory_stats(one)
    blocks, samples = _timed(process)
    process.step.batches.leave_out_short_batches()  # timed epochs had them; traced steps must be alike
    memory = tuple(
        DeviceMemory(one.index, torch.cuda.max_memory_allocated(one), torch.cuda.max_memory_reserved(one))
        for one in process.devices
        if one.type == "cuda"
    )
    under_load = _states_under_load(process, statistics.median(sample.step_us for sample in samples) / 1e6)
    process.report("traced")
    traced = record_trace(
        process.step,
        measurement.traced_steps,
        folder.trace_path(place.node, place.rank),
        device,
        # DataParallel's replicas, and PowerSGD's second and third all-reduce, run on threads that are not traced by default.
        all_threads=cell.traits.threaded or cell.options.comm_hook == "powersgd",
        synchronise=process.synchronise,
        replica_threads=cell.devices if cell.traits.threaded else 0,
    )
    if isinstance(process.model, DistributedDataParallel) and cell.devices > 1:
        process.report("counters")
        path, steps = folder.counters_trace_path(place.node, place.rank), measurement.traced_steps
        counters = ddp_counters.record_counters(process.model, process.step, steps, path, device, process.synchronise)
        write_json(folder.counters_path(place.node, place.rank), counters)
    compiled = None
    if warm is not None:
        compiled = compiled_so_far()
        compiled = msgspec.structs.replace(compiled, late_graphs=compiled.graphs - warm.graphs)
    return PassResults((*samples, *traced), tuple(blocks), memory, compiled, under_load, peak)


def _warm_up(process: CellProcess) -> None:
    """Take the configured steps, on GPUs at least LEAST_DEVICE_STEPS and for LEAST_DEVICE_S."""
    measurement, device = process.job.config.measurement, process.devices[0]
    steps, done = measurement.warmup_steps, 0
    if isinstance(process.model, DistributedDataParallel):
        ddp_counters.stop_counting(process.model)
    if device.type == "cuda":
        steps = max(steps, LEAST_DEVICE_STEPS)
    # If epochs are timed, whole epochs, so that the first timed one begins at its first batch.
    per_epoch = 1 if measurement.epochs is None else process.step.batches.steps_per_epoch
    began_s = time.monotonic()
    while steps > 0:
        whole = math.ceil(steps / per_epoch) * per_epoch
        for _ in range(whole):
            process.step()
        done, steps = done + whole, 0
        if device.type == "cuda":
            # Steps until LEAST_DEVICE_S have passed, at the pace so far; the same in every process.
            process.synchronise()
            passed_s = time.monotonic() - began_s
            left = math.ceil((LEAST_DEVICE_S - passed_s) * done / passed_s) if passed_s < LEAST_DEVICE_S else 0
            steps = rank_0_value(left, device)


def _timed(process: CellProcess) -> tuple[list[TimedBlock], list[StepSample]]:
    """One block of `steps` steps, or one block per epoch."""
    device, measurement = process.devices[0], process.job.config.measurement
    if measurement.steps is not None:
        block, samples = time_block(process.step, measurement.steps, device, process.synchronise)
        return [block], samples
    blocks, all_samples = [], []
    per_epoch = process.step.batches.steps_per_epoch
    for epoch in range(measurement.epochs or 0):
        block, samples = time_block(process.step, per_epoch, device, process.synchronise, epoch * per_epoch, epoch)
        blocks.append(block)
        all_samples += samples
    return blocks, all_samples


def _states_under_load(process: CellProcess, step_s: float) -> tuple[DeviceState, ...]:
    """The devices' states during about LOAD_S of untimed steps, the same number in every process; empty on the CPU."""
    read_states = process.device_states
    if read_states is None:
        return ()
    process.report("device states")
    steps = rank_0_value(max(_LEAST_LOAD_STEPS, math.ceil(LOAD_S / max(step_s, 1e-4))), process.devices[0])
    samples: list[tuple[DeviceState, ...]] = []
    ended = Event()

    def observe() -> None:
        while not ended.is_set():
            states = read_states()
            if not samples or not ended.is_set():  # else the load may have ended during the call
                samples.append(states)
            ended.wait(_SAMPLE_EVERY_S)

    observer = Thread(target=observe)
    try:
        for index in range(steps):
            process.step()
            if index == 0:
                observer.start()
        process.synchronise()
    finally:
        ended.set()
    observer.join()
    return states_under_load(samples)
