"""A calibration: a torchrun job that times collectives, and a description of the machine. The
analysis fits it.

Imports torch only for the environment, after the job.
"""

import importlib.metadata
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import msgspec
from rich.console import Console

from dpscope.launch.jobs.assignment import Assignment
from dpscope.launch.jobs.job_queue import THIS_HOST, JobFailedError, JobQueue, JobStarter
from dpscope.launch.jobs.stop_request import StoppedError
from dpscope.launch.jobs.torchrun import Job
from dpscope.launch.measuring.calibration_task import collectives_path, log_variables
from dpscope.profiling.machine.cores import usable_cores
from dpscope.profiling.machine.environment import collect_environment, machine_findings
from dpscope.profiling.machine.interconnect import group_rate, interconnect
from dpscope.profiling.machine.nccl_debug_log import read_nccl_logs
from dpscope.profiling.machine.nvml import open_nvml
from dpscope.profiling.records.calibration import (
    CALIBRATION_SCHEMA_VERSION,
    CalibratedChoices,
    Calibration,
    CalibrationSettings,
    NcclLog,
    TimedCollectives,
)
from dpscope.profiling.records.finding import Finding, counted
from dpscope.profiling.records.links import LinkRate
from dpscope.profiling.records.matrix import Layout
from dpscope.profiling.records.plan_codes import PlanCode
from dpscope.profiling.records.run_codes import RunCode
from dpscope.profiling.store.errors import DpscopeError
from dpscope.profiling.store.files import read_json, read_json_if_there, write_json
from dpscope.profiling.store.folders import JobFolder

_SHARED_PREFIX = ".tmp-calibrate-"
_LONGEST_LOG_S = 120.0  # of a job with one call per size, in which NCCL writes its log
_ITEM_BYTES = (1, 2, 4, 8)


def run_calibration(
    settings: CalibrationSettings,
    console: Console,
    link: LinkRate | None = None,
    starter: JobStarter = THIS_HOST,
    scratch: Path | None = None,
) -> Calibration:
    """Time the collectives in `settings`; the calibration holds every sample and no fit.

    `scratch` is a folder that all nodes of the `starter` share; `link`, if the user states it,
    replaces the specification of the links. The job's processes end with this call in any case, and
    signals end it early. If the job fails, exceeds its time limit or is stopped, or nothing could
    be timed, prints the last lines of the failed ranks and raises DpscopeError.
    """
    findings = []
    with _temporary_job(settings, starter, scratch) as job:
        try:
            _run(job, console, starter)
            timed = read_json(job.folder.result_path, TimedCollectives)
        except JobFailedError as error:
            # what the job had timed before contention
            before = read_json_if_there(collectives_path(job.folder), TimedCollectives)
            if before is None or not before.points:
                raise
            timed = before
            reason = f"how collectives and computing slow each other could not be timed: {error.outcome.message}"
            findings.append(
                RunCode.CALIBRATION_INCOMPLETE.finding(
                    reason,
                    "predictions for cells that overlap assume no slowdown; to time it, use dpscope "
                    "calibrate --out with the run's folder",
                    severity="warning",
                )
            )
    if not timed.points:
        raise DpscopeError(
            f"nothing could be timed: {timed.left_out[0].reason}; see --collectives and --max-bytes"
        )

    def read_log(settings: CalibrationSettings, layout: Layout) -> NcclLog:
        with _temporary_job(settings, starter, scratch) as job:
            _run(job, console, starter)
            return _read_job_log(job.folder.path, settings, layout)

    cuda = settings.device == "cuda"
    processes = settings.job.per_node
    cores = usable_cores()
    choices, unread = _recorded_choices(settings, read_log) if cuda else ((), ())
    nvml = open_nvml() if cuda else None
    links = interconnect(nvml, timed.device_uuids)
    rates = {
        group.devices: rate
        for group in settings.groups
        if (rate := link or (group_rate(links, range(group.devices)) if group.nodes == 1 else None))
        is not None
    }
    if not cuda and processes > cores:
        crowded = f"{processes} processes share {counted(cores, 'core')}: they wait for cores, not only for data"
        findings.insert(
            0,
            PlanCode.CPU_OVERSUBSCRIBED.finding(
                crowded, "calibrate at most as many processes as there are cores (--devices)"
            ),
        )
    environment = collect_environment(nvml, on_gpus=cuda)
    return Calibration(
        schema_version=CALIBRATION_SCHEMA_VERSION,
        dpscope_version=importlib.metadata.version("dpscope"),
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        source="measured",
        settings=settings,
        backend=timed.backend,
        nccl_engine=timed.nccl_engine,
        environment=environment,
        device_names=timed.device_names,
        points=timed.points,
        left_out=timed.left_out,
        contention=timed.contention,
        interconnect=links,
        links=rates,
        findings=(*machine_findings(environment, settings.device, processes), *findings, *unread),
        hosts=starter.hosts(environment),
        nccl=choices,
    )


