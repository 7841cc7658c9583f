"""The manifest that jobs started by hand share: each one's cell is added to its plan. Imports no torch."""

import msgspec

from dpscope.launch.devices import DeviceType
from dpscope.launch.manifest import FIELDS_OF_THE_SWEEP, new_manifest
from dpscope.launch.out_folder import claimed
from dpscope.launch.variants import VARIANT_FIELDS, merged
from dpscope.profiling.run_store import RESULT_NAME, DpscopeError, RunFolder, is_run_folder
from dpscope.profiling.run_types import Cell, Manifest, PlannedCell, RunConfig

# Fields in which cells of one run may differ: what is measured, not how.
_FIELDS_OF_THE_PLAN = (
    "strategies",
    "devices",
    "batch_sizes",
    "batch_growth",
    "scaling",
    *FIELDS_OF_THE_SWEEP,
    *VARIANT_FIELDS,
)


def free_repeat(run: RunFolder, cell: Cell) -> int:
    """The first repeat without a result; one that was cut short is done again."""
    repeat = 0
    while run.repeat(cell, repeat).result_path.exists():
        repeat += 1
    return repeat


def manifest_with(run: RunFolder, config: RunConfig, cell: Cell, kind: DeviceType, threads: int) -> Manifest:
    """The run's manifest with this cell in its plan; a new one where there is none, or none that anything came of.

    Raises DpscopeError where cells were measured, or are being measured, with other settings.
    """
    planned = PlannedCell(cell=cell)
    if not is_run_folder(run.path):
        return new_manifest(config, kind, threads, (planned,))
    manifest = run.manifest()
    for field in RunConfig.__struct_fields__:
        had, has = getattr(manifest.config, field), getattr(config, field)
        if field not in _FIELDS_OF_THE_PLAN and had != has:
            if not any((run.path / "cells").glob(f"*/*/{RESULT_NAME}")):
                _check_nobody_measures(run, f"{field} = {had}, not {has}")
                return new_manifest(config, kind, threads, (planned,))
            raise DpscopeError(
                f"{run.path} was measured with {field} = {had}, not {has}: its cells would not compare; "
                "give the same settings or another --out"
            )
    if planned in manifest.plan:
        return manifest
    return msgspec.structs.replace(manifest, config=_widened(manifest.config, config), plan=(*manifest.plan, planned))


def _check_nobody_measures(run: RunFolder, settings: str) -> None:
    """Raise DpscopeError where another job, which has no result yet, would lose its manifest."""
    if any(claimed(folder) for folder in (run.path / "cells").glob("*/*") if folder.is_dir()):
        raise DpscopeError(
            f"{run.path}: another job is measuring there with {settings}: wait for it and give the same settings, "
            "or another --out"
        )


def _widened(config: RunConfig, added: RunConfig) -> RunConfig:
    """A run's configuration that also covers an added cell's."""
    order = ("single", "dp", "ddp")
    together = {*config.strategies, *added.strategies}
    return msgspec.structs.replace(
        merged(config, added),
        strategies=tuple(strategy for strategy in order if strategy in together),
        devices=tuple(sorted({*(config.devices or ()), *(added.devices or ())})),
        batch_sizes=tuple(sorted({*(config.batch_sizes or ()), *(added.batch_sizes or ())})),
    )
