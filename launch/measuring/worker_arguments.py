"""A worker's job, from torchrun's environment, its arguments and the run's manifest. Imports no
torch.

Rank 0 chooses the repeat of a job that was started by hand and writes it down; the other ranks wait
for that. If each rank searched for the first free repeat, they might find different ones: a network
file system shows another host's files up to a minute late, and another job may end in between.
"""

import argparse
import contextlib
import os
import sys
import time
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from dpscope.launch.jobs.devices import DeviceType, resolve_devices
from dpscope.launch.jobs.job_outcome import JOB_NAME
from dpscope.launch.jobs.out_folder import check_run_place, claimed, locked
from dpscope.launch.jobs.worker_process import (
    TorchrunPlace,
    check_nodes,
    check_process_count,
    planned_cell,
)
from dpscope.launch.planning.cells import resolve
from dpscope.launch.planning.manifest import new_manifest
from dpscope.launch.planning.run_config import flag_name, given_settings, load_config
from dpscope.launch.planning.variants import (
    PASS_THROUGH_REASON,
    strategy_options,
    too_few_devices,
    too_large,
    uncompilable,
)
from dpscope.launch.workload.data_files import OWN_MODELS, check_data
from dpscope.profiling.machine.conditions import (
    ConditionDifference,
    machine_differences,
    setting_differences,
    variable_differences,
)
from dpscope.profiling.machine.cores import usable_cores
from dpscope.profiling.records.config import MAY_CHANGE, Measurement, Optimizer, RunConfig, Workload
from dpscope.profiling.records.finding import counted
from dpscope.profiling.records.matrix import SWITCHES, VARIANTS, Amp, Matrix
from dpscope.profiling.records.run import Cell, CellOptions, Manifest, PlannedCell
from dpscope.profiling.records.settings import declarations, settings_of, with_settings
from dpscope.profiling.records.strategies import STRATEGY_LIST, strategy_on, traits_of
from dpscope.profiling.store.errors import DpscopeError
from dpscope.profiling.store.files import write_json, write_text
from dpscope.profiling.store.folders import RESULT_NAME, RepeatFolder, RunFolder, is_run_folder

WORKER_SETTINGS = tuple(
    name
    for part in (Workload, Optimizer, Measurement)
    for name in part.__struct_fields__
    # only a sweep needs them; the rest of a run's settings is in the cell
    if name not in MAY_CHANGE
)
WAIT_FOR_RANK_0_S = 120.0
POLL_S = 0.2

_JOB_VARIABLES = ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_ADDR", "MASTER_PORT")
_Found = TypeVar("_Found")


@dataclass(frozen=True)
class WorkerJob:
    """What this process measures, and its folder."""

    config: RunConfig
    cell: Cell
    repeat: int
    kind: DeviceType
    threads: int
    folder: RepeatFolder
    by_hand: bool = False  # then the process itself reports the result


def job_from_arguments(arguments: Sequence[str], place: TorchrunPlace) -> WorkerJob:
    """The job in the arguments; rank 0 adds one that was started by hand to the run's manifest."""
    options = vars(_parser().parse_args(arguments))
    run = RunFolder(options.pop("out"))
    cell_name, repeat = options.pop("cell"), options.pop("repeat")
    if cell_name is None:
        return _job_by_hand(run, options, repeat, place)
    if given := [flag_name(name) for name, value in options.items() if value is not None]:
        raise DpscopeError(
            f"--cell {cell_name} takes its settings from the run's manifest: omit {', '.join(given)}"
        )
    manifest = run.manifest()
    cell = planned_cell(cell_name, manifest.plan, run.manifest_path, place)
    check_nodes(cell, place)
    return _job(run, manifest, cell, repeat, place)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="worker.py", description="Measure one cell; run it under torchrun."
    )
    add = parser.add_argument
    add("--out", type=Path, required=True, help="the run folder; several cells may share one")
    add(
        "--cell",
        help="a cell of the run's manifest, such as ddp-d4-b128, instead of the flags below",
    )
    add("--repeat", type=int, help="number of the repeat; the next free one by default")
    add(
        "--threads",
        type=int,
        help="of each process (dp-host: replica); by default as the run's other cells have",
    )
    add("--config", type=Path, help="TOML file with the same settings")
    add("--strategy", help=f"one of {STRATEGY_LIST}")
    add("--devices", help="devices of dp; the others have one per process")
    add("--batch-size", help="samples per device")
    defaults = settings_of(RunConfig())
    flag: dict[str, Any] = {"action": "store_true", "default": None}
    for name in WORKER_SETTINGS:
        add(flag_name(name), **(flag if defaults[name] is False else {}))
    switch: dict[str, Any] = {
        "nargs": "?",
        "const": "on",
        "help": "on or off; on when the flag stands alone",
    }
    for name in VARIANTS:
        add(flag_name(name), **(switch if name in SWITCHES else {}))
    return parser


