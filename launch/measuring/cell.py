"""One process's job from start to end: process group, model, passes, results."""

import dataclasses
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import distributed

from dpscope.launch.jobs.process_group import devices_of, join_limit_s, join_process_group, nccl_engine
from dpscope.launch.jobs.worker_process import TorchrunPlace, starting_up
from dpscope.launch.measuring.cell_passes import CellProcess, PassResults, run_passes
from dpscope.launch.measuring.worker_arguments import WorkerJob
from dpscope.launch.planning.manifest import host_findings
from dpscope.launch.workload.input_pipeline import micro_batching, open_stream
from dpscope.launch.workload.models import build_model
from dpscope.launch.workload.step_flops import cell_step_flops
from dpscope.launch.workload.strategies import held_bytes, sharded_units, wrap_for
from dpscope.launch.workload.train_step import TrainStep, with_precision
from dpscope.profiling.instruments.ddp_counters import parameter_sizes
from dpscope.profiling.instruments.step_timer import save_samples
from dpscope.profiling.machine.environment import (
    collect_environment,
    findings_at_moments,
    lists_process,
    torch_device_states,
)
from dpscope.profiling.machine.host_memory import keep_freed_memory
from dpscope.profiling.machine.interfaces import interfaces_to_others
from dpscope.profiling.machine.nvml import open_nvml
from dpscope.profiling.records.finding import Finding, counted
from dpscope.profiling.records.matrix import Amp
from dpscope.profiling.records.plan_codes import PlanCode
from dpscope.profiling.records.run import (
    CellResult,
    DeviceState,
    Environment,
    RankResult,
    cell_workload,
)
from dpscope.profiling.store.errors import DpscopeError
from dpscope.profiling.store.files import write_json
from dpscope.profiling.store.folders import RepeatFolder

_LATE_FILES_S = 90.0  # a network file system shows another host's files up to a minute late
_POLL_S = 0.2


def run_cell(job: WorkerJob, place: TorchrunPlace, began: float, report: Callable[[str], None]) -> None:
    """Measure a cell in this process and save it; global rank 0 writes the result after all ranks have saved theirs.

    `began` is the Unix time at which the job started; `report` gets the name of each pass at its start.
    """
    torch.set_num_threads(job.threads)
    if job.kind == "cpu":
        keep_freed_memory()
    before = _device_states(job, place, own_process_ids=())  # before any process of this job is on them
    devices = devices_of(job.cell, job.kind, place)
    if job.cell.per_device:
        limit_s = join_limit_s(devices[0], job.config.measurement.timeout_s)
        join_process_group(devices[0], limit_s, job.cell.options.nccl_engine)
    with starting_up():  # the optimizer and DDP import torch's compiler
        process, known = _prepare(job, place, devices, report)
    if job.kind == "cuda":  # by now every process of the job uses its devices
        own = _own_process_ids(place.node)
        process = dataclasses.replace(process, device_states=lambda: _device_states(job, place, own))
    measured = run_passes(process)
    process.step.batches.close()
    report("saving")
    save_samples(job.folder.samples_path(place.node, place.rank), measured.samples)
    rank = _rank_result(process, known, measured, before)
    write_json(job.folder.rank_path(place.node, place.rank), rank)
    if distributed.is_initialized():
        distributed.barrier()
    if place.rank == 0:
        _wait_for_all_files(job.folder, place.world_size)
        result = CellResult(cell=job.cell, repeat=job.repeat, status="ok", duration_s=time.time() - began)
        write_json(job.folder.result_path, result)
        if job.by_hand:
            steps_us = [sample.step_us for sample in measured.samples if sample.measuring_pass == "timed"]
            step = f"median step {statistics.median(steps_us) / 1e3:.4g} ms ({counted(len(steps_us), 'step')})"
            sys.stdout.write(
                f"{job.cell.name}, repeat {job.repeat}: {step}.\nNext: dpscope analyze {job.folder.run.path}\n"
            )
    if distributed.is_initialized():
        distributed.destroy_process_group()


