"""One all-reduce over all GPUs in a job of its own: whether NCCL works here, by the way that DDP goes. Imports no torch.

`dpscope doctor` starts the job; each of its processes is this module.
"""

import os
import shutil
import sys
import tempfile
import traceback
from pathlib import Path

from rich.console import Console

from dpscope.launch.jobs.parent_death import die_with_job

if __name__ == "__main__":
    die_with_job()  # before the imports below, which take longer than it takes to kill a job

from dpscope.launch.jobs.attended_job import attend_job, outcome_of
from dpscope.launch.jobs.devices import DeviceType
from dpscope.launch.jobs.job_files import write_failure
from dpscope.launch.jobs.place import TorchrunPlace, torchrun_place
from dpscope.launch.jobs.stop_request import StopRequest
from dpscope.launch.jobs.torchrun import torchrun_prefix
from dpscope.profiling.store.errors import DpscopeError
from dpscope.profiling.store.files import write_text
from dpscope.profiling.store.folders import RepeatFolder

_ELEMENTS = 1 << 20
_COLLECTIVE_S = 60.0
_JOB_S = 120.0
_ANSWER = "all_reduce.txt"


def all_reduce_once(kind: DeviceType, processes: int, console: Console) -> str:
    """Reduce a tensor over as many processes, a device each; returns the backend that did.

    Raises DpscopeError with the first failure's own words where the job fails, hangs or sums up wrongly.
    """
    folder = RepeatFolder(Path(tempfile.mkdtemp(prefix="dpscope-doctor-")))
    stop = StopRequest()
    module = ("-m", "dpscope.launch.jobs.all_reduce_check", str(folder.path), kind)
    try:
        with stop.listening():
            command = [*torchrun_prefix(processes, folder), *module]
            end = attend_job(command, folder, 1, _JOB_S, "An all-reduce", stop, console)
        answer = folder.path / _ANSWER
        if end == ("exited", 0) and answer.exists():
            return answer.read_text()
        raise DpscopeError(outcome_of(folder, end, _JOB_S).message)
    finally:
        shutil.rmtree(folder.path, ignore_errors=True)


def main() -> None:
    """Reduce in this process of the job; ends the process with status 1 on failure."""
    folder, kind = Path(sys.argv[1]), sys.argv[2]
    place = torchrun_place(os.environ)
    try:
        ran = _reduce(kind, place)
        if place.rank == 0:
            write_text(folder / _ANSWER, ran)
    except Exception as error:
        write_failure(folder, place.node, place.rank, error)
        sys.stderr.write(traceback.format_exc())
        sys.stderr.flush()
        os._exit(1)


def _reduce(kind: str, place: TorchrunPlace) -> str:
    import torch
    from torch import distributed

    from dpscope.launch.jobs.process_group import join_process_group, nccl_engine, synchronise

    device = torch.device("cuda", place.local_rank) if kind == "cuda" else torch.device("cpu")
    if kind == "cuda":
        torch.cuda.set_device(device)
    join_process_group(device, _COLLECTIVE_S)
    tensor = torch.full((_ELEMENTS,), float(place.rank + 1), device=device)
    distributed.all_reduce(tensor)
    synchronise([device])
    expected = place.world_size * (place.world_size + 1) / 2  # 1 + 2 + ... + N
    if not bool((tensor == expected).all()):
        raise DpscopeError(
            f"an all-reduce over {place.world_size} processes gave {float(tensor[0]):g}, not {expected:g}"
        )
    ran = nccl_engine(device) or distributed.get_backend()
    distributed.destroy_process_group()
    return ran


if __name__ == "__main__":
    main()
