"""The trainings that a worker takes part in, of `dpscope train` and `dpscope equal`, by its
assignment. Imports no torch.
"""

import time
from functools import partial
from pathlib import Path

from dpscope.launch.jobs.assignment import Assignment
from dpscope.launch.jobs.worker_process import (
    Task,
    TorchrunPlace,
    begin_once,
    check_process_count,
    planned_cell,
    starting_up,
)
from dpscope.launch.learning.train_plan import TrainJob, train_job
from dpscope.profiling.records.equality import EQUALITY_FOLDER, EqualityJob, EqualitySettings
from dpscope.profiling.records.run import CellResult
from dpscope.profiling.records.training import TrainResult
from dpscope.profiling.store.files import read_json
from dpscope.profiling.store.folders import SETTINGS_NAME, JobFolder
from dpscope.profiling.store.training_folders import TrainFolder


def training_task(assignment: Assignment, place: TorchrunPlace) -> tuple[JobFolder, Task]:
    """The folder and the task of a process that trains a cell; raises DpscopeError for a cell that
    is not planned.
    """
    folder = TrainFolder(assignment.folder)
    if assignment.options is not None:
        from dpscope.launch.learning.train_run import begin_trainings

        begin_once(partial(begin_trainings, assignment), folder.manifest_path, place)
    manifest = folder.manifest()
    plan = [training.planned for training in manifest.plan]
    cell = planned_cell(assignment.cell, plan, folder.manifest_path, place)
    kind = manifest.device_type
    threads = manifest.threads_per_process
    job = train_job(folder, manifest.config, cell, assignment.seed, kind, threads)
    return job.folder, partial(_train, job)


def _train(job: TrainJob, place: TorchrunPlace) -> TrainResult:
    with starting_up():
        from dpscope.launch.learning.train import run_training

    return run_training(job, place)


def equality_task(assignment: Assignment, place: TorchrunPlace) -> tuple[JobFolder, Task]:
    """The folder and the task of a process that trains a cell's k steps and records them."""
    out = assignment.folder
    settings = read_json(out / EQUALITY_FOLDER / SETTINGS_NAME, EqualitySettings)
    job = next(job for job in settings.jobs if job.cell.name == assignment.cell)
    check_process_count(job.cell, place)
    return JobFolder(job.folder(out)), partial(_record, settings, job, out)


def _record(
    settings: EqualitySettings, job: EqualityJob, out: Path, place: TorchrunPlace
) -> CellResult:
    with starting_up():
        from dpscope.launch.learning.equal import run_job

    run_job(settings, job, out, place)
    return CellResult(job.cell, repeat=0, status="ok", duration_s=time.time() - place.began_s)
