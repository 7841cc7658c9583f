"""Which repeat a job measures: rank 0 chooses it and writes it down, the other ranks wait for what it wrote. Imports no torch.

Ranks that each looked for the first free repeat might find different ones: a network's file system shows another host's files
up to a minute late, and another job may end in between.
"""

import os
import time
from collections.abc import Mapping

from dpscope.launch.jobs.job_files import JOB_NAME
from dpscope.launch.jobs.place import TorchrunPlace
from dpscope.launch.measuring.multi_host_manifest import free_repeat
from dpscope.profiling.records.run import Cell
from dpscope.profiling.store.errors import DpscopeError
from dpscope.profiling.store.files import write_text
from dpscope.profiling.store.folders import RunFolder

WAIT_FOR_RANK_0_S = 120.0
POLL_S = 0.2

_TOLD_BY_TORCHRUN = ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_ADDR", "MASTER_PORT")


def chosen_repeat(run: RunFolder, cell: Cell, repeat: int | None, place: TorchrunPlace) -> int:
    """The repeat to measure, by default the next free one; raises DpscopeError for one that is measured already."""
    if repeat is None and place.rank > 0:
        return _told_by_rank_0(run, cell)
    chosen = free_repeat(run, cell) if repeat is None else repeat
    _check(run, cell, chosen)
    if place.rank == 0:
        folder = run.repeat(cell, chosen)
        folder.path.mkdir(parents=True, exist_ok=True)
        if repeat is None and place.world_size > 1:
            write_text(folder.path / JOB_NAME, _this_job(os.environ))
    return chosen


def _check(run: RunFolder, cell: Cell, repeat: int) -> None:
    if repeat < 0:
        raise DpscopeError(f"--repeat {repeat}: must be 0 or more")
    folder = run.repeat(cell, repeat)
    if folder.status() == "ok":
        raise DpscopeError(
            f"--repeat {repeat}: {cell.name} is measured already, in {folder.path}; omit --repeat to add the next "
            "free one, or remove that folder to measure it again"
        )


def _this_job(environment: Mapping[str, str]) -> str:
    """What all processes of one attempt of one job know alike, and those of no other."""
    return " ".join(environment.get(name, "-") for name in _TOLD_BY_TORCHRUN)


def _told_by_rank_0(run: RunFolder, cell: Cell) -> int:
    deadline = time.monotonic() + WAIT_FOR_RANK_0_S
    while True:
        for repeat, folder in run.repeats(cell):
            try:
                if (folder.path / JOB_NAME).read_text() == _this_job(os.environ):
                    return repeat
            except FileNotFoundError:
                continue
        if time.monotonic() > deadline:
            raise DpscopeError(
                f"--out {run.path}: rank 0 has chosen no repeat of {cell.name} there in {WAIT_FOR_RANK_0_S:g} s; name one "
                "folder that all nodes share, and see what rank 0 says"
            )
        time.sleep(POLL_S)
