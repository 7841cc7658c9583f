"""Checks the settings of `dpscope equal` and runs its jobs in turn. Imports torch only if there may
be GPUs.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from rich.console import Console

from dpscope.launch.jobs.assignment import Assignment
from dpscope.launch.jobs.devices import DeviceType, resolve_devices
from dpscope.launch.jobs.job_queue import THIS_HOST, JobQueue, JobStarter, held
from dpscope.launch.jobs.out_folder import check_equality_place
from dpscope.launch.jobs.torchrun import Job
from dpscope.launch.planning.cells import resolve, threads_per_process
from dpscope.launch.planning.run_config import load_config, raising_user_errors
from dpscope.launch.planning.variants import too_few_devices, uncompilable
from dpscope.launch.workload.data_files import check_data, download_data
from dpscope.launch.workload.model_size import checked_model_size
from dpscope.profiling.records.equality import (
    EQUALITY_FOLDER,
    EQUALITY_NAME,
    EqualityConfig,
    EqualityJob,
    EqualitySettings,
    Precision,
)
from dpscope.profiling.records.finding import counted
from dpscope.profiling.records.matrix import CompileMode, layouts_of
from dpscope.profiling.records.run import Cell, CellOptions
from dpscope.profiling.records.settings import with_settings
from dpscope.profiling.records.strategies import Strategy, strategy_on, traits_of
from dpscope.profiling.store.errors import DpscopeError
from dpscope.profiling.store.files import read_json_if_there, write_json
from dpscope.profiling.store.folders import (
    SETTINGS_NAME,
    JobFolder,
    remove_empty_folders,
    remove_written,
)

EQUALITY_BATCH_SIZES: dict[DeviceType, int] = {"cuda": 32, "cpu": 8}
DEFAULTS: dict[str, object] = {
    "devices": "2",
    "data": "fake",
    "steps": 20,
    "workers": 0,
    "lr": 0.01,
}
"""Defaults that differ from those of `dpscope run`; rounding grows with the learning rate."""


def equality_settings(
    flags: Mapping[str, object], precision: Precision = "float64", nodes: int = 1
) -> EqualitySettings:
    """Settings from the command's flags, those of `dpscope run` and its own; DDP may span up to
    `nodes` nodes.

    Raises DpscopeError that names the flag, its value and an alternative.
    """
    given = load_config(None, {**DEFAULTS, **flags})
    devices = resolve_devices(given.workload.device)
    if given.matrix.batch_growth is not None or len(given.matrix.batch_sizes or (0,)) != 1:
        raise DpscopeError(
            f"--batch-size {flags.get('batch_size')}: one global batch is compared; give one"
        )
    (batch_size,) = given.matrix.batch_sizes or (EQUALITY_BATCH_SIZES[devices.kind],)
    samples = given.workload.samples  # by default epochs end within the steps
    if not flags.get("samples"):
        samples = samples_of_two_epochs(batch_size, given.measurement.steps or 0)
    with raising_user_errors():
        one_batch = with_settings(given, batch_sizes=(batch_size,), samples=samples)
    # DataParallel has no processes on other nodes
    if one_batch.matrix.layouts and "strategy" not in flags:
        one_batch = with_settings(one_batch, strategies=("single", "ddp"))
    resolved = resolve(one_batch, devices, nodes=nodes)
    steps = resolved.measurement.steps
    timeout_s = resolved.measurement.timeout_s
    assert steps is not None
    config = EqualityConfig(
        resolved.workload, resolved.optimizer, resolved.matrix, steps, timeout_s
    )
    _check(config, devices.kind)
    check_data(config.workload)
    checked_model_size(config.workload, config.optimizer)
    return EqualitySettings(
        config=config,
        device=devices.kind,
        threads_per_process=threads_per_process(config.matrix),
        precision=precision,
        jobs=tuple(_jobs(config, devices.kind)),
    )


def samples_of_two_epochs(batch_size: int, steps: int) -> int:
    """Samples of an epoch that ends with a short batch half way through the steps, so that samples
    lost there are noticed.

    >>> samples_of_two_epochs(8, 20)
    77
    """
    steps_per_epoch = max(2, steps // 2)
    return (steps_per_epoch - 1) * batch_size + batch_size // 2 + 1


def _check(config: EqualityConfig, kind: DeviceType) -> None:
    """Raise DpscopeError for settings that cannot be compared."""
    counts = config.matrix.counts
    batch_size = config.matrix.batch_sizes[0]
    if len(config.matrix.strategies) < 2 and config.matrix.compile == ("off",):
        raise DpscopeError(
            f"--strategy {config.matrix.strategies[0]}: there is nothing to compare it with; give two or three"
        )
    layouts = config.matrix.layouts
    if layouts and any(traits_of(strategy).threaded for strategy in config.matrix.strategies):
        raise DpscopeError(
            f"--devices {','.join(layouts)} with --strategy {','.join(config.matrix.strategies)}: DataParallel is one process "
            "and cannot span nodes; compare single with ddp"
        )
    if len(counts) != 1 or counts[0] < 2 or len(layouts) + len(config.matrix.devices) != 1:
        given = ",".join((*map(str, config.matrix.devices), *layouts))
        raise DpscopeError(
            f"--devices {given}: give one count of 2 or more; --strategy single adds one device"
        )
    if batch_size % counts[0]:
        raise DpscopeError(
            f"--batch-size {batch_size}: {counted(counts[0], 'device')} cannot share a global batch of {batch_size} equally; "
            f"choose a multiple of {counts[0]}"
        )
    if batch_size > config.workload.samples:
        raise DpscopeError(
            f"--batch-size {batch_size}: the data set has {counted(config.workload.samples, 'sample')}; choose a smaller one"
        )
    for strategy in config.matrix.strategies:
        if reason := too_few_devices(_cell(config, kind, strategy)):
            named = layouts[0] if layouts else counts[0]
            raise DpscopeError(
                f"--devices {named}: {reason}; give an even number of 4 or more, or omit hsdp"
            )


def _jobs(config: EqualityConfig, kind: DeviceType) -> Iterator[EqualityJob]:
    """A job for each strategy, the reference first: it also measures rounding.

    A compiled strategy is compared with the same strategy without compilation.
    """
    modes = dict.fromkeys(("off", *config.matrix.compile))
    choices = itertools.product(config.matrix.strategies, modes)
    cells = [_cell(config, kind, strategy, mode) for strategy, mode in choices]
    for index, cell in enumerate(dict.fromkeys(cells)):
        if uncompilable(cell) is None:
            yield EqualityJob(cell, ("compared",) if index else ("compared", "rounding"))


def _cell(
    config: EqualityConfig, kind: DeviceType, strategy: Strategy, mode: CompileMode = "off"
) -> Cell:
    devices = 1 if traits_of(strategy).baseline else config.matrix.counts[0]
    layouts = layouts_of(config.matrix)
    return Cell(
        strategy=strategy_on(strategy, kind),
        devices=devices,
        batch_size=config.matrix.batch_sizes[0] // devices,
        options=CellOptions(compile=mode),
        nodes=layouts[0].nodes if layouts and not traits_of(strategy).one_process else 1,
    )


def describe_comparison(settings: EqualitySettings, out: Path, console: Console) -> None:
    """Print what would be compared; starts and writes nothing. Raises DpscopeError where `out` holds
    something else.
    """
    check_equality_place(out)
    config = settings.config
    reference, *others = (job.cell.name for job in settings.jobs)
    console.print(
        f"{', '.join(others)} compared with {reference}: {counted(config.steps, 'step')} of "
        f"{counted(config.matrix.batch_sizes[0], 'sample')} in {settings.precision}; "
        f"{config.workload.model} on {config.workload.data} data, {settings.device}, "
        f"threads per process: {settings.threads_per_process}.",
        soft_wrap=True,
        highlight=False,
    )


def run_equality(
    settings: EqualitySettings, out: Path, console: Console, starter: JobStarter = THIS_HOST
) -> None:
    """Train under every strategy and save each process's records in `out`, in place of an earlier
    comparison.

    The jobs' processes end with this call whatever happens; signals end it early. Raises
    DpscopeError with the cause in one line when a job fails, passes its time limit or is stopped,
    or when `out` holds something else.
    """
    check_equality_place(out)
    with held(out, console):
        (out / EQUALITY_NAME).unlink(missing_ok=True)
        if (
            earlier := read_json_if_there(out / EQUALITY_FOLDER / SETTINGS_NAME, EqualitySettings)
        ) is not None:
            for job in earlier.jobs:
                remove_written(out, job.folder(out))
            remove_empty_folders(out / EQUALITY_FOLDER)
        write_json(out / EQUALITY_FOLDER / SETTINGS_NAME, settings)
        download_data(settings.config.workload)
        jobs = planned_comparisons(out)
        JobQueue(jobs, console, starter, all_or_nothing="nothing is compared").run_all()


def planned_comparisons(out: Path) -> Sequence[Job]:
    """The jobs of the comparison whose settings are in `out`."""
    settings = read_json_if_there(out / EQUALITY_FOLDER / SETTINGS_NAME, EqualitySettings)
    if settings is None:
        return []
    return [
        Job(
            name=job.cell.name,
            program=Assignment(task="equal", out=str(out), cell=job.cell.name).program(
                settings.device
            ),
            folder=JobFolder(job.folder(out)),
            threads=settings.threads_per_process,
            processes=job.cell.processes,
            nodes=job.cell.nodes,
            timeout_s=settings.config.timeout_s,
        )
        for job in settings.jobs
    ]
