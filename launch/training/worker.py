"""One process of a training under torchrun: it trains, tests and saves.

    python -m dpscope.launch.torchrun --nproc-per-node=2 -m dpscope.launch.training.worker --out R
    --cell ddp-d2-b16 --seed 0

`dpscope train` starts it; it can be started by hand once R/train_manifest.json is there.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

if __name__ == "__main__" and not __package__:
    sys.path[0] = os.getcwd()  # started by path: as launch/worker.py

from dpscope.launch.jobs.parent_death import die_with_job

if __name__ == "__main__":
    die_with_job()  # before the imports below, which take longer than it takes to kill a run

from dpscope.launch.jobs.worker_process import Task, TorchrunPlace, planned_cell, starting_up, work
from dpscope.launch.training.cells import TrainJob, train_job
from dpscope.profiling.records.training import TrainResult
from dpscope.profiling.store.folders import JobFolder
from dpscope.profiling.store.training_folders import TrainFolder


def _read(arguments: Sequence[str], place: TorchrunPlace) -> tuple[JobFolder, Task]:
    """The job in the folder's manifest that the arguments name; raises DpscopeError."""
    parser = argparse.ArgumentParser(
        prog="train_worker.py", description="Train one cell; run it under torchrun."
    )
    parser.add_argument("--out", type=Path, required=True, help="the run folder")
    parser.add_argument(
        "--cell", required=True, help="a cell of its train_manifest.json, such as ddp-d2-b16"
    )
    parser.add_argument("--seed", type=int, required=True, help="one of its seeds")
    options = parser.parse_args(arguments)
    out = TrainFolder(options.out)
    had = out.manifest()
    cell = planned_cell(options.cell, [one.planned for one in had.plan], out.manifest_path, place)
    kind, threads = had.device_type, had.threads_per_process
    job = train_job(out, had.config, cell, options.seed, kind, threads)
    return job.folder, partial(_train, job)


def _train(job: TrainJob, place: TorchrunPlace) -> TrainResult | None:
    with starting_up():
        from dpscope.launch.training.train import run_training

    return run_training(job, place)


if __name__ == "__main__":
    work(_read)
