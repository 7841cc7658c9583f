"""A calibration: a torchrun job that times collectives, and a description of the machine. The analysis fits it.

Imports torch only for the environment, after the job.
"""

import importlib.metadata
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console

from dpscope.launch.calibration.nccl_choices import read_job_log, recorded_choices
from dpscope.launch.calibration.worker import collectives_path
from dpscope.launch.jobs.attended_job import THIS_HOST, JobStarter, SeveralNodesJob, attend_job, check_done
from dpscope.launch.jobs.job_outcome import JobOutcome
from dpscope.launch.jobs.stop_request import StopRequest
from dpscope.launch.jobs.torchrun import torchrun_prefix
from dpscope.profiling.machine.environment import collect_environment, machine_findings, usable_cores
from dpscope.profiling.machine.interconnect import group_rate, interconnect
from dpscope.profiling.machine.nvml import open_nvml
from dpscope.profiling.records.calibration import (
    CALIBRATION_SCHEMA_VERSION,
    Calibration,
    CalibrationSettings,
    NcclLog,
    TimedCollectives,
)
from dpscope.profiling.records.finding import counted
from dpscope.profiling.records.links import LinkRate
from dpscope.profiling.records.matrix import Layout
from dpscope.profiling.records.plan_codes import PlanCode
from dpscope.profiling.store.errors import DpscopeError
from dpscope.profiling.store.files import read_json, read_json_if_there, write_json
from dpscope.profiling.store.folders import JobFolder

_SHARED_PREFIX = ".tmp-calibrate-"


def run_calibration(
    settings: CalibrationSettings,
    console: Console,
    link: LinkRate | None = None,
    starter: JobStarter = THIS_HOST,
    scratch: Path | None = None,
) -> Calibration:
    """Time the collectives in `settings`; the calibration holds every sample and no fit.

    `scratch` is a folder that all nodes of the `starter` share; `link`, if the user states it, replaces the specification of the
    links. The job's processes end with this call in any case, and signals end it early. If the job fails, exceeds its time limit
    or is stopped, or nothing could be timed, prints the last lines of the failed ranks and raises DpscopeError.
    """
    findings = []
    with _ended_job(settings, console, starter, scratch, "Calibrating") as (folder, outcome, stop):
        timed = collectives_without_contention(outcome, folder)
        if timed is None:
            check_done(outcome, "calibration failed, nothing is saved", stop, console)
            timed = read_json(folder.result_path, TimedCollectives)
        else:
            reason = f"how collectives and computing slow each other could not be timed: {outcome.message}"
            findings.append(PlanCode.CONTENTION_NOT_TIMED.finding(reason))
    if not timed.points:
        raise DpscopeError(f"nothing could be timed: {timed.left_out[0].reason}; see --collectives and --max-bytes")

    def read_log(one: CalibrationSettings, layout: Layout) -> NcclLog:
        with _ended_job(one, console, starter, scratch, "Reading what NCCL chooses") as (folder, outcome, stop):
            check_done(outcome, "its job failed", stop, console)
            return read_job_log(folder.path, one, layout)

    cuda, processes, cores = settings.device == "cuda", settings.job.per_node, usable_cores()
    choices, unread = recorded_choices(settings, read_log) if cuda else ((), ())
    nvml = open_nvml() if cuda else None
    links = interconnect(nvml, timed.device_uuids)
    rates = {
        one.devices: rate
        for one in settings.groups
        if (rate := link or (group_rate(links, range(one.devices)) if one.nodes == 1 else None)) is not None
    }
    if not cuda and processes > cores:
        crowded = f"{processes} processes share {counted(cores, 'core')}: they wait for cores, not only for data"
        findings.insert(0, PlanCode.CORES_OVERSUBSCRIBED.finding(crowded))
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


@contextmanager
def _ended_job(
    settings: CalibrationSettings, console: Console, starter: JobStarter, scratch: Path | None, title: str
) -> Iterator[tuple[JobFolder, JobOutcome, StopRequest]]:
    """Run a job to its end in a temporary folder; in `scratch` if several nodes read it, else a local one, which is faster."""
    shared = None if starter.count == 1 else scratch
    folder = JobFolder(Path(tempfile.mkdtemp(prefix=_SHARED_PREFIX if shared else "dpscope-calibrate-", dir=shared)))
    try:
        write_json(folder.settings_path, settings)
        job, stop = _job(settings, folder), StopRequest()
        with stop.listening():
            outcome = attend_job(job.command, folder, job.threads, settings.timeout_s, title, stop, console, starter)
        yield folder, outcome, stop
    finally:
        shutil.rmtree(folder.path, ignore_errors=True)


def _job(settings: CalibrationSettings, folder: JobFolder) -> SeveralNodesJob:
    job = settings.job
    command = (
        *torchrun_prefix(job.devices, folder, nodes=job.nodes),
        *("-m", "dpscope.launch.calibration.worker", str(folder.path)),
    )
    return SeveralNodesJob("calibration", command, folder, max(1, usable_cores() // job.per_node), in_run=False)


def planned_calibrations(scratch: Path) -> list[SeveralNodesJob]:
    """The jobs whose settings are in a folder that the nodes share."""
    folders = [JobFolder(path) for path in sorted(scratch.glob(f"{_SHARED_PREFIX}*"))]
    stored = [(read_json_if_there(folder.settings_path, CalibrationSettings), folder) for folder in folders]
    return [_job(settings, folder) for settings, folder in stored if settings is not None]


def collectives_without_contention(outcome: JobOutcome, folder: JobFolder) -> TimedCollectives | None:
    """What a failed job had timed before contention; None if it was stopped, did not fail or had timed nothing."""
    if outcome.status in ("ok", "interrupted"):
        return None
    timed = read_json_if_there(collectives_path(folder), TimedCollectives)
    return timed if timed is not None and timed.points else None
