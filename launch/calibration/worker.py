"""One process of a calibration job under torchrun; `dpscope calibrate` starts it, rank 0 writes what all measured."""

import os
import sys
import traceback
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from dpscope.launch.jobs.parent_death import die_with_job

if __name__ == "__main__":
    die_with_job()  # before the imports below, which take longer than it takes to kill a job

from dpscope.launch.jobs.job_files import write_failure, write_progress
from dpscope.launch.jobs.place import TorchrunPlace, torchrun_place
from dpscope.profiling.records.calibration import CalibrationPoint, CalibrationSettings, NotTimed
from dpscope.profiling.records.stored import Stored
from dpscope.profiling.store.errors import DpscopeError
from dpscope.profiling.store.files import read_json, write_json

if TYPE_CHECKING:
    import torch

    from dpscope.launch.calibration.collective_timing import Subgroup

CALIBRATION_SETTINGS_NAME = "settings.json"
MEASURED_NAME = "measured.json"

_CPU_SHARE, _GPU_SHARE = 0.8, 0.9  # of free memory that buffers may take


class TimedCollectives(Stored, frozen=True, kw_only=True):
    """What a calibration job leaves for whoever started it."""

    backend: str
    device_names: tuple[str, ...]
    device_uuids: tuple[str, ...]  # of torch's GPUs in torch's order
    points: tuple[CalibrationPoint, ...]
    left_out: tuple[NotTimed, ...]


def main() -> None:
    """Run this process of the job whose folder is the only argument; ends the process with status 1 on failure."""
    folder = Path(sys.argv[1])
    place = torchrun_place(os.environ)
    try:
        measured = _measure(folder, place)
        if place.rank == 0:
            write_json(folder / MEASURED_NAME, measured)
    except Exception as error:
        # The group is never torn down here: another rank may wait in a collective, and torchrun ends it.
        write_failure(folder, place.node, place.rank, error)
        sys.stderr.write(str(error) if isinstance(error, DpscopeError) else traceback.format_exc())
        sys.stderr.flush()
        os._exit(1)


def _measure(folder: Path, place: TorchrunPlace) -> TimedCollectives:
    import torch
    from torch import distributed

    from dpscope.launch.calibration.collective_timing import time_collective

    settings = read_json(folder / CALIBRATION_SETTINGS_NAME, CalibrationSettings)
    device = _join(settings, place)
    points: list[CalibrationPoint] = []
    left_out: list[NotTimed] = []

    def report(state: str) -> None:
        if place.rank == 0:
            write_progress(folder, state)

    for subgroup in _subgroups(settings, device):
        if subgroup is not None:
            for collective in settings.collectives:
                timed, missing = time_collective(collective, settings, subgroup, report)
                points += timed
                left_out += missing
        distributed.barrier()
    backend = distributed.get_backend()
    distributed.destroy_process_group()
    cuda = settings.device == "cuda"
    count = max(settings.devices)
    properties = [torch.cuda.get_device_properties(index) for index in range(count)] if cuda else []
    return TimedCollectives(
        backend=backend,
        device_names=tuple(one.name for one in properties) or ("cpu",) * count,
        device_uuids=tuple(str(getattr(one, "uuid", "")) for one in properties),
        points=tuple(points),
        left_out=tuple(left_out),
    )


def _join(settings: CalibrationSettings, place: TorchrunPlace) -> "torch.device":
    """Join the job's process group; returns this process's device."""
    import torch
    from torch import distributed

    from dpscope.launch.jobs.process_group import collective_limit_s

    timeout = timedelta(seconds=collective_limit_s(torch.device(settings.device), settings.timeout_s))
    if settings.device == "cpu":
        torch.set_num_threads(1)
        distributed.init_process_group("gloo", timeout=timeout)
        return torch.device("cpu")
    device = torch.device("cuda", place.local_rank)
    torch.cuda.set_device(device)
    distributed.init_process_group("nccl", timeout=timeout, device_id=device)
    return device


def _subgroups(settings: CalibrationSettings, device: "torch.device") -> "Sequence[Subgroup | None]":
    """The subgroup of every device count, None for those this rank is not in; made by all ranks, in one order."""
    from torch import distributed

    from dpscope.launch.calibration.collective_timing import Subgroup

    rank = distributed.get_rank()
    free_bytes = _least(_free_bytes(device), device)
    subgroups: list[Subgroup | None] = []
    for count in settings.devices:
        group = distributed.new_group(list(range(count)))
        if isinstance(group, distributed.ProcessGroup) and rank < count:
            subgroups.append(Subgroup(group, count, device, free_bytes))
        else:
            subgroups.append(None)
    return subgroups


def _free_bytes(device: "torch.device") -> int:
    """Memory this rank's buffers may take."""
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


def free_host_bytes(root: Path = Path("/")) -> int:
    """Free memory of this host or, where that is less, what its control group (a container) still allows."""
    free = [os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    memory_info = root / "proc/meminfo"
    if memory_info.exists():
        lines = dict(line.split(":", 1) for line in memory_info.read_text().splitlines() if ":" in line)
        if "MemAvailable" in lines:
            free = [int(lines["MemAvailable"].split()[0]) * 1024]
    for folder, limit_name, used_name in (
        ("sys/fs/cgroup", "memory.max", "memory.current"),
        ("sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
    ):
        limit, used = root / folder / limit_name, root / folder / used_name
        if limit.exists() and used.exists() and limit.read_text().strip().isdecimal():
            free.append(max(0, int(limit.read_text()) - int(used.read_text())))
    return min(free)


if __name__ == "__main__":
    main()
