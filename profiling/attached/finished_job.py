"""The processes' files become a cell of a run folder, once all of them are there."""

import contextlib
import fcntl
import importlib.metadata
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import msgspec

from dpscope.profiling.attached.settings import AttachSettings
from dpscope.profiling.attached.unfinished_jobs import forget_processes
from dpscope.profiling.machine.environment import collect_environment, machine_findings
from dpscope.profiling.machine.nvml import open_nvml
from dpscope.profiling.records.config import Measurement, ResolvedConfig, Workload
from dpscope.profiling.records.matrix import ResolvedMatrix
from dpscope.profiling.records.run import (
    SCHEMA_VERSION,
    Cell,
    CellResult,
    Manifest,
    PlannedCell,
    RankResult,
)
from dpscope.profiling.store.errors import DpscopeError
from dpscope.profiling.store.files import write_json
from dpscope.profiling.store.folders import CELLS_NAME, RepeatFolder, RunFolder, is_run_folder


@dataclass(frozen=True)
class SavedPart:
    """What a process that has saved its part must know to finish its job."""

    settings: AttachSettings
    world_size: int
    device_type: Literal["cuda", "cpu"]
    model: str  # the class of the model


def finish_job(folder: RepeatFolder, part: SavedPart) -> bool:
    """If every process has saved, make the folder that they share a repeat of its cell and enter that into the manifest.

    Every process calls this after it has saved; where two of them see all files, the one that renames the folder first does it,
    since not every file system has locks, and some have them for one host alone. Returns whether all have saved.
    """
    run = RunFolder(part.settings.out)
    whole = RepeatFolder(folder.path.with_name(f"{folder.path.name}-whole"))
    with _alone_in(run.path / CELLS_NAME):
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
            return True  # another process has it
        try:
            cell = ranks[0].attached.cell
            write_json(run.manifest_path, _manifest_with(run, cell, ranks[0], part))
            forget_processes(whole)
            _become_repeat(run, cell, _measured_s(ranks), whole)
        except BaseException:
            os.rename(whole.path, folder.path)
            raise
    return True


@contextmanager
def _alone_in(path: Path) -> Iterator[None]:
    """Jobs of one host that enter their cells into a manifest do so one after another, where the file system has locks."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _become_repeat(run: RunFolder, cell: Cell, duration_s: float, whole: RepeatFolder) -> None:
    """Make a folder the cell's next repeat; another job may take the same one, and the rename tells which was first."""
    while True:
        repeat = _free_repeat(run, cell)
        write_json(whole.result_path, CellResult(cell=cell, repeat=repeat, status="ok", duration_s=duration_s))
        place = run.repeat(cell, repeat).path
        place.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.rename(whole.path, place)
            return
        except OSError:
            if not place.exists():
                raise


def _free_repeat(run: RunFolder, cell: Cell) -> int:
    repeat = 0
    while run.repeat(cell, repeat).path.exists():
        repeat += 1
    return repeat


def _measured_s(ranks: list[RankResult]) -> float:
    return max(block.duration_s for rank in ranks for block in rank.blocks)


def _manifest_with(run: RunFolder, cell: Cell, rank: RankResult, part: SavedPart) -> Manifest:
    """The run's manifest with this cell in its plan; a new one where there is none."""
    manifest = run.manifest() if is_run_folder(run.path) else _new_manifest(cell, rank, part)
    planned = PlannedCell(cell=cell)
    if planned in manifest.plan:
        return manifest
    plan = sorted({*manifest.plan, planned}, key=lambda one: (one.cell.batch_size, one.cell.devices, one.cell.name))
    matrix = ResolvedMatrix(
        devices=tuple({one.cell.devices for one in plan}), batch_sizes=tuple({one.cell.batch_size for one in plan})
    )
    config = msgspec.structs.replace(manifest.config, matrix=matrix)
    return msgspec.structs.replace(manifest, config=config, plan=tuple(plan))


def _new_manifest(cell: Cell, rank: RankResult, part: SavedPart) -> Manifest:
    on_cuda, settings, kind = part.device_type == "cuda", part.settings, part.device_type
    environment = collect_environment(open_nvml() if on_cuda else None, on_gpus=on_cuda, code=settings.code)
    windows = Measurement(
        warmup_steps=settings.warmup_steps, steps=settings.steps, traced_steps=settings.traced_steps, repeats=1
    )
    config = ResolvedConfig(
        workload=Workload(device=kind, model=part.model),
        measurement=windows,
        matrix=ResolvedMatrix(devices=(cell.devices,), batch_sizes=(cell.batch_size,)),
    )
    return Manifest(
        schema_version=SCHEMA_VERSION,
        dpscope_version=importlib.metadata.version("dpscope"),
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        config=config,
        device_type=kind,
        threads_per_process=rank.threads,
        environment=environment,
        plan=(),
        script=settings.script,
        findings=tuple(machine_findings(environment, kind, cell.devices)),
    )
