"""One process of a job of `dpscope equal` under torchrun: trains and saves the records.

torchrun ... -m dpscope.launch.equality.worker RUN CELL
"""

import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from dpscope.launch.jobs.parent_death import die_with_job

if __name__ == "__main__":
    die_with_job()  # before the imports below, which take longer than it takes to kill a job

from dpscope.launch.jobs.worker_process import (
    Task,
    TorchrunPlace,
    check_process_count,
    starting_up,
    work,
)
from dpscope.profiling.records.equality import EQUALITY_FOLDER, EqualityJob, EqualitySettings
from dpscope.profiling.records.run import CellResult
from dpscope.profiling.store.files import read_json
from dpscope.profiling.store.folders import SETTINGS_NAME, JobFolder


def _read(arguments: Sequence[str], place: TorchrunPlace) -> tuple[JobFolder, Task]:
    out, cell_name = Path(arguments[0]), arguments[1]
    settings = read_json(out / EQUALITY_FOLDER / SETTINGS_NAME, EqualitySettings)
    job = next(job for job in settings.jobs if job.cell.name == cell_name)
    check_process_count(job.cell, place)
    return JobFolder(job.folder(out)), partial(_train, settings, job, out)


def _train(
    settings: EqualitySettings, job: EqualityJob, out: Path, place: TorchrunPlace
) -> CellResult:
    with starting_up():
        from dpscope.launch.equality.training import run_job

    run_job(settings, job, out, place)
    return CellResult(job.cell, repeat=0, status="ok", duration_s=time.time() - place.began_s)


if __name__ == "__main__":
    work(_read)
