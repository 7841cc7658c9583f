"""The jobs of one `dpscope attach`: on how many devices, by which command, where, and what became of them. Imports no torch."""

import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from dpscope.launch.attach.jobs import attach_command, job_environment
from dpscope.launch.jobs.devices import Devices
from dpscope.profiling.records.attach_codes import AttachCode
from dpscope.profiling.records.finding import Finding, counted
from dpscope.profiling.store.errors import DpscopeError
from dpscope.profiling.store.files import write_json
from dpscope.profiling.store.folders import RunFolder, is_run_folder

SINGLE = "single"


@dataclass(frozen=True)
class AttachedJob:
    """A script on some devices; `devices` is None where it is run on one device without torchrun."""

    devices: int | None
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(repr=False, compare=False)

    @property
    def label(self) -> str:
        """As messages name it."""
        return "one device without torchrun" if self.devices is None else counted(self.devices, "device")


def plan_jobs(
    counts: Sequence[int | None],
    repeats: int,
    out: Path,
    options: Sequence[str],
    script: Sequence[str],
    found: Devices,
    work_folders: Path | None = None,
) -> list[AttachedJob]:
    """The jobs in order: each count once, then all again. With `work_folders` each has an empty working folder in it."""
    several = job_environment([count or 1 for count in counts])
    jobs = []
    for _ in range(repeats):
        for count in counts:
            name = SINGLE if count is None else f"d{count}"
            own = [] if work_folders is None else ["--work-folder", str(_free_folder(work_folders, name))]
            if count is None:
                command = [sys.executable, "-m", "dpscope.launch.attach", "--out", str(out), *options, *own, *script]
            else:
                command = attach_command(count, out, [*options, *own], script)
            jobs.append(AttachedJob(count, tuple(command), _one_device(several, found) if count is None else several))
    return jobs


def _one_device(environment: Mapping[str, str], found: Devices) -> dict[str, str]:
    """The environment with the first GPU alone: frameworks would use all that they see."""
    if found.count is None:
        return dict(environment)
    first = environment.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    return {**environment, "CUDA_VISIBLE_DEVICES": first}


def _free_folder(folders: Path, name: str) -> Path:
    """A new folder of this name and the next free number."""
    number = 0
    while (folder := folders.absolute() / f"{name}-{number}").exists():
        number += 1
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise DpscopeError(f"--work-folders {folders}: cannot make {folder.name} there: {error.strerror}") from error
    return folder


def record_jobs(out: Path, measured: Sequence[AttachedJob], failed: Mapping[AttachedJob, int]) -> None:
    """Enter into the run's manifest which jobs were not measured, with their exit statuses; forget those that now were."""
    run = RunFolder(out)
    if not is_run_folder(out) or not (measured or failed):
        return
    manifest = run.manifest()
    now = tuple(f"{job.label}: " for job in (*measured, *failed))
    kept = [
        one for one in manifest.findings if one.code != AttachCode.JOB_NOT_MEASURED or not one.message.startswith(now)
    ]
    new = [_not_measured(job, status, out, manifest.script or "") for job, status in failed.items()]
    if (findings := (*kept, *new)) != manifest.findings:
        write_json(run.manifest_path, msgspec.structs.replace(manifest, findings=findings))


def _not_measured(job: AttachedJob, status: int, out: Path, script: str) -> Finding:
    ended = f"the script ended with status {status}" if status else "the script ended"
    devices = SINGLE if job.devices is None else job.devices
    command = f"dpscope attach --devices {devices} --out {shlex.quote(str(out))} -- {script}"
    return AttachCode.JOB_NOT_MEASURED.finding(
        f"{job.label}: {ended} before it was measured; it printed the reason", f"fix the cause, then: {command}"
    )
