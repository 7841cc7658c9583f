"""One process of a cell under torchrun: it warms up, times, traces and saves.

    python -m dpscope.launch.torchrun --nproc-per-node=4 launch/worker.py --strategy ddp
    --batch-size 128 --out runs/x

Everything about the job's shape (ranks, nodes, rendezvous) comes from torchrun's environment, so
`--nnodes` works too when --out is a folder all nodes share. `dpscope run` starts the same worker
with --cell and --repeat, the rest being in the run's manifest.
"""

import os
import sys
from collections.abc import Sequence
from functools import partial

if __name__ == "__main__" and not __package__:
    # Started by path: the user's modules are found from the working directory, and no file in this
    # folder shadows a package.
    sys.path[0] = os.getcwd()

from dpscope.launch.jobs.parent_death import die_with_job

if __name__ == "__main__":
    die_with_job()  # before the imports below, which take longer than it takes to kill a run

from dpscope.launch.jobs.out_folder import claim
from dpscope.launch.jobs.worker_process import Result, Task, TorchrunPlace, starting_up, work
from dpscope.launch.measuring.worker_arguments import WorkerJob, job_from_arguments
from dpscope.profiling.store.folders import JobFolder


def main() -> None:
    """Measure the cell the arguments name."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the tracer's progress notes are not errors
    work(_read)


def _read(arguments: Sequence[str], place: TorchrunPlace) -> tuple[JobFolder, Task]:
    job = job_from_arguments(arguments, place)
    return job.folder, partial(_measure, job)


def _measure(job: WorkerJob, place: TorchrunPlace) -> Result:
    if place.rank == 0:
        # The other ranks measure nothing before they have met this one.
        job.folder.path.mkdir(parents=True, exist_ok=True)
        claim(job.folder.path)
        job.folder.clear_attempt()
    with starting_up():
        from dpscope.launch.measuring.cell import run_cell

    return run_cell(job, place)


if __name__ == "__main__":
    main()
