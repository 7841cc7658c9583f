"""The manifest that jobs started by hand share: each one's cell is added to its plan. Imports no torch."""

import msgspec

from dpscope.launch.jobs.out_folder import claimed
from dpscope.launch.planning.worker_command import WORKER_SETTINGS
from dpscope.profiling.machine.conditions import (
    ConditionDifference,
    machine_differences,
    setting_differences,
    variable_differences,
)
from dpscope.profiling.records.config import ResolvedConfig, RunConfig
from dpscope.profiling.records.matrix import VARIANTS
from dpscope.profiling.records.run import Cell, Manifest, PlannedCell
from dpscope.profiling.records.settings import with_settings
from dpscope.profiling.store.errors import DpscopeError
from dpscope.profiling.store.folders import RESULT_NAME, RunFolder, is_run_folder


def free_repeat(run: RunFolder, cell: Cell) -> int:
    """The first repeat without a result; one that was cut short is done again."""
    repeat = 0
    while run.repeat(cell, repeat).result_path.exists():
        repeat += 1
    return repeat


def manifest_with(run: RunFolder, wanted: Manifest, threads: int | None) -> Manifest:
    """The run's manifest with the cell that `wanted`, a manifest of its own, has in its plan.

    That is `wanted` itself where there is none, or none that anything came of. `threads` is what a process was explicitly
    told to have; else it has what the run's processes have. Raises DpscopeError where cells were measured, or are being
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
            _check_nobody_measures(run, differences[0])
            return wanted
        raise DpscopeError(
            f"{run.path} was measured with {differences[0]}: its cells would not compare; "
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
    """The run's manifest if it has this cell, measured with these settings and threads; None while it has not."""
    manifest = run.manifest() if is_run_folder(run.path) else None
    if manifest is None or PlannedCell(cell=cell) not in manifest.plan:
        return None
    return None if _setting_differences(manifest, config, threads) else manifest


def _setting_differences(stored: Manifest, config: RunConfig, threads: int | None) -> list[ConditionDifference]:
    """What was asked otherwise and must be the same for cells to compare."""
    differences = setting_differences(stored.config, config, WORKER_SETTINGS)
    if threads not in (None, stored.threads_per_process):
        differences.append(ConditionDifference("threads", stored.threads_per_process, threads))
    return differences


def _check_nobody_measures(run: RunFolder, difference: ConditionDifference) -> None:
    """Raise DpscopeError where another job, which has no result yet, would lose its manifest."""
    if any(claimed(folder) for folder in (run.path / "cells").glob("*/*") if folder.is_dir()):
        raise DpscopeError(
            f"{run.path}: another job is measuring there with {difference}: wait for it and give the same settings, "
            "or another --out"
        )


def _widened(config: ResolvedConfig, added: ResolvedConfig) -> ResolvedConfig:
    """A run's configuration that also covers an added cell's."""
    lists = ("strategies", "devices", "batch_sizes", *VARIANTS)
    both = {name: (*getattr(config.matrix, name), *getattr(added.matrix, name)) for name in lists}
    return with_settings(config, **both)
