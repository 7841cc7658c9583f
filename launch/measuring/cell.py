"""One process's job: process group, model, separate passes over its cell (warm-up, timed, traced,
DDP's counters), results.
"""

import math
import os
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from threading import Event, Thread
from typing import Any

import msgspec
import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from dpscope.launch.jobs.process_group import (
    all_ranks_numbers,
    devices_of,
    join_process_group,
    limit_collectives,
    nccl_engine,
    rank_0_value,
    synchronise,
    wait_limit_s,
)
from dpscope.launch.jobs.worker_process import TorchrunPlace, starting_up
from dpscope.launch.measuring.assigned_cell import AssignedCell
from dpscope.launch.planning.manifest import host_findings
from dpscope.launch.workload.input_pipeline import micro_batching, open_stream
from dpscope.launch.workload.models import build_model
from dpscope.launch.workload.step_flops import cell_step_flops, matmul_peak
from dpscope.launch.workload.strategies import compiled_so_far, held_bytes, sharded_units, wrap_for
from dpscope.launch.workload.train_step import TrainStep, with_precision
from dpscope.profiling.instruments import ddp_counters
from dpscope.profiling.instruments.step_timer import StepSample, save_samples, time_block
from dpscope.profiling.instruments.trace_recorder import StepTrace
from dpscope.profiling.machine import environment
from dpscope.profiling.machine.host_memory import keep_freed_memory
from dpscope.profiling.machine.interfaces import interfaces_to_others
from dpscope.profiling.machine.nvml import open_nvml
from dpscope.profiling.records.finding import Finding
from dpscope.profiling.records.matrix import Amp
from dpscope.profiling.records.plan_codes import PlanCode
from dpscope.profiling.records.run import (
    CellResult,
    DeviceMemory,
    DeviceState,
    RankResult,
    TimedBlock,
    cell_workload,
)
from dpscope.profiling.store.errors import DpscopeError
from dpscope.profiling.store.files import write_json
from dpscope.profiling.store.folders import RepeatFolder

# until DDP stops counting; the same for all strategies
LEAST_DEVICE_STEPS = ddp_counters.ALWAYS_COUNTED_ITERATIONS + 1
LEAST_DEVICE_S = 1.5  # a device's clocks rise and kernels are chosen during warm-up
LOAD_S = 1.0  # duration of the steps in which the devices' states are sampled
_LEAST_LOAD_STEPS = 2
_SAMPLE_EVERY_S = 0.1
_LATE_FILES_S = 90.0  # a network file system shows another host's files up to a minute late
_POLL_S = 0.2
_BF16_UNITS = (8, 0)  # compute capability of Ampere, the first with bf16 units


@dataclass(frozen=True)
class CellProcess:
    """One process of a cell, ready to train."""

    job: AssignedCell
    place: TorchrunPlace
    devices: tuple[torch.device, ...]  # all devices of this process
    model: nn.Module  # wrapped by the strategy
    step: TrainStep
    # current states of this process's devices
    device_states: Callable[[], tuple[DeviceState, ...]] | None = None

    def synchronise(self) -> None:
        """Wait for this process's devices and for the other processes."""
        synchronise(self.devices)


def run_cell(job: AssignedCell, place: TorchrunPlace) -> CellResult | None:
    """Measure a cell in this process and save it; returns the result in global rank 0, after all
    ranks have saved theirs.
    """
    torch.set_num_threads(job.threads)
    if job.kind == "cpu":
        keep_freed_memory()
    # before any process of this job is on them
    before = _device_states(job, place, own_process_ids=())
    devices = devices_of(job.kind, place, job.cell)
    if job.cell.per_device:
        limit_s = wait_limit_s(devices[0], job.config.measurement.timeout_s)
        join_process_group(devices[0], limit_s, job.cell.options.nccl_engine)
    with starting_up():  # the optimizer and DDP import torch's compiler
        process, prepared = _prepare(job, place, devices)
    if job.kind == "cuda":  # by now every process of the job uses its devices
        process_ids = _own_process_ids(place.node, devices[0])
        process = replace(process, device_states=lambda: _device_states(job, place, process_ids))
    samples, measured = run_passes(process)
    process.step.batches.close()
    place.report("saving")
    save_samples(job.folder.samples_path(place.node, place.rank), samples)
    rank = _rank_result(process, {**prepared, **measured}, before)
    write_json(job.folder.rank_path(place.node, place.rank), rank)
    if distributed.is_initialized():
        distributed.barrier()
    if place.rank > 0:
        return None
    _wait_for_all_files(job.folder, place.world_size)
    return CellResult(
        cell=job.cell, repeat=job.repeat, status="ok", duration_s=time.time() - place.began_s
    )