def _job(
    run: RunFolder,
    manifest: Manifest,
    cell: Cell,
    repeat: int | None,
    place: TorchrunPlace,
    config: RunConfig | None = None,
) -> WorkerJob:
    """The job that measures a cell of the manifest; `config` is that of a job started by hand."""
    threads = manifest.threads_per_process
    begun = f"{run.path}, begun with {counted(threads, 'thread')} a process"
    _check_threads(cell, place.local_world_size, threads, begun)
    chosen = chosen_repeat(run, cell, repeat, place)
    folder, kind = run.repeat(cell, chosen), manifest.device_type
    return WorkerJob(
        config or manifest.config, cell, chosen, kind, threads, folder, by_hand=config is not None
    )


def _job_by_hand(
    run: RunFolder, options: dict[str, Any], repeat: int | None, place: TorchrunPlace
) -> WorkerJob:
    config_path, threads = options.pop("config"), options.pop("threads")
    given = load_config(config_path, options)
    _check_one_cell(
        given.matrix, given_settings(config_path, options, declarations(RunConfig))[0].keys()
    )
    devices = resolve_devices(given.workload.device)
    count = _device_count(given.matrix, place, devices.count)
    strategy = given.matrix.strategies[0]
    on_this_host = place.local_world_size if not traits_of(strategy).one_process else None
    config = resolve(with_settings(given, devices=(count,), scaling="weak"), devices, on_this_host)
    cell = Cell(
        strategy=strategy_on(strategy, devices.kind),
        devices=count,
        batch_size=config.matrix.batch_sizes[0],
        options=_only_options(config.matrix, config.workload.amp),
        nodes=place.nodes if on_this_host is not None else 1,
    )
    check_process_count(cell, place)
    _check_measurable(cell, config.workload)
    if threads is not None:
        _check_threads(cell, place.local_world_size, threads, f"--threads {threads}")
    if place.rank > 0:
        manifest = _after_rank_0(
            lambda: _manifest_containing(run, config, cell, threads),
            run,
            f"has added no {cell.name}",
        )
        return _job(run, manifest, cell, repeat, place, config)
    # What the largest cell will leave each process: that is on all GPUs, as for `dpscope run`; on
    # the CPU on two devices or, where the run begins with more, on as many.
    most = max(2, count if on_this_host is None else on_this_host, devices.count or 1)
    own_threads = threads or max(1, usable_cores() // most)
    wanted = new_manifest(
        config, devices.kind, own_threads, (PlannedCell(cell=cell),), on_this_host, Path.cwd()
    )
    check_run_place(run.path)
    with locked(run.path, wait=True, note=lambda text: sys.stderr.writelines((text, "\n"))):
        manifest = _manifest_with(run, wanted, threads)
        job = _job(run, manifest, cell, repeat, place, config)
        write_json(run.manifest_path, manifest)
    return job


def _after_rank_0(find: Callable[[], _Found | None], run: RunFolder, what: str) -> _Found:
    """What rank 0 has written, once it is visible; raises DpscopeError, which says `what` it has
    not done, if it never is.
    """
    deadline = time.monotonic() + WAIT_FOR_RANK_0_S
    while (found := find()) is None:
        if time.monotonic() > deadline:
            raise DpscopeError(
                f"--out {run.path}: rank 0 {what} there in {WAIT_FOR_RANK_0_S:g} s; name one folder that all nodes share, and "
                "check rank 0's messages"
            )
        time.sleep(POLL_S)
    return found


def chosen_repeat(run: RunFolder, cell: Cell, repeat: int | None, place: TorchrunPlace) -> int:
    """The repeat to measure, by default the next free one; raises DpscopeError for one that is
    measured already.
    """
    # Identifies one attempt of a job: the same in all its processes, and in no other attempt's.
    this_job = " ".join(os.environ.get(name, "-") for name in _JOB_VARIABLES)

    def of_this_job() -> int | None:
        for number, folder in run.repeats(cell):
            with contextlib.suppress(FileNotFoundError):
                if (folder.path / JOB_NAME).read_text() == this_job:
                    return number
        return None

    if repeat is None and place.rank > 0:
        return _after_rank_0(of_this_job, run, f"has chosen no repeat of {cell.name}")
    chosen = repeat if repeat is not None else 0
    # an unfinished one is repeated
    while repeat is None and run.repeat(cell, chosen).result_path.exists():
        chosen += 1
    if chosen < 0:
        raise DpscopeError(f"--repeat {chosen}: must be 0 or more")
    folder = run.repeat(cell, chosen)
    if folder.status() == "ok":
        raise DpscopeError(
            f"--repeat {chosen}: {cell.name} is measured already, in {folder.path}; omit --repeat to add the next "
            "free one, or remove that folder to measure it again"
        )
    if place.rank == 0:
        folder.path.mkdir(parents=True, exist_ok=True)
        if repeat is None and place.world_size > 1:
            write_text(folder.path / JOB_NAME, this_job)
    return chosen


def _manifest_with(run: RunFolder, wanted: Manifest, threads: int | None) -> Manifest:
    """The run's manifest, extended by the cell in the plan of `wanted`; `wanted` itself if the run
    has no results.

    `threads` is the requested number per process; default: the run's. Raises DpscopeError if cells
    were measured, or are being measured, with other settings or on another machine.
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
        repeats = [path for path in (run.path / "cells").glob("*/*") if path.is_dir()]
        if any((path / RESULT_NAME).exists() for path in repeats):
            raise DpscopeError(
                f"{run.path} was measured with {differences[0]}: its cells could not be compared; "
                "give the same settings or another --out"
            )
        if any(claimed(path) for path in repeats):
            raise DpscopeError(
                f"{run.path}: another job is measuring there with {differences[0]}: wait for it and give the same settings, "
                "or another --out"
            )
        return wanted
    if set(wanted.plan) <= set(stored.plan):
        return stored
    lists = ("strategies", "devices", "batch_sizes", *VARIANTS)
    both = {
        name: (*getattr(stored.config.matrix, name), *getattr(wanted.config.matrix, name))
        for name in lists
    }
    return msgspec.structs.replace(
        stored,
        config=with_settings(stored.config, **both),
        plan=(*stored.plan, *wanted.plan),
        findings=tuple(dict.fromkeys((*stored.findings, *wanted.findings))),
    )


def _manifest_containing(
    run: RunFolder, config: RunConfig, cell: Cell, threads: int | None
) -> Manifest | None:
    """The run's manifest if it has this cell with these settings and threads, else None."""
    manifest = run.manifest() if is_run_folder(run.path) else None
    if manifest is None or PlannedCell(cell=cell) not in manifest.plan:
        return None
    return None if _setting_differences(manifest, config, threads) else manifest


def _setting_differences(
    stored: Manifest, config: RunConfig, threads: int | None
) -> list[ConditionDifference]:
    """Settings that differ and must be equal for cells to be comparable."""
    differences = setting_differences(stored.config, config, WORKER_SETTINGS)
    if threads not in (None, stored.threads_per_process):
        differences.append(ConditionDifference("threads", stored.threads_per_process, threads))
    return differences


def _check_one(flag: str, values: Sequence[object], what: str, growth: str = "") -> None:
    if len(values) != 1 or growth:
        raise DpscopeError(
            f"{flag} {','.join(map(str, values))}{growth}: a worker measures one {what}; give one"
        )


def _check_one_cell(matrix: Matrix, stated: Container[str]) -> None:
    """Raise DpscopeError unless the settings, of which `stated` were given, describe one cell."""
    if "strategies" not in stated:
        raise DpscopeError(
            f"--strategy is missing: a worker measures one strategy; give one of {STRATEGY_LIST}"
        )
    _check_one("--strategy", matrix.strategies, "strategy")
    if matrix.batch_sizes is None:
        raise DpscopeError("--batch-size is missing: samples per device, such as --batch-size 128")
    (strategy,) = matrix.strategies
    if "devices" in stated and not traits_of(strategy).threaded:
        why = (
            "has one"
            if traits_of(strategy).baseline
            else "has one for each of torchrun's processes"
        )
        raise DpscopeError(f"--devices does nothing here: {strategy} {why}; omit it")
    growth = f"x{matrix.batch_growth}" if matrix.batch_growth is not None else ""
    _check_one("--batch-size", matrix.batch_sizes, "batch size", growth)


def _check_measurable(cell: Cell, workload: Workload) -> None:
    """Raise DpscopeError for a cell that would fail during the job."""
    if cell.traits.threaded and cell.devices < 2:
        raise DpscopeError(
            f"--devices {cell.devices} with --strategy dp: {PASS_THROUGH_REASON}; give 2 or more"
        )
    if reason := too_few_devices(cell):
        raise DpscopeError(
            f"--strategy {cell.strategy}: {reason}; start more processes, or choose another strategy"
        )
    if reason := uncompilable(cell):
        raise DpscopeError(
            f"--compile {cell.options.compile} with --strategy {cell.strategy}: {reason}; omit it"
        )
    if reason := too_large(cell, workload.samples):
        raise DpscopeError(
            f"--batch-size {cell.batch_size}: {reason}; choose a smaller batch or more --samples"
        )
    check_data(workload)
    if workload.model not in OWN_MODELS:
        from dpscope.launch.workload.models import check_model

        check_model(workload.model)


def _only_options(matrix: Matrix, amp: Amp) -> CellOptions:
    options = strategy_options(matrix, matrix.strategies[0])
    if len(options) > 1:
        several = {
            name: getattr(matrix, name) for name in VARIANTS if len(getattr(matrix, name)) > 1
        }
        if matrix.amp_variants:
            several = {"amp": (amp, *matrix.amp_variants)}
        field, values = next(iter(several.items()))
        _check_one(flag_name(field), values, "variant")
    return options[0]


def _device_count(matrix: Matrix, place: TorchrunPlace, gpus: int | None) -> int:
    strategy = matrix.strategies[0]
    if not traits_of(strategy).one_process:
        return place.world_size
    if traits_of(strategy).baseline:
        return 1
    if matrix.devices is None:
        return gpus or 2
    _check_one("--devices", matrix.devices, "device count")
    return matrix.devices[0]


def _check_threads(cell: Cell, local_processes: int, threads: int, where: str) -> None:
    """Raise DpscopeError, beginning with `where`, when this host's share of a cell has more threads
    than cores.

    One thread each is the minimum: where that is too many, the run has a finding about it.
    """
    if threads < 1:
        raise DpscopeError(f"{where}: must be 1 or more")
    shares, cores = cell.devices if cell.traits.host_copies else local_processes, usable_cores()
    if threads > 1 and shares * threads > cores:
        raise DpscopeError(
            f"{where}: {cell.name} would compute with {shares} x {counted(threads, 'thread')} on the "
            f"{counted(cores, 'core')} of this host; give "
            f"every cell --threads {max(1, cores // shares)}, in a new --out if others are measured"
        )
