"""One process of a calibration job under torchrun, started by `dpscope calibrate`; rank 0 writes the results."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from dpscope.launch.jobs.parent_death import die_with_job

if __name__ == "__main__":
    die_with_job()  # before the imports below, which take longer than it takes to kill a job

import msgspec

from dpscope.launch.calibration.nccl_choices import set_log_variables
from dpscope.launch.jobs.worker_process import ReportProgress, TorchrunPlace, starting_up, work
from dpscope.profiling.machine.host_memory import free_host_bytes, keep_freed_memory
from dpscope.profiling.records.calibration import CalibrationPoint, CalibrationSettings, Contention, NotTimed
from dpscope.profiling.records.run import CellStatus
from dpscope.profiling.records.stored import Stored
from dpscope.profiling.store.files import read_json, write_json
from dpscope.profiling.store.folders import JobFolder

if TYPE_CHECKING:
    import torch

    from dpscope.launch.calibration.collective_timing import Subgroup

_CPU_SHARE, _GPU_SHARE = 0.8, 0.9  # of free memory that buffers may take


class TimedCollectives(Stored, frozen=True, kw_only=True):
    """`result.json` of a calibration job."""

    status: CellStatus = "ok"
    backend: str
    device_names: tuple[str, ...]
    device_uuids: tuple[str, ...]  # of torch's GPUs in torch's order
    points: tuple[CalibrationPoint, ...]
    left_out: tuple[NotTimed, ...]
    contention: tuple[Contention, ...] = ()
    nccl_engine: str | None = None  # class that ran NCCL


@dataclass(frozen=True)
class _Job:
    settings: CalibrationSettings
    folder: JobFolder


def main() -> None:
    """Run this process of the job in the folder that is the only argument."""
    work(_read, _calibrate)


def _read(arguments: Sequence[str], place: TorchrunPlace) -> _Job:
    folder = JobFolder(Path(arguments[0]))
    return _Job(read_json(folder.settings_path, CalibrationSettings), folder)


def _calibrate(job: _Job, place: TorchrunPlace, began_s: float, report: ReportProgress) -> None:
    def keep(collectives: TimedCollectives) -> None:
        if place.rank == 0:
            write_json(collectives_path(job.folder), collectives)

    if job.settings.nccl_log:
        set_log_variables(job.folder.path)
    timed = measure(job.settings, place, report, keep)
    if place.rank == 0:
        write_json(job.folder.result_path, timed)


def measure(
    settings: CalibrationSettings,
    place: TorchrunPlace,
    report: ReportProgress,
    keep: Callable[[TimedCollectives], None] = lambda _: None,
) -> TimedCollectives:
    """Time everything in `settings` in this process of a job; rank 0's result has every point. `nccl_log` times nothing.

    `keep` gets the collectives before contention is timed, so that a failure then does not lose them.
    """
    with starting_up():
        from torch import distributed

    device = _join(settings, place)
    if device.type == "cpu":
        keep_freed_memory()
    subgroups = _subgroups(settings, device, place.local_world_size)
    if settings.nccl_log:
        _call_each_size(settings, subgroups, report)
        backend = distributed.get_backend()
        distributed.destroy_process_group()
        return TimedCollectives(backend=backend, device_names=(), device_uuids=(), points=(), left_out=())
    timed = _time_collectives(settings, subgroups, device, place, report)
    keep(timed)
    contention = _time_contention(settings, subgroups, timed, report)
    distributed.destroy_process_group()
    return msgspec.structs.replace(timed, contention=contention)


def collectives_path(folder: JobFolder) -> Path:
    """The file with a job's collectives while it times contention."""
    return folder.path / "collectives.json"


