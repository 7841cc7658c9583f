"""One process of a job under torchrun: it measures a cell, trains, compares or times collectives.

    python -m dpscope.launch.torchrun --nproc-per-node=4 -m dpscope.launch.worker ASSIGNMENT

The only argument is JSON (launch/jobs/assignment.py). Everything about the job's shape (ranks,
nodes, rendezvous) comes from torchrun's environment. `dpscope run --dry-run` and `dpscope train
--dry-run` print such commands, which work by hand.
"""

import os
import signal
import sys
from collections.abc import Sequence

if __name__ == "__main__" and not __package__:
    # Started by path: the user's modules are found from the working directory, and no file in this
    # folder shadows a package.
    sys.path[0] = os.getcwd()

from dpscope.launch.jobs.parent_death import die_with_job

if __name__ == "__main__":
    die_with_job()  # before the imports below, which take longer than it takes to kill a run
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)  # not torchrun's handlers, which a fork of it has
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]

from dpscope.launch.jobs.assignment import read_assignment
from dpscope.launch.jobs.worker_process import Task, TorchrunPlace, work
from dpscope.profiling.store.folders import JobFolder


def main() -> None:
    """Do what the argument assigns."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the tracer's progress notes are not errors
    work(_read)


def _read(arguments: Sequence[str], place: TorchrunPlace) -> tuple[JobFolder, Task]:
    assignment = read_assignment(arguments)
    # Each task's module is imported for it alone: a worker starts as often as there are ranks.
    match assignment.task:
        case "measure":
            from dpscope.launch.measuring.task import measuring_task

            return measuring_task(assignment, place)
        case "train":
            from dpscope.launch.learning.tasks import training_task

            return training_task(assignment, place)
        case "equal":
            from dpscope.launch.learning.tasks import equality_task

            return equality_task(assignment, place)
        case "calibrate":
            from dpscope.launch.measuring.calibration_task import calibration_task

            return calibration_task(assignment)


if __name__ == "__main__":
    main()
