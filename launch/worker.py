"""One process of a cell under torchrun: it warms up, times, traces and saves.

    torchrun --standalone --nproc-per-node=4 launch/worker.py --strategy ddp --batch-size 128 --out runs/x

Everything about the job's shape (ranks, nodes, rendezvous) comes from torchrun's environment, so `--nnodes` works
too when --out is a folder all nodes share. `dpscope run` starts the same worker with --cell and --repeat, the
rest being in the run's manifest.
"""

import os
import sys
import time
import traceback

if __name__ == "__main__" and not __package__:
    # Started by path: the user's modules are found from the working directory, and no file beside this one
    # shadows a package.
    sys.path[0] = os.getcwd()

from dpscope.launch.parent_death import die_with_job

if __name__ == "__main__":
    die_with_job()  # before the imports below, which take longer than it takes to kill a run

from dpscope.launch.job_files import remove_job_files, started_at, write_failure, write_progress
from dpscope.launch.worker_job import TorchrunPlace, WorkerJob, job_from_arguments, torchrun_place
from dpscope.profiling.run_store import DpscopeError


def main() -> None:
    """Run the job the arguments name; ends the process with status 1 on failure, 2 on a user's mistake."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the tracer's progress notes are not errors
    began = min(started_at(), time.time())
    try:
        place = torchrun_place(os.environ)
        job = job_from_arguments(sys.argv[1:], place)
    except DpscopeError as error:
        _end(f"dpscope: {error}", status=2)
    try:
        _measure(job, place, began)
    except Exception as error:
        # The group is never torn down here: another rank may wait in a collective, and torchrun ends it.
        write_failure(job.folder.path, place.node, place.rank, error)
        _end(str(error) if isinstance(error, DpscopeError) else traceback.format_exc(), status=1)


def _measure(job: WorkerJob, place: TorchrunPlace, began: float) -> None:
    # Only now: torch takes seconds to import, and a mistake in the arguments should not.
    from dpscope.launch.cell_job import run_cell

    def report(state: str) -> None:
        if place.rank == 0:
            write_progress(job.folder.path, state)

    run_cell(job, place, began, report)
    if place.rank == 0:
        remove_job_files(job.folder.path)


def _end(message: str, status: int) -> None:
    sys.stderr.write(message.rstrip() + "\n")
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    main()