def _time_collectives(
    settings: CalibrationSettings,
    subgroups: "Sequence[Subgroup | None]",
    device: "torch.device",
    place: TorchrunPlace,
    report: ReportProgress,
) -> TimedCollectives:
    import torch
    from torch import distributed

    from dpscope.launch.calibration.collective_timing import time_collective
    from dpscope.launch.jobs.process_group import nccl_engine

    points: list[CalibrationPoint] = []
    left_out: list[NotTimed] = []
    for subgroup in subgroups:
        for collective in settings.collectives if subgroup is not None else ():
            assert subgroup is not None
            timed, missing = time_collective(collective, settings, subgroup, report)
            points += timed
            left_out += missing
        distributed.barrier()
    cuda = settings.device == "cuda"
    indices = range(min(settings.job.per_node, torch.cuda.device_count())) if cuda else range(0)  # ranks may share one
    properties = [torch.cuda.get_device_properties(index) for index in indices]
    return TimedCollectives(
        backend=distributed.get_backend(),
        device_names=tuple(one.name for one in properties) * place.nodes or ("cpu",) * place.world_size,
        device_uuids=tuple(str(getattr(one, "uuid", "")) for one in properties),
        points=tuple(points),
        left_out=tuple(left_out),
        nccl_engine=nccl_engine(device),
    )


def _call_each_size(
    settings: CalibrationSettings, subgroups: "Sequence[Subgroup | None]", report: ReportProgress
) -> None:
    from torch import distributed

    from dpscope.launch.calibration.collective_timing import call_each_size

    for subgroup in subgroups:
        if subgroup is not None:
            call_each_size(settings, subgroup, report)
        distributed.barrier()


def _time_contention(
    settings: CalibrationSettings,
    subgroups: "Sequence[Subgroup | None]",
    timed: TimedCollectives,
    report: ReportProgress,
) -> tuple[Contention, ...]:
    from torch import distributed

    from dpscope.launch.calibration.collective_timing import time_contention

    contention = []
    for subgroup in subgroups:
        if subgroup is not None and _all_reduced(subgroup, timed.points):
            contention.append(time_contention(settings, subgroup, report))
        distributed.barrier()
    return tuple(contention)


def _all_reduced(subgroup: "Subgroup", points: Sequence[CalibrationPoint]) -> bool:
    nodes = subgroup.nodes if subgroup.nodes > 1 else None
    return any((one.collective, one.devices, one.nodes) == ("all_reduce", subgroup.devices, nodes) for one in points)


def _join(settings: CalibrationSettings, place: TorchrunPlace) -> "torch.device":
    """Join the job's process group; returns this process's device.

    The limit of its collectives is almost the job's: ranks outside of a subgroup wait in a barrier until it is timed.
    """
    import torch
    from torch import distributed

    from dpscope.launch.jobs.process_group import join_limit_s

    timeout = timedelta(seconds=join_limit_s(torch.device(settings.device), settings.timeout_s))
    if settings.device == "cpu":
        torch.set_num_threads(1)
        distributed.init_process_group("gloo", timeout=timeout)
        return torch.device("cpu")
    device = torch.device("cuda", place.local_rank)
    torch.cuda.set_device(device)
    distributed.init_process_group("nccl", timeout=timeout, device_id=device)
    return device


def _subgroups(settings: CalibrationSettings, device: "torch.device", on_each_node: int) -> "Sequence[Subgroup | None]":
    """The subgroup of every device count, None for those without this rank; all ranks create them in the same order.

    The job has `on_each_node` consecutive ranks on each node.
    """
    from torch import distributed

    from dpscope.launch.calibration.collective_timing import Subgroup
    from dpscope.launch.jobs.process_group import collective_limit_s

    rank = distributed.get_rank()
    timeout = timedelta(seconds=collective_limit_s(device, settings.timeout_s))
    free_bytes = _least(_free_bytes(device), device)
    subgroups: list[Subgroup | None] = []
    for layout in settings.groups:
        ranks = [node * on_each_node + local for node in range(layout.nodes) for local in range(layout.per_node)]
        group = distributed.new_group(ranks, timeout=timeout)
        if isinstance(group, distributed.ProcessGroup) and rank in ranks:
            subgroups.append(Subgroup(group, layout.nodes, layout.devices, device, free_bytes))
        else:
            subgroups.append(None)
    return subgroups


def _free_bytes(device: "torch.device") -> int:
    """Memory for this rank's buffers."""
    import torch
    from torch import distributed

    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0] * _GPU_SHARE)
    return int(free_host_bytes() * _CPU_SHARE / distributed.get_world_size())


def _least(value: int, device: "torch.device") -> int:
    import torch
    from torch import distributed

    least = torch.tensor([value], dtype=torch.int64, device=device)
    distributed.all_reduce(least, op=distributed.ReduceOp.MIN)
    return int(least.item())


if __name__ == "__main__":
    main()
