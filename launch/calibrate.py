"""A calibration: a torchrun job of its own that times collectives, and what is known of the machine beside it.

Imports torch only for the environment, once the job is over. The fit is the analysis's part.
"""

import importlib.metadata
import shutil
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.text import Text

from dpscope.launch.calibration_worker import MEASURED_NAME, SETTINGS_NAME, Measured
from dpscope.launch.job_files import read_progress
from dpscope.launch.job_outcome import job_outcome
from dpscope.launch.stop_request import StopRequest
from dpscope.launch.torchrun import TorchrunJob, torchrun_prefix
from dpscope.profiling.calibration_types import CALIBRATION_SCHEMA_VERSION, Calibration, CalibrationSettings
from dpscope.profiling.environment import collect_environment, device_findings, open_nvml, usable_cores
from dpscope.profiling.interconnect import group_rate, interconnect
from dpscope.profiling.link_types import Interconnect, LinkRate
from dpscope.profiling.run_store import DpscopeError, RepeatFolder, read_json, write_json
from dpscope.profiling.run_types import Finding


def run_calibration(settings: CalibrationSettings, console: Console, link_gbps: float | None = None) -> Calibration:
    """Time the collectives that `settings` names; the calibration holds every sample and no fit yet.

    `link_gbps` (1e9 B/s, one direction) takes the place of the links' specification. The job's processes end with this
    call whatever happens; signals end it early. Raises DpscopeError with the cause in one line when the job fails, passes
    its time limit or is stopped, or when nothing could be timed; the failed ranks' last lines are printed first.
    """
    if link_gbps is not None and link_gbps <= 0:
        raise DpscopeError(f"--link-gbps {link_gbps:g}: must be above 0; give the link's GB/s one way")
    folder = RepeatFolder(Path(tempfile.mkdtemp(prefix="dpscope-calibrate-")))
    try:
        measured = _run_job(settings, folder, console)
    finally:
        shutil.rmtree(folder.path, ignore_errors=True)
    if not measured.points:
        raise DpscopeError(f"nothing could be timed: {measured.left_out[0].reason}; see --collectives and --max-bytes")
    nvml = open_nvml() if settings.device == "cuda" else None
    links = interconnect(nvml, measured.device_uuids)
    environment = collect_environment(nvml)
    return Calibration(
        schema_version=CALIBRATION_SCHEMA_VERSION,
        dpscope_version=importlib.metadata.version("dpscope"),
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        source="measured",
        settings=settings,
        backend=measured.backend,
        environment=environment,
        device_names=measured.device_names,
        points=measured.points,
        left_out=measured.left_out,
        interconnect=links,
        links=_rates(settings, links, link_gbps),
        findings=(*device_findings(environment.accelerators), *_findings(settings)),
    )


def _run_job(settings: CalibrationSettings, folder: RepeatFolder, console: Console) -> Measured:
    """Run the job to its end and read what it measured."""
    write_json(folder.path / SETTINGS_NAME, settings)
    processes = max(settings.devices)
    command = [*torchrun_prefix(processes, folder), "-m", "dpscope.launch.calibration_worker", str(folder.path)]
    stop = StopRequest()
    with stop.listening(), console.status("Calibrating: starting") as status:
        job = TorchrunJob(command, folder, threads=max(1, usable_cores() // processes))
        try:
            how, exit_status = job.wait(
                settings.timeout_s,
                lambda state: status.update(f"Calibrating: {state or 'starting'}"),
                lambda: stop.requested,
            )
        finally:
            left = job.end()
    if left:
        console.print(
            f"warning: processes {', '.join(map(str, left))} cannot be ended; restart the machine if they stay"
        )
    if how == "stopped":
        raise DpscopeError("calibration interrupted: nothing is saved")
    if exit_status == 0 and (folder.path / MEASURED_NAME).exists():
        return read_json(folder.path / MEASURED_NAME, Measured)
    outcome = job_outcome(folder, exit_status, settings.timeout_s, read_progress(folder.path))
    for line in outcome.log_tail:
        console.print(Text(line, style="dim"), soft_wrap=True)
    raise DpscopeError(f"calibration failed, nothing is saved: {outcome.message}")


def _rates(settings: CalibrationSettings, links: Interconnect, link_gbps: float | None) -> dict[int, LinkRate]:
    """What the links of each device count are specified for; none for a count where that is unknown."""
    if link_gbps is not None:
        given = LinkRate(gbps=link_gbps, name="link", source="--link-gbps")
        return dict.fromkeys(settings.devices, given)
    rates = {count: group_rate(links, range(count)) for count in settings.devices}
    return {count: rate for count, rate in rates.items() if rate is not None}


def _findings(settings: CalibrationSettings) -> list[Finding]:
    processes = max(settings.devices)
    if settings.device == "cuda" or processes <= usable_cores():
        return []
    return [
        Finding(
            severity="warning",
            code="cores_oversubscribed",
            message=f"{processes} processes share {usable_cores()} core(s): they wait for cores, not only for data",
            next_step="calibrate no more processes than there are cores (--devices)",
        )
    ]
