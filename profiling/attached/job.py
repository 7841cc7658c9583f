"""The job that a process belongs to: its name, its processes, the folder that they write to, and
the repeat that this becomes.
"""

import contextlib
import fcntl
import importlib.metadata
import itertools
import os
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import msgspec
import torch
from torch import distributed

from dpscope.profiling.attached.settings import AttachSettings
from dpscope.profiling.machine.environment import collect_environment, machine_findings
from dpscope.profiling.machine.nvml import open_nvml
from dpscope.profiling.records.config import ResolvedConfig, ResolvedMeasurement, Workload
from dpscope.profiling.records.matrix import ResolvedMatrix
from dpscope.profiling.records.run import (
    SCHEMA_VERSION,
    AttachedProcess,
    Cell,
    CellResult,
    Manifest,
    PlannedCell,
)
from dpscope.profiling.store.errors import DpscopeError
from dpscope.profiling.store.files import write_json
from dpscope.profiling.store.folders import (
    ATTACHED_PREFIX,
    CELLS_NAME,
    RepeatFolder,
    RunFolder,
    is_run_folder,
    remove_written,
)

_NAME_KEY = "dpscope/attached"
_COUNT_KEY = "dpscope/attached/processes"
_MAX_WAIT_S = 10.0  # for processes that never communicate, and so need not begin together
# A file per process, which holds a lock on it: the system releases it however the process ends.
_LOCK_PREFIX = "running_"


@dataclass(frozen=True)
class Place:
    """This process's place among the processes that train together, and what they communicate
    with.
    """

    rank: int
    local_rank: int
    world_size: int
    node: int
    nodes: int = 1  # hosts of the job, as set by torchrun
    backend: str | None = None  # None for a process that trains alone
    nccl_engine: str | None = None  # the class of torch's process group, on GPUs


def current_place(device: torch.device) -> Place | None:
    """The place in the script's process group; None for several processes without one, each of
    which trains alone.

    Must be called before the script destroys its process group.
    """
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    node = int(os.environ.get("GROUP_RANK", "0"))
    if not (distributed.is_available() and distributed.is_initialized()):
        return (
            Place(0, local_rank, 1, node) if int(os.environ.get("WORLD_SIZE", "1")) == 1 else None
        )
    nodes = int(os.environ.get("GROUP_WORLD_SIZE", "1"))
    backend = engine = None
    if (world_size := distributed.get_world_size()) > 1:
        backend = str(distributed.get_backend())
        group = distributed.distributed_c10d._get_default_group()
        engine = type(group._get_backend(device)).__name__ if device.type == "cuda" else None
    return Place(distributed.get_rank(), local_rank, world_size, node, nodes, backend, engine)


def join_job(place: Place, out: Path) -> RepeatFolder:
    """Count this process among the measured ones of its job; returns the folder that they write to
    until all files are there.

    The processes agree on the job's unique name through the store of the script's process group,
    without waiting for each other: a script with uneven inputs might never reach a collective.
    """
    name = uuid.uuid4().hex
    if place.world_size > 1:
        store = distributed.distributed_c10d._get_default_store()
        name = store.compare_set(_NAME_KEY, "", name).decode()
        store.add(_COUNT_KEY, 1)
    return RepeatFolder(out / CELLS_NAME / f"{ATTACHED_PREFIX}{name}")


def missing_processes(place: Place) -> int:
    """How many processes of a job that torchrun did not start run the script without dpscope; 0 if
    unknown.

    Processes that train together have all joined once one of them is traced; for others this waits
    up to _MAX_WAIT_S.
    """
    if (
        place.world_size == 1
        or "TORCHELASTIC_RUN_ID" in os.environ
        or not distributed.is_initialized()
    ):
        return 0
    store = distributed.distributed_c10d._get_default_store()
    deadline_s = time.monotonic() + _MAX_WAIT_S
    try:
        while (
            missing := place.world_size - int(store.add(_COUNT_KEY, 0))
        ) and time.monotonic() < deadline_s:
            time.sleep(0.05)
    except distributed.DistError:  # the process that holds the store has left the process group
        return 0
    return missing


class HeldFolder:
    """A job's folder that this process writes to."""

    def __init__(self, folder: RepeatFolder, node: int, rank: int) -> None:
        self._path = folder.path / f"{_LOCK_PREFIX}{node}_{rank}"
        self._traces = (folder.trace_path(node, rank), folder.counters_trace_path(node, rank))
        cells = folder.path.parent
        self._made = [path for path in (cells, cells.parent) if not path.exists()]
        folder.path.mkdir(parents=True, exist_ok=True)
        self._descriptor: int | None = os.open(self._path, os.O_CREAT | os.O_RDWR, 0o666)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            # a file system without locks: without this file the folder is never removed
            self._path.unlink(missing_ok=True)

    def release(self, keep: bool) -> None:
        """Release it. Unless its measurements are to be kept, remove this process's files, and the
        last process the folder.
        """
        if self._descriptor is None:
            return
        os.close(self._descriptor)
        self._descriptor = None
        if keep:
            return
        for path in (self._path, *self._traces):
            path.unlink(missing_ok=True)
        for path in (*(one.parent for one in self._traces), self._path.parent, *self._made):
            with contextlib.suppress(OSError):  # not empty, or not there
                path.rmdir()


