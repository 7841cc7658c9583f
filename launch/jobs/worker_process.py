"""Frame of every process under torchrun: reads its job, reports progress and failures."""

import gc
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol, TypeVar

from dpscope.launch.jobs.job_files import remove_job_files, started_at, write_failure, write_progress
from dpscope.launch.jobs.place import TorchrunPlace, torchrun_place
from dpscope.profiling.store.errors import DpscopeError
from dpscope.profiling.store.folders import JobFolder


class Job(Protocol):
    """Anything that has a folder to write to."""

    @property
    def folder(self) -> JobFolder: ...


_Job = TypeVar("_Job", bound=Job)
TellProgress = Callable[[str], None]


@contextmanager
def starting_up() -> Iterator[None]:
    """For imports and the building of a model: nothing is looked for as garbage meanwhile.

    All that they make is kept, and Python would go through it again and again, which takes a seventh of the time that torch
    takes to import. What follows collects as any program does: it is measured.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def work(
    read_job: Callable[[Sequence[str], TorchrunPlace], _Job],
    do: Callable[[_Job, TorchrunPlace, float, TellProgress], None],
) -> None:
    """Do the job that this process's arguments name; ends the process with status 1 on failure, 2 on a user's mistake.

    `do` gets the job, this process's place in it, the Unix time it began, and what to tell of its progress.
    """
    began_s = min(started_at(), time.time())
    try:
        place = torchrun_place(os.environ)
        job = read_job(sys.argv[1:], place)
    except DpscopeError as error:
        _end(f"dpscope: {error}", status=2)

    def report(state: str) -> None:
        if place.rank == 0:
            write_progress(job.folder.path, state)

    try:
        do(job, place, began_s, report)
        if place.rank == 0:
            remove_job_files(job.folder.path)
    except Exception as error:
        # The group is never torn down here: another rank may wait in a collective, and torchrun ends it.
        write_failure(job.folder.path, place.node, place.rank, error)
        _end(str(error) if isinstance(error, DpscopeError) else traceback.format_exc(), status=1)


def _end(message: str, status: int) -> None:
    sys.stderr.write(message.rstrip() + "\n")
    sys.stderr.flush()
    os._exit(status)
