"""The task of a worker that measures a cell. Imports no torch until it measures."""

import sys
from contextlib import AbstractContextManager, closing, nullcontext
from functools import partial

from dpscope.launch.jobs.assignment import Assignment
from dpscope.launch.jobs.out_folder import claim
from dpscope.launch.jobs.worker_process import Result, Task, TorchrunPlace, starting_up
from dpscope.launch.measuring.assigned_cell import AssignedCell, assigned_cell
from dpscope.profiling.store.folders import JobFolder


def measuring_task(assignment: Assignment, place: TorchrunPlace) -> tuple[JobFolder, Task]:
    """The folder and the task of a process that measures a cell."""
    job = assigned_cell(assignment, place)
    return job.folder, partial(_measure, job)


def _measure(job: AssignedCell, place: TorchrunPlace) -> Result:
    if place.rank == 0:
        # The other ranks measure nothing before they have met this one.
        job.folder.path.mkdir(parents=True, exist_ok=True)
        claim(job.folder.path)
        job.folder.clear_attempt()
    with starting_up():
        from dpscope.launch.measuring.cell import run_cell

    with _recording(job, place):
        return run_cell(job, place)


def _recording(job: AssignedCell, place: TorchrunPlace) -> AbstractContextManager[object]:
    """Records the collectives of a cell with a process for each device, also of one that fails."""
    if not (job.config.measurement.record_collectives and job.cell.per_device):
        return nullcontext()
    from dpscope.profiling.instruments.collective_records import CollectiveRecorder

    def note(text: str) -> None:
        sys.stderr.write(f"{text}\n")

    return closing(CollectiveRecorder(job.folder.collectives_path, place.rank, note))