def _wait_for_all_files(folder: RepeatFolder, world_size: int, timeout_s: float = _LATE_FILES_S) -> None:
    """Wait until this process sees the files of all ranks; raises DpscopeError that names those missing."""
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
    job: WorkerJob, place: TorchrunPlace, devices: tuple[torch.device, ...], report: Callable[[str], None]
) -> tuple[CellProcess, dict[str, Any]]:
    """The process, ready to train, and the fields of its result that are known before it does."""
    workload, cell, device = cell_workload(job.config.workload, job.cell), job.cell, devices[0]
    torch.manual_seed(workload.seed)
    built = build_model(workload.model)
    sizes = parameter_sizes(built.model)
    repeats = [folder for _, folder in job.folder.run.repeats(cell)]
    flops = cell_step_flops(repeats, built, cell, workload.amp) if place.rank == 0 else None
    model = with_precision(built.model.to(device), workload.amp, device)
    units = sharded_units(model, cell.strategy) if cell.traits.sharded else ()
    wrapped = wrap_for(model.train(), cell, device)
    batches = open_stream(workload, cell, built, place.rank if cell.per_device else 0, device)
    step = TrainStep(wrapped, batches, job.config.optimizer, workload.amp, device, micro_batching(cell), built)
    known = {"model": sizes, "units": units, "tokens_per_sample": built.tokens, "flops": flops}
    return CellProcess(job, place, devices, wrapped, step, report), known


def _device_states(
    job: WorkerJob, place: TorchrunPlace, own_process_ids: tuple[int, ...] | None
) -> tuple[DeviceState, ...]:
    if job.kind == "cpu":
        return ()
    indices = (place.local_rank,) if job.cell.per_device else range(job.cell.devices)
    properties = {index: torch.cuda.get_device_properties(index) for index in indices}
    uuids = {index: str(getattr(one, "uuid", "")) for index, one in properties.items()}
    return torch_device_states(open_nvml(), own_process_ids, uuids)


def _own_process_ids(node: int) -> tuple[int, ...] | None:
    """Process ids of this job on this host; None if NVML uses another namespace."""
    own = (node, os.getpid(), lists_process(open_nvml(), os.getpid()))
    everyone: list[tuple[int, int, bool]] = [own]
    if distributed.is_initialized():
        everyone = [own] * distributed.get_world_size()
        distributed.all_gather_object(everyone, own)
    here = [(process, seen) for at, process, seen in everyone if at == node]
    return tuple(process for process, _ in here) if all(seen for _, seen in here) else None


def _rank_result(
    process: CellProcess, known: dict[str, Any], measured: PassResults, before: tuple[DeviceState, ...]
) -> RankResult:
    job, place, devices, batches = process.job, process.place, process.devices, process.step.batches
    names = ("cpu",) * (job.cell.devices if job.cell.traits.host_copies else 1)
    if devices[0].type == "cuda":
        names = tuple(torch.cuda.get_device_name(device) for device in devices)
    environment: Environment | None = None
    unlike: tuple[Finding, ...] = ()
    if place.node > 0 and place.local_rank == 0:  # rank 0's host is in the manifest
        environment = collect_environment(open_nvml() if job.kind == "cuda" else None, on_gpus=job.kind == "cuda")
        unlike = host_findings(job.folder.run.manifest().environment, environment)
    return RankResult(
        **known,
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
        blocks=measured.blocks,
        memory=measured.memory,
        device_states_before=before,
        device_states_after=measured.under_load,
        findings=(
            *findings_at_moments(before, measured.under_load),
            *precision_findings(cell_workload(job.config.workload, job.cell).amp, devices),
            *unlike,
        ),
        last_loss=None if process.step.last_loss is None else process.step.last_loss.item(),
        matmul_peak=measured.matmul_peak,
        compilation=measured.compilation,
        state_bytes=held_bytes(process.model, process.step.optimizer),
        environment=environment,
        interfaces=interfaces_to_others(int(os.environ["MASTER_PORT"])) if place.nodes > 1 else None,
    )


_BF16_UNITS = (8, 0)  # compute capability of Ampere, the first with bf16 units


def precision_findings(amp: Amp, devices: Sequence[torch.device]) -> list[Finding]:
    """Findings about a precision for which the GPUs have no units."""
    if amp != "bf16" or devices[0].type != "cuda" or torch.version.hip is not None:
        return []
    emulating = [one for one in devices if torch.cuda.get_device_capability(one) < _BF16_UNITS]
    names = sorted({torch.cuda.get_device_name(one) for one in emulating})
    return [PlanCode.BF16_EMULATED.finding(f"{name} has no units for bf16: it is emulated there.") for name in names]
