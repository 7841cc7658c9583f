"""Processes of a torchrun job for the tests on GPUs: `torchrun ... -m tests.gpu.ranks FOLDER WHAT
KIND SIZE_BYTES`.

WHAT is `memory` (rank 1 takes all there is, the others wait for it) or `all_reduce` (CALLS of them
timed by device events).
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from dpscope.launch.jobs.parent_death import die_with_job

if __name__ == "__main__":
    die_with_job()

from dpscope.launch.jobs.worker_process import Task, TorchrunPlace, work
from dpscope.profiling.records.run import CellStatus
from dpscope.profiling.records.stored import Stored
from dpscope.profiling.store.folders import JobFolder

if TYPE_CHECKING:
    import torch

CALLS = 50
JOB_S = 90.0


class Timed(Stored, frozen=True):
    """`result.json` of `all_reduce`: microseconds a call."""

    call_us: float
    status: CellStatus = "ok"


def main() -> None:
    """Take part in the job that the arguments name."""
    work(_read)


def _read(arguments: Sequence[str], place: TorchrunPlace) -> tuple[JobFolder, Task]:
    folder, what, kind, size_bytes = arguments[:4]
    return JobFolder(Path(folder)), partial(_do, what, kind, int(size_bytes))


def _do(what: str, kind: str, size_bytes: int, place: TorchrunPlace) -> Timed | None:
    import torch

    from dpscope.launch.jobs.process_group import join_process_group, wait_limit_s

    device = shared = torch.device("cpu")
    if kind == "cuda":
        device = torch.device("cuda", place.local_rank % torch.cuda.device_count())
        torch.cuda.set_device(device)
        if torch.cuda.device_count() >= place.world_size:  # NCCL does not let ranks share a GPU
            shared = device
    join_process_group(shared, wait_limit_s(device, JOB_S))
    if what == "memory":
        _take_memory(place, device)
        return None
    return Timed(_time_all_reduces(size_bytes, device))


def _take_memory(place: TorchrunPlace, device: "torch.device") -> None:
    import torch

    held = []
    while place.rank == 1:
        if device.type != "cuda":
            raise torch.OutOfMemoryError("out of memory on purpose")
        held.append(torch.empty(1 << 30, dtype=torch.uint8, device=device))
    torch.distributed.all_reduce(torch.ones(1, device=device))


def _time_all_reduces(size_bytes: int, device: "torch.device") -> float:
    """Microseconds a call on the slowest rank."""
    import torch
    from torch import distributed

    from dpscope.launch.jobs.process_group import synchronise
    from dpscope.profiling.instruments.step_timer import StepTimer

    buffer = torch.zeros(size_bytes // 4, device=device)
    for _ in range(5):
        distributed.all_reduce(buffer)
    synchronise([device])
    timer = StepTimer(device)
    timer.boundary()
    for _ in range(CALLS):
        distributed.all_reduce(buffer)
    timer.boundary()
    synchronise([device])
    slowest = torch.tensor(timer.step_durations_us(), dtype=torch.float64, device=device)
    distributed.all_reduce(slowest, op=distributed.ReduceOp.MAX)
    return float(slowest) / CALLS


if __name__ == "__main__":
    main()
