"""NCCL's choices at each size, from untimed jobs in which NCCL writes its log.

Tested with logs that a job writes to the configured place, not on a GPU.
"""

import os
from collections.abc import Callable
from pathlib import Path

import msgspec

from dpscope.launch.jobs.stop_request import StoppedError
from dpscope.profiling.machine.nccl_debug_log import read_nccl_logs
from dpscope.profiling.records.calibration import CalibratedChoices, CalibrationSettings, NcclLog
from dpscope.profiling.records.finding import Finding
from dpscope.profiling.records.matrix import Layout
from dpscope.profiling.records.run_codes import NcclCode
from dpscope.profiling.store.errors import DpscopeError

_LONGEST_S = 120.0  # of a job with one call per size
_ITEM_BYTES = (1, 2, 4, 8)

LogJob = Callable[[CalibrationSettings, Layout], NcclLog]
"""Runs a job with these settings and reads its log; raises DpscopeError if that fails, StoppedError after a signal."""


def log_variables(folder: Path) -> dict[str, str]:
    """The variables that make NCCL write its choices into a folder, one file per process."""
    return {
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_SUBSYS": "INIT,GRAPH,TUNING,NET,ENV",
        "NCCL_DEBUG_FILE": str(folder / "nccl.%h.%p.log"),
    }


def set_log_variables(folder: Path) -> None:
    """Make NCCL in this process write its choices, before it starts. The user's values take precedence."""
    for name, value in log_variables(folder).items():
        os.environ.setdefault(name, value)


def recorded_choices(
    settings: CalibrationSettings, run_job: LogJob
) -> tuple[tuple[CalibratedChoices, ...], tuple[Finding, ...]]:
    """NCCL's choices on every device count, from one job each; a finding if they could not be read.

    If the user has set one of the variables, no job is started. Raises StoppedError if a signal ends a job.
    """
    if users := [name for name in log_variables(Path()) if name in os.environ]:
        verb = "is" if len(users) == 1 else "are"
        reason = f"what NCCL chose was not recorded: {', '.join(users)} {verb} set in the environment"
        return (), (NcclCode.NCCL_CHOICES_NOT_READ.finding(reason),)
    choices: list[CalibratedChoices] = []
    findings: list[Finding] = []
    limited = msgspec.structs.replace(settings, nccl_log=True, timeout_s=min(_LONGEST_S, settings.timeout_s))
    for layout in settings.groups:
        groups = ((), (str(layout),)) if layout.nodes > 1 else ((layout.devices,), ())
        try:
            log = run_job(msgspec.structs.replace(limited, devices=groups[0], layouts=groups[1]), layout)
        except StoppedError:
            raise
        except DpscopeError as error:
            reason = f"what NCCL chose on {layout.devices} devices was not recorded: {error}"
            findings.append(NcclCode.NCCL_CHOICES_NOT_READ.finding(reason))
        else:
            choices.append(CalibratedChoices(layout.devices, layout.nodes, log))
    return tuple(choices), tuple(findings)


def read_job_log(folder: Path, settings: CalibrationSettings, layout: Layout) -> NcclLog:
    """The log of a job, with the choices at the calibration's sizes only, also rounded down to shares of equal length.

    Raises DpscopeError if NCCL wrote none, or one with another number of ranks.
    """
    if not (files := sorted(folder.glob("nccl.*.log"))):
        raise DpscopeError("NCCL wrote no log")
    log = read_nccl_logs(files)
    if not log.communicators or log.communicators[0].ranks != (devices := layout.devices):
        raise DpscopeError(f"NCCL's log has no communicator of {layout.devices} ranks")
    sizes = {size // item // devices * devices * item for size in settings.sizes for item in _ITEM_BYTES}
    sizes.update(settings.sizes)
    return msgspec.structs.replace(log, choices=tuple(one for one in log.choices if one.size_bytes in sizes), hosts=())
