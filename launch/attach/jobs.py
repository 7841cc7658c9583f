"""The jobs of `dpscope attach`: a script on several device counts, one torchrun job after another. Imports no torch."""

import os
import shlex
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

import msgspec

from dpscope.launch.jobs.devices import Devices, doubling
from dpscope.launch.jobs.parent_death import JOB_TOKEN_VARIABLE, dying_with_process
from dpscope.launch.jobs.stop_request import StoppedError
from dpscope.launch.jobs.torchrun import end_processes
from dpscope.profiling.machine.environment import usable_cores
from dpscope.profiling.records.attach_codes import AttachCode
from dpscope.profiling.records.finding import Finding, counted
from dpscope.profiling.store.errors import DpscopeError
from dpscope.profiling.store.files import write_json
from dpscope.profiling.store.folders import RunFolder, is_run_folder


def check_counts(counts: Sequence[int], devices: Devices) -> None:
    """Raise DpscopeError for more devices than this machine has."""
    if min(counts) < 1:
        raise DpscopeError(f"--devices {min(counts)}: every device count must be 1 or more")
    most = max(counts)
    if devices.count is not None and most > devices.count:
        raise DpscopeError(
            f"--devices {most}: this machine has {counted(devices.count, 'GPU')} that torch can use; "
            f"give {devices.count} at most"
        )
    if devices.count is None and most > usable_cores():
        raise DpscopeError(
            f"--devices {most}: this machine has no GPU and {counted(usable_cores(), 'core')}, one for each process; give "
            f"{usable_cores()} at most"
        )


def default_counts(devices: Devices) -> tuple[int, ...]:
    """1, 2, 4, ... and all devices; on the CPU two at most."""
    return doubling(min(2, usable_cores()) if devices.count is None else devices.count)


def attach_command(count: int, out: Path, options: Sequence[str], script: Sequence[str]) -> list[str]:
    """The torchrun command of one device count, which also works by hand."""
    torchrun = (sys.executable, "-m", "dpscope.launch.attach.torchrun", "--standalone", f"--nproc-per-node={count}")
    return [*torchrun, "-m", "dpscope.launch.attach", "--out", str(out), *options, *script]


def job_environment(counts: Sequence[int]) -> dict[str, str]:
    """This process's environment with one thread per process, unless the user has set OMP_NUM_THREADS.

    torchrun sets it only for several processes, and cells with different threads could not be compared.
    """
    return {**({"OMP_NUM_THREADS": "1"} if max(counts) > 1 else {}), **os.environ}


def repeats_there(out: Path) -> int:
    """Number of measured repeats in a run folder, over all cells."""
    run = RunFolder(out)
    if not is_run_folder(out):
        return 0
    return sum(1 for planned in run.manifest().plan for _ in run.done_repeats(planned.cell))


def run_jobs(commands: Sequence[Sequence[str]], environment: Mapping[str, str] | None = None) -> int:
    """Run the commands in turn with this process's input and output; returns the first exit status that is not 0.

    Passes signals that end this process on to the job, and raises StoppedError when the job has ended. A job that is ended by
    a signal leaves no process behind.
    """
    for command in commands:
        token = uuid.uuid4().hex
        job_variables = {**(os.environ if environment is None else environment), JOB_TOKEN_VARIABLE: token}
        with _signals_passed_on() as signals:
            job = subprocess.Popen(dying_with_process(os.getpid(), command), env=job_variables)
            signals.pass_to(job)
            status = job.wait()
        if signals.received or status < 0:
            end_processes(f"{JOB_TOKEN_VARIABLE}={token}")
        if signals.received:
            number = signals.received[0]
            name = signal.Signals(number).name
            raise StoppedError(f"stopped by {name}; `dpscope analyze` reports earlier measurements", 128 + number)
        if status:
            return status if status > 0 else 128 - status
    return 0


