"""The devices one process of a job drives, and the process group it joins."""

import math
import os
from collections.abc import Sequence
from datetime import timedelta

import torch
from torch import distributed

from dpscope.launch.jobs.worker_process import TorchrunPlace
from dpscope.profiling.machine.environment import ENGINE_VARIABLE, default_engine
from dpscope.profiling.records.matrix import NcclEngine
from dpscope.profiling.records.run import Cell
from dpscope.profiling.store.errors import DpscopeError


def devices_of(
    kind: str, place: TorchrunPlace, cell: Cell | None = None
) -> tuple[torch.device, ...]:
    """The devices this process drives, its first one first and made the current one: all of a
    `cell` with one process.
    """
    if kind == "cpu":
        return (torch.device("cpu"),)
    indices = [place.local_rank] if cell is None or cell.per_device else range(cell.devices)
    devices = tuple(torch.device("cuda", index) for index in indices)
    torch.cuda.set_device(devices[0])
    return devices


# no warm step takes as long; NCCL then reports which collective a rank did not join
COLLECTIVE_S = 120.0
_SHARE_OF_JOB = 0.8


def wait_limit_s(device: torch.device, job_s: float, longest_s: float = math.inf) -> float:
    """Seconds that ranks may wait for each other in a job that may take `job_s`, on a GPU at most
    `longest_s`.

    Imports from a cold file system, data sets and compilation delay ranks by minutes until all are
    warm. On a GPU it is less than the job's limit, so that NCCL's message is seen. gloo's ranks
    wait as long as the job may take: a step on shared cores may take minutes, and gloo reports
    nothing more.
    """
    return min(longest_s, _SHARE_OF_JOB * job_s) if device.type == "cuda" else job_s


def limit_collectives(device: torch.device, job_s: float) -> None:
    """Lower the limit of collectives from that of joining; does nothing without a process group or
    on the CPU.
    """
    if device.type == "cuda" and distributed.is_initialized():
        _Limit.of_collectives = timedelta(seconds=wait_limit_s(device, job_s, COLLECTIVE_S))
        limit_all_groups()


class _Limit:
    of_collectives: timedelta | None = None  # None: this process has joined no group


def limit_all_groups() -> None:
    """Give this process's limit to every group, such as those of a device mesh, which torch makes
    with its own default.
    """
    if _Limit.of_collectives is None:
        return
    # torch <= 2.13 has it as a private function.
    set_timeout = (
        getattr(distributed, "set_timeout", None) or distributed.distributed_c10d._set_pg_timeout
    )
    for group in list(distributed.distributed_c10d._world.pg_map):
        set_timeout(_Limit.of_collectives, group)


ENGINES: dict[NcclEngine, str] = {"legacy": "ProcessGroupNCCL", "nccl2": "ProcessGroupNCCL2"}
"""The class of each of torch's engines that can be chosen."""


def join_process_group(
    device: torch.device, timeout_s: float, engine: NcclEngine = "default"
) -> None:
    """Join the job's process group, NCCL's for a GPU and gloo's for the CPU; a collective fails
    after `timeout_s`.

    Raises DpscopeError if torch cannot run NCCL on the chosen engine.
    """
    timeout = _Limit.of_collectives = timedelta(seconds=timeout_s)
    if device.type == "cuda":
        choose_nccl_engine(engine)
        distributed.init_process_group("nccl", timeout=timeout, device_id=device)
    else:
        distributed.init_process_group("gloo", timeout=timeout)


def choose_nccl_engine(engine: NcclEngine) -> None:
    """Have "nccl" mean the chosen engine in this process; called before a process group is made.

    torch registers one of its two engines at import, by TORCH_DIST_USE_NCCL2, whose value is restored afterwards. Versions before
    2.14 only have the legacy engine.
    """
    c10d = distributed.distributed_c10d
    both = hasattr(c10d, "ProcessGroupNCCL2")
    if engine == "default" or (engine == "legacy" and not both):
        return
    if not both:
        raise DpscopeError(
            f"--nccl-engine {engine}: torch {torch.__version__} does not have it; omit it, or use legacy"
        )
    value = "0" if engine == "legacy" else "1"
    # private: a later torch may have another way
    if not hasattr(c10d, "_register_builtin_nccl_backend"):
        if default_engine(distributed) == ENGINES[engine]:
            return
        raise DpscopeError(
            f"--nccl-engine {engine}: dpscope cannot choose it in torch {torch.__version__}; omit it and set "
            f"{ENGINE_VARIABLE}={value} for the whole run"
        )
    before = os.environ.get(ENGINE_VARIABLE)
    os.environ[ENGINE_VARIABLE] = value
    try:
        c10d._register_builtin_nccl_backend()
    finally:
        os.environ.pop(ENGINE_VARIABLE)
        if before is not None:
            os.environ[ENGINE_VARIABLE] = before


def nccl_engine(device: torch.device) -> str | None:
    """Class of the process group behind NCCL, None without NCCL: torch may have two."""
    if device.type != "cuda" or not distributed.is_initialized():
        return None
    group = distributed.distributed_c10d._get_default_group()
    return type(group._get_backend(device)).__name__


def rank_0_value(number: int, device: torch.device) -> int:
    """Rank 0's value of a number, in every process of the job."""
    if not distributed.is_initialized():
        return number
    value = torch.tensor([number], dtype=torch.int64, device=device)
    distributed.broadcast(value, src=0)
    return int(value.item())


def all_ranks_numbers(numbers: Sequence[int], device: torch.device) -> list[tuple[int, ...]]:
    """Each rank's numbers, equally many, in the order of the ranks; only this process's without a
    process group.
    """
    if not distributed.is_initialized():
        return [tuple(numbers)]
    value = torch.tensor(numbers, dtype=torch.int64, device=device)
    everyone = [torch.empty_like(value) for _ in range(distributed.get_world_size())]
    distributed.all_gather(everyone, value)
    return [tuple(row.tolist()) for row in everyone]


def synchronise(devices: Sequence[torch.device]) -> None:
    """Wait for a process's devices and for the other processes of its job."""
    gpus = [device for device in devices if device.type == "cuda"]
    for gpu in gpus:
        torch.cuda.synchronize(gpu)
    if distributed.is_initialized():
        distributed.barrier()
        for gpu in gpus:
            torch.cuda.synchronize(gpu)
