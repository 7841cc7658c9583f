"""The repeat that a job measures, the command to measure it by hand, and the manifest that such jobs share. Imports no torch.

Rank 0 chooses the repeat and writes it down; the other ranks wait for that. If each rank searched for the first free repeat,
they might find different ones: a network file system shows another host's files up to a minute late, and another job may end
in between.
"""

import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from dpscope.launch.jobs.job_files import JOB_NAME
from dpscope.launch.jobs.out_folder import claimed
from dpscope.launch.jobs.worker_process import TorchrunPlace
from dpscope.launch.planning.cells import threads_per_process
from dpscope.launch.planning.run_config import flag_name
from dpscope.profiling.machine.conditions import (
    ConditionDifference,
    machine_differences,
    setting_differences,
    variable_differences,
)
from dpscope.profiling.records.config import MAY_CHANGE, Measurement, Optimizer, ResolvedConfig, RunConfig, Workload
from dpscope.profiling.records.matrix import VARIANTS
from dpscope.profiling.records.run import Cell, CellOptions, Manifest, PlannedCell
from dpscope.profiling.records.settings import idle_settings, settings_of, with_settings
from dpscope.profiling.store.errors import DpscopeError
from dpscope.profiling.store.files import write_text
from dpscope.profiling.store.folders import RESULT_NAME, RunFolder, is_run_folder

WORKER_SETTINGS = tuple(
    name
    for part in (Workload, Optimizer, Measurement)
    for name in part.__struct_fields__
    if name not in MAY_CHANGE  # only a sweep needs them; the rest of a run's settings is in the cell
)


def standalone_worker_command(config: ResolvedConfig, cell: Cell, repeat: int, out: Path) -> list[str]:
    """torchrun and a worker with flags for everything in which `config`, which is resolved, departs from the defaults.

    The threads are those of the whole run, which a worker that sees one cell cannot know.
    """
    strategy = cell.traits.stands_for or cell.strategy
    flags = ["--strategy", strategy, "--batch-size", str(cell.batch_size)]
    flags += ["--devices", str(cell.devices)] if cell.traits.threaded else []
    left_out = {*idle_settings(config), *(["amp"] if cell.options.amp else [])}
    flags += _flags(config, RunConfig(), [name for name in WORKER_SETTINGS if name not in left_out])
    flags += _flags(cell.options, CellOptions(), CellOptions.__struct_fields__)
    flags += ["--threads", str(threads_per_process(config.matrix))]
    return [
        sys.executable,
        *("-m", "torch.distributed.run", *_meeting(cell.nodes), f"--nproc-per-node={cell.processes // cell.nodes}"),
        *("-m", "dpscope.launch.worker", "--out", str(out), *flags, "--repeat", str(repeat)),
    ]


def _meeting(nodes: int) -> tuple[str, ...]:
    """How torchrun's processes meet; over several nodes the same command is given on each, with the first one's name."""
    if nodes == 1:
        return ("--standalone",)
    return (f"--nnodes={nodes}", "--rdzv-backend=c10d", "--rdzv-endpoint=HOST0:29500", "--rdzv-id=1")


def _flags(chosen: msgspec.Struct, defaults: msgspec.Struct, names: Sequence[str]) -> list[str]:
    values, usual = settings_of(chosen), settings_of(defaults)
    flags: list[str] = []
    for name in names:
        if values[name] != usual[name]:
            flags += [flag_name(name)] if values[name] is True else [flag_name(name), str(values[name])]
    return flags


WAIT_FOR_RANK_0_S = 120.0
POLL_S = 0.2

_JOB_VARIABLES = ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_ADDR", "MASTER_PORT")


def chosen_repeat(run: RunFolder, cell: Cell, repeat: int | None, place: TorchrunPlace) -> int:
    """The repeat to measure, by default the next free one; raises DpscopeError for one that is measured already."""
    if repeat is None and place.rank > 0:
        return _rank_0_repeat(run, cell)
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
    """An identifier that is the same in all processes of one attempt of a job, and in no other."""
    return " ".join(environment.get(name, "-") for name in _JOB_VARIABLES)


def _rank_0_repeat(run: RunFolder, cell: Cell) -> int:
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
                "folder that all nodes share, and check rank 0's messages"
            )
        time.sleep(POLL_S)


def free_repeat(run: RunFolder, cell: Cell) -> int:
    """The first repeat without a result; an unfinished one is repeated."""
    repeat = 0
    while run.repeat(cell, repeat).result_path.exists():
        repeat += 1
    return repeat


def manifest_with(run: RunFolder, wanted: Manifest, threads: int | None) -> Manifest:
    """The run's manifest, extended by the cell in the plan of `wanted`; `wanted` itself if the run has no results.

    `threads` is the requested number per process; default: the run's. Raises DpscopeError if cells were measured, or are being
    measured, with other settings or on another machine.
    """
    if not is_run_folder(run.path):
        return wanted
    stored = run.manifest()
    differences = [
        *_setting_differences(stored, wanted.config, threads),
        *machine_differences(stored.environment, wanted.environment, partly=["GPUs", "cores"]),
        *variable_differences(stored.environment, wanted.environment),
    ]
    if differences:
        if not any((run.path / "cells").glob(f"*/*/{RESULT_NAME}")):
            _check_no_other_job(run, differences[0])
            return wanted
        raise DpscopeError(
            f"{run.path} was measured with {differences[0]}: its cells could not be compared; "
            "give the same settings or another --out"
        )
    if set(wanted.plan) <= set(stored.plan):
        return stored
    return msgspec.structs.replace(
        stored,
        config=_widened(stored.config, wanted.config),
        plan=(*stored.plan, *wanted.plan),
        findings=tuple(dict.fromkeys((*stored.findings, *wanted.findings))),
    )


def manifest_containing(run: RunFolder, config: RunConfig, cell: Cell, threads: int | None) -> Manifest | None:
    """The run's manifest if it has this cell with these settings and threads, else None."""
    manifest = run.manifest() if is_run_folder(run.path) else None
    if manifest is None or PlannedCell(cell=cell) not in manifest.plan:
        return None
    return None if _setting_differences(manifest, config, threads) else manifest


def _setting_differences(stored: Manifest, config: RunConfig, threads: int | None) -> list[ConditionDifference]:
    """Settings that differ and must be equal for cells to be comparable."""
    differences = setting_differences(stored.config, config, WORKER_SETTINGS)
    if threads not in (None, stored.threads_per_process):
        differences.append(ConditionDifference("threads", stored.threads_per_process, threads))
    return differences


def _check_no_other_job(run: RunFolder, difference: ConditionDifference) -> None:
    """Raise DpscopeError if another job, which has no result yet, would lose its manifest."""
    if any(claimed(folder) for folder in (run.path / "cells").glob("*/*") if folder.is_dir()):
        raise DpscopeError(
            f"{run.path}: another job is measuring there with {difference}: wait for it and give the same settings, "
            "or another --out"
        )


def _widened(config: ResolvedConfig, added: ResolvedConfig) -> ResolvedConfig:
    """A run's configuration, extended by that of an added cell."""
    lists = ("strategies", "devices", "batch_sizes", *VARIANTS)
    both = {name: (*getattr(config.matrix, name), *getattr(added.matrix, name)) for name in lists}
    return with_settings(config, **both)