class _PassedOn:
    """Signals for a job: those that arrive before it has started are passed on when it has."""

    def __init__(self) -> None:
        self.received: list[int] = []
        self._early: list[int] = []
        self._job: subprocess.Popen[bytes] | None = None

    def arrived(self, number: int, frame: FrameType | None) -> None:
        self.received.append(number)
        if self._job is None:
            self._early.append(number)
        elif number != signal.SIGINT or not _in_foreground():
            self._job.send_signal(number)

    def pass_to(self, job: subprocess.Popen[bytes]) -> None:
        self._job = job
        for number in self._early:  # also one from a terminal, which the job was not yet there to receive
            job.send_signal(number)


@contextmanager
def _signals_passed_on() -> Iterator[_PassedOn]:
    """Take the signals that end a process, for a job that is started in this context."""
    signals = _PassedOn()
    before = {one: signal.signal(one, signals.arrived) for one in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)}
    try:
        yield signals
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _in_foreground() -> bool:
    """Whether this process and its job are in a terminal's foreground: then Ctrl-C signals both."""
    try:
        with open("/dev/tty", "rb", buffering=0) as terminal:
            return os.tcgetpgrp(terminal.fileno()) == os.getpgrp()
    except OSError:  # no terminal
        return False


SINGLE = "single"


@dataclass(frozen=True)
class AttachedJob:
    """A script on some devices; `devices` None: on one device without torchrun."""

    devices: int | None
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(repr=False, compare=False)

    @property
    def label(self) -> str:
        """Its name in messages."""
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
    """The jobs in order: each count once, then the next repeat. With `work_folders` each job has an empty folder there."""
    several = job_environment([count or 1 for count in counts])
    jobs = []
    for _ in range(repeats):
        for count in counts:
            name = SINGLE if count is None else f"d{count}"
            folder = [] if work_folders is None else ["--work-folder", str(_free_folder(work_folders, name))]
            if count is None:
                command = [sys.executable, "-m", "dpscope.launch.attach", "--out", str(out), *options, *folder, *script]
            else:
                command = attach_command(count, out, [*options, *folder], script)
            jobs.append(AttachedJob(count, tuple(command), _one_device(several, found) if count is None else several))
    return jobs


def _one_device(environment: Mapping[str, str], found: Devices) -> dict[str, str]:
    """The environment with the first GPU only: frameworks would use all visible ones."""
    if found.count is None:
        return dict(environment)
    first = environment.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    return {**environment, "CUDA_VISIBLE_DEVICES": first}


def _free_folder(folders: Path, name: str) -> Path:
    """A new folder with this name and the next free number."""
    number = 0
    while (folder := folders.absolute() / f"{name}-{number}").exists():
        number += 1
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise DpscopeError(f"--work-folders {folders}: cannot make {folder.name} there: {error.strerror}") from error
    return folder


def record_jobs(out: Path, measured: Sequence[AttachedJob], failed: Mapping[AttachedJob, int]) -> None:
    """Update the run's manifest: add jobs that were not measured, with their exit statuses; remove those now measured."""
    run = RunFolder(out)
    if not is_run_folder(out) or not (measured or failed):
        return
    manifest = run.manifest()
    now = tuple(f"{job.label}: " for job in (*measured, *failed))
    kept = [
        one
        for one in manifest.findings
        if one.code != AttachCode.JOB_NOT_MEASURED.code or not one.message.startswith(now)
    ]
    new = [_not_measured(job, status, out, manifest.script or "") for job, status in failed.items()]
    if (findings := (*kept, *new)) != manifest.findings:
        write_json(run.manifest_path, msgspec.structs.replace(manifest, findings=findings))


def _not_measured(job: AttachedJob, status: int, out: Path, script: str) -> Finding:
    ended = f"the script ended with status {status}" if status else "the script ended"
    devices = SINGLE if job.devices is None else job.devices
    command = f"dpscope attach --devices {devices} --out {shlex.quote(str(out))} -- {script}"
    return AttachCode.JOB_NOT_MEASURED.finding(
        f"{job.label}: {ended} before it was measured; see its output for the reason", f"fix the cause, then: {command}"
    )
