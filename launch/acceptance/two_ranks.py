"""One of two processes on the same GPU: `torchrun ... -m dpscope.launch.acceptance.two_ranks FOLDER WHAT BACKEND KIND`.

WHAT is ddp (traced and counted), memory (rank 1 takes all there is) or calibrate. On a CPU, for tests, the device is the host.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from dpscope.launch.jobs.parent_death import die_with_job

if __name__ == "__main__":
    die_with_job()

from dpscope.launch.jobs.place import TorchrunPlace
from dpscope.launch.jobs.worker_process import TellProgress, work
from dpscope.profiling.records.run import CellStatus, DdpCounters
from dpscope.profiling.records.stored import Stored
from dpscope.profiling.store.files import write_json
from dpscope.profiling.store.folders import JobFolder

if TYPE_CHECKING:
    import torch

SAME_GPU_SINCE = (2, 30, 3)  # NCCL's version from which NCCL_MULTI_RANK_GPU_ENABLE lets ranks share a GPU
_SIDE, _LAYERS, _TRACED = 1024, 8, 3
_COLLECTIVE_S = 60.0


class TwoRanksAnswer(Stored, frozen=True):
    """`result.json`."""

    engine: str | None
    gradient_bytes: int
    counters: tuple[DdpCounters, ...]
    difference: float  # of a parameter between the ranks, at most
    status: CellStatus = "ok"


@dataclass(frozen=True)
class _Job:
    folder: JobFolder
    what: str
    backend: str
    kind: str


def main() -> None:
    """Take part in the job that the arguments name."""
    work(_read, _do)


def _read(arguments: Sequence[str], place: TorchrunPlace) -> _Job:
    folder, what, backend, kind = arguments[:4]
    return _Job(JobFolder(Path(folder)), what, backend, kind)


def _do(job: _Job, place: TorchrunPlace, began_s: float, report: TellProgress) -> None:
    import torch

    device = torch.device("cuda", 0) if job.kind == "cuda" else torch.device("cpu")
    if job.backend == "nccl":
        _let_ranks_share(place)
    if job.what == "calibrate":
        _calibrate(job, place)
        return
    _join(job, device)
    if job.what == "memory":
        _take_memory(place, device)
    else:
        _train(job, place, device)
    torch.distributed.destroy_process_group()


def _let_ranks_share(place: TorchrunPlace) -> None:
    """Newer NCCL allows it by a variable; an older one takes ranks of different hosts for what they say they are."""
    import torch

    if torch.cuda.nccl.version() >= SAME_GPU_SINCE:  # type: ignore[no-untyped-call]
        os.environ["NCCL_MULTI_RANK_GPU_ENABLE"] = "1"
    else:
        os.environ["NCCL_HOSTID"] = f"rank{place.rank}"


def _join(job: _Job, device: "torch.device") -> None:
    from datetime import timedelta

    import torch

    if device.type == "cuda":
        torch.cuda.set_device(device)
    own = device if job.backend == "nccl" else None
    torch.distributed.init_process_group(job.backend, timeout=timedelta(seconds=_COLLECTIVE_S), device_id=own)


def _take_memory(place: TorchrunPlace, device: "torch.device") -> None:
    """Rank 1 takes memory until there is none; rank 0 waits for it in a collective."""
    import torch

    held = []
    while place.rank == 1:
        if device.type == "cuda":
            held.append(torch.empty(1 << 30, dtype=torch.uint8, device=device))
        else:
            raise torch.OutOfMemoryError("out of memory on purpose")
    torch.distributed.all_reduce(torch.ones(1, device=device))


def _train(job: _Job, place: TorchrunPlace, device: "torch.device") -> None:
    import torch
    from torch import distributed, nn
    from torch.nn.parallel import DistributedDataParallel

    from dpscope.launch.jobs.process_group import nccl_engine, synchronise
    from dpscope.profiling.instruments.ddp_counters import record_counters, stop_counting
    from dpscope.profiling.instruments.step_timer import BatchArrived, StepCounts, nothing

    torch.manual_seed(0)
    side, layers = (_SIDE, _LAYERS) if device.type == "cuda" else (64, 2)
    inner = nn.Sequential(*(nn.Linear(side, side) for _ in range(layers))).to(device)
    model = DistributedDataParallel(inner, device_ids=[0] if device.type == "cuda" else None, bucket_cap_mb=8)
    stop_counting(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    torch.manual_seed(1 + place.rank)  # each has samples of its own
    samples = torch.randn(64, side, device=device)

    def step(batch_arrived: BatchArrived) -> StepCounts:
        batch_arrived()
        model(samples).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return StepCounts(samples=len(samples))

    for _ in range(12):
        step(nothing)
    traces = job.folder.path / "traces"
    trace = traces / f"0_{place.rank}.pt.trace.json.gz"
    counters = record_counters(model, step, _TRACED, trace, device, lambda: synchronise([device]))
    of_rank_0 = torch.cat([parameter.detach().flatten() for parameter in model.parameters()]).clone()
    own = of_rank_0.clone()
    distributed.broadcast(of_rank_0, src=0)
    difference = (own - of_rank_0).abs().max()
    distributed.all_reduce(difference, op=distributed.ReduceOp.MAX)
    synchronise([device])
    if place.rank == 0:
        size = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
        answer = TwoRanksAnswer(nccl_engine(device), size, tuple(counters), float(difference))
        write_json(job.folder.result_path, answer)


def _calibrate(job: _Job, place: TorchrunPlace) -> None:
    """All-reduces of two ranks that share a GPU, timed as `dpscope calibrate` times them."""
    from dpscope.launch.calibration.worker import measure
    from dpscope.profiling.records.calibration import CalibrationSettings

    settings = CalibrationSettings(
        device="cuda" if job.kind == "cuda" else "cpu",
        devices=(2,),
        collectives=("all_reduce",),
        iterations=6,
        warmup_iterations=2,
        chosen_sizes=(65_536, 1 << 20, 25 << 20) if job.kind == "cuda" else (65_536, 8 << 20),
        timeout_s=90.0,
    )
    timed = measure(settings, replace(place, local_rank=0), lambda _: None)
    if place.rank == 0:
        write_json(job.folder.result_path, timed)


if __name__ == "__main__":
    main()