def run_passes(process: CellProcess) -> tuple[list[StepSample], dict[str, Any]]:
    """Run every pass of a cell; saves traces and counters, returns the samples and the measured
    fields of a RankResult.
    """
    job = process.job
    place = process.place
    device = process.devices[0]
    cell = job.cell
    measurement = job.config.measurement
    folder = job.folder
    if measurement.epochs is None:
        process.step.batches.leave_out_short_batches()
    peak = None
    if device.type == "cpu":
        process.place.report("matmul peak")
        process.synchronise()
        peak = matmul_peak(cell_workload(job.config.workload, cell).amp)
    process.place.report("warm-up")
    _warm_up(process)
    limit_collectives(device, measurement.timeout_s)
    warm = compiled_so_far() if cell.options.compile != "off" else None
    process.place.report("timed")
    for cuda in process.devices:
        if cuda.type == "cuda":
            torch.cuda.reset_peak_memory_stats(cuda)
    blocks, samples = _timed(process)
    # timed epochs had them; traced steps must be alike
    process.step.batches.leave_out_short_batches()
    memory = tuple(
        DeviceMemory(
            cuda.index, torch.cuda.max_memory_allocated(cuda), torch.cuda.max_memory_reserved(cuda)
        )
        for cuda in process.devices
        if cuda.type == "cuda"
    )
    under_load = _states_under_load(
        process, statistics.median(sample.step_us for sample in samples) / 1e6
    )
    process.place.report("traced")
    samples += StepTrace(
        measurement.traced_steps,
        folder.trace_path(place.node, place.rank),
        device,
        # DataParallel's replicas, and PowerSGD's second and third all-reduce, run on threads that
        # are not traced by default.
        all_threads=cell.traits.threaded or cell.options.comm_hook == "powersgd",
        synchronise=process.synchronise,
        replica_threads=cell.devices if cell.traits.threaded else 0,
    ).record(process.step)
    if isinstance(process.model, DistributedDataParallel) and cell.devices > 1:
        process.place.report("counters")
        path = folder.counters_trace_path(place.node, place.rank)
        trace = StepTrace(
            measurement.traced_steps,
            path,
            device,
            all_threads=False,
            synchronise=process.synchronise,
        )
        counters = ddp_counters.record_counters(process.model, process.step, trace)
        write_json(folder.counters_path(place.node, place.rank), counters)
    compiled = None
    if warm is not None:
        compiled = compiled_so_far()
        compiled = msgspec.structs.replace(compiled, late_graphs=compiled.graphs - warm.graphs)
    return samples, {
        "blocks": tuple(blocks),
        "memory": memory,
        "compilation": compiled,
        "device_states_after": under_load,
        # of the CPU, in all processes at the same time; devices have a specified one
        "matmul_peak": peak,
    }


def _warm_up(process: CellProcess) -> None:
    """Take the configured steps, on GPUs at least LEAST_DEVICE_STEPS and for LEAST_DEVICE_S."""
    measurement = process.job.config.measurement
    device = process.devices[0]
    steps = measurement.warmup_steps
    done = 0
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
        done += whole
        steps = 0
        if device.type == "cuda":
            # Steps until LEAST_DEVICE_S have passed, at the pace so far; the same in every process.
            process.synchronise()
            passed_s = time.monotonic() - began_s
            left = (
                math.ceil((LEAST_DEVICE_S - passed_s) * done / passed_s)
                if passed_s < LEAST_DEVICE_S
                else 0
            )
            steps = rank_0_value(left, device)


def _timed(process: CellProcess) -> tuple[list[TimedBlock], list[StepSample]]:
    device = process.devices[0]
    measurement = process.job.config.measurement
    if measurement.steps is not None:
        block, samples = time_block(process.step, measurement.steps, device, process.synchronise)
        return [block], samples
    blocks = []
    all_samples = []
    per_epoch = process.step.batches.steps_per_epoch
    for epoch in range(measurement.epochs or 0):
        block, samples = time_block(
            process.step, per_epoch, device, process.synchronise, epoch * per_epoch, epoch
        )
        blocks.append(block)
        all_samples += samples
    return blocks, all_samples


def _states_under_load(process: CellProcess, step_s: float) -> tuple[DeviceState, ...]:
    """The devices' states during about LOAD_S of untimed steps, the same number in every process;
    empty on the CPU.
    """
    read_states = process.device_states
    if read_states is None:
        return ()
    process.place.report("device states")
    steps = rank_0_value(
        max(_LEAST_LOAD_STEPS, math.ceil(LOAD_S / max(step_s, 1e-4))), process.devices[0]
    )
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
    return environment.states_under_load(samples)


def _wait_for_all_files(
    folder: RepeatFolder, world_size: int, timeout_s: float = _LATE_FILES_S
) -> None:
    """Wait until this process sees the files of all ranks; raises DpscopeError that names those
    missing.
    """
    deadline = time.monotonic() + timeout_s
    while len(ranks := {result.rank for result in folder.ranks()}) < world_size:
        if time.monotonic() > deadline:
            missing = ", ".join(str(rank) for rank in sorted(set(range(world_size)) - ranks))
            raise DpscopeError(
                f"{folder.path} lacks the files of rank {missing}, which were saved: --out is not a folder that all nodes "
                "share; name one that is"
            )
        time.sleep(_POLL_S)


