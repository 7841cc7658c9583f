"""A process under torchrun: its place in the job, and the frame that reads the job and reports
progress and failures.
"""

import contextlib
import gc
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from dpscope.launch.jobs.job_outcome import (
    NO_NOTE,
    PROGRESS_NAME,
    STARTED_AT_VARIABLE,
    remove_job_files,
    write_failure,
)
from dpscope.profiling.machine.gpus import GPU_ORDER
from dpscope.profiling.records.finding import counted
from dpscope.profiling.records.run import Cell, PlannedCell
from dpscope.profiling.records.stored import Stored
from dpscope.profiling.store.errors import DpscopeError
from dpscope.profiling.store.files import write_json, write_text
from dpscope.profiling.store.folders import JobFolder

WAIT_FOR_RANK_0_S = 120.0  # a network file system shows another host's files up to a minute late
_POLL_S = 0.2


@dataclass(frozen=True)
class TorchrunPlace:
    """This process's ranks, and the sizes of its job."""

    rank: int
    local_rank: int
    world_size: int
    local_world_size: int
    node: int
    nodes: int = 1
    began_s: float = field(default=0.0, compare=False)  # Unix time at which the job started
    # gets each pass at its start
    report: Callable[[str], None] = field(default=lambda state: None, compare=False)


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
            "python -m dpscope.launch.torchrun --nproc-per-node=N -m dpscope.launch.worker ..."
        ) from missing


def planned_cell(
    name: str, plan: Sequence[PlannedCell], manifest: Path, place: TorchrunPlace
) -> Cell:
    """The cell of a plan that a process measures; raises DpscopeError unless it is there and fits
    torchrun's job.
    """
    cells = {planned.cell.name: planned.cell for planned in plan if planned.skip_reason is None}
    if name not in cells:
        raise DpscopeError(f"cell {name}: not in {manifest}; it has {', '.join(cells)}")
    check_process_count(cells[name], place)
    check_nodes(cells[name], place)
    return cells[name]


def begin_once(begin: Callable[[], None], manifest: Path, place: TorchrunPlace) -> None:
    """Begin the folder of a job that was started by hand: rank 0 writes its manifest unless it is
    there, the others wait for it. Raises DpscopeError if it never becomes visible.
    """
    if place.rank == 0:
        begin()
        return
    deadline = time.monotonic() + WAIT_FOR_RANK_0_S
    while not manifest.exists():
        if time.monotonic() > deadline:
            raise DpscopeError(
                f"{manifest.parent}: rank 0 has begun nothing there in {WAIT_FOR_RANK_0_S:g} s; name one folder that all nodes "
                "share, and check rank 0's messages"
            )
        time.sleep(_POLL_S)


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
            f"{cell.name} is a cell of {counted(cell.nodes, 'node')} and torchrun started {place.nodes}; "
            f"start it on {counted(cell.nodes, 'node')}"
        )


@contextmanager
def starting_up() -> Iterator[None]:
    """Pause garbage collection during imports and while a model is built.

    Their objects are kept, and repeated searches through them take a seventh of torch's import
    time. Measured steps collect garbage as in any program.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


Result = Stored | None
Task = Callable[[TorchrunPlace], Result]
"""A process's part of a job; returns the job's result, which rank 0 stores."""


def work(read_task: Callable[[Sequence[str], TorchrunPlace], tuple[JobFolder, Task]]) -> None:
    """Run the task named by this process's arguments; ends the process with status 1 on failure, 2
    on a user's mistake.

    `read_task` returns the job's folder and the task. Only the task imports torch: a mistake in the
    arguments should not take the seconds that this takes.
    """
    os.environ.setdefault(*GPU_ORDER)  # in which the manifest lists the devices
    # of torchrun, if dpscope started it
    began_s = min(time.time(), float(os.environ.get(STARTED_AT_VARIABLE, "inf")))
    try:
        place = torchrun_place(os.environ)
        folder, task = read_task(sys.argv[1:], place)
    except DpscopeError as error:
        _end(f"dpscope: {error}", status=2)

    def report(state: str) -> None:
        if place.rank == 0:
            write_text(folder.path / PROGRESS_NAME, state)

    try:
        result = task(replace(place, began_s=began_s, report=report))
        # before a result is stored: it may raise what the last collectives on a device failed with
        leave_group()
        if place.rank == 0:
            if result is not None:
                write_json(folder.result_path, result)
            # dpscope does when all ranks have ended: another may fail yet
            if STARTED_AT_VARIABLE not in os.environ:
                remove_job_files(folder.path)
                sys.stdout.write(f"Done: {folder.result_path}\n")
        # as the process ends, Python would visit all of torch's objects, for half a second
        gc.freeze()
    except Exception as error:
        # The group is never torn down here: another rank may wait in a collective, and torchrun
        # ends it.
        text = str(error) if isinstance(error, DpscopeError) else traceback.format_exc()
        try:
            write_failure(folder.path, place.node, place.rank, error)
        except OSError:
            _end(text, NO_NOTE)
        _end(text, status=1)


def leave_group() -> None:
    """Leave the job's process group, if this process has joined one."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_initialized():
        distributed.destroy_process_group()


def _end(message: str, status: int) -> None:
    # torchrun's log of this process lies in the run folder, whose disk may be full
    with contextlib.suppress(OSError):
        sys.stderr.write(message.rstrip() + "\n")
        sys.stderr.flush()
    os._exit(status)
