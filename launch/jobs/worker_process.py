"""A process under torchrun: its place in the job, and the frame that reads the job and reports progress and failures."""

import gc
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol, TypeVar

from dpscope.launch.jobs.job_outcome import PROGRESS_NAME, STARTED_AT_VARIABLE, remove_job_files, write_failure
from dpscope.profiling.records.finding import counted
from dpscope.profiling.records.run import Cell
from dpscope.profiling.store.errors import DpscopeError
from dpscope.profiling.store.files import write_text
from dpscope.profiling.store.folders import JobFolder


@dataclass(frozen=True)
class TorchrunPlace:
    """This process's ranks, and the sizes of its job."""

    rank: int
    local_rank: int
    world_size: int
    local_world_size: int
    node: int
    nodes: int = 1


def torchrun_place(environment: Mapping[str, str]) -> TorchrunPlace:
    """Read torchrun's variables; raises DpscopeError if torchrun did not start this process."""
    try:
        return TorchrunPlace(
            rank=int(environment["RANK"]),
            local_rank=int(environment["LOCAL_RANK"]),
            world_size=int(environment["WORLD_SIZE"]),
            local_world_size=int(environment["LOCAL_WORLD_SIZE"]),
            node=int(environment["GROUP_RANK"]),
            nodes=int(environment.get("GROUP_WORLD_SIZE", "1")),
        )
    except KeyError as missing:
        raise DpscopeError(
            f"{missing.args[0]} is not set: the worker runs under torchrun; start it with "
            "torchrun --standalone --nproc-per-node=N launch/worker.py ..."
        ) from missing


def check_process_count(cell: Cell, place: TorchrunPlace) -> None:
    """Raise DpscopeError unless torchrun started as many processes as the cell has."""
    if cell.processes != place.world_size:
        raise DpscopeError(
            f"{cell.name} needs {cell.processes} process(es) and torchrun started {place.world_size}; "
            f"use --nproc-per-node={cell.processes}, over several nodes their share of it"
        )


def check_nodes(cell: Cell, place: TorchrunPlace) -> None:
    """Raise DpscopeError unless the job spans as many nodes as its cell."""
    if cell.per_device and cell.nodes != place.nodes:
        raise DpscopeError(
            f"{cell.name} is a cell of {counted(cell.nodes, 'node')} and torchrun started {place.nodes}: give the flags of the "
            "cell instead of --cell, which adds it as a separate cell"
        )


class Job(Protocol):
    """A job with a folder to write to."""

    @property
    def folder(self) -> JobFolder: ...


_Job = TypeVar("_Job", bound=Job)
ReportProgress = Callable[[str], None]


@contextmanager
def starting_up() -> Iterator[None]:
    """Pause garbage collection during imports and while a model is built.

    Their objects are kept, and repeated searches through them take a seventh of torch's import time. Measured steps collect
    garbage as in any program.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def work(
    read_job: Callable[[Sequence[str], TorchrunPlace], _Job],
    do: Callable[[_Job, TorchrunPlace, float, ReportProgress], None],
) -> None:
    """Run the job named by this process's arguments; ends the process with status 1 on failure, 2 on a user's mistake.

    `do` gets the job, this process's place in it, the Unix time at which it began, and a function that reports progress.
    """
    began_s = min(time.time(), float(os.environ.get(STARTED_AT_VARIABLE, "inf")))  # of torchrun, if dpscope started it
    try:
        place = torchrun_place(os.environ)
        job = read_job(sys.argv[1:], place)
    except DpscopeError as error:
        _end(f"dpscope: {error}", status=2)

    def report(state: str) -> None:
        if place.rank == 0:
            write_text(job.folder.path / PROGRESS_NAME, state)

    try:
        do(job, place, began_s, report)
        if place.rank == 0:
            remove_job_files(job.folder.path)
        gc.freeze()  # as the process ends, Python would visit all of torch's objects, for half a second
    except Exception as error:
        # The group is never torn down here: another rank may wait in a collective, and torchrun ends it.
        write_failure(job.folder.path, place.node, place.rank, error)
        _end(str(error) if isinstance(error, DpscopeError) else traceback.format_exc(), status=1)


def _end(message: str, status: int) -> None:
    sys.stderr.write(message.rstrip() + "\n")
    sys.stderr.flush()
    os._exit(status)