def _prepare(
    job: AssignedCell, place: TorchrunPlace, devices: tuple[torch.device, ...]
) -> tuple[CellProcess, dict[str, Any]]:
    """The process, ready to train, and the fields of its result that are known before it does."""
    workload = cell_workload(job.config.workload, job.cell)
    cell = job.cell
    device = devices[0]
    torch.manual_seed(workload.seed)
    built = build_model(workload.model)
    sizes = ddp_counters.parameter_sizes(built.model)
    repeats = [folder for _, folder in job.folder.run.repeats(cell)]
    flops = cell_step_flops(repeats, built, cell, workload.amp) if place.rank == 0 else None
    model = with_precision(built.model.to(device), workload.amp, device)
    units = sharded_units(model, cell.strategy) if cell.traits.sharded else ()
    wrapped = wrap_for(model.train(), cell, device)
    batches = open_stream(workload, cell, built, place.rank if cell.per_device else 0, device)
    step = TrainStep(
        wrapped, batches, job.config.optimizer, workload.amp, device, micro_batching(cell), built
    )
    known = {"model": sizes, "units": units, "tokens_per_sample": built.tokens, "flops": flops}
    return CellProcess(job, place, devices, wrapped, step), known


def _device_states(
    job: AssignedCell, place: TorchrunPlace, own_process_ids: tuple[int, ...] | None
) -> tuple[DeviceState, ...]:
    if job.kind == "cpu":
        return ()
    indices = (place.local_rank,) if job.cell.per_device else range(job.cell.devices)
    properties = {index: torch.cuda.get_device_properties(index) for index in indices}
    uuids = {index: str(getattr(device, "uuid", "")) for index, device in properties.items()}
    return environment.torch_device_states(open_nvml(), own_process_ids, uuids)


def _own_process_ids(node: int, device: torch.device) -> tuple[int, ...] | None:
    """Process ids of this job on this host; None if NVML uses another namespace."""
    identity = (node, os.getpid(), environment.lists_process(open_nvml(), os.getpid()))
    here = [
        (process, seen) for at, process, seen in all_ranks_numbers(identity, device) if at == node
    ]
    return tuple(process for process, _ in here) if all(seen for _, seen in here) else None


def _rank_result(
    process: CellProcess, fields: dict[str, Any], before: tuple[DeviceState, ...]
) -> RankResult:
    """The result of this process from the `fields` that are known already."""
    job = process.job
    place = process.place
    devices = process.devices
    batches = process.step.batches
    on_gpus = devices[0].type == "cuda"
    names = ("cpu",) * (job.cell.devices if job.cell.traits.host_copies else 1)
    if on_gpus:
        names = tuple(torch.cuda.get_device_name(device) for device in devices)
    host = None
    unlike = tuple[Finding, ...]()
    if place.node > 0 and place.local_rank == 0:  # rank 0's host is in the manifest
        host = environment.collect_environment(open_nvml() if on_gpus else None, on_gpus=on_gpus)
        unlike = host_findings(job.folder.run.manifest().environment, host)
    return RankResult(
        **fields,
        rank=place.rank,
        node=place.node,
        local_rank=place.local_rank,
        world_size=place.world_size,
        device_names=names,
        threads=torch.get_num_threads(),
        backend=distributed.get_backend() if distributed.is_initialized() else None,
        nccl_engine=nccl_engine(devices[0]),
        loader_workers=batches.loader_workers,
        steps_per_epoch=batches.steps_per_epoch,
        device_states_before=before,
        findings=(
            *environment.findings_at_moments(before, fields["device_states_after"]),
            *precision_findings(cell_workload(job.config.workload, job.cell).amp, devices),
            *unlike,
        ),
        last_loss=None if process.step.last_loss is None else process.step.last_loss.item(),
        state_bytes=held_bytes(process.model, process.step.optimizer),
        environment=host,
        interfaces=interfaces_to_others(int(os.environ["MASTER_PORT"]))
        if place.nodes > 1
        else None,
    )


def precision_findings(amp: Amp, devices: Sequence[torch.device]) -> list[Finding]:
    if amp != "bf16":
        return []
    names = ["The CPU"] if devices[0].type == "cpu" and not _cpu_has_bf16_units() else []
    if devices[0].type == "cuda" and torch.version.hip is None:
        emulating = [
            device for device in devices if torch.cuda.get_device_capability(device) < _BF16_UNITS
        ]
        names = sorted({torch.cuda.get_device_name(emulated) for emulated in emulating})
    return [
        PlanCode.BF16_EMULATED.finding(f"{name} has no units for bf16: it is emulated there.")
        for name in names
    ]


def _cpu_has_bf16_units() -> bool:
    """Whether the CPU multiplies in bf16; other CPUs than x86 are assumed to."""
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return True
    return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
