"""One all-reduce, which shows whether the backend works: NCCL's over all GPUs, as DDP uses it, or
gloo's. Imports no torch.

`dpscope doctor` starts a job for NCCL, each of whose processes is this module; gloo's two ranks are
threads of `doctor` itself.
"""

import shutil
import tempfile
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from dpscope.launch.jobs.parent_death import die_with_job
from dpscope.profiling.records.finding import counted

if __name__ == "__main__":
    die_with_job()  # before the imports below, which take longer than it takes to kill a job

from dpscope.launch.jobs.devices import DeviceType
from dpscope.launch.jobs.job_queue import attend_job
from dpscope.launch.jobs.stop_request import StopRequest
from dpscope.launch.jobs.torchrun import Job
from dpscope.launch.jobs.worker_process import TorchrunPlace, work
from dpscope.profiling.records.run import CellStatus
from dpscope.profiling.records.stored import Stored
from dpscope.profiling.store.errors import DpscopeError, error_line
from dpscope.profiling.store.files import read_json
from dpscope.profiling.store.folders import JobFolder

if TYPE_CHECKING:
    from torch import Tensor

_ELEMENTS = 1 << 20
_JOB_S = 300.0  # imports from a cold file system take minutes


class _Answer(Stored, frozen=True):
    """`result.json` of the job."""

    backend: str
    status: CellStatus = "ok"


def all_reduce_once(kind: DeviceType, processes: int, console: Console) -> str:
    """Reduce a tensor over this number of processes, one device each; returns the backend.

    Raises DpscopeError with the first failure's message if the job fails, hangs or computes a wrong
    sum.
    """
    folder = JobFolder(Path(tempfile.mkdtemp(prefix="dpscope-doctor-")))
    stop = StopRequest()
    module = ("-m", "dpscope.launch.jobs.all_reduce_check", str(folder.path), kind)
    try:
        with stop.listening():
            job = Job(name="", program=module, folder=folder, threads=1, processes=processes)
            outcome = attend_job(job, _JOB_S, "An all-reduce", stop, console)
        if outcome.status != "ok":
            raise DpscopeError(outcome.message)
        return read_json(folder.result_path, _Answer).backend
    finally:
        shutil.rmtree(folder.path, ignore_errors=True)


def gloo_all_reduce(limit_s: float = 30.0) -> None:
    """Reduce a tensor over two ranks on the CPU, by gloo over the interface that it would use for a
    job.

    Raises DpscopeError if they cannot meet, do not end in time or compute a wrong sum.
    """
    import torch
    from torch._C._distributed_c10d import HashStore, ProcessGroupGloo

    store = HashStore()
    limit = timedelta(seconds=limit_s)

    def reduce(rank: int) -> torch.Tensor:
        group: Any = ProcessGroupGloo(store, rank, 2, limit)
        tensor = torch.full((_ELEMENTS,), float(rank + 1))
        group.allreduce([tensor]).wait()
        return tensor

    with ThreadPoolExecutor(2) as pool:
        try:
            sums = list(pool.map(reduce, range(2)))
        except RuntimeError as error:
            raise DpscopeError(
                f"an all-reduce between two ranks by gloo: {error_line(error)}"
            ) from error
    for tensor in sums:
        _check_sums(tensor, ranks=2)


def _check_sums(sums: "Tensor", ranks: int) -> None:
    """Raises DpscopeError unless each element is 1 + 2 + ... + ranks."""
    expected = ranks * (ranks + 1) / 2
    if (wrong := sums[sums != expected]).numel():
        raise DpscopeError(
            f"an all-reduce over {counted(ranks, 'process')} gave {float(wrong[0]):.9g}, not {expected:g}, in "
            f"{wrong.numel()} of {_ELEMENTS} elements"
        )


def _reduce(kind: str, place: TorchrunPlace) -> _Answer:
    import torch
    from torch import distributed

    from dpscope.launch.jobs import process_group

    (device,) = process_group.devices_of(kind, place)
    process_group.join_process_group(device, process_group.wait_limit_s(device, _JOB_S))
    tensor = torch.full((_ELEMENTS,), float(place.rank + 1), device=device)
    distributed.all_reduce(tensor)
    process_group.synchronise([device])
    _check_sums(tensor.cpu(), place.world_size)
    return _Answer(backend=process_group.nccl_engine(device) or distributed.get_backend())


if __name__ == "__main__":
    work(lambda arguments, place: (JobFolder(Path(arguments[0])), partial(_reduce, arguments[1])))