def remove_unfinished_jobs(out: Path) -> None:
    """Remove the folders of jobs that ended before all their processes had saved, unless a process
    is still alive.
    """
    for path in (out / CELLS_NAME).glob(f"{ATTACHED_PREFIX}*"):
        locks = list(path.glob(f"{_LOCK_PREFIX}*"))
        if locks and not path.is_symlink() and not any(_is_held(lock) for lock in locks):
            remove_written(out, path)
            with contextlib.suppress(OSError):  # it holds files of others
                path.rmdir()


def _is_held(lock: Path) -> bool:
    try:
        descriptor = os.open(lock, os.O_RDWR)
    except OSError:
        return True  # removed by its process meanwhile, or another user's
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


@dataclass(frozen=True)
class SavedPart:
    """What a process needs to finish its job after it has saved its files."""

    folder: RepeatFolder  # of the job
    settings: AttachSettings
    world_size: int
    device_type: Literal["cuda", "cpu"]
    model: str  # the class of the model


def finish_job(part: SavedPart) -> bool:
    """If every process has saved, make their folder a repeat of its cell and enter the cell into
    the manifest.

    Every process calls this after it has saved. If several see all files, the first to rename the
    folder finishes the job: some file systems have no locks, or only locks within one host. Returns
    whether all have saved.
    """
    run, folder = RunFolder(part.settings.out), part.folder
    whole = RepeatFolder(folder.path.with_name(f"{folder.path.name}-whole"))
    with _locked(run.path / CELLS_NAME):
        try:
            if not folder.path.exists():
                return True
            ranks = folder.ranks()
            if len(ranks) < part.world_size or ranks[0].attached is None:
                return False
            os.rename(folder.path, whole.path)
        except (OSError, DpscopeError):
            if folder.path.exists():
                raise
            return True  # another process finishes it
        try:
            cell = _cell_of([rank.attached for rank in ranks if rank.attached is not None])
            write_json(run.manifest_path, _manifest_with(run, cell, ranks[0].threads, part))
            for lock in whole.path.glob(f"{_LOCK_PREFIX}*"):
                lock.unlink(missing_ok=True)
            duration_s = max(block.duration_s for rank in ranks for block in rank.blocks)
            _move_to_repeat(run, cell, duration_s, whole)
        except BaseException:
            os.rename(whole.path, folder.path)
            raise
    return True


def _cell_of(processes: Sequence[AttachedProcess]) -> Cell:
    """The first process's cell at the mean batch per device; batches that one process does not know
    are 1.
    """
    batches = (
        [one.cell.batch_size for one in processes]
        if all(one.batch_known for one in processes)
        else [1]
    )
    return msgspec.structs.replace(processes[0].cell, batch_size=round(sum(batches) / len(batches)))


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Jobs of one host change a manifest one after another, where the file system has locks."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _move_to_repeat(run: RunFolder, cell: Cell, duration_s: float, whole: RepeatFolder) -> None:
    """Make a folder the cell's next repeat; if another job takes the same number first, try the
    next.
    """
    for repeat in itertools.count():
        target = run.repeat(cell, repeat).path
        if target.exists():
            continue
        write_json(
            whole.result_path,
            CellResult(cell=cell, repeat=repeat, status="ok", duration_s=duration_s),
        )
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.rename(whole.path, target)
            return
        except OSError:
            if not target.exists():
                raise


def _manifest_with(run: RunFolder, cell: Cell, threads: int, part: SavedPart) -> Manifest:
    manifest = run.manifest() if is_run_folder(run.path) else _new_manifest(cell, threads, part)
    plan = sorted(
        {*manifest.plan, PlannedCell(cell=cell)},
        key=lambda one: (one.cell.batch_size, one.cell.devices, one.cell.name),
    )
    if len(plan) == len(manifest.plan):
        return manifest
    matrix = ResolvedMatrix(
        devices=tuple({one.cell.devices for one in plan}),
        batch_sizes=tuple({one.cell.batch_size for one in plan}),
    )
    config = msgspec.structs.replace(manifest.config, matrix=matrix)
    return msgspec.structs.replace(manifest, config=config, plan=tuple(plan))


def _new_manifest(cell: Cell, threads: int, part: SavedPart) -> Manifest:
    settings, kind = part.settings, part.device_type
    environment = collect_environment(
        open_nvml() if kind == "cuda" else None, on_gpus=kind == "cuda", code=settings.code
    )
    return Manifest(
        schema_version=SCHEMA_VERSION,
        dpscope_version=importlib.metadata.version("dpscope"),
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        config=ResolvedConfig(
            workload=Workload(device=kind, model=part.model),
            measurement=ResolvedMeasurement(
                warmup_steps=settings.warmup_steps,
                steps=settings.steps,
                traced_steps=settings.traced_steps,
                repeats=1,
            ),
            matrix=ResolvedMatrix(devices=(cell.devices,), batch_sizes=(cell.batch_size,)),
        ),
        device_type=kind,
        threads_per_process=threads,
        environment=environment,
        plan=(),
        script=settings.script,
        findings=tuple(machine_findings(environment, kind, cell.devices)),
    )
