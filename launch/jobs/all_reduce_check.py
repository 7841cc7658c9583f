"""One all-reduce over all GPUs in a separate job, which checks that NCCL works as DDP uses it. Imports no torch.

`dpscope doctor` starts the job; each of its processes is this module.
"""

import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from dpscope.launch.jobs.parent_death import die_with_job
from dpscope.profiling.records.finding import counted

if __name__ == "__main__":
    die_with_job()  # before the imports below, which take longer than it takes to kill a job

from dpscope.launch.jobs.attended_job import attend_job
from dpscope.launch.jobs.devices import DeviceType
from dpscope.launch.jobs.stop_request import StopRequest
from dpscope.launch.jobs.torchrun import torchrun_prefix
from dpscope.launch.jobs.worker_process import ReportProgress, TorchrunPlace, work
from dpscope.profiling.records.run import CellStatus
from dpscope.profiling.records.stored import Stored
from dpscope.profiling.store.errors import DpscopeError
from dpscope.profiling.store.files import read_json, write_json
from dpscope.profiling.store.folders import JobFolder

_ELEMENTS = 1 << 20
_JOB_S = 300.0  # imports from a cold file system take minutes


class _Answer(Stored, frozen=True):
    """`result.json` of the job."""

    backend: str
    status: CellStatus = "ok"


def all_reduce_once(kind: DeviceType, processes: int, console: Console) -> str:
    """Reduce a tensor over this number of processes, one device each; returns the backend.

    Raises DpscopeError with the first failure's message if the job fails, hangs or computes a wrong sum.
    """
    folder = JobFolder(Path(tempfile.mkdtemp(prefix="dpscope-doctor-")))
    stop = StopRequest()
    module = ("-m", "dpscope.launch.jobs.all_reduce_check", str(folder.path), kind)
    try:
        with stop.listening():
            command = [*torchrun_prefix(processes, folder), *module]
            outcome = attend_job(command, folder, 1, _JOB_S, "An all-reduce", stop, console)
        if outcome.status != "ok":
            raise DpscopeError(outcome.message)
        return read_json(folder.result_path, _Answer).backend
    finally:
        shutil.rmtree(folder.path, ignore_errors=True)


@dataclass(frozen=True)
class _Job:
    folder: JobFolder
    kind: str


def _answer(job: _Job, place: TorchrunPlace, began_s: float, report: ReportProgress) -> None:
    backend = _reduce(job.kind, place)
    if place.rank == 0:
        write_json(job.folder.result_path, _Answer(backend=backend))


def _reduce(kind: str, place: TorchrunPlace) -> str:
    import torch
    from torch import distributed

    from dpscope.launch.jobs.process_group import join_limit_s, join_process_group, nccl_engine, synchronise

    device = torch.device("cuda", place.local_rank) if kind == "cuda" else torch.device("cpu")
    if kind == "cuda":
        torch.cuda.set_device(device)
    join_process_group(device, join_limit_s(device, _JOB_S))
    tensor = torch.full((_ELEMENTS,), float(place.rank + 1), device=device)
    distributed.all_reduce(tensor)
    synchronise([device])
    expected = place.world_size * (place.world_size + 1) / 2  # 1 + 2 + ... + N
    if not bool((tensor == expected).all()):
        raise DpscopeError(
            f"an all-reduce over {counted(place.world_size, 'process')} gave {float(tensor[0]):g}, not {expected:g}"
        )
    ran = nccl_engine(device) or distributed.get_backend()
    distributed.destroy_process_group()
    return ran


if __name__ == "__main__":
    work(lambda arguments, place: _Job(JobFolder(Path(arguments[0])), arguments[1]), _answer)