def _recorded_choices(
    settings: CalibrationSettings, run_job: Callable[[CalibrationSettings, Layout], NcclLog]
) -> tuple[tuple[CalibratedChoices, ...], tuple[Finding, ...]]:
    """NCCL's choices on every device count, from one untimed job each, whose log `run_job` reads; a
    finding if that failed.

    If the user has set one of the variables, no job is started. Raises StoppedError if a signal
    ends a job. Tested with logs that a job writes to the configured place, not on a GPU.
    """
    if users := [name for name in log_variables(Path()) if name in os.environ]:
        verb = "is" if len(users) == 1 else "are"
        reason = (
            f"what NCCL chose was not recorded: {', '.join(users)} {verb} set in the environment"
        )
        return (), (_choices_not_read(reason),)
    choices: list[CalibratedChoices] = []
    findings: list[Finding] = []
    limited = msgspec.structs.replace(
        settings, nccl_log=True, timeout_s=min(_LONGEST_LOG_S, settings.timeout_s)
    )
    for layout in settings.groups:
        groups = ((), (str(layout),)) if layout.nodes > 1 else ((layout.devices,), ())
        try:
            log = run_job(
                msgspec.structs.replace(limited, devices=groups[0], layouts=groups[1]), layout
            )
        except StoppedError:
            raise
        except DpscopeError as error:
            cause = str(error)
            if isinstance(error, JobFailedError):
                cause = f"its job failed: {error.outcome.message}"
            reason = f"what NCCL chose on {layout.devices} devices was not recorded: {cause}"
            findings.append(_choices_not_read(reason))
        else:
            choices.append(CalibratedChoices(layout.devices, layout.nodes, log))
    return tuple(choices), tuple(findings)


def _choices_not_read(reason: str) -> Finding:
    return RunCode.CALIBRATION_INCOMPLETE.finding(
        reason,
        "unset NCCL_DEBUG, NCCL_DEBUG_SUBSYS and NCCL_DEBUG_FILE and calibrate again, or pass a log "
        "with --nccl-log",
    )


def _read_job_log(folder: Path, settings: CalibrationSettings, layout: Layout) -> NcclLog:
    """The log of a job, with the choices at the calibration's sizes only, also rounded down to
    shares of equal length.

    Raises DpscopeError if NCCL wrote none, or one with another number of ranks.
    """
    if not (files := sorted(folder.glob("nccl.*.log"))):
        raise DpscopeError("NCCL wrote no log")
    log = read_nccl_logs(files)
    if log.ranks != (devices := layout.devices):
        raise DpscopeError(f"NCCL's log has no communicator of {layout.devices} ranks")
    sizes = {
        size // item // devices * devices * item for size in settings.sizes for item in _ITEM_BYTES
    }
    sizes.update(settings.sizes)
    return msgspec.structs.replace(
        log, choices=tuple(choice for choice in log.choices if choice.size_bytes in sizes), hosts=()
    )


@contextmanager
def _temporary_job(
    settings: CalibrationSettings, starter: JobStarter, scratch: Path | None
) -> Iterator[Job]:
    """A job in a temporary folder; in `scratch` if several nodes read it, else a local one, which
    is faster.
    """
    shared = None if starter.count == 1 else scratch
    folder = JobFolder(
        Path(
            tempfile.mkdtemp(prefix=_SHARED_PREFIX if shared else "dpscope-calibrate-", dir=shared)
        )
    )
    try:
        write_json(folder.settings_path, settings)
        yield _job(settings, folder)
    finally:
        shutil.rmtree(folder.path, ignore_errors=True)


def _run(job: Job, console: Console, starter: JobStarter) -> None:
    JobQueue([job], console, starter, all_or_nothing="nothing is saved").run_all()


def _job(settings: CalibrationSettings, folder: JobFolder) -> Job:
    layout = settings.job
    return Job(
        name="NCCL's choices" if settings.nccl_log else "calibration",
        program=Assignment(task="calibrate", out=str(folder.path)).program(settings.device),
        folder=folder,
        threads=max(1, usable_cores() // layout.per_node),
        processes=layout.devices,
        nodes=layout.nodes,
        timeout_s=settings.timeout_s,
    )


def planned_calibrations(scratch: Path) -> Sequence[Job]:
    """The jobs whose settings are in a folder that the nodes share."""
    folders = [JobFolder(path) for path in sorted(scratch.glob(f"{_SHARED_PREFIX}*"))]
    stored = [
        (read_json_if_there(folder.settings_path, CalibrationSettings), folder)
        for folder in folders
    ]
    return [_job(settings, folder) for settings, folder in stored if settings is not None]
