"""The calibration that a worker takes part in, in its job's own folder. Imports no torch."""

import os
from functools import partial
from pathlib import Path

from dpscope.launch.jobs.assignment import Assignment
from dpscope.launch.jobs.worker_process import Task, TorchrunPlace, starting_up
from dpscope.profiling.records.calibration import CalibrationSettings, TimedCollectives
from dpscope.profiling.store.files import read_json, write_json
from dpscope.profiling.store.folders import JobFolder


def calibration_task(assignment: Assignment) -> tuple[JobFolder, Task]:
    """The folder and the task of a process that times collectives."""
    folder = JobFolder(assignment.folder)
    return folder, partial(_calibrate, folder, read_json(folder.settings_path, CalibrationSettings))


def _calibrate(
    folder: JobFolder, settings: CalibrationSettings, place: TorchrunPlace
) -> TimedCollectives:
    def keep(collectives: TimedCollectives) -> None:
        if place.rank == 0:
            write_json(collectives_path(folder), collectives)

    if settings.nccl_log:  # before NCCL starts; the user's values take precedence
        for name, value in log_variables(folder.path).items():
            os.environ.setdefault(name, value)
    with starting_up():
        from dpscope.launch.measuring.collective_timing import measure

    return measure(settings, place, keep)


def log_variables(folder: Path) -> dict[str, str]:
    """The variables that make NCCL write its choices into a folder, one file per process."""
    return {
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_SUBSYS": "INIT,GRAPH,TUNING,NET,ENV",
        "NCCL_DEBUG_FILE": str(folder / "nccl.%h.%p.log"),
    }


def collectives_path(folder: JobFolder) -> Path:
    """The file with a job's collectives while it times contention."""
    return folder.path / "collectives.json"
