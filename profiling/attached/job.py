"""The job that a process belongs to: its name, its processes, the folder that they write to, and
the repeat that this becomes.
"""

import contextlib
import importlib.metadata
import itertools
import os
import time
import uuid
from collections.abc import Sequence
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

    def stated(name: str, default: int) -> int:
        return int(os.environ.get(name, default))

    local_rank = stated("LOCAL_RANK", 0)
    node = stated("GROUP_RANK", 0)
    if not (distributed.is_available() and distributed.is_initialized()):
        return Place(0, local_rank, 1, node) if stated("WORLD_SIZE", 1) == 1 else None
    world_size = distributed.get_world_size()
    backend = engine = None
    if world_size > 1:
        backend = str(distributed.get_backend())
        group = distributed.distributed_c10d._get_default_group()
        engine = type(group._get_backend(device)).__name__ if device.type == "cuda" else None
    nodes = stated("GROUP_WORLD_SIZE", 1)
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
    by_torchrun = "TORCHELASTIC_RUN_ID" in os.environ
    if place.world_size == 1 or by_torchrun or not distributed.is_initialized():
        return 0
    store = distributed.distributed_c10d._get_default_store()
    deadline_s = time.monotonic() + _MAX_WAIT_S
    try:
        while True:
            missing = place.world_size - int(store.add(_COUNT_KEY, 0))
            if not missing or time.monotonic() > deadline_s:
                return missing
            time.sleep(0.05)
    except distributed.DistError:  # the process that holds the store has left the process group
        return 0


def remove_unfinished_jobs(out: Path) -> None:
    """Remove the folders of jobs that ended before all their processes had saved.

    One job at a time measures in a run folder, and this one has not begun.
    """
    for path in (out / CELLS_NAME).glob(f"{ATTACHED_PREFIX}*"):
        if not path.is_symlink():
            remove_written(out, path)
            with contextlib.suppress(OSError):  # it holds files of others
                path.rmdir()


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
    folder finishes the job. Returns whether all have saved.
    """
    run = RunFolder(part.settings.out)
    folder = part.folder
    whole = RepeatFolder(folder.path.with_name(f"{folder.path.name}-whole"))
    try:
        ranks = folder.ranks()
        processes = [rank.attached for rank in ranks if rank.attached is not None]
        if folder.path.exists() and len(processes) < part.world_size:
            return False
        os.rename(folder.path, whole.path)
    except (OSError, DpscopeError):
        if folder.path.exists():
            raise
        return True  # another process finishes it
    cell = _cell_of(processes)
    write_json(run.manifest_path, _manifest_with(run, cell, ranks[0].threads, part))
    duration_s = max(block.duration_s for rank in ranks for block in rank.blocks)
    for repeat in itertools.count():
        target = run.repeat(cell, repeat).path
        if target.exists():
            continue
        result = CellResult(cell=cell, repeat=repeat, status="ok", duration_s=duration_s)
        write_json(whole.result_path, result)
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.rename(whole.path, target)
            break
        except OSError:  # another job has taken this number meanwhile: the next one
            if not target.exists():
                raise
    return True


def _cell_of(processes: Sequence[AttachedProcess]) -> Cell:
    """The first process's cell at the mean batch per device; batches that one process does not know
    are 1.
    """
    batches = [1]
    if all(process.batch_known for process in processes):
        batches = [process.cell.batch_size for process in processes]
    return msgspec.structs.replace(processes[0].cell, batch_size=round(sum(batches) / len(batches)))


def _manifest_with(run: RunFolder, cell: Cell, threads: int, part: SavedPart) -> Manifest:
    manifest = run.manifest() if is_run_folder(run.path) else _new_manifest(cell, threads, part)
    plan = sorted(
        {*manifest.plan, PlannedCell(cell=cell)},
        key=lambda planned: (planned.cell.batch_size, planned.cell.devices, planned.cell.name),
    )
    if len(plan) == len(manifest.plan):
        return manifest
    matrix = ResolvedMatrix(
        devices=tuple({planned.cell.devices for planned in plan}),
        batch_sizes=tuple({planned.cell.batch_size for planned in plan}),
    )
    config = msgspec.structs.replace(manifest.config, matrix=matrix)
    return msgspec.structs.replace(manifest, config=config, plan=tuple(plan))


def _new_manifest(cell: Cell, threads: int, part: SavedPart) -> Manifest:
    settings = part.settings
    kind = part.device_type
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
