"""One process of a job of `dpscope equal` under torchrun: trains and saves what is compared.

torchrun ... -m dpscope.launch.equality_worker RUN CELL
"""

import os
import sys
import time
import traceback
from pathlib import Path

from dpscope.launch.parent_death import die_with_job

if __name__ == "__main__":
    die_with_job()  # before the imports below, which take longer than it takes to kill a job

from dpscope.launch.job_files import started_at, write_failure, write_progress
from dpscope.launch.worker_job import torchrun_place
from dpscope.profiling.equality_types import EQUALITY_FOLDER, SETTINGS_NAME, EqualitySettings
from dpscope.profiling.run_store import DpscopeError, JobFolder, read_json, write_json
from dpscope.profiling.run_types import CellResult


def main() -> None:
    """Run this process of the job that the arguments name; ends the process with status 1 on failure."""
    began = time.time()
    out, cell_name = Path(sys.argv[1]), sys.argv[2]
    place = torchrun_place(os.environ)
    settings = read_json(out / EQUALITY_FOLDER / SETTINGS_NAME, EqualitySettings)
    job = next(job for job in settings.jobs if job.cell.name == cell_name)
    folder = job.folder(out)

    def report(state: str) -> None:
        if place.rank == 0:
            write_progress(folder, state)

    try:
        from dpscope.launch.equality_training import run_job  # torch takes seconds to import

        run_job(settings, job, place, out, report)
        if place.rank == 0:
            duration_s = time.time() - min(started_at(), began)
            result = CellResult(cell=job.cell, repeat=0, status="ok", duration_s=duration_s)
            write_json(JobFolder(folder).result_path, result)
    except Exception as error:
        # The group is never torn down here: another rank may wait in a collective, and torchrun ends it.
        write_failure(folder, place.node, place.rank, error)
        sys.stderr.write(str(error) if isinstance(error, DpscopeError) else traceback.format_exc())
        sys.stderr.flush()
        os._exit(1)


if __name__ == "__main__":
    main()
